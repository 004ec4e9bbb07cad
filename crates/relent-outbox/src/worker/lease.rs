//! The lease of the worker: its renewal by heartbeats, its loss, and the share of endpoints that comes with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::store_calls::call_within;
use crate::observe;
use crate::store::Store;

/// The number of leases after which a worker below its share tries again to acquire endpoints of other workers. Each
/// try costs as much as there are such endpoints, as they are named by hints.
const REACQUIRE_LEASES: u32 = 4;

/// The known state of the worker's lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LeaseState {
    /// The lease is held at least until then; counted from before the store was asked.
    pub(super) until: Option<Instant>,
    /// The number of times it was lost.
    pub(super) lost: u64,
    /// The number of endpoints that are this worker's share.
    share: usize,
}

impl LeaseState {
    const NONE: Self = Self {
        until: None,
        lost: 0,
        share: 0,
    };

    fn is_held(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

/// The lease, as far as the event loop has handled it.
#[derive(Debug)]
pub(super) struct Lease {
    state: watch::Receiver<LeaseState>,
    length: Duration,
    /// The number of losses that the worker has handled.
    lost: u64,
    beat: Arc<Beat>,
    /// The earliest time of the next request for an immediate heartbeat.
    nudge_at: Instant,
    /// There is work beyond this worker's share.
    has_work_beyond_share: bool,
    /// The earliest time to try again to acquire endpoints of other workers.
    reacquire_at: Instant,
}

/// The instructions for heartbeats.
#[derive(Debug)]
struct Beat {
    /// Requests an immediate heartbeat.
    nudge: Notify,
    /// The worker is able to make attempts.
    able: AtomicBool,
}

/// The effects of a heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LeaseChange {
    /// There is room for work that was beyond the share.
    pub(super) has_room: bool,
    /// The lease was lost, so other workers may own the endpoints. The other effects do not matter then.
    pub(super) is_lost: bool,
    /// Other workers may have released endpoints for this one.
    pub(super) may_reacquire: bool,
    /// The number of endpoints to release.
    pub(super) excess: usize,
}

impl Lease {
    fn new(now: Instant, length: Duration, state: watch::Receiver<LeaseState>) -> Self {
        Self {
            state,
            length,
            lost: 0,
            beat: Arc::new(Beat {
                nudge: Notify::new(),
                able: AtomicBool::new(true),
            }),
            nudge_at: now,
            has_work_beyond_share: false,
            reacquire_at: now,
        }
    }

    /// Starts the heartbeats of a worker, which end when the lease and all copies of its state are dropped.
    pub(super) fn start<S: Store>(
        now: Instant,
        length: Duration,
        store: S,
        name: String,
    ) -> (Self, JoinHandle<()>) {
        let (sender, state) = watch::channel(LeaseState::NONE);
        let lease = Self::new(now, length, state);
        let beat = Arc::clone(&lease.beat);
        let heartbeats = tokio::spawn(heartbeat(store, name, length, sender, beat));
        (lease, heartbeats)
    }

    /// Its state, as of the last heartbeat.
    pub(super) fn state(&self) -> watch::Receiver<LeaseState> {
        self.state.clone()
    }

    pub(super) fn is_held(&self, now: Instant) -> bool {
        self.state.borrow().is_held(now)
    }

    /// Whether it is held, and every loss was handled.
    pub(super) fn is_kept(&self, now: Instant) -> bool {
        let state = self.state.borrow();
        state.is_held(now) && state.lost == self.lost
    }

    /// The number of endpoints that are this worker's share.
    pub(super) fn share(&self) -> usize {
        self.state.borrow().share
    }

    /// The number of losses that were handled.
    pub(super) const fn lost(&self) -> u64 {
        self.lost
    }

    /// There is work beyond the share. Requests a heartbeat, at most one in `interval`: there may be more endpoints, or
    /// fewer workers, since the last.
    pub(super) fn work_beyond_share(&mut self, now: Instant, interval: Duration) {
        self.has_work_beyond_share = true;
        if self.nudge_at <= now {
            self.nudge_at = now + interval;
            self.beat.nudge.notify_one();
        }
    }

    /// Whether the worker is able to make attempts: other workers take the endpoints of one that is not. A heartbeat
    /// says so at once.
    pub(super) fn set_able(&self, able: bool) {
        if self.beat.able.swap(able, Ordering::Relaxed) != able {
            observe::able(able);
            self.beat.nudge.notify_one();
        }
    }

