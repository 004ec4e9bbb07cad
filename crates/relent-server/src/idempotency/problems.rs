//! The responses to requests without a response of their handler.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use relent_core::Hint;
use relent_core::admission::Rejected;
use relent_http::headers::RELENT_SCOPE;
use relent_http::problem::Problem;
use relent_http::{ErrorResponse, set_hint};

use super::KeySource;
use super::StoredResponse;
use crate::observe;
use crate::store::Claimed;

/// The reason why a request gets no response of its handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rejection {
    KeyMissing,
    KeyMalformed,
    FirstSentMalformed,
    /// The request was first sent longer ago than records are kept.
    Forgotten,
    NoPrincipal,
    TooLarge,
    BodyFailed,
    BodyTooSlow,
    Mismatch,
    InFlight(Duration),
    Unknown,
    AnswerNotKept,
    /// A limit of executions, waiters or memory is reached.
    Busy,
    /// The overload layer has rejected the request when it waited for a slot again.
    NoSlot(Rejected),
    StoreFailed,
    /// An outer layer has claimed the key.
    Nested,
    /// The handler has responded with success without a record.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    NotRecorded,
    /// The handler has responded with success, and its second `run` was rejected.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    RunTwice,
    /// The header fields are not those of a message.
    #[cfg(feature = "webhook")]
    NoMessage,
    /// No known key has signed the message, or its timestamp is out of range.
    #[cfg(feature = "webhook")]
    NotVerified,
    /// The signature of the message is valid for longer than its record is kept.
    #[cfg(feature = "webhook")]
    RetentionTooShort,
}

/// Status, code and detail of a problem.
type Text = (StatusCode, &'static str, &'static str);

impl Rejection {
    /// Returns the stored response, or the reason why the request may not run.
    pub(crate) fn of(claimed: Claimed) -> Result<StoredResponse, Self> {
        match claimed {
            Claimed::Replay(answer) => Ok(answer),
            Claimed::InFlight(left) => Err(Self::InFlight(left)),
            Claimed::Mismatch => Err(Self::Mismatch),
            Claimed::Unknown | Claimed::Run { .. } => Err(Self::Unknown),
        }
    }

    fn response(self, source: KeySource) -> Response<Bytes> {
        #[cfg(feature = "webhook")]
        if (self, source) == (Self::AnswerNotKept, KeySource::WebhookId) {
            // The message is acknowledged. Some senders would take 410 as a request to unsubscribe.
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = StatusCode::NO_CONTENT;
            return response;
        }
        let (status, code, detail) = self.text(source);
        let overloaded = self.overloaded();
        let problem = match &overloaded {
            Some(overloaded) => overloaded.problem(),
            None => Problem::new(status).detail(detail),
        };
        // RFC 9457 does not define this name, so `member` accepts it.
        let problem = problem.clone().member("code", code).unwrap_or(problem);
        let mut response = problem.into_response().map(Bytes::from);
        match overloaded {
            Some(overloaded) => overloaded.set(response.headers_mut()),
            None => set_hint(response.headers_mut(), &self.hint(source)),
        }
        self.set_scope(response.headers_mut());
        response
    }

    /// Tells the client that a slow handler is no fault of the service.
    fn set_scope(self, headers: &mut HeaderMap) {
        if matches!(self, Self::InFlight(_)) {
            headers.insert(RELENT_SCOPE, HeaderValue::from_static("request"));
        }
    }

    /// Returns the response of the overload layer, if that has rejected the request.
    const fn overloaded(self) -> Option<ErrorResponse> {
        match self {
            Self::NoSlot(rejected) => Some(ErrorResponse::rejected(&rejected)),
            _ => None,
        }
    }

    /// Returns the problem as a gRPC status, or as an HTTP response without the feature `grpc`.
    fn grpc_response(self) -> Response<Bytes> {
        #[cfg(not(feature = "grpc"))]
        return self.response(KeySource::IdempotencyKey);
        #[cfg(feature = "grpc")]
        {
            use relent_http::grpc::{Status, set_pushback};

            if let Some(overloaded) = self.overloaded() {
                return overloaded.grpc_head().map(|()| Bytes::new());
            }
            let source = KeySource::IdempotencyKey;
            let after = self.hint(source).delay();
            let (_, _, detail) = self.text(source);
            let mut response = Response::new(Bytes::new());
            let fields = response.headers_mut();
            let grpc = HeaderValue::from_static("application/grpc");
            fields.insert(http::header::CONTENT_TYPE, grpc);
            let status = Status {
                code: self.grpc_code().number(),
                message: detail.to_owned(),
                retry_delay: after,
            };
            status.set(fields);
            set_pushback(fields, after);
            self.set_scope(fields);
            response
        }
    }

