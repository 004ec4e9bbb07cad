//! One endpoint of a worker: when its next attempt may start, and by which rules.

use std::sync::Arc;
use std::time::Duration;

use relent::random::SessionRandom;
use relent_core::{
    Answer, Asking, Backoff, Claim, Cooldown, Ended, Failure, Gate, GateConfig, HintMode, Instant,
    Kind, Outbound, Permit, Policy,
};

use super::bodies::Held;
use super::held::Because;
use super::slots::Pool;
use crate::acknowledgement::MAX_EXCERPT;
use crate::endpoint::Endpoint;
use crate::fault::{FaultKind, LocalFault, next_wait};
use crate::headers::{self, CustomHeaders};
use crate::health::Health;
use crate::observe;
use crate::schedule::{self, CONTRACT_CONCURRENCY};
use crate::secrets::{Secrets, Signing};
use crate::sender::{NO_ANSWER, NO_CONNECTION, Sender};
use crate::store::{Fence, First, Owned};
use crate::target::Target;
use crate::text::printable;

/// The rules of an endpoint, read once.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) endpoint: Endpoint,
    pub(super) policy: Policy,
    pub(super) signing: Option<Signing>,
    pub(super) custom: CustomHeaders,
    /// Where attempts go, or why none can be made: then messages are held.
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

/// A fault of this side that holds the messages of an endpoint.
#[derive(Debug)]
struct Hold {
    fault: LocalFault,
    /// It is tried again then.
    until: tokio::time::Instant,
    wait: Duration,
}

/// Leave to claim one message, the slot for its attempt, and room for its payload if that is expected to be long.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) permit: Permit,
    pub(super) pool: Pool,
    pub(super) room: Option<Held>,
}

/// One endpoint of a worker.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) rules: Arc<Rules>,
    pub(super) fence: Fence,
    /// When the answer came that it is this worker's.
    pub(super) taken: tokio::time::Instant,
    /// Of which registration the rules are.
    pub(super) revision: i64,
    /// They are of an earlier one than the store has; and they are being asked for.
    pub(super) stale: bool,
    pub(super) refreshing: bool,
    /// Rises when the gate begins anew: what began before tells it nothing.
    pub(super) epoch: u32,
    pub(super) health: Health,
    outbound: Outbound,
    cooldown: Cooldown,
    /// The share of its cooldown over which attempts are spread behind it.
    spread: f64,
    hold: Option<Hold>,
    random: SessionRandom,
    /// Who stands in the line for the next attempt.
    asking: Option<Asking>,
    next_id: u64,
    /// It has a message that is due, as far as is known.
    pub(super) due: bool,
    /// It was said to have one while a claim was on its way.
    pub(super) due_again: bool,
    /// How many messages are claimed at once: more while there are as many.
    want: usize,
    /// For the claim to come, and for the one that is on its way.
    pub(super) tickets: Vec<Ticket>,
    pub(super) claiming: Vec<Ticket>,
    pub(super) running: usize,
    /// Of these, those that go by the rules of now.
    pub(super) running_now: usize,
    /// Attempts that ended and are not written down yet.
    pub(super) unsettled: usize,
    /// When an attempt has ended soon last. Without such a sign lately one runs at a time, so that an endpoint that begins
    /// to hang holds one slot.
    answered: Option<tokio::time::Instant>,
    /// An attempt has ended, so it is known whether it is slow.
    is_known: bool,
    /// Its last attempt was slow.
    pub(super) slow: bool,
    /// How long the payload of its last message was, if that was long.
    pub(super) large: usize,
    /// When a message was acknowledged last.
    acknowledged: Option<Instant>,
    /// Some of its messages have failed and are due again, as of the last claim that looked.
    mixed: bool,
    /// Which messages the next claim takes first.
    turn: usize,
    /// When a closed gate let a probe go last, or was seen first.
    probed: Option<Instant>,
    /// One of its messages has to go alone, and none goes before that.
    pub(super) alone: bool,
    /// It is given back when nothing of it runs.
    pub(super) leaving: bool,
    /// A fault of this side holds some of its messages, and that was said.
    holds_some: bool,
    /// This worker has disabled the endpoint, which is counted once however many attempts ask for it.
    pub(super) is_disabled: bool,
    /// When it asks again, if it waits for leave.
    pub(super) wakes: Option<tokio::time::Instant>,
    /// Whether it stands in the queue of those that are looked at.
    pub(super) queued: bool,
}

