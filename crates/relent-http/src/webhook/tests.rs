use super::*;
use proptest::prelude::*;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const SEED: &str = "whsk_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const PUBLIC: &str = "whpk_A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=";
const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
const BODY: &[u8] = br#"{"test": 2432232314}"#;
/// From the tests of the specification's libraries, and from Python's cryptography for the same content.
const V1: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
const V1A: &str =
    "v1a,yoUrgEkc12aGqm0n4Sydmdz55xJfTz4AsAgieHFjmkR7LJtqVCZOQYzvvHjI5kAey+r4iaBGxTFRrl2iBQxtDQ==";

fn at() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_614_265_330)
}

fn signing(text: &str) -> SigningKey {
    text.parse().unwrap()
}

fn verifier(texts: &[&str]) -> Verifier {
    Verifier::new(texts.iter().map(|text| text.parse().unwrap()))
}

fn signed(texts: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let (first, rest) = texts.split_first().unwrap();
    let signer = rest
        .iter()
        .fold(Signer::new(signing(first)), |signer, key| {
            signer.also(signing(key))
        });
    signer.sign(ID, at(), BODY, &mut headers).unwrap();
    headers
}

#[test]
fn webhook_signatures_match_other_implementations() {
    assert_eq!(signed(&[SECRET])[WEBHOOK_SIGNATURE], V1);
    assert_eq!(signed(&[SEED])[WEBHOOK_SIGNATURE], V1A);
    let both = signed(&[SECRET, SEED]);
    assert_eq!(both[WEBHOOK_SIGNATURE], format!("{V1} {V1A}"));
    assert_eq!(both[WEBHOOK_ID], ID);
    assert_eq!(both[WEBHOOK_TIMESTAMP], "1614265330");
}

#[test]
fn a_message_is_verified_with_any_of_its_keys() {
    let other = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";
    for (sender, receiver, good) in [
        (vec![SECRET], vec![SECRET], true),
        (vec![SEED], vec![PUBLIC], true),
        (vec![SECRET], vec![other], false),
        (vec![SECRET], vec![PUBLIC], false),
        (vec![SEED], vec![SECRET], false),
        (vec![SECRET], vec![], false),
        // Key rotation: the sender has both keys, the receiver has the old or the new one.
        (vec![other, SECRET], vec![SECRET], true),
        (vec![SECRET], vec![other, SECRET], true),
    ] {
        let headers = signed(&sender);
        let verified = verifier(&receiver).verify(&headers, BODY, at());
        let expected = Verified { id: ID, at: at() };
        match good {
            true => assert_eq!(verified, Ok(expected), "{sender:?} {receiver:?}"),
            false => assert_eq!(
                verified,
                Err(SignatureError::NoMatch),
                "{sender:?} {receiver:?}"
            ),
        }
    }
    let key = signing(SEED).verifying_key();
    assert!(
        Verifier::new([key])
            .verify(&signed(&[SEED]), BODY, at())
            .is_ok()
    );
}

#[test]
fn identifier_time_and_body_are_all_signed() {
    let verifier = verifier(&[SECRET, PUBLIC]);
    for key in [SECRET, SEED] {
        let headers = signed(&[key]);
        assert_eq!(
            verifier.verify(&headers, b"{\"test\":2432232314}", at()),
            Err(SignatureError::NoMatch)
        );
        for (name, value) in [(WEBHOOK_ID, "msg_other"), (WEBHOOK_TIMESTAMP, "1614265331")] {
            let mut headers = headers.clone();
            headers.insert(name, HeaderValue::from_static(value));
            assert_eq!(
                verifier.verify(&headers, BODY, at()),
                Err(SignatureError::NoMatch)
            );
        }
    }
}

