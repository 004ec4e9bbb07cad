//! Admission of attempts at an endpoint, by the [`Destination`] of the core: circuit breaker, rate limit and cooldown.

use std::cell::RefCell;
use std::time::Duration;

use relent::random::SessionRandom;
use relent_core::destination::{
    Access, Admission, AdmissionRequest, AttemptKind, AttemptOutcome, BlockedBy, CircuitBreaker,
    Cooldown, Destination, Outbound, Permit,
};
use relent_core::{Failure, FailureKind, Instant};

use super::held_endpoints::HoldReason;
use super::rules::Rules;
use crate::schedule;

/// The time without an acknowledgement after which a repeated failure counts against the endpoint: longer than the time
/// between two probes.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(15);
/// The interval of requests for an overdue probe.
const OVERDUE_PROBE_INTERVAL: Duration = Duration::from_millis(250);
/// The wait after a refusal of the destination, which has no time of its own.
const REFUSED_WAIT: Duration = Duration::from_secs(1);

/// The destination of an endpoint, with the request for its next attempt.
#[derive(Debug)]
pub(super) struct EndpointAdmission {
    destination: Destination<OneTask>,
    /// The request of the next attempt, while it waits.
    waiting: Option<AdmissionRequest>,
    /// The jitter after its cooldown, as a share of the cooldown.
    jitter: f64,
    /// The time of the last acknowledgement.
    acknowledged: Option<Instant>,
    /// When a circuit breaker that is down last sent a probe, or was first seen down.
    probed: Option<Instant>,
}

/// The access of the one task of a worker, which needs no lock.
#[derive(Debug)]
struct OneTask(RefCell<(Outbound, SessionRandom)>);

impl Access for OneTask {
    type Random = SessionRandom;
    type Waker = ();

    fn turn<T>(&self, change: impl FnOnce(&mut Outbound, &mut SessionRandom) -> T) -> T {
        let (outbound, random) = &mut *self.0.borrow_mut();
        change(outbound, random)
    }
}

fn destination(rules: &Rules, outbound: Option<Outbound>) -> Destination<OneTask> {
    let policy = rules.of_destination(true);
    let outbound = outbound.unwrap_or_else(|| Outbound::new(&policy));
    Destination::new(&policy, outbound, |outbound| {
        OneTask(RefCell::new((outbound, SessionRandom::new())))
    })
}

impl EndpointAdmission {
    pub(super) fn new(rules: &Rules) -> Self {
        Self::at(destination(rules, None))
    }

    const fn at(destination: Destination<OneTask>) -> Self {
        Self {
            destination,
            waiting: None,
            jitter: 0.0,
            acknowledged: None,
            probed: None,
        }
    }

    /// Adopts changed rules. Circuit breaker and cooldown restart; the rate limit continues.
    pub(super) fn restart(&mut self, now: Instant, rules: &Rules) {
        self.leave(now);
        let outbound = self.destination.access().turn(|outbound, random| {
            let mut outbound = std::mem::take(outbound);
            for circuit_breaker in [false, true] {
                let policy = rules.of_destination(circuit_breaker);
                outbound.set_policy(now, &policy, &Cooldown::new(), random);
            }
            outbound
        });
        *self = Self::at(destination(rules, Some(outbound)));
    }

    /// Requests permission for the next attempt: `Err` with the time of the next request.
    pub(super) fn request(&mut self, now: Instant) -> Result<Permit, Instant> {
        let admitted = match self.waiting {
            Some(request) => self.admit(now, request, true),
            None => self.enter(now),
        };
        let Some(max_probe) = self.down(|breaker| breaker.config().max_probe) else {
            self.probed = None;
            return admitted;
        };
        // With little traffic a queued request rarely probes. A new request may probe after the longest time between
        // two probes.
        let again = self.probed.map(|probed| probed.saturating_add(max_probe));
        match (admitted, again, self.waiting) {
            (Err(until), Some(again), _) if again > now => Err(until.min(again)),
            (Err(_), Some(_), Some(before)) => {
                self.leave(now);
                // The breaker has counted the request before.
                let request = self.new_request(now, before.id);
                let admitted = self.admit(now, request, false);
                if admitted.is_ok() {
                    self.probed = Some(now);
                }
                admitted.map_err(|until| until.min(now.saturating_add(OVERDUE_PROBE_INTERVAL)))
            }
            (admitted, ..) => {
                self.probed = Some(now);
                admitted
            }
        }
    }

