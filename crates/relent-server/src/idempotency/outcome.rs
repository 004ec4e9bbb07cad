//! What the answer of a handler says about its effects.

use http::{HeaderMap, Response, StatusCode};
use relent_core::GrpcCode;
use relent_http::grpc;

/// Whether a request has had its effect, as its handler says it: in the extensions of the response.
///
/// Without it, the status says it:
///
/// | status | outcome |
/// |---|---|
/// | 2xx, 3xx, any other 4xx | [`Final`](Self::Final) |
/// | 401, 403, 408, 409, 425, 429 | [`NotApplied`](Self::NotApplied) |
/// | 5xx | [`Unknown`](Self::Unknown) |
///
/// | over gRPC | outcome |
/// |---|---|
/// | `OK`, `INVALID_ARGUMENT`, `NOT_FOUND`, `ALREADY_EXISTS`, `FAILED_PRECONDITION`, `OUT_OF_RANGE`, `UNIMPLEMENTED` | [`Final`](Self::Final) |
/// | `UNAUTHENTICATED`, `PERMISSION_DENIED`, `RESOURCE_EXHAUSTED`, `ABORTED` | [`NotApplied`](Self::NotApplied) |
/// | any other, and none | [`Unknown`](Self::Unknown) |
///
/// ```
/// use relent_server::idempotency::Outcome;
///
/// // The card was declined before anything was written, and may not be at the next try.
/// let mut response = http::Response::new("no funds");
/// *response.status_mut() = http::StatusCode::BAD_GATEWAY;
/// response.extensions_mut().insert(Outcome::NotApplied);
/// assert_eq!(Outcome::of(&response), Outcome::NotApplied);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// The answer stands: duplicates get it.
    Final,
    /// The request has had no effect, and the next one with its key runs.
    NotApplied,
    /// It may have had an effect: the next one is a [takeover](relent_core::claim::Takeover).
    Unknown,
}

impl Outcome {
    /// Of a response.
    #[must_use]
    pub fn of<B>(response: &Response<B>) -> Self {
        if let Some(outcome) = response.extensions().get() {
            return *outcome;
        }
        if let Some(code) = grpc::code(response.headers()) {
            return Self::of_code(code);
        }
        match response.status() {
            StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::REQUEST_TIMEOUT
            | StatusCode::CONFLICT
            | StatusCode::TOO_EARLY
            | StatusCode::TOO_MANY_REQUESTS => Self::NotApplied,
            status if status.is_server_error() => Self::Unknown,
            _ => Self::Final,
        }
    }

    /// Of a gRPC call with these trailers.
    pub(super) fn of_trailers(trailers: Option<&HeaderMap>) -> Self {
        trailers
            .and_then(grpc::code)
            .map_or(Self::Unknown, Self::of_code)
    }

    fn of_code(code: u16) -> Self {
        match GrpcCode::from_number(code) {
            Some(
                GrpcCode::Ok
                | GrpcCode::InvalidArgument
                | GrpcCode::NotFound
                | GrpcCode::AlreadyExists
                | GrpcCode::FailedPrecondition
                | GrpcCode::OutOfRange
                | GrpcCode::Unimplemented,
            ) => Self::Final,
            Some(
                GrpcCode::Unauthenticated
                | GrpcCode::PermissionDenied
                | GrpcCode::ResourceExhausted
                | GrpcCode::Aborted,
            ) => Self::NotApplied,
            _ => Self::Unknown,
        }
    }
}