#[test]
fn a_replayed_old_message_is_rejected() {
    let (verifier, headers) = (verifier(&[SECRET]), signed(&[SECRET]));
    let limit = Duration::from_secs(300);
    for now in [at() - limit, at(), at() + limit] {
        assert!(verifier.verify(&headers, BODY, now).is_ok());
    }
    let late = limit + Duration::from_millis(1);
    for now in [at() - late, at() + late, UNIX_EPOCH] {
        let error = verifier.verify(&headers, BODY, now).unwrap_err();
        assert_eq!(error, SignatureError::OutOfTime { at: at(), now });
    }
    let strict = verifier.tolerance(Duration::from_secs(5));
    assert!(strict.verify(&headers, BODY, at() + limit).is_err());
    let error = strict.verify(&headers, BODY, at() + limit).unwrap_err();
    assert!(error.to_string().contains("300 s behind"), "{error}");
}

#[test]
fn an_error_names_the_missing_repeated_or_malformed_field() {
    let verifier = verifier(&[SECRET]);
    for name in [WEBHOOK_ID, WEBHOOK_TIMESTAMP, WEBHOOK_SIGNATURE] {
        let mut headers = signed(&[SECRET]);
        headers.remove(&name);
        let error = verifier.verify(&headers, BODY, at()).unwrap_err();
        assert_eq!(error, SignatureError::Missing(name));
    }
    for (name, value) in [
        (WEBHOOK_ID, "a.b"),
        (WEBHOOK_ID, ""),
        (WEBHOOK_ID, "a b"),
        (WEBHOOK_TIMESTAMP, "+1614265330"),
        (WEBHOOK_TIMESTAMP, "01614265330"),
        (WEBHOOK_TIMESTAMP, "1614265330.5"),
        (WEBHOOK_TIMESTAMP, "99999999999999999999"),
        (WEBHOOK_TIMESTAMP, "18446744073709551615"),
        (WEBHOOK_TIMESTAMP, "-1"),
        (WEBHOOK_TIMESTAMP, ""),
    ] {
        let mut headers = signed(&[SECRET]);
        headers.insert(name.clone(), HeaderValue::from_static(value));
        let error = verifier.verify(&headers, BODY, at()).unwrap_err();
        assert_eq!(error, SignatureError::Malformed(name), "{value:?}");
    }
    let mut headers = signed(&[SECRET]);
    headers.append(WEBHOOK_ID, HeaderValue::from_static("msg_other"));
    assert!(verifier.verify(&headers, BODY, at()).is_err());
}

/// Full stops join the signed parts, so with one in the identifier, `a` at `1` with body `2.x` would be ambiguous.
#[test]
fn a_message_identifier_with_a_full_stop_is_rejected() {
    let signer = Signer::new(signing(SECRET));
    for id in ["", "a.b", "a b", "ä", "a\n", &"x".repeat(256)] {
        let mut headers = HeaderMap::new();
        let signed = signer.sign(id, at(), BODY, &mut headers);
        assert_eq!(signed, Err(InvalidMessageId), "{id:?}");
        assert!(headers.is_empty());
    }
    let longest = "x".repeat(255);
    assert!(
        signer
            .sign(&longest, at(), BODY, &mut HeaderMap::new())
            .is_ok()
    );
}

#[test]
fn unknown_versions_and_excess_signatures_are_ignored() {
    let verifier = verifier(&[SECRET]);
    let with = |value: String| {
        let mut headers = signed(&[SECRET]);
        headers.insert(WEBHOOK_SIGNATURE, value.parse().unwrap());
        verifier.verify(&headers, BODY, at()).is_ok()
    };
    assert!(with(format!("v2,AAAA v1,!!! v1 ,  v1a,AAAA {V1}")));
    let wrong = "v1,AAAA ";
    assert!(with(format!("{}{V1}", wrong.repeat(15))));
    assert!(!with(format!("{}{V1}", wrong.repeat(16))), "the 17th");
    // The bytes of a valid signature: under another version, without a version, and truncated.
    let bare = V1.trim_start_matches("v1,");
    assert!(!with(format!("v1a,{bare}")));
    assert!(!with(bare.to_owned()));
    assert!(!with("v1,".to_owned()));
    assert!(!with("v1,g0hM9SsE+OTPJTGt".to_owned()));
    // Two fields are one list.
    let mut headers = signed(&[SECRET]);
    headers.insert(WEBHOOK_SIGNATURE, HeaderValue::from_static("v1,AAAA"));
    headers.append(WEBHOOK_SIGNATURE, V1.parse().unwrap());
    assert!(verifier.verify(&headers, BODY, at()).is_ok());
}

