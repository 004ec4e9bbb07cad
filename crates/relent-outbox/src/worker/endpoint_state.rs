//! State of one endpoint of a worker: the time of its next attempt, and its rules.

use std::sync::Arc;
use std::time::Duration;

use relent::random::SessionRandom;
use relent_core::destination::{
    Admission, AdmissionRequest, AttemptKind, AttemptOutcome, CircuitBreaker, Cooldown, Outbound,
    Permit,
};
use relent_core::{Backoff, CircuitBreakerConfig, Failure, FailureKind, HintMode, Instant, Policy};

use super::bodies::PayloadPermit;
use super::held::HoldReason;
use super::slots::Pool;
use crate::acknowledgement::MAX_EXCERPT;
use crate::endpoint::Endpoint;
use crate::fault::{FaultKind, LocalFault, next_hold_time};
use crate::headers::{self, CustomHeaders};
use crate::health::Health;
use crate::observe;
use crate::schedule::{self, CONTRACT_CONCURRENCY};
use crate::secrets::{Secrets, Signing};
use crate::sender::{NO_ANSWER, NO_CONNECTION, Sender};
use crate::store::{ClaimOrder, Fence, OwnedEndpoint};
use crate::target::Target;
use crate::text::printable;

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
}

/// A local fault that holds the messages of an endpoint.
#[derive(Debug)]
struct Hold {
    fault: LocalFault,
    /// The time of the next try.
    until: tokio::time::Instant,
    wait: Duration,
}

/// Permission to claim one message, with the slot for its attempt, and memory for its payload if it may be long.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) permit: Permit,
    pub(super) pool: Pool,
    pub(super) memory: Option<PayloadPermit>,
}

/// The state of one endpoint of a worker.
#[derive(Debug)]
pub(super) struct EndpointState {
    pub(super) rules: Arc<Rules>,
    pub(super) fence: Fence,
    /// When the acquisition returned.
    pub(super) taken: tokio::time::Instant,
    /// The revision of `rules`.
    pub(super) revision: i64,
    /// The store has a newer revision; and a claim requests it.
    pub(super) stale: bool,
    pub(super) refreshing: bool,
    /// Incremented when the circuit breaker restarts: earlier attempts do not count for the new one.
    pub(super) epoch: u32,
    pub(super) health: Health,
    outbound: Outbound,
    cooldown: Cooldown,
    /// The jitter after its cooldown, as a share of the cooldown.
    jitter: f64,
    hold: Option<Hold>,
    random: SessionRandom,
    /// The admission request of the next attempt, while it waits.
    asking: Option<AdmissionRequest>,
    next_id: u64,
    /// It has a due message, as far as is known.
    pub(super) due: bool,
    /// A due message was reported during a claim.
    pub(super) due_again: bool,
    /// The number of messages to claim in one call. It doubles while claims return as many.
    want: usize,
    /// For the next claim, and for the running one.
    pub(super) tickets: Vec<Ticket>,
    pub(super) claiming: Vec<Ticket>,
    pub(super) running: usize,
    /// The running attempts that follow the current rules.
    pub(super) running_now: usize,
    /// The attempts that ended and are not written yet.
    pub(super) unsettled: usize,
    /// The end of the last fast attempt. Without a recent one, one attempt runs at a time, so that an endpoint that
    /// begins to hang holds one slot.
    answered: Option<tokio::time::Instant>,
    /// An attempt has ended, so its speed is known.
    is_known: bool,
    /// Its last attempt was slow.
    pub(super) slow: bool,
    /// The payload size of its last message, if that was long; otherwise 0.
    pub(super) large: usize,
    /// The time of the last acknowledgement.
    acknowledged: Option<Instant>,
    /// Some due messages have failed before, according to the last claim in order of due times.
    mixed: bool,
    /// Counts claims, for the choice of their order.
    turn: usize,
    /// When a circuit breaker that is down last sent a probe, or was first seen down.
    probed: Option<Instant>,
    /// One of its messages needs isolation, and none is sent before that.
    pub(super) alone: bool,
    /// It is released when none of its attempts runs.
    pub(super) retiring: bool,
    /// A local fault holds some of its messages, which was reported.
    holds_some: bool,
    /// This worker has disabled the endpoint. Counted once, however many attempts ask for it.
    pub(super) is_disabled: bool,
    /// The time of its next request for permission, if it waits.
    pub(super) wakes: Option<tokio::time::Instant>,
    /// It is in the queue of endpoints to check.
    pub(super) queued: bool,
}

