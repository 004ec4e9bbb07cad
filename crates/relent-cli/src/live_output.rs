//! The live output of a session: which attempt failed, why, and how long until the next.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, SystemTime};

use anstyle::Style;
use nix::unistd::{getpgrp, tcgetpgrp};
use relent::hook::Queued;
use relent::policy::HintMode;
use relent::trace::rfc3339;
use relent::{Hint, Policy, StopReason, Summary};
use terminal_size::{Width, terminal_size_of};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::console::{counted, say};
use crate::human::human;
use crate::options::{PolicyOptions, VARIABLE};

/// The time between two updates of the countdown.
const TICK: Duration = Duration::from_millis(200);

const DIM: Style = Style::new().dimmed();

/// The messages of a session.
///
/// On a terminal one line counts down and is erased when the delay is over; elsewhere each retry is
/// one line of a log. In quiet mode nothing is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionMessages {
    quiet: bool,
    /// Whether the final error is reported even in quiet mode.
    reports_end: bool,
}

/// A failed attempt that is followed by another.
#[derive(Clone, Debug)]
pub(crate) struct NextRetry {
    /// The number of the failed attempt; the first is 1.
    pub(crate) attempt: u32,
    /// The outcome: `exit 1`, `status 503`.
    pub(crate) outcome: String,
    /// The server's hint about time, such as Retry-After.
    pub(crate) hint: Hint,
    /// The delay before the next attempt.
    pub(crate) wait: Duration,
    /// Whether the delay is shorter than the policy's, so that a final attempt fits before a time limit.
    pub(crate) is_shortened: bool,
}

impl SessionMessages {
    /// Creates the output, which writes nothing if `quiet`.
    pub(crate) const fn new(quiet: bool) -> Self {
        Self {
            quiet,
            reports_end: !quiet,
        }
    }

    /// Reports the final error even in quiet mode.
    pub(crate) const fn reporting_end(mut self) -> Self {
        self.reports_end = true;
        self
    }

    /// Waits for the delay and shows it. Can be dropped at any time: the line is erased.
    pub(crate) async fn wait(&self, waiting: &NextRetry) {
        let countdown = Countdown::new(*self);
        countdown.wait(waiting.clone());
        tokio::select! {
            biased;
            () = sleep(waiting.wait) => {}
            never = countdown.draw() => match never {},
        }
    }

    /// Whether relent shows a countdown on a terminal.
    pub(crate) fn is_on_terminal(&self) -> bool {
        !self.quiet && shows_countdown()
    }

    /// The output of the final error.
    pub(crate) const fn at_end(self) -> Self {
        Self {
            quiet: !self.reports_end,
            ..self
        }
    }

    /// Reports why there is no other attempt. Reports nothing after a cancellation, which the user caused.
    pub(crate) fn report_end(&self, summary: &Summary, policy: &Policy, last: &str) {
        let Some(reason) = summary
            .reason
            .filter(|reason| *reason != StopReason::Cancelled)
        else {
            return;
        };
        self.at_end().say(|| {
            let attempts = counted(summary.attempts, "attempt");
            let ahead = summary.retry_at.and_then(|at| {
                let ahead = at.duration_since(SystemTime::now()).ok()?;
                Some(format!(
                    "; come back at {} (in {})",
                    rfc3339(at),
                    human(ahead)
                ))
            });
            let at = ahead.unwrap_or_default();
            if reason == StopReason::Permanent {
                return format!(
                    "failed after {attempts} ({}): {last} (not retryable){at}",
                    human(summary.elapsed),
                );
            }
            let limit = summary.without_deadline.map(human);
            let limit =
                limit.map(|limit| format!("without --deadline no attempt starts after {limit}"));
            let why = match limit {
                // This limit is no `max_elapsed`, which the reason names.
                Some(limit) if reason == StopReason::MaxElapsed => limit,
                Some(limit) => format!("{}, and {limit}", why(reason, summary, policy)),
                None => why(reason, summary, policy),
            };
            format!(
                "gave up after {attempts} in {}: {why} (last: {last}){at}",
                human(summary.elapsed),
            )
        });
    }

    /// Writes a line unless quiet.
    pub(crate) fn say(&self, line: impl FnOnce() -> String) {
        if !self.quiet {
            say(&line());
        }
    }
}

