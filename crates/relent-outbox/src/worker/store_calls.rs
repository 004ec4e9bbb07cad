//! Store calls: those that run, each in a task of its own and with a time limit, and the pause while the store fails.

use std::collections::HashMap;
use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use relent::random::SessionRandom;
use relent_core::{Backoff, Decision, Failure, Policy, Session};
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, timeout};

use super::clock::CoreClock;
use crate::store::{Claims, EndpointWork, OwnedEndpoint};

/// The retry policy for a failing store.
static STORE_RETRY_POLICY: Policy =
    Policy::builder(Backoff::exponential(Duration::from_millis(100)))
        .max_delay(MAX_PAUSE)
        .unlimited_retries()
        .build_const();

/// The largest number of messages to claim or settle, or of endpoints to acquire, in one call.
pub(super) const MAX_CALL_ITEMS: usize = 512;
const MIN_PAUSE: Duration = Duration::from_millis(1);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// The kind of a store call. At most one of each kind runs at a time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum StoreCall {
    Find,
    Acquire,
    Claim,
    Settle,
    Release,
}

impl StoreCall {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Find => "find",
            Self::Acquire => "acquire",
            Self::Claim => "claim",
            Self::Settle => "settle",
            Self::Release => "release",
        }
    }
}

/// The result of a store call.
#[derive(Debug)]
pub(super) enum CallResult {
    Found(Vec<EndpointWork>),
    Acquired(Vec<OwnedEndpoint>),
    Claimed(Claims),
    Settled(Vec<bool>),
    Released,
}

/// The running store calls, and the time of the next after a failure.
#[derive(Debug)]
pub(super) struct StoreCalls {
    tasks: JoinSet<Result<CallResult, String>>,
    kinds: HashMap<Id, StoreCall>,
    /// The time limit of a call.
    limit: Duration,
    clock: CoreClock,
    random: SessionRandom,
    /// The retry session of a store that has failed and not responded since.
    failing: Option<Session>,
    next_at: Instant,
}

impl StoreCalls {
    pub(super) fn new(now: Instant, limit: Duration) -> Self {
        Self {
            tasks: JoinSet::new(),
            kinds: HashMap::new(),
            limit,
            clock: CoreClock::new(now),
            random: SessionRandom::new(),
            failing: None,
            next_at: now,
        }
    }

    pub(super) fn is_busy(&self, kind: StoreCall) -> bool {
        self.kinds.values().any(|busy| *busy == kind)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// The earliest time of the next call.
    pub(super) const fn next_at(&self) -> Instant {
        self.next_at
    }

    /// Ends the pause after a failure.
    pub(super) const fn end_pause(&mut self, now: Instant) {
        self.next_at = now;
    }

    /// Records that the store has responded.
    pub(super) const fn succeeded(&mut self) {
        self.failing = None;
    }

    /// Records a failure of the store. Returns the end of the pause, which grows with each failure.
    pub(super) fn failed(&mut self, now: Instant) -> Instant {
        let at = self.clock.at(now);
        let session = self.failing.get_or_insert_with(|| Session::new(at, true));
        session.on_attempt();
        let failure = Failure::not_processed();
        let decision =
            session.on_failure(&STORE_RETRY_POLICY, at, &failure, &mut self.random, None);
        let pause = match decision {
            Decision::Retry { after } => after.max(MIN_PAUSE),
            Decision::Stop(_) => MAX_PAUSE,
        };
        self.next_at = now + pause;
        self.next_at
    }

    /// Starts a call.
    pub(super) fn begin<E: Display>(
        &mut self,
        kind: StoreCall,
        call: impl Future<Output = Result<CallResult, E>> + Send + 'static,
    ) {
        let limit = self.limit;
        let task = self.tasks.spawn(async move {
            match timeout(limit, call).await {
                Ok(Ok(done)) => Ok(done),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err(NO_ANSWER.to_owned()),
            }
        });
        self.kinds.insert(task.id(), kind);
    }

    /// Returns the next finished call. Waits for ever if none runs.
    pub(super) async fn next(&mut self) -> (StoreCall, Result<CallResult, String>) {
        loop {
            let (id, result) = match self.tasks.join_next_with_id().await {
                Some(Ok((id, result))) => (id, result),
                Some(Err(error)) => (error.id(), Err(PANICKED.to_owned())),
                None => std::future::pending().await,
            };
            if let Some(kind) = self.kinds.remove(&id) {
                return (kind, result);
            }
        }
    }
}

const PANICKED: &str = "the store has panicked";
const NO_ANSWER: &str = "the store does not answer";

/// Makes a store call in a task of its own, so that a panic is a failure, and waits at most this long for its result. Then
/// it ends the call: a late heartbeat would renew the lease of a worker that has ended.
pub(super) async fn call_within<T: Send + 'static, E: Display + Send + 'static>(
    limit: Duration,
    call: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Result<T, String> {
    // Dropping the set ends its task.
    let mut task = JoinSet::new();
    task.spawn(call);
    match timeout(limit, task.join_next()).await {
        Ok(Some(Ok(Ok(done)))) => Ok(done),
        Ok(Some(Ok(Err(error)))) => Err(error.to_string()),
        Ok(Some(Err(_)) | None) => Err(PANICKED.to_owned()),
        Err(_) => Err(NO_ANSWER.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::sync::oneshot::{self, error::TryRecvError};
    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[test]
    fn the_pause_grows_up_to_five_seconds_and_a_response_resets_it() {
        let now = Instant::now();
        let mut calls = StoreCalls::new(now, LIMIT);
        let mut longest = Duration::ZERO;
        for _ in 0..50 {
            let pause = calls.failed(now) - now;
            assert!((MIN_PAUSE..=MAX_PAUSE).contains(&pause), "{pause:?}");
            assert_eq!(calls.next_at(), now + pause);
            longest = longest.max(pause);
        }
        assert!(longest > MAX_PAUSE / 2, "{longest:?}");
        calls.succeeded();
        assert!(calls.failed(now) - now <= Duration::from_millis(100));
        calls.end_pause(now);
        assert_eq!(calls.next_at(), now);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_late_has_no_effect() {
        let (sender, mut effect) = oneshot::channel();
        let call = async move {
            sleep(2 * LIMIT).await;
            sender.send(()).map_err(|()| "nobody waits for it")
        };
        let late = call_within(LIMIT, call).await;
        assert!(late.unwrap_err().contains("does not answer"));
        sleep(2 * LIMIT).await;
        assert_eq!(effect.try_recv(), Err(TryRecvError::Closed));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_hangs_fails_after_the_limit_and_frees_its_kind() {
        let now = Instant::now();
        let mut calls = StoreCalls::new(now, LIMIT);
        calls.begin(StoreCall::Find, pending::<Result<CallResult, String>>());
        let panics = async { panic!("for a test") };
        calls.begin::<String>(StoreCall::Claim, panics);
        assert!(calls.is_busy(StoreCall::Find) && !calls.is_busy(StoreCall::Settle));
        let (kind, result) = calls.next().await;
        assert_eq!(kind, StoreCall::Claim);
        assert!(result.unwrap_err().contains("panicked"));
        let (kind, result) = calls.next().await;
        assert_eq!((kind, now.elapsed()), (StoreCall::Find, LIMIT));
        assert!(result.unwrap_err().contains("does not answer"));
        assert!(calls.is_empty());
    }
}
