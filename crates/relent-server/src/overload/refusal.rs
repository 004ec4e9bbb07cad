//! What a request is told that is turned away.

use std::sync::LazyLock;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use relent_core::{Advice, Hint, Rejected, Shed};
use relent_http::ErrorResponse;

use super::Body;

/// The texts, each made once: in an overload there is no time to write.
static SHED: LazyLock<Bytes> = LazyLock::new(|| problem(Advice::None));
static OVERLOADED: LazyLock<Bytes> = LazyLock::new(|| problem(Advice::DoNotRetry));
static EXPIRED: LazyLock<Bytes> = LazyLock::new(|| {
    ErrorResponse::rejected(&Rejected::Expired)
        .into_http()
        .into_body()
        .into()
});

fn problem(advice: Advice) -> Bytes {
    // No time is in the text.
    let after = std::time::Duration::from_secs(1);
    let rejected = Rejected::Shed(Shed { advice, after });
    ErrorResponse::rejected(&rejected)
        .into_http()
        .into_body()
        .into()
}

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// The answer to a request, over gRPC if that is what it speaks.
pub(super) fn answer<B>(rejected: &Rejected, is_grpc: bool) -> Response<Body<B>> {
    let answer = ErrorResponse::rejected(rejected);
    #[cfg(feature = "grpc")]
    if is_grpc {
        return answer.grpc_head().map(|()| Body::refusal(Bytes::new()));
    }
    let _ = is_grpc;
    let text = match rejected {
        Rejected::Expired => &EXPIRED,
        _ if answer.hint == Hint::do_not_retry() => &OVERLOADED,
        _ => &SHED,
    };
    let mut response = answer.head().map(|()| Body::refusal(Bytes::clone(text)));
    response.headers_mut().insert(CONTENT_TYPE, PROBLEM_JSON);
    response
}
