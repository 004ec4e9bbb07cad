//! The response to a request that is refused.

use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use relent_core::{Advice, Rejected, Shed};
use relent_http::ErrorResponse;

use crate::refusal::Body;

/// An answer that is made once: in an overload there is no time to write.
struct Prepared {
    status: StatusCode,
    headers: HeaderMap,
    text: Bytes,
}

static SHED: LazyLock<Prepared> = LazyLock::new(|| Prepared::shed(Advice::None, SECOND));
static OVERLOADED: LazyLock<Prepared> =
    LazyLock::new(|| Prepared::shed(Advice::DoNotRetry, SECOND));
static EXPIRED: LazyLock<Prepared> = LazyLock::new(|| Prepared::new(&Rejected::Expired));

/// Times are sent in whole seconds, rounded up: up to this it is 1.
const SECOND: Duration = Duration::from_secs(1);

impl Prepared {
    fn new(rejected: &Rejected) -> Self {
        let response = ErrorResponse::rejected(rejected).into_http();
        let (head, text) = response.into_parts();
        Self {
            status: head.status,
            headers: head.headers,
            text: text.into(),
        }
    }

    fn shed(advice: Advice, after: Duration) -> Self {
        Self::new(&Rejected::Shed(Shed { advice, after }))
    }

    fn response<B>(&self) -> Response<Body<B>> {
        let mut response = Response::new(Body::refused(Bytes::clone(&self.text)));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers.clone();
        response
    }
}

/// The answer to a request, over gRPC if that is what it speaks.
pub(super) fn answer<B>(rejected: &Rejected, is_grpc: bool) -> Response<Body<B>> {
    #[cfg(feature = "grpc")]
    if is_grpc {
        return crate::refusal::refuse_grpc(&ErrorResponse::rejected(rejected));
    }
    let _ = is_grpc;
    match rejected {
        Rejected::Expired => EXPIRED.response(),
        Rejected::Shed(Shed {
            advice: Advice::DoNotRetry,
            ..
        }) => OVERLOADED.response(),
        Rejected::Shed(shed) if shed.after <= SECOND => SHED.response(),
        other => Prepared::new(other).response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_prepared_says_what_would_be_written() {
        let shed = |advice, millis| {
            let after = Duration::from_millis(millis);
            Rejected::Shed(Shed { advice, after })
        };
        for rejected in [
            Rejected::Expired,
            shed(Advice::None, 1),
            shed(Advice::None, 1000),
            shed(Advice::None, 1001),
            shed(Advice::None, 90_000),
            shed(Advice::DoNotRetry, 100),
        ] {
            let written = ErrorResponse::rejected(&rejected).into_http();
            let answer = answer::<String>(&rejected, false);
            assert_eq!(answer.status(), written.status());
            assert_eq!(answer.headers(), written.headers(), "{rejected:?}");
        }
    }
}