    /// Handles a heartbeat of a worker that owns this number of endpoints.
    pub(super) fn changed(&mut self, now: Instant, owned: usize) -> LeaseChange {
        let LeaseState { lost, share, .. } = *self.state.borrow();
        let had_work = std::mem::take(&mut self.has_work_beyond_share);
        let is_lost = std::mem::replace(&mut self.lost, lost) != lost;
        let may_reacquire = !is_lost && owned < share && self.reacquire_at <= now;
        if may_reacquire {
            self.reacquire_at = now + REACQUIRE_LEASES * self.length;
        }
        LeaseChange {
            has_room: had_work && owned < share,
            is_lost,
            may_reacquire,
            // Up to a tenth above the share, endpoints stay where they are. A worker without a share keeps none.
            excess: match share {
                0 => owned,
                share => owned.saturating_sub(share + share / 10 + 1),
            },
        }
    }
}

/// Sends heartbeats until the pulse is dropped, and one immediately when it is nudged. At the end it releases the
/// lease, so that other workers get its share of the endpoints immediately.
async fn heartbeat<S: Store>(
    store: S,
    name: String,
    lease: Duration,
    pulse: watch::Sender<LeaseState>,
    beat: Arc<Beat>,
) {
    let each = lease / 3;
    loop {
        let asked = Instant::now();
        let (asked_of, own) = (store.clone(), name.clone());
        let able = beat.able.load(Ordering::Relaxed);
        let call = async move { asked_of.heartbeat(&own, lease, able).await };
        let wait = match call_within(each, call).await {
            Ok(heartbeat) => {
                pulse.send_modify(|pulse| {
                    // A new worker had no lease to lose. An expired lease is lost whatever the store responds: it may
                    // have reported the loss in a response that was lost.
                    let is_lost = |until| !heartbeat.kept || until <= asked;
                    pulse.lost += u64::from(pulse.until.is_some_and(is_lost));
                    pulse.until = Some(asked + lease);
                    pulse.share = heartbeat.share;
                });
                each
            }
            Err(error) => {
                observe::store_error("heartbeat", &error);
                each / 10
            }
        };
        tokio::select! {
            () = pulse.closed() => break,
            () = sleep(wait) => {}
            () = beat.nudge.notified() => {}
        }
    }
    // If this fails, the lease expires.
    let _ = timeout(each, store.heartbeat(&name, Duration::ZERO, true)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(30);

    fn lease() -> (Lease, watch::Sender<LeaseState>, Instant) {
        let now = Instant::now();
        let (sender, state) = watch::channel(LeaseState {
            until: Some(now + LENGTH),
            lost: 0,
            share: 10,
        });
        (Lease::new(now, LENGTH, state), sender, now)
    }

    #[test]
    fn a_loss_is_reported_once_and_then_counts_as_handled() {
        let (mut lease, sender, now) = lease();
        assert!(lease.is_kept(now) && !lease.is_held(now + LENGTH));
        sender.send_modify(|state| state.lost = 1);
        assert!(lease.is_held(now) && !lease.is_kept(now));
        assert!(lease.changed(now, 5).is_lost);
        assert!(lease.is_kept(now) && lease.lost() == 1);
        assert!(!lease.changed(now, 5).is_lost);
    }

    #[test]
    fn endpoints_up_to_a_tenth_above_the_share_stay() {
        let (mut lease, _sender, now) = lease();
        assert_eq!(lease.share(), 10);
        for (owned, excess) in [(9, 0), (12, 0), (13, 1), (40, 28)] {
            assert_eq!(lease.changed(now, owned).excess, excess, "{owned}");
        }
    }

    #[test]
    fn a_worker_below_its_share_asks_other_workers_every_four_leases() {
        let (mut lease, _sender, now) = lease();
        assert!(!lease.changed(now, 10).may_reacquire, "it has its share");
        assert!(lease.changed(now, 9).may_reacquire);
        assert!(
            !lease
                .changed(now + 4 * LENGTH - LENGTH / 9, 9)
                .may_reacquire
        );
        assert!(lease.changed(now + 4 * LENGTH, 9).may_reacquire);
    }

    #[tokio::test(start_paused = true)]
    async fn work_beyond_the_share_requests_one_heartbeat_per_interval() {
        let (mut lease, _sender, now) = lease();
        let second = Duration::from_secs(1);
        lease.work_beyond_share(now, second);
        lease.beat.nudge.notified().await;
        lease.work_beyond_share(now, second);
        assert!(timeout(second, lease.beat.nudge.notified()).await.is_err());
        assert!(!lease.changed(now, 10).has_room, "others own the rest");
        lease.work_beyond_share(now + second, second);
        lease.beat.nudge.notified().await;
        assert!(lease.changed(now, 9).has_room);
        assert!(!lease.changed(now, 9).has_room, "it was reported");
    }
}
