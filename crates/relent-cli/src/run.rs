//! `relent run`: a command, repeated until it succeeds.

mod child;
mod error;
mod exit_list;
mod output;
mod output_match;
mod signals;
mod spool;
mod stdin;
mod terminal;

use std::time::Duration;

pub(crate) use child::{Attempt, Attempted, CommandLine, Ended};
pub(crate) use error::Error;
pub(crate) use exit_list::ExitList;
use signals::Signals;
use stdin::Stdin;

/// A command and when it is run again.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) command: CommandLine,
    pub(crate) max_retries: u32,
    pub(crate) wait: Duration,
    pub(crate) attempt_timeout: Option<Duration>,
    pub(crate) retry_on_exit: Option<ExitList>,
    pub(crate) stop_on_exit: Option<ExitList>,
}

impl Run {
    /// Runs the command until it succeeds, must not be repeated or has been repeated enough, and
    /// returns the exit status of the last attempt. What cannot be returned in a number is said by
    /// `notice`, one line each.
    ///
    /// # Errors
    /// When relent itself cannot go on.
    pub(crate) async fn run(&self, notice: impl Fn(&str)) -> Result<i32, Error> {
        let mut signals = Signals::listen()?;
        let mut stdin = Stdin::of_process()?;
        let mut number = 1;
        loop {
            let last = number > self.max_retries;
            let how = Attempt {
                number,
                timeout: self.attempt_timeout,
                last,
            };
            let attempted = child::attempt(&self.command, how, &mut stdin, &mut signals).await?;
            let program = self.command.program.display();
            match &attempted.ended {
                Ended::NotFound => notice(&format!("cannot run {program}: command not found")),
                Ended::CannotRun(e) => notice(&format!("cannot run {program}: {e}")),
                _ => {}
            }
            if attempted.straggler {
                notice(
                    "a process left behind by the command still holds its output; what it writes from now on is lost",
                );
            }
            let status = attempted.ended.status();
            if last || attempted.cancelled.is_some() || !self.retries(&attempted) {
                let interrupted = output::to_stdout(attempted.stdout, &mut signals).await?;
                return Ok(interrupted.map_or(status, |signal| 128 + signal as i32));
            }
            let mut interrupted = output::to_stderr(attempted.stdout, &mut signals).await?;
            if interrupted.is_none() {
                interrupted = signals.sleep(self.wait).await;
            }
            if let Some(signal) = interrupted {
                return Ok(128 + signal as i32);
            }
            number = number.saturating_add(1);
        }
    }

    fn retries(&self, attempted: &Attempted) -> bool {
        let status = attempted.ended.status();
        let listed = |list: &Option<ExitList>| list.as_ref().map(|list| list.contains(status));
        match attempted.ended {
            Ended::NotFound | Ended::CannotRun(_) => false,
            Ended::TimedOut => true,
            Ended::Exit(_) | Ended::Signal(_) => {
                listed(&self.stop_on_exit) != Some(true)
                    && (attempted.matched || listed(&self.retry_on_exit).unwrap_or(status != 0))
            }
        }
    }
}
