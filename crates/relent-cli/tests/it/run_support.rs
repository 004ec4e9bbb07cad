//! What the tests of `relent run` share: starting it, and never waiting for it forever.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Far more than any of these runs needs: whoever waits this long hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// `relent run OPTIONS -- sh -c SCRIPT` with short waits and everything piped.
pub(crate) fn sh(options: &[&str], script: &str) -> Command {
    command(options, &["sh", "-c", script])
}

/// `relent run OPTIONS -- CMD` with short waits and everything piped.
pub(crate) fn command(options: &[&str], cmd: &[&str]) -> Command {
    let mut relent = Command::new(env!("CARGO_BIN_EXE_relent"));
    relent.args(["run", "--quiet", "--initial", "10ms", "--jitter", "none"]);
    relent.env_remove("RELENT_POLICY");
    relent.args(options).arg("--").args(cmd);
    relent
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    relent
}

/// The same as [`sh`], and what relent says about it.
pub(crate) fn told(options: &[&str], script: &str) -> Command {
    let mut relent = Command::new(env!("CARGO_BIN_EXE_relent"));
    relent.args(["run", "--initial", "10ms", "--jitter", "none"]);
    relent.env_remove("RELENT_POLICY");
    relent.args(options).args(["--", "sh", "-c", script]);
    relent
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    relent
}

/// Runs to the end.
pub(crate) fn output(mut command: Command) -> Output {
    finish(command.spawn().unwrap())
}

/// Runs to the end with a limit for each attempt, and again with a longer one while the limit struck before
/// the command was ready for it: how soon that is depends on the machine. How long the last run took.
pub(crate) fn cut_short(
    options: &[&str],
    script: &str,
    ready: impl Fn(&Output) -> bool,
) -> (Output, Duration) {
    let mut limit = Duration::from_millis(300);
    loop {
        let limit_ms = format!("{}ms", limit.as_millis());
        let start = Instant::now();
        let options = [options, &["--attempt-timeout", &limit_ms]].concat();
        let output = output(sh(&options, script));
        limit *= 4;
        if ready(&output) || limit > PATIENCE / 2 {
            return (output, start.elapsed());
        }
    }
}

/// Runs a command whose time is limited until it said "ready" on standard error before its time was
/// over: with the time in milliseconds that `run` is given, which grows as long as the machine is too
/// slow for it.
pub(crate) fn when_ready(first: u64, run: impl Fn(u64) -> Output) -> Output {
    for factor in [1, 4, 16, 64] {
        let result = run(first * factor);
        if text(&result.stderr).contains("ready") {
            return result;
        }
    }
    panic!("never ready");
}

/// Waits for the end and collects what is still in the pipes.
pub(crate) fn finish(child: Child) -> Output {
    let pid = pid(&child);
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(child.wait_with_output()));
    result
        .recv_timeout(PATIENCE)
        .unwrap_or_else(|_| {
            let _ = kill(pid, Signal::SIGKILL);
            panic!("relent did not end within {PATIENCE:?}");
        })
        .unwrap()
}

pub(crate) fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32)
}

pub(crate) fn code(output: &Output) -> i32 {
    output
        .status
        .code()
        .expect("relent ends with a status, not by a signal")
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The next line, without its end.
pub(crate) fn line(reader: &mut BufReader<impl Read>) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// Looks until `condition` holds; fails if it never does.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Whether the process is gone, or is a zombie that nobody has collected yet.
pub(crate) fn is_dead(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    kill(pid, None) == Err(Errno::ESRCH)
        || stat
            .rsplit(')')
            .next()
            .is_some_and(|s| s.trim_start().starts_with('Z'))
}

pub(crate) fn parse_pid(text: &str) -> Pid {
    Pid::from_raw(
        text.trim()
            .parse()
            .unwrap_or_else(|_| panic!("not a process id: {text:?}")),
    )
}