    const fn new_request(&self, now: Instant, id: u64) -> AdmissionRequest {
        AdmissionRequest {
            id,
            since: now,
            last_start: Instant::MAX,
            answer_by: Instant::MAX,
            longest: Duration::MAX,
            jitter: self.jitter,
            kind: AttemptKind::First,
            // No caller waits for a response.
            waits_without_limit: true,
            rate_limit_only: false,
            may_wait: true,
        }
    }

    fn enter(&mut self, now: Instant) -> Result<Permit, Instant> {
        let mut request = self.new_request(now, 0);
        let admission = self.destination.enter(now, &mut request, false, None);
        self.admitted(now, request, admission)
    }

    fn admit(
        &mut self,
        now: Instant,
        request: AdmissionRequest,
        waits: bool,
    ) -> Result<Permit, Instant> {
        let admission = self.destination.admit(now, &request, waits, None);
        self.admitted(now, request, admission)
    }

    fn admitted(
        &mut self,
        now: Instant,
        request: AdmissionRequest,
        admission: Admission,
    ) -> Result<Permit, Instant> {
        // The only possible waiter is this request itself.
        let is_woken = self
            .destination
            .access()
            .turn(|outbound, _| !outbound.take_woken().is_empty());
        self.waiting = None;
        match admission {
            Admission::Start(permit) => Ok(permit),
            Admission::Wait(until, _) => {
                self.waiting = Some(request);
                Err(if is_woken { now } else { until })
            }
            Admission::Stop(_) | Admission::TooLate => Err(now.saturating_add(REFUSED_WAIT)),
        }
    }

    /// Withdraws the request.
    pub(super) fn leave(&mut self, now: Instant) {
        if let Some(request) = self.waiting.take() {
            self.destination.leave(&request.waiter(), false, || now);
        }
    }

    /// Returns the permit of an attempt that was not made.
    pub(super) fn cancel(&self, now: Instant, permit: Permit) {
        self.destination.cancel(now, permit);
    }

    /// Records the end of an attempt. `None` is a success.
    pub(super) fn ended(
        &mut self,
        now: Instant,
        permit: Permit,
        failure: Option<&Failure>,
        rules: &Rules,
    ) {
        if failure.is_none() {
            self.acknowledged = Some(now);
        }
        let outcome = failure.map_or(AttemptOutcome::SUCCESS, AttemptOutcome::of);
        let before = self.destination.cooldown().left(now);
        self.destination.end(now, permit, &outcome);
        if let Some(cooldown) = &outcome.cooldown
            && self.destination.cooldown().left(now) > before
        {
            let delay = cooldown.delay.min(rules.policy.max_hint());
            self.jitter = schedule::retry_after_jitter(&rules.policy, delay);
            if let Some(waiting) = &mut self.waiting {
                waiting.jitter = self.jitter;
            }
        }
    }

    /// Whether a failure is evidence about its message and not about the endpoint: the message has failed before, and
    /// the endpoint has recently acknowledged another.
    pub(super) fn is_about_message(&self, now: Instant, failure: &Failure, is_fresh: bool) -> bool {
        let lately = self
            .acknowledged
            .is_some_and(|at| now.saturating_since(at) <= ACKNOWLEDGED_WITHIN);
        lately
            && !is_fresh
            && !matches!(
                failure.kind,
                FailureKind::Throttled | FailureKind::Overloaded
            )
    }