/// Describes the reason for giving up, with the figures that the policy and the trace have.
fn why(reason: StopReason, summary: &Summary, policy: &Policy) -> String {
    match reason {
        StopReason::RetriesExhausted if PolicyOptions::are_off_by_environment() => {
            format!("{VARIABLE}=off turns retries off")
        }
        StopReason::RetriesExhausted if policy.max_retries() == Some(0) => {
            "the policy allows no retries".to_owned()
        }
        StopReason::RetryLater => {
            let trace = summary.trace.as_ref();
            let last = trace.and_then(|trace| trace.entries().last()?.failure);
            let hint = last.map(|failure| failure.hint);
            hint.and_then(|hint| exceeded(hint, policy))
                .unwrap_or_else(|| reason.to_string())
        }
        _ => reason.to_string(),
    }
}

/// Names the limit that the delay of a server exceeds, if it is known that this is why there is no other attempt.
fn exceeded(hint: Hint, policy: &Policy) -> Option<String> {
    let delay = hint.delay()?;
    if matches!(policy.hint(), HintMode::Ignore | HintMode::Clamp) {
        // No delay of a server ends the call.
        return None;
    }
    let limits = [
        ("max_hint", Some(policy.max_hint())),
        ("max_elapsed", policy.max_elapsed()),
        ("the deadline", policy.deadline()),
    ];
    let limits = limits
        .into_iter()
        .filter_map(|(name, limit)| Some((limit?, name)));
    let (limit, name) = limits.min().filter(|(limit, _)| delay > *limit)?;
    let (source, delay, limit) = (header(hint.source.name()), human(delay), human(limit));
    Some(format!(
        "the server's {source} ({delay}) exceeds {name} ({limit})"
    ))
}

impl NextRetry {
    fn line(&self, left: Duration) -> String {
        let hint = self.hint.delay().map_or_else(String::new, |delay| {
            format!(" ({} {})", header(self.hint.source.name()), human(delay))
        });
        let next = if self.wait.is_zero() {
            "next immediately".to_owned()
        } else {
            format!("next in {}", human(left))
        };
        let why = match self.is_shortened {
            true => ", shortened so that a final attempt fits before the time limit",
            false => "",
        };
        format!(
            "attempt {} failed: {}{hint}; {next}{why}",
            self.attempt, self.outcome
        )
    }
}

/// Rounds up to a tenth of a second, so that a countdown keeps one format.
fn tenths(left: Duration) -> Duration {
    let tenths = left.as_nanos().div_ceil(100_000_000);
    Duration::from_millis(u64::try_from(tenths.saturating_mul(100)).unwrap_or(u64::MAX))
}

/// Capitalises the name of a header: `Retry-After`.
fn header(name: &str) -> String {
    let mut start = true;
    name.chars()
        .map(|c| {
            let shown = if start { c.to_ascii_uppercase() } else { c };
            start = c == '-';
            shown
        })
        .collect()
}

/// Whether standard error is a terminal on which a line can be redrawn, and relent is in the
/// foreground: a background job would erase the user's input.
pub(crate) fn shows_countdown() -> bool {
    let stderr = io::stderr();
    stderr.is_terminal()
        && std::env::var_os("TERM").is_none_or(|terminal| terminal != "dumb")
        && tcgetpgrp(&stderr) == Ok(getpgrp())
}

/// Shows how long a delay still takes, concurrently with the loop that waits.
#[derive(Debug)]
pub(crate) struct Countdown {
    live: SessionMessages,
    shown: RefCell<Option<ShownDelay>>,
    changed: Notify,
}

/// The delay that is counted down.
struct ShownDelay {
    until: Instant,
    text: Box<dyn Fn(Duration) -> String>,
    line: Line,
}

impl Countdown {
    /// Creates a countdown that shows nothing yet.
    pub(crate) fn new(live: SessionMessages) -> Self {
        Self {
            live,
            shown: RefCell::default(),
            changed: Notify::new(),
        }
    }

    /// Shows the delay before the next attempt.
    pub(crate) fn wait(&self, waiting: NextRetry) {
        let wait = waiting.wait;
        self.show(wait, move |left| waiting.line(left));
    }

