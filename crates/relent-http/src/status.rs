//! Kind and scope of a failure by its HTTP status.

use http::StatusCode;
use relent_core::{FailureKind, Hint, Scope};

use crate::hint::asks_for_delay;
use crate::outcome::Outcome;
use crate::repeatable::RequestInfo;

/// The kind of a status of 400 or above: whether the request took effect, and whether repeating it can help.
pub(crate) fn kind(status: StatusCode, hint: &Hint, request: RequestInfo) -> FailureKind {
    match (status.as_u16(), Outcome::of_status(status, || *hint)) {
        // Repeating cannot help, whatever the outcome.
        (401 | 403 | 501 | 505 | 511, _) => FailureKind::Permanent,
        (409, _) if !(request.keyed && asks_for_delay(hint)) => FailureKind::Permanent,
        (409 | 429, _) => FailureKind::Throttled,
        (_, Outcome::NotApplied) => FailureKind::NotProcessed,
        (_, Outcome::Final) => FailureKind::Permanent,
        (_, Outcome::Unknown) => FailureKind::Ambiguous,
    }
}

/// Whether a status of 400 or above concerns the request or the destination.
pub(crate) fn scope(status: StatusCode) -> Scope {
    match status.as_u16() {
        408 | 429 => Scope::Destination,
        400..=499 => Scope::Request,
        _ => Scope::Destination,
    }
}
