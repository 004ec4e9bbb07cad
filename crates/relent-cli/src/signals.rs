//! Signals that relent receives, and signals that it sends to the process group of a command.

use std::future::poll_fn;
use std::task::Poll;
use std::{fs, io};

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// The signals that are forwarded to the command. After one of the first group no attempt is made.
const FORWARDED: [&[Signal]; 2] = [
    TERMINATING,
    &[Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGWINCH],
];

/// Signals that end a process: from a user, a terminal, a watchdog (SIGABRT), a timer, `ulimit -t` (SIGXCPU), a debugger
/// (SIGTRAP), a filter of system calls (SIGSYS) or a power supply. Their default action would end relent, and leave the
/// command behind.
const TERMINATING: &[Signal] = &[
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGABRT,
    Signal::SIGALRM,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGXCPU,
    Signal::SIGIO,
    Signal::SIGTRAP,
    Signal::SIGSYS,
    #[cfg(target_os = "linux")]
    Signal::SIGPWR,
    #[cfg(all(
        target_os = "linux",
        any(target_arch = "x86_64", target_arch = "aarch64")
    ))]
    Signal::SIGSTKFLT,
];

/// The real-time signals, which also end a process. relent receives each as a SIGTERM: a container stopped by SIGRTMIN+3
/// must not leave its command behind. tokio cannot receive the last one.
fn real_time_signals() -> std::ops::Range<i32> {
    #[cfg(target_os = "linux")]
    return nix::libc::SIGRTMIN()..nix::libc::SIGRTMAX();
    #[cfg(not(target_os = "linux"))]
    return 0..0;
}

/// Whether `signal` cancels the session: no attempt is made after it.
pub(crate) fn cancels(signal: Signal) -> bool {
    TERMINATING.contains(&signal)
}

/// A stream of the signals to this process; none is lost between two attempts.
///
/// A signal that was ignored when relent was started stays ignored, by relent and by the command:
/// `nohup relent run …` survives its terminal. (This is read from `/proc` on Linux; on other systems relent
/// handles all signals.)
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, Stream)>,
}

impl Signals {
    /// Installs the handlers. From here on these signals no longer end the process by themselves.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub(crate) fn listen() -> io::Result<Self> {
        let ignored = ignored_at_start();
        let mut streams = Vec::new();
        let wanted = FORWARDED
            .into_iter()
            .flatten()
            .copied()
            .filter(|s| ignored >> (*s as u32 - 1) & 1 == 0);
        for wanted in wanted.chain([Signal::SIGCHLD]) {
            let stream = signal(SignalKind::from_raw(wanted as i32))?;
            streams.push((wanted, stream));
        }
        for number in real_time_signals().filter(|number| ignored >> (number - 1) & 1 == 0) {
            streams.push((Signal::SIGTERM, signal(SignalKind::from_raw(number))?));
        }
        Ok(Self { streams })
    }

    /// Waits for the next signal: one to forward, or SIGCHLD when a child ended or was stopped. Can be
    /// dropped at any time without losing one.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            for (signal, stream) in &mut self.streams {
                if let Poll::Ready(Some(())) = stream.poll_recv(cx) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Waits for the next signal that cancels. Others are dropped: there is no command to forward them
    /// to.
    pub(crate) async fn cancelled(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if cancels(signal) {
                return signal;
            }
        }
    }

    /// Waits for `work` to end, or for a signal that cancels, which is returned.
    pub(crate) async fn cancelling(&mut self, work: impl Future<Output = ()>) -> Option<Signal> {
        tokio::select! {
            biased;
            signal = self.cancelled() => Some(signal),
            () = work => None,
        }
    }
}

/// Makes a write beyond the file size limit (`ulimit -f`) fail instead of ending the process by SIGXFSZ, which would
/// leave partial results behind.
///
/// # Errors
/// The system refuses a handler.
pub(crate) fn ignore_file_size_signal() -> io::Result<()> {
    // The handler stays when the stream is dropped.
    signal(SignalKind::from_raw(Signal::SIGXFSZ as i32)).map(drop)
}

/// Reaps ended children other than `own`, the command, which is awaited. Relent has adopted them: as process 1 of a
/// container it is the parent of all orphans, which would stay in the process table until that is full.
pub(crate) fn reap_adopted(own: Pid) {
    // By name, since `waitid` would return the command again and again. Other systems have no such files, nor has
    // Linux without CONFIG_PROC_CHILDREN.
    for thread in fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten()
    {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        let children = children.split_whitespace().filter_map(|id| id.parse().ok());
        for adopted in children.map(Pid::from_raw).filter(|child| *child != own) {
            // It may still run.
            let _ = waitpid(adopted, Some(WaitPidFlag::WNOHANG));
        }
    }
}

