//! Properties of the format for arbitrary bytes.
#![cfg_attr(
    not(fuzzing),
    allow(unreachable_pub, reason = "a target of fuzzing calls it")
)]

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use relent_core::{Backoff, Policy};

use super::{answer, attempt, header_map, read_answer, read_attempt, read_permission};
use relent_outbox::acknowledgement::{MAX_BODY, ReceiverResponse, judge};
use relent_outbox::endpoint::Acknowledgement;

static POLICY: Policy = Policy::builder(Backoff::constant(Duration::ZERO)).build_const();

/// Parses arbitrary bytes as each kind of message. A parsed message can be evaluated and serialized, and is parsed as
/// the same again. Otherwise the error describes the problem.
pub fn any_bytes(message: &[u8]) {
    let _ = read_permission(message);
    let message = Bytes::copy_from_slice(message);
    match read_attempt(&message) {
        Ok((head, payload)) => {
            let _ = header_map(&head.headers);
            let again = attempt(&head, &payload).and_then(|again| read_attempt(&again));
            assert_eq!(again, Ok((head, payload)));
        }
        Err(wrong) => assert!((1..500).contains(&wrong.len()), "{wrong}"),
    }
    match read_answer(&message) {
        Ok(exchange) => {
            if let Ok(received) = &exchange.result {
                let got = ReceiverResponse {
                    status: received.status,
                    headers: &received.headers,
                    body: &received.body,
                    end: received.end,
                };
                let rule = Acknowledgement::CodeSuccess;
                let _ = judge(got, rule, &POLICY, SystemTime::UNIX_EPOCH);
            }
            let written = answer(exchange, MAX_BODY, usize::MAX);
            let again = written.clone().and_then(|written| read_answer(&written));
            assert_eq!(
                again.and_then(|again| answer(again, MAX_BODY, usize::MAX)),
                written
            );
            assert!(written.is_ok());
        }
        Err(wrong) => assert!((1..500).contains(&wrong.len()), "{wrong}"),
    }
}

#[cfg(test)]
mod properties {
    use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
    use proptest::collection::vec;
    use proptest::prelude::*;
    use relent_core::{Cause, Failure, FailureKind, Network};

    use super::*;
    use crate::wire::{
        Attempt, MAX_ATTEMPT_TIME, MAX_HEAD_BYTES, MAX_RESPONSE_FIELDS, VERSION, write,
    };
    use relent_outbox::acknowledgement::BodyEnd;
    use relent_outbox::fault::FaultKind;
    use relent_outbox::sender::{Exchange, Received};

    fn an_attempt() -> impl Strategy<Value = Attempt> {
        let relay = "[a-z-]{1,8}\\.relay\\.[0-9a-f]{1,8}\\.[0-9]{1,9}";
        let headers = vec((any::<String>(), any::<String>()), 0..9);
        (
            relay,
            any::<String>(),
            headers,
            0..=MAX_ATTEMPT_TIME.as_nanos() as u64,
            any::<usize>(),
        )
            .prop_map(|(relay, url, headers, limit, keep)| Attempt {
                version: VERSION,
                relay,
                url,
                headers,
                limit: Duration::from_nanos(limit),
                keep,
            })
    }

    fn an_exchange() -> impl Strategy<Value = Exchange> {
        let field = ("[a-z][a-z-]{0,9}", "[ -~]{0,20}");
        let ends = [
            BodyEnd::Whole,
            BodyEnd::TooLong,
            BodyEnd::Cut,
            BodyEnd::TimedOut,
        ];
        let received = (
            100_u16..1000,
            vec(field, 0..9),
            vec(any::<u8>(), 0..200),
            prop::sample::select(ends.to_vec()),
        )
            .prop_map(|(status, fields, body, end)| {
                let mut headers = HeaderMap::new();
                for (name, value) in fields {
                    let name: HeaderName = name.parse().unwrap();
                    headers.append(name, HeaderValue::from_str(&value).unwrap());
                }
                let status = StatusCode::from_u16(status).unwrap();
                Ok(Received {
                    status,
                    headers,
                    body: body.into(),
                    end,
                })
            });
        let kinds = [
            FailureKind::NotProcessed,
            FailureKind::Ambiguous,
            FailureKind::Permanent,
            FailureKind::Throttled,
            FailureKind::Overloaded,
        ];
        let networks = [
            None,
            Some(Network::Dns),
            Some(Network::NameNotFound),
            Some(Network::Connect),
            Some(Network::Handshake),
            Some(Network::Certificate),
            Some(Network::RefusedStream),
            Some(Network::GoAway),
            Some(Network::Reset),
            Some(Network::Truncated),
            Some(Network::BadRequest),
            Some(Network::Other),
            Some(Network::Malformed),
            Some(Network::Local),
        ];
        let failed = (
            prop::sample::select(kinds.to_vec()),
            prop::sample::select(networks.to_vec()),
            "[ -~é]{0,40}",
        )
            .prop_map(|(kind, network, error)| {
                let cause = network.map_or(Cause::Timeout, Cause::Network);
                Err((Failure::new(kind).cause(cause), error))
            });
        let address = prop::option::of(any::<std::net::SocketAddr>());
        let faults = FaultKind::ALL.map(|(kind, _)| Some(kind));
        let fault = prop::sample::select([&faults[..], &[None]].concat());
        let all = (
            prop_oneof![received, failed],
            address,
            any::<Duration>(),
            fault,
        );
        all.prop_map(|(result, address, took, fault)| {
            let address = address.map_or_else(String::new, |address| address.to_string());
            Exchange {
                fault: fault.filter(|_| result.is_err()),
                result,
                address,
                took,
            }
        })
    }

