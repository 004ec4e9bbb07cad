//! Lends the terminal to a command that needs it.
//!
//! A command runs in its own process group, so that relent can end it with all its children. For the
//! terminal it is therefore a background job: it may write, but is stopped (SIGTTIN, SIGTTOU) when it
//! reads or changes modes. Only then does relent make its group the foreground group. Lending late
//! keeps `relent run -- curl … | less` working, where `less` is in relent's group and needs the
//! keyboard. It also permits a password prompt on `/dev/tty` when standard input is a pipe. Until
//! then Ctrl-C reaches relent, which forwards it.
//!
//! While the terminal is lent, Ctrl-C and Ctrl-Z reach only the command. If the command ends by
//! Ctrl-C, the run ends. If it is stopped by Ctrl-Z, relent stops too, so that the shell gets its
//! prompt back. Before that, Ctrl-Z stops only relent, and the command continues in the background.
//!
//! Stopping sends a signal to relent's own group, and relies on running on the main thread, to which
//! Linux delivers it before `kill` returns.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};
use rustix::process::{WaitId, WaitIdOptions, waitid};

use crate::signals::ProcessGroup;

/// A shorter stop of this process means that the kernel discarded the stop signal (an orphaned group):
/// users and shells are slower.
const MIN_STOP: Duration = Duration::from_millis(5);

/// The terminal as one command sees it.
#[derive(Debug)]
pub(crate) struct Terminal {
    group: ProcessGroup,
    lent: Option<Lent>,
}

#[derive(Debug)]
struct Lent {
    tty: File,
    /// The modes before the command could change them.
    modes: Option<Termios>,
}

impl Terminal {
    pub(crate) fn for_command(group: ProcessGroup) -> Self {
        Self { group, lent: None }
    }

    /// Whether signals of the keyboard reach the command instead of relent.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// Handles a stopped command as a shell would; call it after each SIGCHLD. The command may need the
    /// terminal, or was stopped by Ctrl-Z. Returns how long relent itself was stopped, which does not
    /// count as time of the attempt.
    pub(crate) fn child_changed(&mut self) -> Duration {
        match stopped_by(self.group.0) {
            Some(signal @ (Signal::SIGTTIN | Signal::SIGTTOU)) => self.wanted(signal),
            Some(Signal::SIGTSTP) if self.is_lent() => self.stop_with_command(),
            // Another process has stopped the command and will continue it.
            _ => Duration::ZERO,
        }
    }

    /// Takes the terminal back. If the command was `cut_short`, also restores the modes, which it could
    /// not do itself: a password prompt leaves the echo off.
    pub(crate) fn take_back(&mut self, cut_short: bool) {
        let Some(lent) = self.lent.take() else { return };
        without_sigttou(|| {
            let _ = tcsetpgrp(&lent.tty, getpgrp());
            if let (true, Some(modes)) = (cut_short, &lent.modes) {
                let _ = tcsetattr(&lent.tty, SetArg::TCSADRAIN, modes);
            }
        });
    }

    /// The command was stopped because it is in the background.
    fn wanted(&mut self, signal: Signal) -> Duration {
        let mut stopped = Duration::ZERO;
        match open_tty() {
            Some(tty) if is_foreground(&tty, getpgrp()) => self.lend(tty),
            Some(tty) if is_foreground(&tty, self.group.0) => {}
            // There is no terminal: a user sent the signal, and relent does nothing.
            None => return stopped,
            // Relent is in the background itself: stop like any background job, until `fg`.
            Some(tty) => {
                stopped = stop_ourselves(signal);
                if is_foreground(&tty, getpgrp()) {
                    self.lend(tty);
                } else if stopped < MIN_STOP {
                    // No shell can bring relent to the foreground. The kernel sends SIGHUP to stopped
                    // groups in this situation.
                    self.group.send(Signal::SIGHUP);
                }
            }
        }
        self.group.send(Signal::SIGCONT);
        stopped
    }

    fn lend(&mut self, tty: File) {
        let modes = tcgetattr(&tty).ok();
        if without_sigttou(|| tcsetpgrp(&tty, self.group.0)).is_ok() {
            self.lent = Some(Lent { tty, modes });
        }
    }

    fn stop_with_command(&mut self) -> Duration {
        let Some(Lent { tty, modes }) = self.lent.take() else {
            return Duration::ZERO;
        };
        without_sigttou(|| {
            let _ = tcsetpgrp(&tty, getpgrp());
        });
        let stopped = stop_ourselves(Signal::SIGTSTP);
        if is_foreground(&tty, getpgrp())
            && without_sigttou(|| tcsetpgrp(&tty, self.group.0)).is_ok()
        {
            self.lent = Some(Lent { tty, modes });
        }
        self.group.send(Signal::SIGCONT);
        stopped
    }
}

/// Takes the terminal back on every exit from an attempt.
impl Drop for Terminal {
    fn drop(&mut self) {
        self.take_back(true);
    }
}

fn open_tty() -> Option<File> {
    File::options()
        .read(true)
        .write(true)
        .custom_flags(OFlag::O_NOCTTY.bits())
        .open("/dev/tty")
        .ok()
}

fn is_foreground(tty: &File, group: Pid) -> bool {
    tcgetpgrp(tty) == Ok(group)
}

/// Stops relent's process group with `signal`, and returns the time until it was continued.
fn stop_ourselves(signal: Signal) -> Duration {
    let before = Instant::now();
    let _ = killpg(getpgrp(), signal);
    before.elapsed()
}

/// Returns the signal that has stopped the child `pid` since the last call, without reaping the child.
fn stopped_by(pid: Pid) -> Option<Signal> {
    let child = rustix::process::Pid::from_raw(pid.as_raw())?;
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
    let status = waitid(WaitId::Pid(child), options).ok()??;
    Signal::try_from(status.stopping_signal()?).ok()
}

/// Runs `f` while SIGTTOU is blocked: the kernel sends it to background processes that take the
/// terminal back.
fn without_sigttou<T>(f: impl FnOnce() -> T) -> T {
    let mut ttou = SigSet::empty();
    ttou.add(Signal::SIGTTOU);
    let before = ttou.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK);
    let result = f();
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
    result
}
