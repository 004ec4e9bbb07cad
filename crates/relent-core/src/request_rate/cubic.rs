//! A rate that is cut when it was too much, and comes back along a cubic (RFC 9438).

use core::time::Duration;

use crate::time::{Instant, nanos};
use crate::window::Window;

/// What a cut leaves, and how steep the cubic is: of RFC 9438 and the AWS SDKs. In the scenario
/// `throttling` and its variants no other pair was better: 0.85 and 1.6 refuse more where there are many
/// processes, and bring no more home.
const LEFT: f64 = 0.7;
const STEEP: f64 = 0.4;
/// Attempts per second that are always allowed: with fewer nobody would learn that there is room
/// again (the AWS SDKs').
const LEAST: f64 = 0.5;
/// The rate at which attempts are being made is counted over this time, or over how long they have been
/// made, but no less than a tenth of a second.
const COUNTED: Duration = Duration::from_secs(1);
const LEAST_SPAN: u64 = 100_000_000;

#[derive(Debug)]
pub(super) struct Cubic {
    sent: Window<1>,
    /// Since when there have been attempts without a pause of that time.
    since: Instant,
    cut: Option<Cut>,
}

#[derive(Clone, Copy, Debug)]
struct Cut {
    at: Instant,
    /// The rate that was too much.
    top: f64,
    /// Seconds until it is reached again.
    regain: f64,
}

impl Cubic {
    pub(super) const fn new() -> Self {
        Self {
            sent: Window::new(COUNTED),
            since: Instant::ORIGIN,
            cut: None,
        }
    }

    pub(super) fn on_attempt(&mut self, now: Instant) {
        if self.sent.totals(now) == [0] {
            self.since = now;
        }
        self.sent.add(now, 0);
    }

    /// Attempts per second. In the first moments of a burst a count over a whole second would be far too
    /// low, and the cut as well.
    fn sending(&mut self, now: Instant) -> f64 {
        let [sent] = self.sent.totals(now);
        let span = now
            .nanos_since(self.since)
            .clamp(LEAST_SPAN, nanos(COUNTED));
        f64::from(sent) * 1e9 / span as f64
    }

    /// What may be sent now; `None` before the first cut.
    pub(super) fn rate(&self, now: Instant) -> Option<f64> {
        let cut = self.cut?;
        let since = now.nanos_since(cut.at) as f64 / 1e9 - cut.regain;
        Some((cut.top + STEEP * since * since * since).max(LEAST))
    }

    /// The rate to which it comes back; `None` before the first cut.
    pub(super) fn regained(&self) -> Option<f64> {
        self.cut.map(|cut| cut.top.max(LEAST))
    }

    /// What was sent at `started`, while `limit` was allowed, was too much. False if it was sent
    /// before the last cut, which was the answer to it.
    pub(super) fn cut(&mut self, now: Instant, started: Instant, limit: Option<f64>) -> bool {
        if self.cut.is_some_and(|cut| started < cut.at) {
            return false;
        }
        let sent = self.sending(now);
        let top = limit.map_or(sent, |limit| sent.min(limit)).max(LEAST);
        self.cut = Some(Cut {
            at: now,
            top,
            regain: libm::cbrt(top * (1.0 - LEFT) / STEEP),
        });
        true
    }
}