    fn assert_same(read: &Exchange, written: &Exchange) {
        assert_eq!((&read.address, read.took), (&written.address, written.took));
        assert_eq!(read.fault, written.fault);
        match (&read.result, &written.result) {
            (Ok(read), Ok(written)) => {
                assert_eq!(read.status, written.status);
                assert_eq!(
                    (&read.headers, &read.body),
                    (&written.headers, &written.body)
                );
                assert_eq!(read.end, written.end);
            }
            (Err(read), Err(written)) => assert_eq!(read, written),
            _ => panic!("{read:?} is not {written:?}"),
        }
    }

    fn copy(of: &Exchange) -> Exchange {
        let result = match &of.result {
            Ok(Received {
                status,
                headers,
                body,
                end,
            }) => Ok(Received {
                status: *status,
                headers: headers.clone(),
                body: body.clone(),
                end: *end,
            }),
            Err(failed) => Err(failed.clone()),
        };
        Exchange {
            result,
            address: of.address.clone(),
            took: of.took,
            fault: of.fault,
        }
    }

    proptest! {
        #[test]
        fn nats_messages_are_read_back_as_written(head in an_attempt(), payload in vec(any::<u8>(), 0..200), exchange in an_exchange()) {
            let written = attempt(&head, &payload).unwrap();
            prop_assert_eq!(read_attempt(&written), Ok((head, Bytes::from(payload))));
            let written = answer(copy(&exchange), MAX_BODY, usize::MAX).unwrap();
            assert_same(&read_answer(&written).unwrap(), &exchange);
        }

        #[test]
        fn any_bytes_are_parsed_or_refused_as_nats_messages(bytes in vec(any::<u8>(), 0..300), text in "[\\[\\]{}\",:0-9a-z\n]{0,60}") {
            any_bytes(&bytes);
            any_bytes(text.as_bytes());
        }

        #[test]
        fn a_truncated_nats_message_is_refused(
            head in an_attempt(),
            payload in vec(any::<u8>(), 0..50),
            exchange in an_exchange(),
            at in any::<prop::sample::Index>(),
        ) {
            let written = attempt(&head, &payload).unwrap();
            prop_assert!(read_attempt(&written.slice(..at.index(written.len()))).is_err());
            let written = answer(exchange, MAX_BODY, usize::MAX).unwrap();
            prop_assert!(read_answer(&written.slice(..at.index(written.len()))).is_err());
        }

        #[test]
        fn a_modified_nats_message_is_parsed_or_refused(
            head in an_attempt(),
            exchange in an_exchange(),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
        ) {
            for written in [attempt(&head, b"{}").unwrap(), answer(exchange, MAX_BODY, usize::MAX).unwrap()] {
                let mut changed = written.to_vec();
                let at = at.index(changed.len());
                changed[at] = byte;
                any_bytes(&changed);
            }
        }
    }

    #[test]
    fn a_result_is_truncated_to_the_limit_of_the_nats_server() {
        let mut headers = HeaderMap::new();
        for field in 0..120 {
            let name: http::HeaderName = format!("x-{field}").parse().unwrap();
            headers.insert(name, "\"".repeat(900).parse().unwrap());
        }
        let received = |length| Exchange {
            result: Ok(Received {
                status: StatusCode::OK,
                headers: headers.clone(),
                body: vec![b'x'; length].into(),
                end: BodyEnd::Whole,
            }),
            address: String::new(),
            took: Duration::ZERO,
            fault: None,
        };
        for most in [4 << 10, 64 << 10, 256 << 10, 1 << 20] {
            let written = answer(received(MAX_BODY), MAX_BODY, most).unwrap();
            assert!(written.len() <= most, "{} of {most}", written.len());
            let read = read_answer(&written).unwrap().result.unwrap();
            let is_whole = read.body.len() == MAX_BODY;
            assert_eq!(read.end == BodyEnd::Whole, is_whole, "{most}");
        }
    }

    fn read(head: &serde_json::Value, rest: &[u8]) -> String {
        let written = write(head, rest).unwrap();
        any_bytes(&written);
        let answer = read_answer(&written);
        answer.err().unwrap_or_default()
    }