    /// Shows that its destination holds the next attempt.
    pub(crate) fn queued(&self, queued: &Queued) {
        let Queued {
            attempt,
            by,
            at_most,
        } = *queued;
        let text = move |left| {
            let limit = at_most.map(|_| format!(" for at most {}", human(left)));
            format!(
                "attempt {attempt} is held by {by}{}",
                limit.unwrap_or_default()
            )
        };
        self.show(at_most.unwrap_or(Duration::MAX), text);
    }

    /// Erases the line: the wait is over.
    pub(crate) fn clear(&self) {
        self.shown.take();
    }

    fn show(&self, wait: Duration, text: impl Fn(Duration) -> String + 'static) {
        if !self.live.is_on_terminal() {
            self.live.say(|| text(wait));
            return;
        }
        let until = Instant::now().checked_add(wait);
        *self.shown.borrow_mut() = until.filter(|_| !wait.is_zero()).map(|until| ShownDelay {
            until,
            text: Box::new(text),
            line: Line,
        });
        self.changed.notify_one();
    }

    /// Updates the line as time passes. Can be dropped at any time.
    pub(crate) async fn draw(&self) -> Infallible {
        loop {
            let moves = self.shown.borrow().as_ref().is_some_and(ShownDelay::draw);
            tokio::select! {
                () = sleep(TICK), if moves => {}
                () = self.changed.notified() => {}
            }
        }
    }
}

impl ShownDelay {
    /// Draws the line; returns whether any time is left.
    fn draw(&self) -> bool {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        self.line.draw(&(self.text)(tenths(left)));
        true
    }
}

impl fmt::Debug for ShownDelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShownDelay")
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}

/// A line that is redrawn in place, and erased when it is dropped.
struct Line;

impl Line {
    fn draw(&self, text: &str) {
        // The text is cut to the width of the terminal: a wrapped line could not be erased.
        let width = terminal_size_of(io::stderr()).map_or(80, |(Width(width), _)| width);
        let room = usize::from(width).saturating_sub("relent: ".len() + 1);
        let text: String = text.chars().take(room).collect();
        let mut stderr = anstream::stderr().lock();
        let _ = write!(stderr, "\r\x1b[2K{DIM}relent:{DIM:#} {text}");
        let _ = stderr.flush();
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let mut stderr = io::stderr().lock();
        let _ = stderr.write_all(b"\r\x1b[2K");
        let _ = stderr.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use relent::failure::HintSource;

    #[test]
    fn a_retry_line_names_attempt_outcome_and_delay() {
        let mut waiting = NextRetry {
            attempt: 1,
            outcome: "status 503".to_owned(),
            hint: Hint::after(Duration::from_secs(2))
                .from_source(HintSource::header("retry-after")),
            wait: Duration::from_millis(2300),
            is_shortened: false,
        };
        assert_eq!(
            waiting.line(waiting.wait),
            "attempt 1 failed: status 503 (Retry-After 2s); next in 2.3s"
        );
        waiting.hint = Hint::NONE;
        waiting.wait = Duration::ZERO;
        assert_eq!(
            waiting.line(waiting.wait),
            "attempt 1 failed: status 503; next immediately"
        );
        (waiting.wait, waiting.is_shortened) = (Duration::from_secs(2), true);
        assert_eq!(
            waiting.line(waiting.wait),
            "attempt 1 failed: status 503; next in 2s, shortened so that a final attempt fits before the time limit"
        );
    }

    #[test]
    fn a_server_delay_beyond_a_limit_is_reported_with_both() {
        let after = |seconds| {
            Hint::after(Duration::from_secs(seconds)).from_source(HintSource::header("retry-after"))
        };
        let limit = |seconds| {
            let policy = Policy::STANDARD.clone().into_builder();
            policy
                .deadline(Duration::from_secs(seconds))
                .build()
                .unwrap()
        };
        for (delay, deadline, says) in [
            (
                600,
                3600,
                Some("the server's Retry-After (10m) exceeds max_hint (5m)"),
            ),
            (
                600,
                30,
                Some("the server's Retry-After (10m) exceeds the deadline (30s)"),
            ),
            (20, 30, None),
        ] {
            assert_eq!(exceeded(after(delay), &limit(deadline)).as_deref(), says);
        }
        assert_eq!(exceeded(Hint::NONE, &limit(30)), None);
    }
}
