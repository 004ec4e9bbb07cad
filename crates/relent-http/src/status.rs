//! What a status of HTTP means by itself (design rule 2).

use http::StatusCode;
use relent_core::{Advice, Hint, HintSource, Kind, Scope};

use crate::repeatable::RequestFacts;

/// The kind of a status of 400 or above.
pub(crate) fn kind(status: StatusCode, hint: &Hint, request: RequestFacts) -> Kind {
    match status.as_u16() {
        421 | 425 => Kind::NotProcessed,
        429 => Kind::Throttled,
        408 | 503 if asks_for_delay(hint) || hint.advice == Advice::DoRetry => Kind::NotProcessed,
        408 | 503 => Kind::Ambiguous,
        409 if request.keyed && asks_for_delay(hint) => Kind::Throttled,
        413 if asks_for_delay(hint) => Kind::NotProcessed,
        400..=499 | 501 | 505 | 511 => Kind::Permanent,
        _ => Kind::Ambiguous,
    }
}

/// Whom a status of 400 or above speaks of.
pub(crate) fn scope(status: StatusCode) -> Scope {
    match status.as_u16() {
        408 | 429 => Scope::Destination,
        400..=499 => Scope::Request,
        _ => Scope::Destination,
    }
}

/// Whether the response itself asks for a delay. The state of a quota is no such request: a gateway
/// adds it to responses of a server that has already acted.
pub(crate) fn asks_for_delay(hint: &Hint) -> bool {
    hint.delay().is_some()
        && !matches!(
            hint.source,
            HintSource::RateLimit | HintSource::XRateLimitReset
        )
}
