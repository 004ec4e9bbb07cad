//! The response to a rejected request.

use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use relent_core::Advice;
use relent_core::admission::{Rejected, Shed};
use relent_http::{ErrorResponse, grpc};

use crate::refusal::Body;

/// A prebuilt response, so that a rejection during overload is cheap.
struct Prepared {
    status: StatusCode,
    headers: HeaderMap,
    /// The headers with the problem as body, for a request that accepts one.
    with_text: HeaderMap,
    text: Bytes,
}

/// The form of a rejection that the request accepts.
#[derive(Clone, Copy)]
pub(super) enum Form {
    Grpc,
    /// The problem as its body.
    Problem,
    /// Status and header fields only, which is all that a Relent client reads. Writing the problem is a fifth of the
    /// cost of a rejection, so it is sent only on request.
    Head,
}

impl Form {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        if grpc::is_grpc(headers) {
            return Self::Grpc;
        }
        let names_json = |value: &HeaderValue| {
            let mut words = value.as_bytes().windows(4);
            words.any(|word| word.eq_ignore_ascii_case(b"json"))
        };
        match headers.get_all(ACCEPT).iter().any(names_json) {
            true => Self::Problem,
            false => Self::Head,
        }
    }
}

static SHED: LazyLock<Prepared> = LazyLock::new(|| Prepared::shed(Advice::None, SECOND));
static OVERLOADED: LazyLock<Prepared> =
    LazyLock::new(|| Prepared::shed(Advice::DoNotRetry, SECOND));
static EXPIRED: LazyLock<Prepared> = LazyLock::new(|| Prepared::new(&Rejected::Expired));

/// `Retry-After` is rounded up to whole seconds, so every delay up to 1 s has the same response.
const SECOND: Duration = Duration::from_secs(1);

impl Prepared {
    fn new(rejected: &Rejected) -> Self {
        let response = ErrorResponse::rejected(rejected).into_http();
        let (head, text) = response.into_parts();
        let mut headers = head.headers.clone();
        headers.remove(CONTENT_TYPE);
        Self {
            status: head.status,
            headers,
            with_text: head.headers,
            text: text.into(),
        }
    }

    fn shed(advice: Advice, after: Duration) -> Self {
        Self::new(&Rejected::Shed(Shed { advice, after }))
    }

    fn response<B>(&self, form: Form) -> Response<Body<B>> {
        let (headers, text) = match form {
            Form::Problem => (&self.with_text, Bytes::clone(&self.text)),
            Form::Head | Form::Grpc => (&self.headers, Bytes::new()),
        };
        let mut response = Response::new(Body::refused(text));
        *response.status_mut() = self.status;
        // There are one or two fields: inserting them costs a quarter of cloning the map.
        for (name, value) in headers {
            response.headers_mut().append(name, value.clone());
        }
        response
    }
}

/// Returns the response in the form of the request.
pub(super) fn answer<B>(rejected: &Rejected, form: Form) -> Response<Body<B>> {
    #[cfg(feature = "grpc")]
    if matches!(form, Form::Grpc) {
        return crate::refusal::refuse_grpc(&ErrorResponse::rejected(rejected));
    }
    match rejected {
        Rejected::Expired => EXPIRED.response(form),
        Rejected::Shed(Shed {
            advice: Advice::DoNotRetry,
            ..
        }) => OVERLOADED.response(form),
        Rejected::Shed(shed) if shed.after <= SECOND => SHED.response(form),
        other => Prepared::new(other).response(form),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_request_that_accepts_json_gets_a_problem() {
        for (accept, problem) in [
            ("*/*", false),
            ("text/html", false),
            ("application/problem+json", true),
            ("text/html, application/JSON;q=0.5", true),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().unwrap());
            let form = Form::of(&headers);
            assert_eq!(matches!(form, Form::Problem), problem, "{accept}");
        }
        assert!(matches!(Form::of(&HeaderMap::new()), Form::Head));
    }

    #[test]
    fn a_prebuilt_rejection_equals_a_built_one() {
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
            let problem = answer::<String>(&rejected, Form::Problem);
            assert_eq!(problem.status(), written.status());
            assert_eq!(problem.headers(), written.headers(), "{rejected:?}");
            let mut head = written.headers().clone();
            head.remove(CONTENT_TYPE);
            let bare = answer::<http_body_util::Empty<Bytes>>(&rejected, Form::Head);
            assert_eq!(bare.status(), written.status());
            assert_eq!(*bare.headers(), head, "{rejected:?}");
            assert!(http_body::Body::is_end_stream(bare.body()));
        }
    }
}
