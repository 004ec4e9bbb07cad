//! The signals that relent receives, and those it sends to a command's process group.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// The signals that are passed on to the command. After the first ones no attempt is made.
const PASSED_ON: [&[Signal]; 2] = [
    ENDING,
    &[Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGWINCH],
];

/// Those that others send to end a process: by hand, by a terminal, a watchdog (SIGABRT), a timer, `ulimit -t`
/// (SIGXCPU) or a power supply. By themselves they would end relent, and leave the command behind.
const ENDING: &[Signal] = &[
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
    #[cfg(target_os = "linux")]
    Signal::SIGPWR,
];

/// Whether `signal` asks for the end: no attempt is made after it.
pub(crate) fn cancels(signal: Signal) -> bool {
    ENDING.contains(&signal)
}

/// The signals sent to this process, in one stream; none is lost between two attempts.
///
/// A signal that was ignored when relent was started stays ignored, by relent and by the command:
/// `nohup relent run …` survives its terminal. (Read from `/proc`, so on Linux; elsewhere all are
/// listened to.)
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, Stream)>,
}

impl Signals {
    /// Begins to listen. From here on these signals no longer end the process by themselves.
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub(crate) fn listen() -> io::Result<Self> {
        let ignored = ignored_at_start();
        let mut streams = Vec::new();
        let wanted = PASSED_ON
            .into_iter()
            .flatten()
            .copied()
            .filter(|s| ignored >> (*s as u32 - 1) & 1 == 0);
        for wanted in wanted.chain([Signal::SIGCHLD]) {
            let stream = signal(SignalKind::from_raw(wanted as i32))?;
            streams.push((wanted, stream));
        }
        Ok(Self { streams })
    }

    /// The next signal: one to pass on, or SIGCHLD when a child ended or was stopped. Can be
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

    /// The next signal that asks for the end. Others are dropped: there is no command to pass them
    /// on to.
    pub(crate) async fn cancelled(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if cancels(signal) {
                return signal;
            }
        }
    }

    /// Waits for `work` to end, or until a signal asks for the end, which is returned.
    pub(crate) async fn cancelling(&mut self, work: impl Future<Output = ()>) -> Option<Signal> {
        tokio::select! {
            biased;
            signal = self.cancelled() => Some(signal),
            () = work => None,
        }
    }
}

/// Lets a write beyond the limit for the size of a file (`ulimit -f`) fail, where the system's way is
/// to end the process by SIGXFSZ: what is half done would stay behind.
///
/// # Errors
/// When the system refuses a handler.
pub(crate) fn outlive_file_limit() -> io::Result<()> {
    // The handler stays when the stream is dropped.
    signal(SignalKind::from_raw(Signal::SIGXFSZ as i32)).map(drop)
}

/// The process group of a command: its leader's process id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group(pub(crate) Pid);

impl Group {
    /// Sends `signal` to every member.
    ///
    /// Failing is no reason to abort a run: ESRCH means that all are gone, EPERM that what is left
    /// has taken another identity (a setuid program), which only time or its owner can end.
    pub(crate) fn send(self, signal: Signal) {
        let _ = killpg(self.0, signal);
    }

    /// Whether no member is left that runs. To be asked when the end of the leader has been seen.
    ///
    /// What has ended stays a member until its parent has seen that, which may take long when the
    /// parent is an init that looks seldom, or, in a container, relent itself.
    pub(crate) fn is_gone(self) -> bool {
        let anyone = Pid::from_raw(-self.0.as_raw());
        while waitpid(anyone, Some(WaitPidFlag::WNOHANG)).is_ok_and(|s| s != WaitStatus::StillAlive)
        {
        }
        killpg(self.0, None) == Err(Errno::ESRCH) || self.has_ended().unwrap_or(false)
    }

    /// Whether all members have ended; `None` where `/proc` does not tell.
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

/// Whether this line of `/proc/PID/stat` is of a process in `group` that has not ended.
fn runs_in(stat: &str, group: Pid) -> bool {
    // The name of the command is in parentheses, and may have any character in it.
    let Some((_, rest)) = stat.rsplit_once(") ") else {
        return false;
    };
    let mut fields = rest.split(' ');
    let state = fields.next();
    let member = fields.nth(1).and_then(|group| group.parse().ok()) == Some(group.as_raw());
    member && !matches!(state, Some("Z" | "X"))
}

/// The signals ignored now, bit n − 1 standing for signal n.
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
    fn a_process_that_has_ended_is_no_member_that_runs() {
        let group = Pid::from_raw(42);
        assert!(runs_in("50 (sh) S 1 42 42 0 -1", group));
        assert!(runs_in("50 (a) b) (c)) T 1 42 42 0 -1", group));
        assert!(!runs_in("50 (sh) Z 1 42 42 0 -1", group));
        assert!(!runs_in("50 (sh) S 42 50 42 0 -1", group));
        assert!(!runs_in("", group));
    }

    #[test]
    fn a_group_whose_ended_members_nobody_has_looked_at_is_gone() {
        let child = std::os::unix::process::CommandExt::process_group(
            &mut std::process::Command::new("sleep"),
            0,
        )
        .arg("1000")
        .spawn();
        let mut child = child.unwrap();
        let group = Group(Pid::from_raw(child.id() as i32));
        assert_eq!(group.has_ended(), Some(false));
        group.send(Signal::SIGKILL);
        // Looks at the end, and leaves it to be seen.
        let id = nix::sys::wait::Id::Pid(group.0);
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        nix::sys::wait::waitid(id, flags).unwrap();
        assert_eq!(killpg(group.0, None), Ok(()));
        assert_eq!(group.has_ended(), Some(true));
        child.wait().unwrap();
    }

    #[test]
    fn a_group_that_is_gone_or_not_ours_never_aborts() {
        let mut child = std::process::Command::new("true");
        std::os::unix::process::CommandExt::process_group(&mut child, 0);
        let mut child = child.spawn().unwrap();
        child.wait().unwrap();
        let group = Group(Pid::from_raw(child.id() as i32));
        assert!(group.is_gone());
        group.send(Signal::SIGTERM);
    }
}
