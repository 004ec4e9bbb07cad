//! Signatures of webhooks: [Standard Webhooks 1.0.0][spec].
//!
//! A sender signs each attempt to deliver a message: its identifier, the time of the attempt, and the body. The
//! identifier is the same for every attempt, so the receiver can drop duplicates. The signature prevents
//! forgery, and the signed time prevents late replays of a captured message.
//!
//! ```
//! use std::time::{Duration, SystemTime};
//! use http::HeaderMap;
//! use relent_http::webhook::{Signer, SigningKey, Verifier, VerifyingKey};
//!
//! let body = br#"{"type":"payment.settled","data":{"order":17}}"#;
//! let now = SystemTime::now();
//!
//! // The sender, once for each attempt.
//! let key: SigningKey = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse()?;
//! let mut headers = HeaderMap::new();
//! Signer::new(key).sign("msg_17", now, body, &mut headers)?;
//!
//! // The receiver.
//! let key: VerifyingKey = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse()?;
//! let verifier = Verifier::new([key]);
//! assert_eq!(verifier.verify(&headers, body, now)?.id, "msg_17");
//! assert!(verifier.verify(&headers, b"{}", now).is_err());
//! assert!(verifier.verify(&headers, body, now + Duration::from_secs(301)).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Keys
//! | key format | kind |
//! |---|---|
//! | `whsec_` and base64 of 24 to 64 bytes | a shared secret: HMAC-SHA256, signatures `v1,…` |
//! | `whsk_` and base64 of an Ed25519 key (the seed of 32 bytes, or seed and public key of 64) | the sender's private key: signatures `v1a,…` |
//! | `whpk_` and base64 of 32 bytes | the public key of the one above, for the receiver |
//!
//! Keys are never printed: their `Debug` shows only the signature version.
//!
//! To rotate a key, the sender signs with both the new and the old one, and drops the old one when all
//! receivers have the new one. A receiver is given all the keys that it trusts.
//!
//! [spec]: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue};

mod keys;

pub use keys::{InvalidWebhookKey, SigningKey, VerifyingKey};

/// `webhook-id`: the identifier of the message, the same in all attempts to deliver it.
pub const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
/// `webhook-timestamp`: the time of this attempt, in whole seconds since 1970.
pub const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
/// `webhook-signature`: signatures separated by spaces, one for each key.
pub const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// The longest message identifier, in bytes.
const MAX_ID_BYTES: usize = 255;
/// The maximum number of signatures checked per request. A sender has two during key rotation; an attacker could
/// send hundreds to waste the receiver's time.
const MAX_SIGNATURES: usize = 16;

/// Signs messages with one key or, during key rotation, with several.
#[derive(Clone, Debug)]
pub struct Signer {
    keys: Vec<SigningKey>,
}

impl Signer {
    /// Creates a signer with this key.
    #[must_use]
    pub fn new(key: SigningKey) -> Self {
        Self { keys: vec![key] }
    }

    /// Adds a signature with another key, the one that is being replaced.
    #[must_use]
    pub fn also(mut self, key: SigningKey) -> Self {
        self.keys.push(key);
        self
    }

    /// Writes the three fields for an attempt at `now` to `headers`, replacing existing ones.
    ///
    /// The sender must send exactly these body bytes. A time before 1970 is written as 0, and
    /// no receiver accepts it.
    ///
    /// # Errors
    /// [`InvalidMessageId`] if the identifier is empty, longer than 255 bytes, or has any character other than visible
    /// ASCII, or a full stop: full stops separate the signed parts.
    pub fn sign(
        &self,
        id: &str,
        now: SystemTime,
        body: &[u8],
        headers: &mut HeaderMap,
    ) -> Result<(), InvalidMessageId> {
        let written = HeaderValue::from_str(id).map_err(|_| InvalidMessageId)?;
        if !is_message_id(id) {
            return Err(InvalidMessageId);
        }
        let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let prefix = prefix(id, seconds);
        let mut signatures = String::new();
        for key in &self.keys {
            if !signatures.is_empty() {
                signatures.push(' ');
            }
            signatures.push_str(key.version());
            signatures.push(',');
            STANDARD.encode_string(key.sign(prefix.as_bytes(), body), &mut signatures);
        }
        headers.insert(WEBHOOK_ID, written);
        headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(seconds));
        // Base64, commas and spaces are valid in a field.
        if let Ok(signatures) = HeaderValue::try_from(signatures) {
            headers.insert(WEBHOOK_SIGNATURE, signatures);
        }
        Ok(())
    }
}

/// The signed text in front of the body.
fn prefix(id: &str, seconds: u64) -> String {
    format!("{id}.{seconds}.")
}

fn is_message_id(id: &str) -> bool {
    let fit = |byte: u8| byte.is_ascii_graphic() && byte != b'.';
    (1..=MAX_ID_BYTES).contains(&id.len()) && id.bytes().all(fit)
}

/// Verifies that a message comes from a sender with a trusted key, unchanged and recently.
///
/// # Default
/// A message is accepted up to five minutes before and after the time that it names.
#[derive(Clone, Debug)]
pub struct Verifier {
    keys: Vec<VerifyingKey>,
    tolerance: Duration,
}

/// A message whose signature is valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verified<'h> {
    /// The identifier of the message: a receiver that has processed it drops later messages with the same
    /// identifier.
    pub id: &'h str,
    /// The time of the attempt, in whole seconds.
    pub at: SystemTime,
}

