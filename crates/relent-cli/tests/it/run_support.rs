//! Helpers for the tests of `relent run`, with a time limit for every wait.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The time after which a run is considered to hang; far more than any run needs.
pub(crate) const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// `relent run OPTIONS -- sh -c SCRIPT` with short delays and everything piped.
pub(crate) fn sh(options: &[&str], script: &str) -> Command {
    command(options, &["sh", "-c", script])
}

/// `relent run OPTIONS -- CMD` with short delays and everything piped.
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

/// As [`sh`], but with the messages of relent.
pub(crate) fn sh_with_messages(options: &[&str], script: &str) -> Command {
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

/// Runs to the end with a limit for each attempt. Repeats it with a longer limit while the limit ended the attempt
/// before the command was ready, which depends on the machine. Returns the duration of the last run.
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
        if ready(&output) || limit > HANG_TIMEOUT / 2 {
            return (output, start.elapsed());
        }
    }
}

/// Runs a command with a time limit until it prints "ready" on standard error within the limit. `run` gets the limit in
/// milliseconds, which grows while the machine is too slow.
pub(crate) fn when_ready(first: u64, run: impl Fn(u64) -> Output) -> Output {
    for factor in [1, 4, 16, 64] {
        let result = run(first * factor);
        if text(&result.stderr).contains("ready") {
            return result;
        }
    }
    panic!("never ready");
}

/// Waits for the end and collects the rest of the pipes.
pub(crate) fn finish(child: Child) -> Output {
    let pid = pid(&child);
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(child.wait_with_output()));
    result
        .recv_timeout(HANG_TIMEOUT)
        .unwrap_or_else(|_| {
            let _ = kill(pid, Signal::SIGKILL);
            panic!("relent did not end within {HANG_TIMEOUT:?}");
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

/// Waits until `condition` holds; fails if it never does.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < HANG_TIMEOUT, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Whether the process is gone, or is a zombie.
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
