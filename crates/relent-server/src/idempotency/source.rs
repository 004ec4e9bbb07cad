//! The source of the keys of a layer.

#[cfg(feature = "webhook")]
use http::Response;

#[cfg(feature = "webhook")]
use super::Outcome;

/// The source of the keys, which determines the form of the responses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeySource {
    /// `Idempotency-Key`: the client wants the response, whatever it is.
    IdempotencyKey,
    /// `webhook-id`: the sender repeats its message until it is acknowledged, and reads only the status.
    #[cfg(feature = "webhook")]
    WebhookId,
}

impl KeySource {
    /// Sets the outcome of a webhook response, unless the handler has set it.
    ///
    /// A sender of webhooks reads only the HTTP status, and repeats after everything but 2xx. So only an
    /// acknowledgement is final, and a 4xx is evaluated again with each delivery. For ambiguous responses the rules
    /// are those of an `Idempotency-Key`: a 408 is not a rejection.
    #[cfg(feature = "webhook")]
    pub(crate) fn set_outcome<B>(self, response: &mut Response<B>) {
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
        let outcome = outcome.in_view_of_call(response.extensions());
        response.extensions_mut().insert(outcome);
    }

    #[cfg(not(feature = "webhook"))]
    pub(crate) const fn set_outcome<R>(self, _: &mut R) {}
}

#[cfg(all(test, feature = "webhook"))]
mod tests {
    use http::StatusCode;
    use relent_core::StopReason;

    use super::*;

    /// The handler passes on the response of its own call, whose write may have taken effect.
    #[test]
    fn the_unknown_outcome_of_an_own_call_is_unknown_to_a_webhook() {
        for (reason, expected) in [
            (StopReason::OutcomeUnknown, Outcome::Unknown),
            (StopReason::Permanent, Outcome::NotApplied),
        ] {
            let mut response = Response::new(());
            *response.status_mut() = StatusCode::PRECONDITION_FAILED;
            response.extensions_mut().insert(relent::Summary {
                reason: Some(reason),
                ..relent::Summary::default()
            });
            KeySource::WebhookId.set_outcome(&mut response);
            assert_eq!(response.extensions().get(), Some(&expected));
        }
    }
}