impl EndpointState {
    pub(super) fn new(
        owned: OwnedEndpoint,
        taken: tokio::time::Instant,
        sender: &Sender,
        secrets: &Secrets,
    ) -> Self {
        let rules = Rules::new(owned.endpoint, sender, secrets);
        let health = Health::read(&owned.health);
        Self {
            outbound: Outbound::new(&shared(&rules, true)),
            rules: Arc::new(rules),
            fence: owned.fence,
            taken,
            revision: owned.revision,
            stale: false,
            refreshing: false,
            epoch: 0,
            cooldown: Cooldown::new(),
            jitter: 0.0,
            hold: None,
            random: SessionRandom::new(),
            asking: None,
            next_id: 0,
            due: false,
            due_again: false,
            want: 1,
            tickets: Vec::new(),
            claiming: Vec::new(),
            running: 0,
            running_now: 0,
            unsettled: 0,
            answered: None,
            is_known: false,
            // An endpoint that did not respond under its last owner must not use slots of fast endpoints.
            slow: had_no_response(&health),
            health,
            large: 0,
            acknowledged: None,
            mixed: false,
            turn: 0,
            probed: None,
            alone: false,
            retiring: false,
            holds_some: false,
            is_disabled: false,
            wakes: None,
            queued: false,
        }
    }

    /// Adopts a changed registration. Circuit breaker and cooldown restart; the rate limit continues.
    pub(super) fn refresh(
        &mut self,
        now: Instant,
        owned: OwnedEndpoint,
        sender: &Sender,
        secrets: &Secrets,
    ) {
        self.stop_asking(now);
        let rules = Rules::new(owned.endpoint, sender, secrets);
        self.cooldown = Cooldown::new();
        for with_circuit_breaker in [false, true] {
            let shared = shared(&rules, with_circuit_breaker);
            self.outbound
                .set_policy(now, &shared, &self.cooldown, &mut self.random);
        }
        self.health = Health::read(&owned.health);
        self.rules = Arc::new(rules);
        self.revision = owned.revision;
        self.stale = false;
        self.epoch = self.epoch.wrapping_add(1);
        (self.answered, self.is_known, self.slow) = (None, false, false);
        (self.acknowledged, self.probed, self.running_now) = (None, None, 0);
        (self.hold, self.jitter, self.is_disabled) = (None, 0.0, false);
        self.holds_some = false;
    }

    /// Records the duration of an attempt.
    pub(super) fn answered(&mut self, now: tokio::time::Instant, took: Duration, slow: Duration) {
        self.is_known = true;
        self.slow = took >= slow;
        self.answered = (!self.slow).then_some(now);
    }

    fn has_answered_within(&self, now: tokio::time::Instant, within: Duration) -> bool {
        self.answered
            .is_some_and(|at| now.saturating_duration_since(at) <= within)
    }

    pub(super) fn pool(&self, now: tokio::time::Instant) -> Pool {
        match self.slow {
            true => Pool::Slow,
            false if self.has_answered_within(now, FAST_FOR) => Pool::Fast,
            false => Pool::Unknown,
        }
    }