    #[test]
    fn impossible_values_in_nats_messages_are_refused_with_a_description() {
        let valid = serde_json::json!({
            "outcome": { "Answered": { "status": 200, "headers": [], "end": "Whole" } },
            "address": "", "took": { "secs": 0, "nanos": 0 },
        });
        assert_eq!(read(&valid, b"success"), "");
        assert!(read(&valid, &vec![b'x'; MAX_BODY + 1]).contains("65536 are the most"));
        for (at, value, wrong) in [
            (
                "/outcome/Answered/status",
                serde_json::json!(99),
                "99 is no status",
            ),
            (
                "/outcome/Answered/status",
                serde_json::json!(1000),
                "1000 is no status",
            ),
            (
                "/outcome/Answered/status",
                serde_json::json!(-1),
                "cannot be read",
            ),
            (
                "/outcome/Answered/status",
                serde_json::json!(1e99),
                "cannot be read",
            ),
            (
                "/outcome/Answered/end",
                serde_json::json!("Later"),
                "cannot be read",
            ),
            (
                "/outcome/Answered/headers",
                serde_json::json!([["a b", ""]]),
                "the name of field 0",
            ),
            (
                "/outcome/Answered/headers",
                serde_json::json!([["a", "\r\nb: c"]]),
                "the value of field 0",
            ),
            (
                "/outcome/Answered/headers",
                serde_json::json!(vec![["a", "b"]; MAX_RESPONSE_FIELDS + 1]),
                "128 are the most",
            ),
            // `HeaderMap` panics at 32,768 fields.
            (
                "/outcome/Answered/headers",
                serde_json::json!(vec![["a", "b"]; 40_000]),
                "128 are the most",
            ),
            (
                "/address",
                serde_json::json!("127.0.0.1:1\0"),
                "its address",
            ),
            ("/took/secs", serde_json::json!(1e30), "cannot be read"),
            ("/took/nanos", serde_json::json!(u64::MAX), "cannot be read"),
        ] {
            let mut head = valid.clone();
            *head.pointer_mut(at).unwrap() = value;
            let refused = read(&head, b"");
            assert!(refused.contains(wrong), "{at}: {refused}");
        }

        let valid = Attempt {
            version: VERSION,
            relay: "relent-outbox.relay.x.0".to_owned(),
            url: "https://shop.example/".to_owned(),
            headers: Vec::new(),
            limit: MAX_ATTEMPT_TIME,
            keep: usize::MAX,
        };
        let read = |attempt: &Attempt| read_attempt(&write(attempt, b"").unwrap());
        assert_eq!(read(&valid), Ok((valid.clone(), Bytes::new())));
        let wrong = |change: &dyn Fn(&mut Attempt)| {
            let mut changed = valid.clone();
            change(&mut changed);
            read(&changed).unwrap_err()
        };
        assert!(wrong(&|attempt| attempt.version = 2).contains("is of version 2"));
        assert!(
            wrong(&|attempt| attempt.limit += Duration::from_secs(1))
                .contains("86400 s are the most")
        );
        for relay in [
            "",
            "relent-outbox.relay.",
            "relent-outbox.relay.>",
            "relent-outbox.relay.x\r\nPUB a 1",
            "a. .b",
        ] {
            let wrong = wrong(&|attempt| relay.clone_into(&mut attempt.relay));
            assert!(wrong.contains("no subject"), "{relay}: {wrong}");
        }
        for (leave, read) in [
            ("0", Some(0)),
            ("5000", Some(5000)),
            ("5001", None),
            ("-1", None),
            ("", None),
            ("1e3", None),
        ] {
            assert_eq!(
                read_permission(leave.as_bytes()).ok(),
                read.map(Duration::from_millis),
                "{leave}"
            );
        }
        let text = |bytes: &[u8]| read_attempt(&Bytes::copy_from_slice(bytes)).unwrap_err();
        assert!(text(b"").contains("empty"));
        assert!(text(b"{}").contains("has no end"));
        assert!(text(&vec![b' '; MAX_HEAD_BYTES + 1]).contains("more than"));
        assert!(text(b"[3,{}]\n").contains("cannot be read"));
    }

    #[test]
    fn the_largest_response_of_a_receiver_fits_a_result() {
        let mut headers = HeaderMap::new();
        for at in 0..2 * MAX_RESPONSE_FIELDS {
            let name: HeaderName = format!("field-{at}").parse().unwrap();
            // Every fourth field is too long.
            let length = if at % 4 == 0 { 2000 } else { 1000 };
            headers.append(name, HeaderValue::from_str(&"\"".repeat(length)).unwrap());
        }
        let received = Received {
            status: StatusCode::OK,
            headers,
            body: vec![0; MAX_BODY].into(),
            end: BodyEnd::TooLong,
        };
        let exchange = Exchange {
            result: Ok(received),
            address: "[::1]:443".to_owned(),
            took: Duration::MAX,
            fault: None,
        };
        let read = read_answer(&answer(exchange, MAX_BODY, usize::MAX).unwrap()).unwrap();
        let received = read.result.unwrap();
        assert_eq!(
            (received.headers.len(), received.body.len()),
            (MAX_RESPONSE_FIELDS, MAX_BODY)
        );
    }
}
