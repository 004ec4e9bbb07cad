//! Memory limit for the payloads of attempts, so that large messages to hanging endpoints do not fill the memory.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

/// Limits the bytes of long payloads that attempts hold. Endpoints that are slow, or not known yet, hold at most half
/// of them.
#[derive(Clone, Debug)]
pub(super) struct Bodies(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    held: Mutex<Count>,
    freed: Notify,
}

#[derive(Clone, Copy, Default, Debug)]
struct Count {
    all: usize,
    /// The bytes held for endpoints that are not known to be fast.
    maybe_slow: usize,
    /// The largest value of `all` so far.
    peak: usize,
}

/// Memory for the payload of one attempt, released on drop.
#[derive(Debug)]
pub(super) struct PayloadPermit {
    of: Bodies,
    bytes: usize,
    may_be_slow: bool,
}

impl Bodies {
    pub(super) fn new(most: usize) -> Self {
        Self(Arc::new(Shared {
            most,
            held: Mutex::default(),
            freed: Notify::new(),
        }))
    }

    fn count<T>(&self, change: impl FnOnce(&mut Count) -> T) -> T {
        change(&mut self.0.held.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reserves memory for a payload, if there is enough. A payload beyond the limit gets memory when nothing else is
    /// held.
    pub(super) fn take(&self, bytes: usize, may_be_slow: bool) -> Option<PayloadPermit> {
        let most = self.0.most;
        let fits = |held: usize, most: usize| held == 0 || held.saturating_add(bytes) <= most;
        let taken = self.count(|held| {
            let fits =
                fits(held.all, most) && (!may_be_slow || fits(held.maybe_slow, most.div_ceil(2)));
            if fits {
                held.all += bytes;
                held.maybe_slow += if may_be_slow { bytes } else { 0 };
                held.peak = held.peak.max(held.all);
            }
            fits
        });
        taken.then(|| PayloadPermit {
            of: self.clone(),
            bytes,
            may_be_slow,
        })
    }

    /// The number of bytes that are free; unlimited if nothing is held.
    pub(super) fn free(&self, may_be_slow: bool) -> usize {
        let most = self.0.most;
        let left = |held: usize, most: usize| match held {
            0 => usize::MAX,
            held => most.saturating_sub(held),
        };
        self.count(|held| {
            let all = left(held.all, most);
            match may_be_slow {
                true => left(held.maybe_slow, most.div_ceil(2)).min(all),
                false => all,
            }
        })
    }

    /// Waits until memory is released.
    pub(super) async fn freed(&self) {
        self.0.freed.notified().await;
    }

    /// The most bytes that were held at the same time.
    #[cfg(test)]
    pub(super) fn peak(&self) -> usize {
        self.count(|held| held.peak)
    }
}

impl PayloadPermit {
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Releases the bytes beyond this number.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let excess = self.bytes.saturating_sub(bytes);
        self.bytes -= excess;
        self.give_back(excess);
    }

    /// Ties the memory to the payload: it counts until the last reference is dropped, such as a connection's buffer.
    pub(super) fn keep(self, payload: Bytes) -> Bytes {
        Bytes::from_owner(Kept {
            payload,
            _held: self,
        })
    }

    fn give_back(&self, bytes: usize) {
        self.of.count(|held| {
            held.all = held.all.saturating_sub(bytes);
            if self.may_be_slow {
                held.maybe_slow = held.maybe_slow.saturating_sub(bytes);
            }
        });
        self.of.0.freed.notify_one();
    }
}

impl Drop for PayloadPermit {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

struct Kept {
    payload: Bytes,
    _held: PayloadPermit,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_counts_until_its_last_reference_is_dropped() {
        let bodies = Bodies::new(100);
        let memory = bodies.take(60, false).unwrap();
        assert!(bodies.take(41, false).is_none());
        let payload = memory.keep(Bytes::from_static(&[7; 60]));
        let part = payload.slice(59..);
        drop(payload);
        assert!(bodies.take(41, false).is_none(), "a part of it is held");
        assert_eq!(part[..], [7]);
        drop(part);
        let mut all = bodies.take(100, false).unwrap();
        all.shrink(10);
        assert!(bodies.take(90, false).is_some());
        assert_eq!(bodies.peak(), 100);
    }

    #[test]
    fn unknown_endpoints_hold_half_the_memory_and_one_payload_always_fits() {
        let bodies = Bodies::new(100);
        let maybe_slow = bodies.take(50, true).unwrap();
        assert!(bodies.take(1, true).is_none());
        let known = bodies.take(50, false).unwrap();
        drop((maybe_slow, known));
        let large = bodies.take(1000, true).unwrap();
        assert!(bodies.take(1, false).is_none());
        drop(large);
        assert!(bodies.take(1, false).is_some());
    }
}