    /// Whether another message could be claimed, given a slot and permission. Several attempts may run concurrently
    /// only within `lately` after a fast response.
    pub(super) fn can_claim_more(&self, now: tokio::time::Instant, lately: Duration) -> bool {
        let held = self.tickets.len() + self.claiming.len();
        // Slow attempts of a contract do not delay others.
        let is_contract = self.rules.is_contract;
        let several =
            is_contract || self.is_known && self.slow || self.has_answered_within(now, lately);
        let concurrency = self.rules.endpoint.concurrency.get() as usize;
        let most = match self.hold.is_some() {
            // A single attempt shows whether the fault is fixed.
            true => 1,
            false if is_contract => concurrency.max(CONTRACT_CONCURRENCY),
            false => concurrency,
        };
        self.due
            && (several || self.running_now + held == 0)
            && !self.stale
            && !self.retiring
            && !self.alone
            && held < self.want
            && self.running + held < most
    }

    /// Chooses the order of the next claim. Where some messages fail repeatedly, messages that have never failed get
    /// turns: while the circuit breaker is down two of three probes, so that a deliverable message soon ends the
    /// outage.
    pub(super) fn next_first(&mut self) -> ClaimOrder {
        const PROBES: [ClaimOrder; 3] = [ClaimOrder::Fresh, ClaimOrder::Newest, ClaimOrder::Due];
        const MIXED: [ClaimOrder; 2] = [ClaimOrder::Fresh, ClaimOrder::Due];
        let turn = self.turn;
        self.turn = self.turn.wrapping_add(1);
        match self
            .outbound
            .circuit_breaker()
            .is_some_and(CircuitBreaker::is_down)
        {
            true => PROBES[turn % PROBES.len()],
            false if self.mixed => MIXED[turn % MIXED.len()],
            false => ClaimOrder::Due,
        }
    }

    /// Records the result of a claim in order of due times.
    pub(super) fn claimed_by_due(&mut self, any_has_failed: bool) {
        self.mixed = any_has_failed;
    }

    /// Whether a failure is evidence about its message and not about the endpoint: the message has failed before, and
    /// the endpoint has recently acknowledged another.
    pub(super) fn is_about_message(&self, now: Instant, failure: &Failure, fresh: bool) -> bool {
        let lately = self
            .acknowledged
            .is_some_and(|at| now.saturating_since(at) <= ACKNOWLEDGED_WITHIN);
        lately
            && !fresh
            && !matches!(
                failure.kind,
                FailureKind::Throttled | FailureKind::Overloaded
            )
    }

    /// Whether none of its attempts runs or is to be written.
    pub(super) fn is_over(&self) -> bool {
        self.running == 0
            && self.unsettled == 0
            && self.tickets.is_empty()
            && self.claiming.is_empty()
    }

    /// Requests permission for the next attempt: `Err` with the time of the next request.
    pub(super) fn ask(&mut self, now: Instant) -> Result<Permit, Instant> {
        let asked = self.ask_outbound(now, true);
        let Some(circuit_breaker) = self
            .outbound
            .circuit_breaker()
            .filter(|circuit_breaker| circuit_breaker.is_down())
        else {
            self.probed = None;
            return asked;
        };
        // With little traffic a queued request rarely probes. A new request may probe after the longest time between
        // two probes.
        let again = self
            .probed
            .map(|probed| probed.saturating_add(circuit_breaker.config().max_probe));
        match (asked, again) {
            (Ok(permit), _) => {
                self.probed = Some(now);
                Ok(permit)
            }
            (Err(until), None) => {
                self.probed = Some(now);
                Err(until)
            }
            (Err(until), Some(again)) if again > now => Err(until.min(again)),
            (Err(_), Some(_)) => {
                self.stop_asking(now);
                let asked = self.ask_outbound(now, false);
                if asked.is_ok() {
                    self.probed = Some(now);
                }
                asked.map_err(|until| until.min(now.saturating_add(OVERDUE_PROBE_INTERVAL)))
            }
        }
    }

