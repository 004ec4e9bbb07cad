//! Tokio's clock and timer.

use std::time::Duration;

use relent_core::Instant;

use super::{Clock, Sleeper, from_core_instant, to_core_instant};

/// Tokio's clock and timer. Follows `tokio::time::pause` and `advance` in tests.
///
/// It waits only within a tokio runtime, and panics with advice outside of one. For other runtimes
/// implement [`Sleeper`]; `examples/other_runtimes.rs` shows how.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioClock;

impl Clock for TokioClock {
    type Sleep = ::tokio::time::Sleep;

    fn now(&self) -> Instant {
        to_core_instant(::tokio::time::Instant::now().into_std())
    }
}

impl Sleeper for TokioClock {
    /// # Panics
    /// Outside a tokio runtime and in one without timers, as every timer of tokio.
    fn sleep(&self, duration: Duration) -> ::tokio::time::Sleep {
        within_tokio();
        ::tokio::time::sleep(duration)
    }

    /// # Panics
    /// As [`sleep`](Self::sleep).
    fn sleep_until(&self, until: Instant) -> ::tokio::time::Sleep {
        let Some(at) = from_core_instant(until) else {
            return self.sleep(until.saturating_since(self.now()));
        };
        within_tokio();
        ::tokio::time::sleep_until(at.into())
    }
}

#[inline]
fn within_tokio() {
    if ::tokio::runtime::Handle::try_current().is_err() {
        outside_tokio();
    }
}

/// Replaces tokio's own message, which does not mention the fix.
#[cold]
#[expect(
    clippy::panic,
    reason = "tokio's timer would panic right after it, without a way out"
)]
fn outside_tokio() -> ! {
    panic!(
        "there is no tokio runtime here to wait by: call this within one, or pass a sleeper of the \
         runtime that is used with `.clock(..)`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "pass a sleeper of the runtime that is used with `.clock(..)`")]
    fn outside_a_tokio_runtime_the_panic_message_names_the_fix() {
        drop(TokioClock.sleep(Duration::from_secs(1)));
    }
}
