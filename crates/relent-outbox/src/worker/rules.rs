//! The rules of an endpoint, parsed from its registration.

use std::time::Duration;

use relent_core::{Backoff, CircuitBreakerConfig, Policy};

use crate::acknowledgement::MAX_EXCERPT;
use crate::endpoint::Endpoint;
use crate::fault::{FaultKind, LocalFault};
use crate::headers::{self, CustomHeaders};
use crate::schedule;
use crate::secrets::{Secrets, Signing};
use crate::sender::Sender;
use crate::target::Target;
use crate::text::printable;

/// The default of `max_probe`, before jitter of a quarter: two probes are at most 10 s apart.
const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(4);

/// A policy without any limit.
static UNLIMITED_POLICY: Policy = Policy::builder(Backoff::None).build_const();

/// The parsed rules of an endpoint.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) endpoint: Endpoint,
    pub(super) policy: Policy,
    pub(super) signing: Option<Signing>,
    pub(super) custom: CustomHeaders,
    /// The target of attempts, or the fault that prevents them: then messages are held.
    pub(super) target: Result<Target, LocalFault>,
    /// The schedule is a contract, which nothing delays.
    pub(super) is_contract: bool,
}

impl Rules {
    pub(super) fn new(endpoint: Endpoint, sender: &Sender, secrets: &Secrets) -> Self {
        let mut wrong = None;
        let fault = |kind, error: String| LocalFault {
            kind,
            error: printable(&error, MAX_EXCERPT),
        };
        let policy = schedule::policy(&endpoint.policy).unwrap_or_else(|error| {
            let error = format!("the policy of the endpoint cannot be read: {error}");
            wrong = Some(fault(FaultKind::Registration, error));
            Policy::STANDARD.clone()
        });
        let signing = secrets.signing(&endpoint).unwrap_or_else(|error| {
            wrong = Some(fault(FaultKind::SigningKey, error.to_string()));
            None
        });
        let custom = headers::open(secrets, &endpoint).unwrap_or_else(|error| {
            wrong = Some(fault(FaultKind::Registration, error.to_string()));
            CustomHeaders::default()
        });
        let target = match (wrong, sender.target(&endpoint.url)) {
            (Some(wrong), _) => Err(wrong),
            (None, target) => target.map_err(|error| {
                let error = format!("the URL of the endpoint is not called: {error}");
                fault(FaultKind::Registration, error)
            }),
        };
        Self {
            is_contract: schedule::is_contract(&policy),
            endpoint,
            policy,
            signing,
            custom,
            target,
        }
    }

    /// The policy of the endpoint as a destination: its circuit breaker, which it has by default, its rate limit, and the
    /// limit of its cooldowns. Retries of single messages follow their schedules, so it has none. It has no circuit
    /// breaker without `circuit_breaker`.
    pub(super) fn of_destination(&self, circuit_breaker: bool) -> Policy {
        let mut shared = Policy::builder(Backoff::None)
            .hint(self.policy.hint())
            .max_hint(self.policy.max_hint());
        if circuit_breaker && self.endpoint.hold && !self.is_contract {
            let default_breaker = CircuitBreakerConfig {
                max_probe: MAX_PROBE_INTERVAL,
                ..CircuitBreakerConfig::DEFAULT
            };
            let breaker = self.policy.circuit_breaker().copied();
            shared = shared.circuit_breaker(breaker.unwrap_or(default_breaker));
        }
        if let Some(rate) = self.policy.rate_limit() {
            shared = shared.rate_limit(*rate);
        }
        shared.build().unwrap_or_else(|_| UNLIMITED_POLICY.clone())
    }
}