impl Lane {
    pub(super) fn new(
        owned: Owned,
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
            spread: 0.0,
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
            // An endpoint that did not answer under its last owner is not tried with the slots of those that do.
            slow: is_silent(&health),
            health,
            large: 0,
            acknowledged: None,
            mixed: false,
            turn: 0,
            probed: None,
            alone: false,
            leaving: false,
            holds_some: false,
            is_disabled: false,
            wakes: None,
            queued: false,
        }
    }

    /// Goes by what the endpoint is now. Its gate and its cooldown begin anew, and its request rate goes on.
    pub(super) fn refresh(
        &mut self,
        now: Instant,
        owned: Owned,
        sender: &Sender,
        secrets: &Secrets,
    ) {
        self.stop_asking(now);
        let rules = Rules::new(owned.endpoint, sender, secrets);
        self.cooldown = Cooldown::new();
        for with_gate in [false, true] {
            let shared = shared(&rules, with_gate);
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
        (self.hold, self.spread, self.is_disabled) = (None, 0.0, false);
        self.holds_some = false;
    }

    /// An attempt has ended that took so long.
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
            false if self.has_answered_within(now, KNOWN_FOR) => Pool::Quick,
            false => Pool::Unknown,
        }
    }

    /// Whether another message could be claimed, if there is a slot and leave to. `lately`: within so long of an answer
    /// several attempts run at once.
    pub(super) fn has_room(&self, now: tokio::time::Instant, lately: Duration) -> bool {
        let held = self.tickets.len() + self.claiming.len();
        // How long others take delays none of a contract.
        let is_contract = self.rules.is_contract;
        let several =
            is_contract || self.is_known && self.slow || self.has_answered_within(now, lately);
        let concurrency = self.rules.endpoint.concurrency.get() as usize;
        let most = match self.hold.is_some() {
            // One finds out whether the fault is mended.
            true => 1,
            false if is_contract => concurrency.max(CONTRACT_CONCURRENCY),
            false => concurrency,
        };
        self.due
            && (several || self.running_now + held == 0)
            && !self.stale
            && !self.leaving
            && !self.alone
            && held < self.want
            && self.running + held < most
    }

    /// Which messages the next claim takes first. Where some fail again and again, those that have never failed have their
    /// turns: while the gate is closed two of three probes, so that one that can be acknowledged soon opens it.
    pub(super) fn next_first(&mut self) -> First {
        const PROBES: [First; 3] = [First::Fresh, First::Newest, First::Due];
        const MIXED: [First; 2] = [First::Fresh, First::Due];
        let turn = self.turn;
        self.turn = self.turn.wrapping_add(1);
        match self.outbound.gate().is_some_and(Gate::is_closed) {
            true => PROBES[turn % PROBES.len()],
            false if self.mixed => MIXED[turn % MIXED.len()],
            false => First::Due,
        }
    }

    /// What was claimed first when those that were due first were to be.
    pub(super) fn claimed_by_due(&mut self, any_has_failed: bool) {
        self.mixed = any_has_failed;
    }

    /// Whether a failure speaks of its message and not of the endpoint: the message has failed before, and the endpoint has
    /// acknowledged another a short time ago.
    pub(super) fn speaks_of_message(&self, now: Instant, failure: &Failure, fresh: bool) -> bool {
        let lately = self
            .acknowledged
            .is_some_and(|at| now.saturating_since(at) <= ACKNOWLEDGES);
        lately && !fresh && !matches!(failure.kind, Kind::Throttled | Kind::Overloaded)
    }

    /// Whether nothing of it runs or is to be written.
    pub(super) fn is_over(&self) -> bool {
        self.running == 0
            && self.unsettled == 0
            && self.tickets.is_empty()
            && self.claiming.is_empty()
    }

    /// Asks for leave to make the next attempt: `Err` with when to ask again.
    pub(super) fn ask(&mut self, now: Instant) -> Result<Permit, Instant> {
        let asked = self.ask_outbound(now, true);
        let Some(gate) = self.outbound.gate().filter(|gate| gate.is_closed()) else {
            self.probed = None;
            return asked;
        };
        // What is parked probes seldom where few messages come in. Whoever asks anew may probe after the longest time
        // between two probes.
        let again = self
            .probed
            .map(|probed| probed.saturating_add(gate.config().max_probe));
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
                asked.map_err(|until| until.min(now.saturating_add(PROBE_AGAIN)))
            }
        }
    }

    /// `is_new`: it is no request that was counted before.
    fn ask_outbound(&mut self, now: Instant, is_new: bool) -> Result<Permit, Instant> {
        let answer = match &self.asking {
            Some(asking) => self
                .outbound
                .ask_again(now, asking, &self.cooldown, &mut self.random),
            None => {
                self.next_id += 1;
                if is_new {
                    self.outbound.on_request_unthrottled(now);
                }
                let asking = Asking {
                    id: self.next_id,
                    since: now,
                    last_start: Instant::MAX,
                    answer_by: Instant::MAX,
                    longest: Duration::MAX,
                    spread: self.spread,
                    claim: Claim::First,
                    // Nobody waits for an answer.
                    stays: true,
                    paced_only: false,
                };
                self.asking = Some(asking);
                self.outbound
                    .ask(now, &asking, &self.cooldown, &mut self.random)
            }
        };
        // There is nobody to be woken but the one who asks.
        let woken = !self.outbound.take_woken().is_empty();
        match answer {
            Answer::Start(permit) => {
                self.asking = None;
                Ok(permit)
            }
            Answer::Wait(_, _) if woken => Err(now),
            Answer::Wait(until, _) => Err(until),
            Answer::Stop(_) | Answer::TooLate => {
                self.asking = None;
                Err(now.saturating_add(Duration::from_secs(1)))
            }
        }
    }

    /// Why its messages wait that are due; `None` if none is, or they need not wait.
    pub(super) fn held(&self, now: tokio::time::Instant, lately: Duration) -> Option<Because> {
        if !self.due || self.leaving {
            return None;
        }
        if self.hold.is_some() {
            return Some(Because::LocalFault);
        }
        let asking = self.asking.as_ref();
        let holding = asking.and_then(|asking| self.outbound.holding(&asking.caller()));
        let gate = self.outbound.gate();
        match holding {
            Some(holding) => Some(Because::of(holding, gate.is_some_and(Gate::is_closed))),
            // It has not asked: one attempt at a time, while it is not known how it answers.
            None if self.running > 0 && !self.has_room(now, lately) => Some(Because::Concurrency),
            None => None,
        }
    }

    /// Nobody asks any more.
    pub(super) fn stop_asking(&mut self, now: Instant) {
        if let Some(asking) = self.asking.take() {
            self.outbound
                .leave(now, &asking.caller(), &self.cooldown, &mut self.random);
        }
    }

    /// The claim has come back with so many messages of so many that it was for.
    pub(super) fn claimed(&mut self, asked: usize, got: usize) {
        if got < asked {
            self.due = self.due_again;
            self.want = 1;
        } else {
            self.want = self.want.saturating_mul(2).min(MOST_WANTED);
        }
        self.due_again = false;
    }

    /// An attempt was not made.
    pub(super) fn cancel(&mut self, now: Instant, permit: Permit) {
        self.outbound
            .cancel(now, permit, &self.cooldown, &mut self.random);
    }

    /// An attempt is over. `None` is a success.
    pub(super) fn ended(&mut self, now: Instant, permit: Permit, failure: Option<&Failure>) {
        let ended = match failure {
            None => {
                self.acknowledged = Some(now);
                Ended::Answered
            }
            Some(failure) => {
                let policy = &self.rules.policy;
                // A policy that ignores what the receiver asks for holds none for it.
                if policy.hint() != HintMode::Ignore && !self.outbound.holds_for_one(now, failure) {
                    let most = policy.max_hint();
                    self.cooldown.on_failure(now, failure, most);
                    let delay = failure.hint.delay().unwrap_or_default();
                    self.spread = schedule::hint_spread(policy, delay.min(most));
                    if let Some(asking) = &mut self.asking {
                        asking.spread = self.spread;
                    }
                }
                self.outbound.on_failure(now, permit.started(), failure)
            }
        };
        self.outbound
            .ended(now, permit, ended, &self.cooldown, &mut self.random);
    }
}

