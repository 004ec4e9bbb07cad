//! How far a long download has come, for a person at a terminal.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use http::Response;
use http::header::CONTENT_LENGTH;
use indicatif::{ProgressBar, ProgressStyle};

use crate::live::shows_countdown;

/// A download that is over by then is not worth a bar.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the bar moves by itself, as the rate falls.
const TICK: Duration = Duration::from_millis(200);

/// A bar on standard error that appears when a download takes long; gone while relent waits.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Since when it has been possible to show it; `None` if it never is.
    since: Option<Instant>,
    bar: Option<ProgressBar>,
    received: u64,
    total: Option<u64>,
}

impl Progress {
    /// A bar that is never shown if `quiet`, off a terminal, or where it would be mixed with a body
    /// that goes `to_stdout`.
    pub(crate) fn new(quiet: bool, to_stdout: bool) -> Self {
        let mixed = to_stdout && std::io::stdout().is_terminal();
        let shown = !quiet && !mixed && shows_countdown();
        Self {
            since: shown.then(Instant::now),
            bar: None,
            received: 0,
            total: None,
        }
    }

    /// A response begins, or begins anew.
    pub(crate) fn start(&mut self, head: &Response<()>) {
        self.received = 0;
        self.total = head
            .headers()
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse().ok());
        self.pause();
    }

    /// So many more bytes.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.received += bytes as u64;
        let long = self.since.is_some_and(|since| since.elapsed() >= PATIENCE);
        if !long {
            return;
        }
        let (received, total) = (self.received, self.total);
        let bar = self.bar.get_or_insert_with(|| bar(received, total));
        bar.set_position(received);
    }

    /// Takes the bar away until more arrives.
    pub(crate) fn pause(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn bar(received: u64, total: Option<u64>) -> ProgressBar {
    let (bar, template) = match total {
        Some(total) => (
            ProgressBar::new(total),
            "relent: {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left",
        ),
        None => (
            ProgressBar::no_length(),
            "relent: {spinner} {bytes} {bytes_per_sec}",
        ),
    };
    let bar = match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    };
    // The rate is that of this attempt.
    let bar = bar.with_position(received);
    bar.reset_eta();
    bar.enable_steady_tick(TICK);
    bar
}
