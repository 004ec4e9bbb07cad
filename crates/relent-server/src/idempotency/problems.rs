//! What is said to a request that gets no answer of its handler.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use relent_core::Hint;
use relent_http::problem::Problem;
use relent_http::set_hint;

use super::Answer;
use crate::store::Claimed;

/// Why a request gets no answer of its handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    KeyMissing,
    KeyMalformed,
    NoPrincipal,
    TooLarge,
    BodyFailed,
    Mismatch,
    InFlight(Duration),
    Unknown,
    AnswerNotKept,
    /// Too much runs, or waits.
    Busy,
    StoreFailed,
    /// The handler has had effects, and no part of the transaction.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    NotRecorded,
}

impl Refused {
    /// What a request that may not run is told; or its answer.
    pub(crate) fn of(claimed: Claimed) -> Result<Answer, Self> {
        match claimed {
            Claimed::Replay(answer) => Ok(answer),
            Claimed::InFlight(left) => Err(Self::InFlight(left)),
            Claimed::Mismatch => Err(Self::Mismatch),
            Claimed::Unknown | Claimed::Run { .. } => Err(Self::Unknown),
        }
    }

    pub(crate) fn response(self) -> Response<Bytes> {
        let (status, code, detail) = self.text();
        let problem = Problem::new(status).detail(detail);
        // The name is none that RFC 9457 defines, so it is always taken.
        let problem = problem.clone().member("code", code).unwrap_or(problem);
        let mut response = problem.into_response().map(Bytes::from);
        let hint = match self {
            Self::InFlight(after) => Hint::after(after),
            Self::Busy | Self::StoreFailed => Hint::after(Duration::from_secs(1)),
            _ => Hint::do_not_retry(),
        };
        set_hint(response.headers_mut(), &hint);
        response
    }

    const fn text(self) -> (StatusCode, &'static str, &'static str) {
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
                "the request with this Idempotency-Key was lost, and may have had its effect: find out \
                 before you send it with a new key",
            ),
            Self::AnswerNotKept => (
                StatusCode::GONE,
                "idempotency-answer-not-kept",
                "the request with this Idempotency-Key is done, and its answer was too long to be kept",
            ),
            Self::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "idempotency-busy",
                "too many requests with an Idempotency-Key run or wait at the moment",
            ),
            Self::StoreFailed => (
                StatusCode::SERVICE_UNAVAILABLE,
                "idempotency-store-failed",
                "it cannot be found out whether the request has run: ask again later",
            ),
            #[cfg(any(feature = "postgres", feature = "sqlite"))]
            Self::NotRecorded => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "idempotency-transaction-unused",
                "the handler of this operation has answered without the transaction of its \
                 Idempotency-Key: it may have had its effect, and a repetition would run",
            ),
        }
    }
}