    /// `is_new`: the request was not counted before.
    fn ask_outbound(&mut self, now: Instant, is_new: bool) -> Result<Permit, Instant> {
        let answer = match &self.asking {
            Some(asking) => {
                self.outbound
                    .admit_again(now, asking, &self.cooldown, &mut self.random)
            }
            None => {
                self.next_id += 1;
                if is_new {
                    self.outbound.on_request_unthrottled(now);
                }
                let asking = AdmissionRequest {
                    id: self.next_id,
                    since: now,
                    last_start: Instant::MAX,
                    answer_by: Instant::MAX,
                    longest: Duration::MAX,
                    jitter: self.jitter,
                    kind: AttemptKind::First,
                    // No caller waits for a response.
                    waits_without_limit: true,
                    rate_limit_only: false,
                };
                self.asking = Some(asking);
                self.outbound
                    .admit(now, &asking, &self.cooldown, &mut self.random)
            }
        };
        // The only possible waiter is this request itself.
        let woken = !self.outbound.take_woken().is_empty();
        match answer {
            Admission::Start(permit) => {
                self.asking = None;
                Ok(permit)
            }
            Admission::Wait(_, _) if woken => Err(now),
            Admission::Wait(until, _) => Err(until),
            Admission::Stop(_) | Admission::TooLate => {
                self.asking = None;
                Err(now.saturating_add(Duration::from_secs(1)))
            }
        }
    }

    /// The reason that its due messages wait; `None` if none is due, or they need not wait.
    pub(super) fn held(&self, now: tokio::time::Instant, lately: Duration) -> Option<HoldReason> {
        if !self.due || self.retiring {
            return None;
        }
        if self.hold.is_some() {
            return Some(HoldReason::LocalFault);
        }
        let asking = self.asking.as_ref();
        let blocked_by = asking.and_then(|asking| self.outbound.blocked_by(&asking.waiter()));
        let circuit_breaker = self.outbound.circuit_breaker();
        match blocked_by {
            Some(blocked_by) => Some(HoldReason::of(
                blocked_by,
                circuit_breaker.is_some_and(CircuitBreaker::is_down),
            )),
            // It has no request: one attempt runs at a time while the speed of the endpoint is unknown.
            None if self.running > 0 && !self.can_claim_more(now, lately) => {
                Some(HoldReason::Concurrency)
            }
            None => None,
        }
    }

    /// Withdraws the admission request.
    pub(super) fn stop_asking(&mut self, now: Instant) {
        if let Some(asking) = self.asking.take() {
            self.outbound
                .leave(now, &asking.waiter(), &self.cooldown, &mut self.random);
        }
    }

    /// Records that a claim for `asked` messages has returned `got`.
    pub(super) fn claimed(&mut self, asked: usize, got: usize) {
        if got < asked {
            self.due = self.due_again;
            self.want = 1;
        } else {
            self.want = self.want.saturating_mul(2).min(MAX_CLAIMED);
        }
        self.due_again = false;
    }

    /// Returns the permit of an attempt that was not made.
    pub(super) fn cancel(&mut self, now: Instant, permit: Permit) {
        self.outbound
            .cancel(now, permit, &self.cooldown, &mut self.random);
    }

    /// Records the end of an attempt. `None` is a success.
    pub(super) fn ended(&mut self, now: Instant, permit: Permit, failure: Option<&Failure>) {
        let outcome = match failure {
            None => {
                self.acknowledged = Some(now);
                AttemptOutcome::SUCCESS
            }
            Some(failure) => AttemptOutcome::of(failure),
        };
        let policy = &self.rules.policy;
        // A policy that ignores hints starts no cooldown.
        if let Some(request) = &outcome.cooldown
            && policy.hint() != HintMode::Ignore
            && !self.outbound.applies_to_one_caller(now, request)
        {
            let most = policy.max_hint();
            self.cooldown.on_end(now, &outcome, most);
            self.jitter = schedule::retry_after_jitter(policy, request.delay.min(most));
            if let Some(asking) = &mut self.asking {
                asking.jitter = self.jitter;
            }
        }
        self.outbound
            .end(now, permit, &outcome, &self.cooldown, &mut self.random);
    }
}

impl EndpointState {
    /// The local fault that holds its messages, if any.
    pub(super) fn fault(&self) -> Option<&LocalFault> {
        self.hold.as_ref().map(|hold| &hold.fault)
    }

