//! Kind and scope of a failure by its HTTP status.

use http::StatusCode;
use relent_core::{Hint, Kind, Scope};

use crate::hint::asks_for_delay;
use crate::outcome::Outcome;
use crate::repeatable::RequestFacts;

/// The kind of a status of 400 or above: whether the request took effect, and whether repeating it can help.
pub(crate) fn kind(status: StatusCode, hint: &Hint, request: RequestFacts) -> Kind {
    match (status.as_u16(), Outcome::of_status(status, || *hint)) {
        // Repeating cannot help, whatever the outcome.
        (401 | 403 | 501 | 505 | 511, _) => Kind::Permanent,
        (409, _) if !(request.keyed && asks_for_delay(hint)) => Kind::Permanent,
        (409 | 429, _) => Kind::Throttled,
        (_, Outcome::NotApplied) => Kind::NotProcessed,
        (_, Outcome::Final) => Kind::Permanent,
        (_, Outcome::Unknown) => Kind::Ambiguous,
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