impl Verifier {
    /// Creates a verifier that trusts any of these keys. Without a key it rejects every message.
    #[must_use]
    pub fn new(keys: impl IntoIterator<Item = VerifyingKey>) -> Self {
        Self {
            keys: keys.into_iter().collect(),
            tolerance: Duration::from_secs(300),
        }
    }

    /// Sets the accepted difference, in both directions, between the local clock and the time of the attempt.
    #[must_use]
    pub const fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// The longest time for which one signature is valid: twice the tolerance, since the time that it names may be
    /// ahead. An attacker can replay a captured message within it, so the receiver must remember it at least that long.
    #[must_use]
    pub const fn replay_window(&self) -> Duration {
        self.tolerance.saturating_mul(2)
    }

    /// Verifies a message that arrived at `now`. `body` must be the bytes that were received, not parsed and
    /// written again.
    ///
    /// Signatures are compared in constant time. At most 16 signatures are checked;
    /// those of unknown versions are ignored.
    ///
    /// # Errors
    /// [`SignatureError`] with the reason. Respond with 401 (or 400) and do nothing else; the reason is for a log, not
    /// for the sender.
    pub fn verify<'h>(
        &self,
        headers: &'h HeaderMap,
        body: &[u8],
        now: SystemTime,
    ) -> Result<Verified<'h>, SignatureError> {
        let id = one(headers, &WEBHOOK_ID)?;
        if !is_message_id(id) {
            return Err(SignatureError::Malformed(WEBHOOK_ID));
        }
        let written = one(headers, &WEBHOOK_TIMESTAMP)?;
        // The digits are signed: leading zeros or a sign would be another text for the same time.
        let seconds: u64 = written
            .parse()
            .ok()
            .filter(|seconds: &u64| seconds.to_string() == written)
            .ok_or(SignatureError::Malformed(WEBHOOK_TIMESTAMP))?;
        let at = UNIX_EPOCH
            .checked_add(Duration::from_secs(seconds))
            .ok_or(SignatureError::Malformed(WEBHOOK_TIMESTAMP))?;
        if !headers.contains_key(WEBHOOK_SIGNATURE) {
            return Err(SignatureError::Missing(WEBHOOK_SIGNATURE));
        }
        let signatures: Vec<(&str, Vec<u8>)> = headers
            .get_all(WEBHOOK_SIGNATURE)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(' '))
            .filter_map(|signature| signature.split_once(','))
            .take(MAX_SIGNATURES)
            .filter_map(|(version, text)| Some((version, STANDARD.decode(text).ok()?)))
            .collect();
        let prefix = prefix(id, seconds);
        let found = self.keys.iter().any(|key| {
            let own = signatures
                .iter()
                .filter(|(version, _)| *version == key.version())
                .map(|(_, signature)| signature.as_slice());
            key.verifies(prefix.as_bytes(), body, own)
        });
        if !found {
            return Err(SignatureError::NoMatch);
        }
        // Checked after the signature, so that only the holder of the key learns the local time.
        let distance = now
            .duration_since(at)
            .unwrap_or_else(|earlier| earlier.duration());
        if distance > self.tolerance {
            return Err(SignatureError::OutOfTime { at, now });
        }
        Ok(Verified { id, at })
    }
}

/// The value of a field that must occur exactly once.
fn one<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<&'h str, SignatureError> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Err(SignatureError::Missing(name.clone())),
        (Some(value), None) => value
            .to_str()
            .map_err(|_| SignatureError::Malformed(name.clone())),
        _ => Err(SignatureError::Malformed(name.clone())),
    }
}

/// Error: a message identifier is not valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidMessageId;

impl fmt::Display for InvalidMessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the identifier of a message has 1 to {MAX_ID_BYTES} visible ASCII characters and no full stop, \
             such as msg_2KWPBgLlAfxdpx2AI54pPJ85f4W"
        )
    }
}

impl std::error::Error for InvalidMessageId {}

/// Reason for rejecting a message.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SignatureError {
    /// A field is missing.
    Missing(HeaderName),
    /// A field occurs twice, or is malformed.
    Malformed(HeaderName),
    /// No signature matches: another key, another body, or another time.
    NoMatch,
    /// The signature is valid, but the attempt was made too long ago or lies in the future: a replay by an attacker, or
    /// clocks that differ.
    OutOfTime {
        /// The time of the attempt by its sender's clock.
        at: SystemTime,
        /// The local time.
        now: SystemTime,
    },
}

impl fmt::Display for SignatureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(name) => write!(
                f,
                "the field {name} is missing: a message has {WEBHOOK_ID}, {WEBHOOK_TIMESTAMP} and {WEBHOOK_SIGNATURE}"
            ),
            Self::Malformed(name) => write!(
                f,
                "the field {name} is malformed or there twice: an identifier is visible ASCII without a full stop, \
                 and a time whole seconds since 1970"
            ),
            Self::NoMatch => f.write_str(
                "no signature matches: check that both sides have the same key, and that the body is verified as it \
                 was received, byte by byte",
            ),
            Self::OutOfTime { at, now } => {
                let (distance, side) = match now.duration_since(*at) {
                    Ok(behind) => (behind, "behind"),
                    Err(ahead) => (ahead.duration(), "ahead of"),
                };
                write!(
                    f,
                    "the message was signed {} s {side} the clock here: it was sent again by a stranger, or the \
                     clocks differ",
                    distance.as_secs()
                )
            }
        }
    }
}

impl std::error::Error for SignatureError {}

#[cfg(test)]
mod tests;
