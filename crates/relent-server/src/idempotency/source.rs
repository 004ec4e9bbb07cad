//! Where the keys of a layer come from.

#[cfg(feature = "webhook")]
use http::Response;

#[cfg(feature = "webhook")]
use super::Outcome;

/// Where the keys of a layer come from, and so what is said to those who sent them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeySource {
    /// `Idempotency-Key`: a client wants its answer, whatever that is.
    IdempotencyKey,
    /// `webhook-id`: a sender repeats its message until that is acknowledged, and reads no more than the status.
    #[cfg(feature = "webhook")]
    WebhookId,
}

impl KeySource {
    /// Has the response of a handler say what came of its request, if the handler has not, and if it is read by other
    /// rules than [`Outcome::of`].
    ///
    /// A sender of webhooks reads the HTTP status only, and delivers again after everything but 2xx. So what stands is an
    /// acknowledgement, and a refusal by 4xx is judged again with each delivery. What may have had an effect is the same
    /// as for a client with an `Idempotency-Key`: a 408 is no refusal.
    #[cfg(feature = "webhook")]
    pub(crate) fn judge<B>(self, response: &mut Response<B>) {
        if self != Self::WebhookId || response.extensions().get::<Outcome>().is_some() {
            return;
        }
        let status = response.status();
        let outcome = match Outcome::of_http(status, response.headers()) {
            Outcome::Final if status.is_success() => Outcome::Final,
            Outcome::Final if status.is_client_error() => Outcome::NotApplied,
            Outcome::NotApplied => Outcome::NotApplied,
            Outcome::Final | Outcome::Unknown => Outcome::Unknown,
        };
        response.extensions_mut().insert(outcome);
    }

    #[cfg(not(feature = "webhook"))]
    pub(crate) const fn judge<R>(self, _: &mut R) {}
}