impl Lane {
    /// The fault of this side that holds its messages, if one does.
    pub(super) fn fault(&self) -> Option<&LocalFault> {
        self.hold.as_ref().map(|hold| &hold.fault)
    }

    /// A fault of this side holds its messages from now on, or still.
    pub(super) fn hold(&mut self, now: tokio::time::Instant, fault: LocalFault) {
        let wait = next_wait(self.hold.as_ref().map(|hold| hold.wait));
        let endpoint = &self.rules.endpoint;
        let is_new = self.fault().is_none_or(|before| before.kind != fault.kind);
        observe::local_fault(&endpoint.tenant, &endpoint.name, &fault, is_new);
        let until = now + wait;
        self.hold = Some(Hold { fault, until, wait });
    }

    /// A fault of this side holds one of its messages, and the others go on.
    pub(super) fn hold_one(&mut self, fault: &LocalFault) {
        let endpoint = &self.rules.endpoint;
        let is_new = !std::mem::replace(&mut self.holds_some, true);
        observe::local_fault(&endpoint.tenant, &endpoint.name, fault, is_new);
    }

    /// No fault of this side holds its messages.
    pub(super) fn mended(&mut self) {
        if self.hold.take().is_some() {
            let endpoint = &self.rules.endpoint;
            observe::mended(&endpoint.tenant, &endpoint.name);
        }
    }