    /// Returns the response in the protocol of the request, and counts it.
    pub(crate) fn observed(self, source: KeySource, is_grpc: bool) -> Response<Bytes> {
        observe::keyed(self.code(source));
        self.written(source, is_grpc)
    }

    /// Returns the response in the protocol of the request.
    pub(crate) fn written(self, source: KeySource, is_grpc: bool) -> Response<Bytes> {
        // A gRPC status comes with HTTP 200, which a sender of webhooks takes for an acknowledgement.
        match is_grpc && source == KeySource::IdempotencyKey {
            true => self.grpc_response(),
            false => self.response(source),
        }
    }

    /// Returns the code of the problem.
    const fn code(self, source: KeySource) -> &'static str {
        self.text(source).1
    }

    fn hint(self, source: KeySource) -> Hint {
        #[cfg(not(feature = "webhook"))]
        let _ = source;
        match self {
            // The mean is 0 before the first execution has ended.
            Self::InFlight(after) => Hint::after(after.max(Duration::from_millis(1))),
            Self::Busy | Self::StoreFailed => Hint::after(Duration::from_secs(1)),
            Self::NoSlot(rejected) => rejected.hint(),
            // A sender of webhooks follows its own schedule, and the fault may be fixed before that ends.
            #[cfg(feature = "webhook")]
            _ if source == KeySource::WebhookId && self != Self::Mismatch => Hint::NONE,
            // The request has not run, and may be sent again over a better connection.
            Self::BodyTooSlow => Hint::after(Duration::from_secs(1)),
            _ => Hint::do_not_retry(),
        }
    }

    #[cfg(feature = "grpc")]
    const fn grpc_code(self) -> relent_core::GrpcCode {
        use relent_core::GrpcCode;

        match self {
            Self::KeyMissing
            | Self::KeyMalformed
            | Self::FirstSentMalformed
            | Self::BodyFailed
            | Self::Mismatch => GrpcCode::InvalidArgument,
            Self::NoPrincipal => GrpcCode::Unauthenticated,
            Self::TooLarge => GrpcCode::ResourceExhausted,
            Self::Unknown | Self::AnswerNotKept | Self::Forgotten => GrpcCode::FailedPrecondition,
            // `ABORTED` would ask for another call, with another key. This one is to be repeated.
            Self::InFlight(_) | Self::Busy | Self::NoSlot(_) | Self::StoreFailed => {
                GrpcCode::Unavailable
            }
            Self::Nested => GrpcCode::Internal,
            #[cfg(any(feature = "postgres", feature = "sqlite"))]
            Self::NotRecorded | Self::RunTwice => GrpcCode::Internal,
            #[cfg(feature = "webhook")]
            Self::NoMessage => GrpcCode::InvalidArgument,
            #[cfg(feature = "webhook")]
            Self::NotVerified => GrpcCode::Unauthenticated,
            Self::BodyTooSlow => GrpcCode::DeadlineExceeded,
            #[cfg(feature = "webhook")]
            Self::RetentionTooShort => GrpcCode::Internal,
        }
    }

    const fn text(self, source: KeySource) -> Text {
        match source {
            KeySource::IdempotencyKey => self.text_of_key(),
            #[cfg(feature = "webhook")]
            KeySource::WebhookId => self.text_of_webhook(),
        }
    }

    /// The text for a sender of webhooks. Most senders repeat after everything but 2xx, but some take 4xx for final.
    /// So temporary conditions are 5xx here, or 408, which every sender repeats.
    #[cfg(feature = "webhook")]
    const fn text_of_webhook(self) -> Text {
        match self {
            Self::TooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "webhook-too-large",
                "the body is longer than a message may be here",
            ),
            Self::BodyFailed => (
                StatusCode::REQUEST_TIMEOUT,
                "webhook-incomplete",
                "the body of the message has not arrived whole",
            ),
            Self::BodyTooSlow => (
                StatusCode::REQUEST_TIMEOUT,
                "webhook-too-slow",
                "the body of the message has not arrived in time",
            ),
            Self::Mismatch => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "webhook-id-reused",
                "another message with this webhook-id has arrived: a message keeps its body in all attempts to deliver \
                 it, and a new one has a new webhook-id",
            ),
            Self::InFlight(_) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "webhook-in-flight",
                "the message with this webhook-id is being handled, and not acknowledged yet: deliver it again later",
            ),
            Self::Unknown => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "webhook-outcome-unknown",
                "an earlier delivery of this message failed in its handler, or was interrupted, and may have taken \
                 effect: the operator of the receiver has to find out",
            ),
            Self::Busy | Self::NoSlot(_) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "webhook-busy",
                "too many messages are handled at the moment",
            ),
            Self::StoreFailed => (
                StatusCode::SERVICE_UNAVAILABLE,
                "webhook-store-failed",
                "it cannot be found out whether the message was handled: deliver it again later",
            ),
            #[cfg(any(feature = "postgres", feature = "sqlite"))]
            Self::NotRecorded => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "webhook-transaction-unused",
                "the handler has acknowledged the message and not recorded it: its transaction was not used, or was \
                 rolled back",
            ),
            other => other.text_of_key(),
        }
    }

    const fn text_of_key(self) -> Text {
        match self {
            Self::KeyMissing => (
                StatusCode::BAD_REQUEST,
                "idempotency-key-missing",
                "send an Idempotency-Key: one for each request, the same for each of its repetitions",
            ),
            Self::KeyMalformed => (
                StatusCode::BAD_REQUEST,
                "idempotency-key-malformed",
                "an Idempotency-Key is one field of 1 to 255 printable ASCII characters, in quotes or bare",
            ),
            Self::FirstSentMalformed => (
                StatusCode::BAD_REQUEST,
                "repeatability-first-sent-malformed",
                "Repeatability-First-Sent is one HTTP date, such as Sun, 06 Nov 1994 08:49:37 GMT",
            ),
            Self::Forgotten => (
                StatusCode::PRECONDITION_FAILED,
                "idempotency-key-forgotten",
                "the request was first sent longer ago than answers are kept, and may have run: find out before you \
                 send it with a new key",
            ),
            Self::NoPrincipal => (
                StatusCode::UNAUTHORIZED,
                "idempotency-principal-missing",
                "an Idempotency-Key belongs to an account, and this request has none",
            ),
            Self::TooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "idempotency-request-too-large",
                "the body is longer than a request with an Idempotency-Key may have",
            ),
            Self::BodyFailed => (
                StatusCode::BAD_REQUEST,
                "idempotency-request-incomplete",
                "the body of the request has not arrived whole",
            ),
            Self::Mismatch => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "idempotency-key-reused",
                "this Idempotency-Key belongs to another request: take a new key for a new request",
            ),
            Self::InFlight(_) => (
                StatusCode::CONFLICT,
                "idempotency-in-flight",
                "the request with this Idempotency-Key still runs: ask again later",
            ),
            Self::Unknown => (
                StatusCode::CONFLICT,
                "idempotency-outcome-unknown",
                "the request with this Idempotency-Key failed in its handler, or was interrupted, and may have taken \
                 effect: find out before you send it with a new key",
            ),
            Self::AnswerNotKept => (
                StatusCode::GONE,
                "idempotency-answer-not-kept",
                "the request with this Idempotency-Key is done, and its answer was not kept: it was too long, too slow, or \
                 a stream",
            ),
            Self::Busy | Self::NoSlot(_) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "idempotency-busy",
                "too many requests with an Idempotency-Key are here at the moment, or too many of this account",
            ),
            Self::StoreFailed => (
                StatusCode::SERVICE_UNAVAILABLE,
                "idempotency-store-failed",
                "it cannot be found out whether the request has run: ask again later",
            ),
            Self::Nested => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "idempotency-layer-nested",
                "this request has passed an idempotency layer already: take one of the two out of the service",
            ),
            #[cfg(any(feature = "postgres", feature = "sqlite"))]
            Self::NotRecorded => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "idempotency-transaction-unused",
                "the handler of this operation has answered with success what the transaction of its Idempotency-Key has \
                 not recorded: it was not used, is not over, or was rolled back, and a repetition would run",
            ),
            #[cfg(any(feature = "postgres", feature = "sqlite"))]
            Self::RunTwice => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "idempotency-transaction-run-twice",
                "the handler of this operation has called `run` twice, and the second call has done nothing: put all effects \
                 of a request into one call",
            ),
            #[cfg(feature = "webhook")]
            Self::NoMessage => (
                StatusCode::BAD_REQUEST,
                "webhook-malformed",
                "a message has one webhook-id (1 to 255 visible ASCII characters, no full stop), one webhook-timestamp \
                 (whole seconds since 1970), and a webhook-signature",
            ),
            #[cfg(feature = "webhook")]
            Self::NotVerified => (
                StatusCode::UNAUTHORIZED,
                "webhook-not-verified",
                "no signature is one over these bytes by a key that is known here, or the webhook-timestamp is too far \
                 from the time here: compare keys and clocks, and see that nothing changes the body on its way",
            ),
            Self::BodyTooSlow => (
                StatusCode::REQUEST_TIMEOUT,
                "idempotency-request-too-slow",
                "the body of the request has not arrived in time: nothing was done",
            ),
            #[cfg(feature = "webhook")]
            Self::RetentionTooShort => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "webhook-kept-too-short",
                "this receiver forgets messages while their signatures are still good: the operator of the receiver has to \
                 raise `retention`, or to lower the tolerance of the verifier",
            ),
        }
    }
}
