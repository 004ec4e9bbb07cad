//! Classification of errors of reqwest and of this crate. For other transports see [`relent_http::network`].

use std::error::Error;

use relent::GaveUp;
use relent_core::{Failure, StopReason};
use relent_http::network::chain;

use crate::attempt_failure::AttemptError;
pub use crate::classify::classify;
use crate::error::within;
use crate::redirects::RedirectRefused;

/// Classifies any error that has an error of reqwest or of this crate in its chain of sources.
///
/// All other errors are passed to [`relent_http::network::classify_error`].
///
/// ```
/// use relent_core::{Cause, Network};
/// use relent_reqwest::{AttemptError, network};
///
/// let error = reqwest::Client::new().get("no URL").build().unwrap_err();
/// let failure = network::classify_error(&AttemptError::Transport(error));
/// assert_eq!(failure.cause, Cause::Network(Network::BadRequest));
/// ```
///
/// If another layer of this process has [given up](given_up) the call, its last error is classified, and marked as
/// not to be retried.
#[must_use]
pub fn classify_error(error: &(dyn Error + 'static)) -> Failure {
    let failure = classify_cause(error);
    match given_up(error) {
        Some(reason) => relent_http::network::given_up_by(failure, reason),
        None => failure,
    }
}

/// Returns the reason why another layer of this process gave up the call with this error; `None` if none did.
///
/// Recognizes errors of a [`Client`](crate::Client) or a `RetryMiddleware`, and the errors that
/// [`relent_http::network::given_up`] recognizes.
#[must_use]
pub fn given_up(error: &(dyn Error + 'static)) -> Option<StopReason> {
    chain(error).find_map(|source| {
        if let Some(gave_up) = source.downcast_ref::<GaveUp<AttemptError>>() {
            return Some(gave_up.reason());
        }
        match within(source) {
            Some(inner) => given_up(inner),
            None => relent_http::network::given_up(source),
        }
    })
}

/// Classifies by the innermost known error, regardless of the layer that gave up.
fn classify_cause(error: &(dyn Error + 'static)) -> Failure {
    for source in chain(error) {
        if let Some(error) = source.downcast_ref() {
            return classify(error);
        }
        if source.is::<RedirectRefused>() {
            return Failure::permanent();
        }
        if let Some(inner) = within(source) {
            return classify_cause(inner);
        }
    }
    relent_http::network::classify_error(error)
}
