//! The terminal, lent to a command that turns out to want it.
//!
//! A command runs in a process group of its own, so that it can be ended with all its children. To
//! the terminal this makes it a background job: it may write, but is stopped (SIGTTIN, SIGTTOU) the
//! moment it reads or changes modes. That moment is when its group is made the foreground group.
//! Lending later rather than at the start keeps `relent run -- curl … | less` working, where `less`
//! stands in our group and needs the keyboard, and lets a password prompt on `/dev/tty` through when
//! standard input is a pipe. Until then Ctrl-C reaches relent, which passes it on.
//!
//! Once lent, Ctrl-C and Ctrl-Z reach the command alone. A command that then ends by Ctrl-C ends the
//! run; one that is stopped by Ctrl-Z has us stop with it, so that the shell gets its prompt back.
//! Before that Ctrl-Z stops only relent, and the command goes on in the background.
//!
//! Stopping works by signals to this process's own group and relies on running on the main thread,
//! to which Linux delivers them before `kill` returns.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

use crate::signals::Group;

/// The shortest time that a stop of this process is believed to take: people and shells are
/// slower, and a stop signal that the kernel discards (an orphaned group) returns at once.
const STOPPED: Duration = Duration::from_millis(5);

/// The terminal as one command sees it.
#[derive(Debug)]
pub(crate) struct Terminal {
    group: Group,
    lent: Option<Lent>,
}

#[derive(Debug)]
struct Lent {
    tty: File,
    /// The modes before the command could change them.
    modes: Option<Termios>,
}

impl Terminal {
    pub(crate) fn for_command(group: Group) -> Self {
        Self { group, lent: None }
    }

    /// Whether the keyboard's signals now reach the command and not us.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// To be called after each SIGCHLD: if the command was stopped for want of the terminal, or by
    /// Ctrl-Z, does what a shell would. Returns how long we were stopped ourselves; that time is
    /// not the attempt's.
    pub(crate) fn child_changed(&mut self) -> Duration {
        match stopped_by(self.group.0) {
            Some(signal @ (Signal::SIGTTIN | Signal::SIGTTOU)) => self.wanted(signal),
            Some(Signal::SIGTSTP) if self.is_lent() => self.stop_with_command(),
            // Stopped by someone who will also let it continue.
            _ => Duration::ZERO,
        }
    }

    /// Takes the terminal back. If the command was `cut_short`, the modes are restored too, which it
    /// could not do itself: a password prompt leaves the echo off.
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
            // Nobody's terminal: the signal was sent by hand and changes nothing for us.
            None => return stopped,
            // We are in the background ourselves: stop like any background job, until `fg`.
            Some(tty) => {
                stopped = stop_ourselves(signal);
                if is_foreground(&tty, getpgrp()) {
                    self.lend(tty);
                } else if stopped < STOPPED {
                    // No shell will ever bring us to the foreground. The kernel tells stopped
                    // groups in that position to hang up.
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

/// However an attempt is left, the terminal comes back.
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

/// Stops our process group with `signal` and returns, once continued, after how long.
fn stop_ourselves(signal: Signal) -> Duration {
    let before = Instant::now();
    let _ = killpg(getpgrp(), signal);
    before.elapsed()
}

/// The signal that has stopped the child `pid` since the last call. Its end is left for others to
/// see.
fn stopped_by(pid: Pid) -> Option<Signal> {
    match waitid(Id::Pid(pid), WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG) {
        Ok(WaitStatus::Stopped(_, signal)) => Some(signal),
        _ => None,
    }
}

/// Runs `f` while SIGTTOU is blocked: the kernel sends it to background processes that change the
/// terminal, which is what taking it back is.
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
