//! From an error to a [`Failure`]: of reqwest, and of this crate. Those of other transports are for
//! [`relent_http::network`].

use std::error::Error;

use relent::GaveUp;
use relent_core::{Failure, StopReason};
use relent_http::network::chain;

pub use crate::classify::classify;
use crate::error::within;
use crate::failed::AttemptError;

/// The same for any error that has one of reqwest, or one of this crate, in its chain of sources. Any
/// other is for [`relent_http::network::classify_error`].
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
/// An error that another layer of this process [has given up](given_up) is as its last error, with the
/// advice not to retry (design rule 8).
#[must_use]
pub fn classify_error(error: &(dyn Error + 'static)) -> Failure {
    let failure = classify_cause(error);
    match given_up(error) {
        Some(reason) => relent_http::network::given_up_by(failure, reason),
        None => failure,
    }
}

/// Why another layer of this process has given up the call that failed with this error; `None` if none
/// has. It knows a request that a [`Client`](crate::Client) or a `RetryMiddleware` has given up, and what
/// [`relent_http::network::given_up`] knows.
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

/// By what is at the bottom of it, whoever has given it up.
fn classify_cause(error: &(dyn Error + 'static)) -> Failure {
    for source in chain(error) {
        if let Some(error) = source.downcast_ref() {
            return classify(error);
        }
        if let Some(inner) = within(source) {
            return classify_cause(inner);
        }
    }
    relent_http::network::classify_error(error)
}