    /// Until when a fault of this side holds its messages; `None` if one may be sent, to see whether it is mended.
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
                    self.mended();
                    return None;
                }
            }
            self.hold(now, fault);
        }
        let until = self.hold.as_ref().map(|hold| hold.until);
        until.filter(|until| now < *until)
    }
}

/// The most messages of one endpoint that are claimed at once.
const MOST_WANTED: usize = 64;

/// An endpoint that has answered soon within this time is one that answers soon.
const KNOWN_FOR: Duration = Duration::from_secs(60);
/// After so long without an acknowledgement a message that fails again says that the endpoint is down: longer than two
/// probes are apart.
const ACKNOWLEDGES: Duration = Duration::from_secs(15);
/// The most between two probes unless the policy of the endpoint says otherwise, give or take a quarter: two of them are
/// not more than 10 s apart.
const MAX_PROBE: Duration = Duration::from_secs(4);
/// So soon a closed gate is asked again that is past its time.
const PROBE_AGAIN: Duration = Duration::from_millis(250);

/// Holds back nothing.
static BARE: Policy = Policy::builder(Backoff::None).build_const();

/// Whether the last attempt under another owner had no answer.
fn is_silent(health: &Health) -> bool {
    [NO_ANSWER, NO_CONNECTION].contains(&health.last_error())
}

/// The gate and the request rate of an endpoint. What holds back before an attempt is a gate unless the endpoint says
/// otherwise.
fn shared(rules: &Rules, with_gate: bool) -> Policy {
    // A policy for what is shared alone: how one message is repeated, its schedule says.
    let mut shared = Policy::builder(Backoff::None);
    if rules.endpoint.park && !rules.is_contract && with_gate {
        let usual = GateConfig {
            max_probe: MAX_PROBE,
            ..GateConfig::DEFAULT
        };
        shared = shared.gate(rules.policy.gate().copied().unwrap_or(usual));
    }
    if let Some(rate) = rules.policy.request_rate() {
        shared = shared.request_rate(*rate);
    }
    shared.build().unwrap_or_else(|_| BARE.clone())
}
