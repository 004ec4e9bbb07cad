//! Any header bytes of a server are read or ignored, without a panic.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue, Method, StatusCode};
use proptest::prelude::*;
use proptest::sample::select;
use relent_core::{Advice, FailureKind};
use relent_http::rate_limit::XRateLimitReset;
use relent_http::{CallerContext, HintOptions, Mark, RequestInfo, classify, headers, hint};

/// Arbitrary bytes, and values close to valid ones.
fn value() -> impl Strategy<Value = HeaderValue> {
    let bytes = prop_oneof![
        any::<Vec<u8>>(),
        "[ \t]?[-+]?[0-9]{0,25}(\\.[0-9]{0,12})?[ \t]?".prop_map(String::into_bytes),
        (0..253_402_300_800_u64).prop_map(|seconds| {
            httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds)).into_bytes()
        }),
        "\"[a-z]{0,3}\";r=-?[0-9]{1,16};t=-?[0-9]{1,16}(, \"x\";r=0;t=1)?"
            .prop_map(String::into_bytes),
        select(vec![
            "true",
            "false",
            "exhausted",
            "overloaded",
            "*",
            "application/grpc",
            "\"tag\"",
            "inf",
            "1e300"
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
    ];
    bytes.prop_filter_map("no header value", |bytes| {
        HeaderValue::from_bytes(&bytes).ok()
    })
}

fn any_headers() -> impl Strategy<Value = HeaderMap> {
    prop::collection::vec((select(&headers::ALL), value()), 0..6).prop_map(|fields| {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, value);
        }
        headers
    })
}

fn any_time() -> impl Strategy<Value = SystemTime> {
    prop_oneof![
        any::<u32>().prop_map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds.into())),
        any::<u32>().prop_map(|seconds| UNIX_EPOCH - Duration::from_secs(seconds.into())),
        (0..1_u64 << 62).prop_map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds)),
    ]
}

fn any_options() -> impl Strategy<Value = HintOptions> {
    use XRateLimitReset::{DelaySeconds, Off, UnixSeconds};
    select(vec![Off, DelaySeconds, UnixSeconds])
        .prop_map(|x_rate_limit_reset| HintOptions { x_rate_limit_reset })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_headers_panic(
        headers in any_headers(),
        request_headers in any_headers(),
        status in 100..1000_u16,
        now in any_time(),
        options in any_options(),
    ) {
        let request = RequestInfo::of(&Method::POST, &request_headers);
        let status = StatusCode::from_u16(status).unwrap();
        let failure = classify(status, &headers, request, now, &options);
        let hint = hint(&headers, now, &options);
        prop_assert!(failure.is_none_or(|failure| failure.hint == hint));
        let overloaded = Mark::read(&headers) == Some(Mark::Overloaded);
        prop_assert!(failure.is_none_or(|failure| overloaded == (failure.kind == FailureKind::Overloaded)));
        prop_assert!(CallerContext::from_headers(&request_headers).attempt >= 1);
        prop_assert!(failure.is_some() || status.as_u16() < 400);
    }

    #[test]
    fn do_not_retry_leaves_no_delay(
        headers in any_headers(),
        now in any_time(),
        options in any_options(),
    ) {
        let mut headers = headers;
        headers.append(headers::X_SHOULD_RETRY, HeaderValue::from_static("false"));
        let hint = hint(&headers, now, &options);
        prop_assert_eq!((hint.advice, hint.delay()), (Advice::DoNotRetry, None));
    }
}