    /// Whether the circuit breaker is down.
    pub(super) fn is_down(&self) -> bool {
        self.down(|_| ()).is_some()
    }

    fn down<T>(&self, of: impl FnOnce(&CircuitBreaker) -> T) -> Option<T> {
        self.destination.access().turn(|outbound, _| {
            let circuit_breaker = outbound.circuit_breaker();
            circuit_breaker.filter(|it| it.is_down()).map(of)
        })
    }

    /// The control for which the request waits, if it does.
    pub(super) fn hold_reason(&self) -> Option<HoldReason> {
        let waiter = self.waiting.as_ref()?.waiter();
        let blocked_by: BlockedBy = self
            .destination
            .access()
            .turn(|outbound, _| outbound.blocked_by(&waiter))?;
        Some(HoldReason::of(blocked_by, self.is_down()))
    }
}

#[cfg(test)]
mod tests {
    use relent_core::Hint;

    use super::*;
    use crate::endpoint::Endpoint;
    use crate::secrets::Secrets;
    use crate::worker::tests::sender;

    fn rules(policy: &str) -> Rules {
        let endpoint = Endpoint::new("a", "https://shop.example/").policy(policy);
        Rules::new(endpoint, &sender(), &Secrets::default())
    }

    fn at(seconds: u64) -> Instant {
        Instant::ORIGIN.saturating_add(Duration::from_secs(seconds))
    }

    /// The state after an attempt that was throttled for a minute.
    fn throttled(policy: &str) -> (EndpointAdmission, Rules) {
        let rules = rules(policy);
        let mut admission = EndpointAdmission::new(&rules);
        let permit = admission.request(at(0)).unwrap();
        let failure = Failure::throttled().hint(Hint::after(Duration::from_secs(60)));
        admission.ended(at(0), permit, Some(&failure), &rules);
        (admission, rules)
    }

    const EXPONENTIAL: &str = "backoff.exponential = { initial = \"1s\" }\n";

    #[test]
    fn a_hint_of_the_receiver_holds_its_endpoint_unless_the_policy_ignores_hints() {
        let (mut admission, _) = throttled(EXPONENTIAL);
        let until = admission.request(at(1)).unwrap_err();
        assert!((at(60)..=at(66)).contains(&until), "{until:?}");
        assert_eq!(admission.hold_reason(), Some(HoldReason::Cooldown));
        for policy in [&format!("{EXPONENTIAL}hint = \"ignore\""), "wechat-pay"] {
            let (mut admission, _) = throttled(policy);
            assert!(admission.request(at(1)).is_ok(), "{policy}");
        }
    }

    #[test]
    fn changed_rules_end_the_cooldown_but_not_the_rate_limit() {
        let paced = format!("{EXPONENTIAL}rate_limit.limit = 0.01");
        let (mut admission, rules) = throttled(&paced);
        assert!(admission.request(at(1)).is_err());
        assert_eq!(admission.hold_reason(), Some(HoldReason::Cooldown));
        admission.restart(at(2), &rules);
        assert_eq!(admission.hold_reason(), None, "the request has left");
        assert!(admission.request(at(3)).is_err());
        assert_eq!(admission.hold_reason(), Some(HoldReason::RateLimit));
    }

    #[test]
    fn a_repeated_failure_beside_acknowledgements_is_about_its_message() {
        let rules = rules(EXPONENTIAL);
        let mut admission = EndpointAdmission::new(&rules);
        let failure = Failure::ambiguous();
        assert!(!admission.is_about_message(at(0), &failure, false));
        let permit = admission.request(at(0)).unwrap();
        admission.ended(at(0), permit, None, &rules);
        assert!(admission.is_about_message(at(15), &failure, false));
        assert!(
            !admission.is_about_message(at(15), &failure, true),
            "it is fresh"
        );
        assert!(!admission.is_about_message(at(16), &failure, false));
        assert!(!admission.is_about_message(at(1), &Failure::throttled(), false));
    }
}