/// The process group of a command: its leader's process id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessGroup(pub(crate) Pid);

impl ProcessGroup {
    /// Sends `signal` to every member.
    ///
    /// An error does not abort the run. ESRCH means that all members are gone. EPERM means that the
    /// remaining ones have another identity (a setuid program), so relent cannot end them.
    pub(crate) fn send(self, signal: Signal) {
        let _ = killpg(self.0, signal);
    }

    /// Whether no member of the group still runs. Call it after the leader has been reaped.
    ///
    /// An ended process stays a member until its parent reaps it. That may take long if the parent is
    /// a slow init or, in a container, relent itself.
    pub(crate) fn is_gone(self) -> bool {
        let anyone = Pid::from_raw(-self.0.as_raw());
        while waitpid(anyone, Some(WaitPidFlag::WNOHANG)).is_ok_and(|s| s != WaitStatus::StillAlive)
        {
        }
        killpg(self.0, None) == Err(Errno::ESRCH) || self.has_ended().unwrap_or(false)
    }

    /// Whether all members have ended; `None` without `/proc`.
    fn has_ended(self) -> Option<bool> {
        std::fs::read_to_string("/proc/self/stat").ok()?;
        let processes = std::fs::read_dir("/proc").ok()?;
        let runs = |process: &std::fs::DirEntry| {
            std::fs::read_to_string(process.path().join("stat"))
                .is_ok_and(|stat| runs_in(&stat, self.0))
        };
        Some(
            !processes
                .filter_map(Result::ok)
                .any(|process| runs(&process)),
        )
    }
}

/// Whether this line of `/proc/PID/stat` describes a process in `group` that has not ended.
fn runs_in(stat: &str, group: Pid) -> bool {
    // The name of the command is in parentheses, and may contain any character.
    let Some((_, rest)) = stat.rsplit_once(") ") else {
        return false;
    };
    let mut fields = rest.split(' ');
    let state = fields.next();
    let member = fields.nth(1).and_then(|group| group.parse().ok()) == Some(group.as_raw());
    member && !matches!(state, Some("Z" | "X"))
}

/// The signals that are ignored now, as a mask: bit n − 1 stands for signal n.
fn ignored_at_start() -> u64 {
    std::fs::read_to_string("/proc/self/status").map_or(0, |status| ignored(&status))
}

fn ignored(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_status_of_the_process() {
        let status = "Name:\trelent\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        let mask = ignored(status);
        assert_eq!(mask >> (Signal::SIGHUP as u32 - 1) & 1, 1);
        assert_eq!(mask >> (Signal::SIGPIPE as u32 - 1) & 1, 1);
        assert_eq!(mask >> (Signal::SIGINT as u32 - 1) & 1, 0);
        assert_eq!(ignored("nothing here"), 0);
    }

    #[test]
    fn an_ended_process_does_not_count_as_a_running_member() {
        let group = Pid::from_raw(42);
        assert!(runs_in("50 (sh) S 1 42 42 0 -1", group));
        assert!(runs_in("50 (a) b) (c)) T 1 42 42 0 -1", group));
        assert!(!runs_in("50 (sh) Z 1 42 42 0 -1", group));
        assert!(!runs_in("50 (sh) S 42 50 42 0 -1", group));
        assert!(!runs_in("", group));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_group_with_only_unreaped_members_is_gone() {
        let child = std::os::unix::process::CommandExt::process_group(
            &mut std::process::Command::new("sleep"),
            0,
        )
        .arg("1000")
        .spawn();
        let mut child = child.unwrap();
        let group = ProcessGroup(Pid::from_raw(child.id() as i32));
        assert_eq!(group.has_ended(), Some(false));
        group.send(Signal::SIGKILL);
        // Waits for the end without reaping the process.
        let id = nix::sys::wait::Id::Pid(group.0);
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        nix::sys::wait::waitid(id, flags).unwrap();
        assert_eq!(killpg(group.0, None), Ok(()));
        assert_eq!(group.has_ended(), Some(true));
        child.wait().unwrap();
    }

    #[test]
    fn signalling_a_missing_process_group_is_no_error() {
        let mut child = std::process::Command::new("true");
        std::os::unix::process::CommandExt::process_group(&mut child, 0);
        let mut child = child.spawn().unwrap();
        child.wait().unwrap();
        let group = ProcessGroup(Pid::from_raw(child.id() as i32));
        assert!(group.is_gone());
        group.send(Signal::SIGTERM);
    }
}
