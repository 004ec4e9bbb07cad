//! One endpoint of a worker: when its next attempt may start, and by which rules.

use std::sync::Arc;
use std::time::Duration;

use relent::random::SessionRandom;
use relent_core::{
    Answer, Asking, Backoff, Claim, Cooldown, Ended, Failure, Gate, HintMode, Instant, Outbound,
    Permit, Policy,
};

use super::held::Because;
use super::slots::Pool;
use crate::acknowledgement::MAX_EXCERPT;
use crate::endpoint::Endpoint;
use crate::fault::{FaultKind, LocalFault, next_wait};
use crate::health::Health;
use crate::observe;
use crate::schedule::{self, CONTRACT_CONCURRENCY};
use crate::secrets::{Secrets, Signing};
use crate::sender::Sender;
use crate::store::{Fence, Owned};
use crate::target::Target;
use crate::text::printable;

/// The rules of an endpoint, read once.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) endpoint: Endpoint,
    pub(super) policy: Policy,
    pub(super) signing: Option<Signing>,
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

/// Leave to claim one message, and the slot for its attempt.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) permit: Permit,
    pub(super) pool: Pool,
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
    /// Attempts that ended and are not written down yet.
    pub(super) unsettled: usize,
    /// An attempt has ended, so it is known whether it is slow: until then one runs at a time.
    pub(super) is_known: bool,
    /// Its last attempt was slow.
    pub(super) slow: bool,
    /// One of its messages has to go alone, and none goes before that.
    pub(super) alone: bool,
    /// It is given back when nothing of it runs.
    pub(super) leaving: bool,
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
        Self {
            outbound: outbound(&rules),
            rules: Arc::new(rules),
            fence: owned.fence,
            taken,
            revision: owned.revision,
            health: Health::read(&owned.health),
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
            unsettled: 0,
            is_known: false,
            slow: false,
            alone: false,
            leaving: false,
            is_disabled: false,
            wakes: None,
            queued: false,
        }
    }

    pub(super) const fn pool(&self) -> Pool {
        if self.slow { Pool::Slow } else { Pool::Quick }
    }

    /// Whether another message could be claimed, if there is a slot and leave to.
    pub(super) fn has_room(&self) -> bool {
        let held = self.tickets.len() + self.claiming.len();
        let concurrency = self.rules.endpoint.concurrency.get() as usize;
        let most = match self.is_known {
            // One finds out whether the fault is mended.
            _ if self.hold.is_some() => 1,
            // How long others take delays none.
            _ if self.rules.is_contract => concurrency.max(CONTRACT_CONCURRENCY),
            true => concurrency,
            false => 1,
        };
        self.due && !self.leaving && !self.alone && held < self.want && self.running + held < most
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
        let answer = match &self.asking {
            Some(asking) => self
                .outbound
                .ask_again(now, asking, &self.cooldown, &mut self.random),
            None => {
                self.next_id += 1;
                self.outbound.on_request_unthrottled(now);
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
    pub(super) fn held(&self) -> Option<Because> {
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
            None if !self.has_room() && self.running > 0 => Some(Because::Concurrency),
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
            None => Ended::Answered,
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
                    self.outbound = outbound(&rules);
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

/// The gate and the request rate of an endpoint. What holds back before an attempt is a gate unless the endpoint says
/// otherwise.
fn outbound(rules: &Rules) -> Outbound {
    // A policy for what is shared alone: how one message is repeated, its schedule says.
    let mut shared = Policy::builder(Backoff::None);
    if rules.endpoint.park && !rules.is_contract {
        shared = shared.gate(rules.policy.gate().copied().unwrap_or_default());
    }
    let outbound = shared
        .build()
        .map(|policy| Outbound::new(&policy))
        .unwrap_or_default();
    match rules.policy.new_request_rate() {
        Some(rate) => outbound.with_request_rate(rate),
        None => outbound,
    }
}