#[test]
fn an_invalid_webhook_key_names_the_problem() {
    use InvalidWebhookKey as E;
    let long = format!("whsec_{}", "A".repeat(88));
    let mismatch = format!("whsk_{}", "A".repeat(86));
    for (text, error) in [
        ("", E::Prefix),
        ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", E::Prefix),
        ("whsec_", E::Length { found: 0 }),
        (
            "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRY=",
            E::Length { found: 23 },
        ),
        (&long, E::Length { found: 66 }),
        ("whsec_***", E::Base64),
        ("whsk_AAAA", E::Length { found: 3 }),
        (&mismatch, E::Mismatch),
        (PUBLIC, E::Public),
    ] {
        assert_eq!(text.parse::<SigningKey>().unwrap_err(), error, "{text}");
    }
    for (text, error) in [
        ("whpk_AAAA", E::Length { found: 3 }),
        (
            "whpk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
            E::Mismatch,
        ),
        (SEED, E::Private),
        ("key", E::Prefix),
    ] {
        assert_eq!(text.parse::<VerifyingKey>().unwrap_err(), error, "{text}");
    }
    // Keys without the padding, and with the public half.
    assert!(SEED.trim_end_matches('=').parse::<SigningKey>().is_ok());
    let seed = STANDARD.decode(SEED.trim_start_matches("whsk_")).unwrap();
    let public = STANDARD.decode(PUBLIC.trim_start_matches("whpk_")).unwrap();
    let pair = format!("whsk_{}", STANDARD.encode([seed, public].concat()));
    let mut headers = HeaderMap::new();
    Signer::new(signing(&pair))
        .sign(ID, at(), BODY, &mut headers)
        .unwrap();
    assert_eq!(headers[WEBHOOK_SIGNATURE], V1A);
}

#[test]
fn debug_output_never_shows_a_webhook_key() {
    let shown = format!(
        "{:?} {:?} {:?}",
        Signer::new(signing(SECRET)).also(signing(SEED)),
        verifier(&[SECRET, PUBLIC]),
        "whsec_MfKQ9r8G".parse::<SigningKey>()
    );
    assert_eq!(
        shown,
        "Signer { keys: [SigningKey(v1), SigningKey(v1a)] } \
         Verifier { keys: [VerifyingKey(v1), VerifyingKey(v1a)], tolerance: 300s } \
         Err(Length { found: 6 })"
    );
}

proptest! {
    #[test]
    fn a_signed_message_is_verified(
        id in "[!-\\-/-~]{1,255}",
        seconds in 0_u64..10_000_000_000,
        body in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let now = UNIX_EPOCH + Duration::from_secs(seconds);
        let mut headers = HeaderMap::new();
        Signer::new(signing(SECRET)).also(signing(SEED)).sign(&id, now, &body, &mut headers).unwrap();
        for key in [SECRET, PUBLIC] {
            let verifier = verifier(&[key]);
            prop_assert_eq!(verifier.verify(&headers, &body, now), Ok(Verified { id: &id, at: now }));
        }
    }

    #[test]
    fn arbitrary_messages_are_rejected_without_a_panic(
        id in proptest::collection::vec(32_u8..=255, 0..20),
        time in "[ -~]{0,22}",
        signature in "(v1,|v1a,| |[A-Za-z0-9+/=,]){0,40}",
        body in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut headers = HeaderMap::new();
        if let Ok(id) = HeaderValue::from_bytes(&id) {
            headers.insert(WEBHOOK_ID, id);
        }
        headers.insert(WEBHOOK_TIMESTAMP, time.parse().unwrap());
        headers.insert(WEBHOOK_SIGNATURE, signature.parse().unwrap());
        prop_assert!(verifier(&[SECRET, PUBLIC]).verify(&headers, &body, at()).is_err());
    }
}
