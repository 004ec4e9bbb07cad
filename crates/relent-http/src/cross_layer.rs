//! Cross-layer headers that a client sends: attempt number, deadline and attempt histogram.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use relent::Attempt;
use relent::clock::Clock;
use relent_core::{Histogram, Policy};

use crate::caller_headers::{remaining, set_remaining};
use crate::deadline::within;
use crate::headers::{RELENT_ATTEMPT, RELENT_HISTOGRAM};
use crate::histogram;

/// The window in which calls are counted: two minutes, as on servers ("Handling Overload", Site
/// Reliability Engineering).
const HISTOGRAM_WINDOW: Duration = Duration::from_secs(120);
/// One call in this many carries the histogram.
const CALLS_PER_HISTOGRAM: u64 = 64;

/// Client state for cross-layer headers; its clones share the histogram.
#[derive(Clone)]
pub struct CrossLayer(Arc<Shared>);

struct Shared {
    histogram: Mutex<Histogram>,
    calls: AtomicU64,
}

impl CrossLayer {
    /// Creates the state of a client that has made no calls.
    #[must_use]
    #[allow(
        clippy::new_without_default,
        reason = "two defaults would not be equal"
    )]
    pub fn new() -> Self {
        Self(Arc::new(Shared {
            histogram: Mutex::new(Histogram::new(HISTOGRAM_WINDOW)),
            calls: AtomicU64::new(0),
        }))
    }

    /// The time until the deadline that a request carries.
    #[cfg(all(feature = "grpc", feature = "tower"))]
    pub(crate) fn remaining(headers: &HeaderMap) -> Option<Duration> {
        remaining(headers)
    }

    /// The policy with the deadline that a request carries; `None` if nothing changes.
    #[must_use]
    pub fn policy(policy: &Policy, headers: &HeaderMap) -> Option<Arc<Policy>> {
        within(policy, remaining(headers)?)
    }
}

impl Shared {
    fn with_histogram<T>(&self, with: impl FnOnce(&mut Histogram) -> T) -> T {
        with(
            &mut self
                .histogram
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }
}

/// One call of a client that may send cross-layer headers. It is added to the client's histogram when it is dropped:
/// answered, given up or cancelled.
pub struct CrossLayerCall<K: Clock>(Option<CallState<K>>);

struct CallState<K: Clock> {
    shared: Arc<Shared>,
    clock: K,
    attempts: u32,
    /// Whether the requests of this call carry the histogram.
    carries: bool,
}

impl<K: Clock> CrossLayerCall<K> {
    /// For a client that sends no such headers.
    #[cfg(feature = "tower")]
    pub(crate) const NOTHING: Self = Self(None);

    /// Starts a call of this client; `None` sends no headers.
    #[inline]
    pub fn of(client: Option<&CrossLayer>, clock: impl FnOnce() -> K) -> Self {
        Self(client.map(|client| CallState::new(client, clock())))
    }

    /// Writes the cross-layer headers of this attempt to its request.
    #[inline]
    pub(crate) fn write_headers(&mut self, attempt: &Attempt, headers: &mut HeaderMap) {
        if let Some(call_state) = &mut self.0 {
            call_state.write_headers(attempt, headers);
        }
    }
}

impl<K: Clock> CallState<K> {
    fn new(client: &CrossLayer, clock: K) -> Self {
        // A counter only: it orders nothing.
        let before = client.0.calls.fetch_add(1, Ordering::Relaxed);
        Self {
            shared: client.0.clone(),
            clock,
            attempts: 0,
            carries: before % CALLS_PER_HISTOGRAM == CALLS_PER_HISTOGRAM - 1,
        }
    }

    fn write_headers(&mut self, attempt: &Attempt, headers: &mut HeaderMap) {
        self.attempts = self.attempts.max(attempt.number);
        // Fields of a forwarded request describe another hop.
        headers.remove(RELENT_ATTEMPT);
        headers.remove(RELENT_HISTOGRAM);
        if attempt.number > 1 {
            headers.insert(RELENT_ATTEMPT, HeaderValue::from(attempt.number));
        }
        if let Some(left) = attempt.remaining
            && remaining(headers).is_none_or(|given| given > left)
        {
            set_remaining(headers, left);
        }
        if self.carries {
            let now = self.clock.now();
            let counts = self
                .shared
                .with_histogram(|histogram| histogram.counts(now));
            if let Some(value) = histogram::format(&counts) {
                headers.insert(RELENT_HISTOGRAM, value);
            }
        }
    }
}

impl<K: Clock> Drop for CallState<K> {
    fn drop(&mut self) {
        if self.attempts > 0 {
            let (now, attempts) = (self.clock.now(), self.attempts);
            self.shared
                .with_histogram(|histogram| histogram.record(now, attempts));
        }
    }
}

impl fmt::Debug for CrossLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CrossLayer").finish_non_exhaustive()
    }
}

impl<K: Clock> fmt::Debug for CrossLayerCall<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CrossLayerCall").finish_non_exhaustive()
    }
}