    /// Holds its messages because of a local fault, or extends the hold.
    pub(super) fn hold(&mut self, now: tokio::time::Instant, fault: LocalFault) {
        let wait = next_hold_time(self.hold.as_ref().map(|hold| hold.wait));
        let endpoint = &self.rules.endpoint;
        let is_new = self.fault().is_none_or(|before| before.kind != fault.kind);
        observe::local_fault(&endpoint.tenant, &endpoint.name, &fault, is_new);
        let until = now + wait;
        self.hold = Some(Hold { fault, until, wait });
    }

    /// Reports a local fault that holds a single message; the others are sent.
    pub(super) fn hold_one(&mut self, fault: &LocalFault) {
        let endpoint = &self.rules.endpoint;
        let is_new = !std::mem::replace(&mut self.holds_some, true);
        observe::local_fault(&endpoint.tenant, &endpoint.name, fault, is_new);
    }

    /// Ends the hold by a local fault.
    pub(super) fn fault_fixed(&mut self) {
        if self.hold.take().is_some() {
            let endpoint = &self.rules.endpoint;
            observe::fault_fixed(&endpoint.tenant, &endpoint.name);
        }
    }

    /// Until when a local fault holds its messages; `None` if one may be sent as a test.
    pub(super) fn held_by_fault(
        &mut self,
        now: tokio::time::Instant,
        sender: &Sender,
        secrets: &Secrets,
    ) -> Option<tokio::time::Instant> {
        let is_over = self.hold.as_ref().is_none_or(|hold| hold.until <= now);
        if is_over && let Err(fault) = &self.rules.target {
            let fault = fault.clone();
            if self.hold.is_some() {
                let rules = Rules::new(self.rules.endpoint.clone(), sender, secrets);
                if rules.target.is_ok() {
                    self.outbound = Outbound::new(&shared(&rules, true));
                    self.rules = Arc::new(rules);
                    self.fault_fixed();
                    return None;
                }
            }
            self.hold(now, fault);
        }
        let until = self.hold.as_ref().map(|hold| hold.until);
        until.filter(|until| now < *until)
    }
}

/// The largest number of messages of one endpoint in a claim.
const MAX_CLAIMED: usize = 64;

/// The time for which an endpoint counts as fast after a fast response.
const FAST_FOR: Duration = Duration::from_secs(60);
/// The time without an acknowledgement after which a repeated failure counts against the endpoint: longer than the time
/// between two probes.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(15);
/// The default of `max_probe`, before jitter of a quarter: two probes are at most 10 s apart.
const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(4);
/// The interval of requests for an overdue probe.
const OVERDUE_PROBE_INTERVAL: Duration = Duration::from_millis(250);

/// A policy without any limit.
static UNLIMITED_POLICY: Policy = Policy::builder(Backoff::None).build_const();

/// Whether the last attempt under another owner got no response.
fn had_no_response(health: &Health) -> bool {
    [NO_ANSWER, NO_CONNECTION].contains(&health.last_error())
}

/// The circuit breaker and the rate limit of an endpoint. By default endpoints have a circuit breaker.
fn shared(rules: &Rules, with_circuit_breaker: bool) -> Policy {
    // Retries of single messages follow their schedules, so this policy has none.
    let mut shared = Policy::builder(Backoff::None);
    if rules.endpoint.hold && !rules.is_contract && with_circuit_breaker {
        let default_breaker = CircuitBreakerConfig {
            max_probe: MAX_PROBE_INTERVAL,
            ..CircuitBreakerConfig::DEFAULT
        };
        shared = shared.circuit_breaker(
            rules
                .policy
                .circuit_breaker()
                .copied()
                .unwrap_or(default_breaker),
        );
    }
    if let Some(rate) = rules.policy.rate_limit() {
        shared = shared.rate_limit(*rate);
    }
    shared.build().unwrap_or_else(|_| UNLIMITED_POLICY.clone())
}
