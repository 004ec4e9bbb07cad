//! The progress bar of a long download.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressState, ProgressStyle};

use crate::human::human;
use crate::live_output::shows_countdown;

/// The time after which the bar appears.
const SHOW_AFTER: Duration = Duration::from_secs(1);
/// The interval at which the bar is redrawn without new bytes.
const REDRAW_INTERVAL: Duration = Duration::from_millis(200);
/// The period over which the rate is averaged.
const RATE_WINDOW: Duration = Duration::from_secs(10);
/// The minimum time between two samples for the rate.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// A bar on standard error that appears when a download takes long, and is hidden during delays.
#[derive(Debug)]
pub(crate) struct Progress {
    /// The start of the fetch; `None` if the bar is never shown.
    since: Option<Instant>,
    bar: SharedBar,
    /// The bytes of the body so far, including those of earlier calls.
    position: u64,
    total: Option<u64>,
    rate: Arc<Mutex<Rate>>,
}

/// The visible bar, if any; every clone can clear it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedBar(Arc<Mutex<Option<ProgressBar>>>);

impl SharedBar {
    /// Clears the bar until more bytes arrive.
    pub(crate) fn clear(&self) {
        if let Some(bar) = self.bar().take() {
            bar.finish_and_clear();
        }
    }

    fn bar(&self) -> std::sync::MutexGuard<'_, Option<ProgressBar>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rate of the bytes that arrive in the current attempt.
#[derive(Debug, Default)]
struct Rate {
    /// Samples of time and bytes, oldest first; the first is the start of the attempt while that is recent.
    points: VecDeque<(Instant, u64)>,
}

impl Rate {
    fn begin(&mut self, now: Instant, position: u64) {
        self.points.clear();
        self.points.push_back((now, position));
    }

    fn advance(&mut self, now: Instant, position: u64) {
        if let Some((last, _)) = self.points.back()
            && now.duration_since(*last) >= SAMPLE_INTERVAL
        {
            self.points.push_back((now, position));
        }
        // One sample that is older than the window stays as the start of the average.
        while let Some((second, _)) = self.points.get(1)
            && now.duration_since(*second) >= RATE_WINDOW
        {
            self.points.pop_front();
        }
    }

    /// Returns the rate in bytes per second, given the current number of bytes.
    fn per_second(&self, now: Instant, position: u64) -> Option<f64> {
        let (then, first) = self.points.front()?;
        let time = now.duration_since(*then).as_secs_f64();
        (time > 0.0).then(|| position.saturating_sub(*first) as f64 / time)
    }
}

impl Progress {
    /// Creates a bar. It is never shown if `quiet`, without a terminal, or if it would be `mixed` with a body.
    pub(crate) fn new(quiet: bool, mixed: bool) -> Self {
        let shown = !quiet && !mixed && shows_countdown();
        Self {
            since: shown.then(Instant::now),
            bar: SharedBar::default(),
            position: 0,
            total: None,
            rate: Arc::default(),
        }
    }

    /// A response starts, or starts over.
    pub(crate) fn start(&mut self, total: Option<u64>) {
        self.resume(0, total);
    }

    /// A response continues after the first `position` bytes.
    pub(crate) fn resume(&mut self, position: u64, total: Option<u64>) {
        self.bar.clear();
        self.position = position;
        self.total = total;
        self.rate().begin(Instant::now(), position);
    }

    /// Counts received bytes.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.position += bytes as u64;
        let Some(since) = self.since else { return };
        let now = Instant::now();
        self.rate().advance(now, self.position);
        if now.duration_since(since) < SHOW_AFTER {
            return;
        }
        let (position, total) = (self.position, self.total);
        let mut shown = self.bar.bar();
        let bar = shown.get_or_insert_with(|| bar(position, total, &self.rate));
        bar.set_position(position);
    }

    /// The visible bar.
    pub(crate) fn bar(&self) -> SharedBar {
        self.bar.clone()
    }

    fn rate(&self) -> std::sync::MutexGuard<'_, Rate> {
        self.rate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bar(position: u64, total: Option<u64>, rate: &Arc<Mutex<Rate>>) -> ProgressBar {
    let (bar, template) = match total {
        Some(total) => (
            ProgressBar::new(total),
            "relent: {wide_bar} {bytes}/{total_bytes} {speed}",
        ),
        None => (
            ProgressBar::no_length(),
            "relent: {spinner} {bytes} {speed}",
        ),
    };
    let rate = Arc::clone(rate);
    let speed = move |state: &ProgressState, to: &mut dyn std::fmt::Write| {
        let rate = rate.lock().unwrap_or_else(PoisonError::into_inner);
        let speed = rate.per_second(Instant::now(), state.pos());
        // Write errors of the bar are ignored.
        let _ = to.write_str(&shown(speed, state.pos(), total));
    };
    let style = ProgressStyle::with_template(template).map(|style| style.with_key("speed", speed));
    let bar = match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    };
    let bar = bar.with_position(position);
    bar.enable_steady_tick(REDRAW_INTERVAL);
    bar
}

/// Formats the rate, and the time left at this rate.
fn shown(speed: Option<f64>, position: u64, total: Option<u64>) -> String {
    let Some(speed) = speed else {
        return String::new();
    };
    let mut text = format!("{}/s", HumanBytes(speed as u64));
    if let Some(total) = total
        && speed >= 1.0
    {
        let left = total.saturating_sub(position) as f64 / speed;
        if let Ok(left) = Duration::try_from_secs_f64(left.ceil()) {
            let _ = write!(text, ", {} left", human(left));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_download_rate_counts_only_bytes_of_the_current_attempt() {
        let mut rate = Rate::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(rate.per_second(at(0), 0), None);
        // 1 GB is from an earlier call.
        let there = 1_000_000_000;
        rate.begin(at(0), there);
        rate.advance(at(500), there + 500_000);
        assert_eq!(rate.per_second(at(1000), there + 1_000_000), Some(1e6));
        rate.begin(at(5000), there);
        assert_eq!(rate.per_second(at(6000), there + 10), Some(10.0));
    }

    #[test]
    fn the_rate_follows_a_server_that_slows_down() {
        let mut rate = Rate::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        rate.begin(at(0), 0);
        for second in 1..=60 {
            rate.advance(at(second), 1_000_000 * second.min(30));
        }
        assert_eq!(rate.per_second(at(60), 30_000_000), Some(0.0));
    }

    #[test]
    fn the_time_left_follows_from_rate_and_remaining_bytes() {
        assert_eq!(shown(Some(1024.0), 1024, Some(3072)), "1.00 KiB/s, 2s left");
        assert_eq!(shown(Some(0.0), 1024, Some(3072)), "0 B/s");
        assert_eq!(shown(Some(1024.0), 1024, None), "1.00 KiB/s");
        assert_eq!(shown(None, 0, None), "");
    }
}
