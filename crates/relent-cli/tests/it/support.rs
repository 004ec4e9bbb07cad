//! Helpers for the tests of the command: a clean environment, and a time limit for every wait.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub(crate) const RELENT: &str = env!("CARGO_BIN_EXE_relent");

/// The time after which a command is considered to hang; far more than any command needs.
pub(crate) const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// `relent ARGS` with everything piped, and without variables of the environment that change its output.
pub(crate) fn relent(args: &[&str]) -> Command {
    let mut relent = Command::new(RELENT);
    relent
        .args(args)
        .env_remove("RELENT_POLICY")
        .env_remove("LC_ALL")
        .env_remove("LC_CTYPE")
        .env("LANG", "C.UTF-8")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    relent
}

/// The result of a finished command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs `relent ARGS` to its end.
pub(crate) fn run(args: &[&str]) -> Ran {
    finish(relent(args).spawn().unwrap())
}

/// Runs `relent ARGS` to its end with this standard input.
pub(crate) fn run_with(args: &[&str], input: &str) -> Ran {
    let mut child = relent(args).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    finish(child)
}

/// Waits for the end.
pub(crate) fn finish(child: Child) -> Ran {
    let pid = Pid::from_raw(child.id() as i32);
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(child.wait_with_output()));
    let output: Output = result
        .recv_timeout(HANG_TIMEOUT)
        .unwrap_or_else(|_| {
            let _ = kill(pid, Signal::SIGKILL);
            panic!("relent did not end within {HANG_TIMEOUT:?}");
        })
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Ran {
        status: output.status.code().expect("a status, not a signal"),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// The output on a terminal where `relent ARGS` is the foreground job.
pub(crate) fn on_terminal(environment: &[(&str, &str)], args: &[&str]) -> String {
    let pty = openpty(None, None).unwrap();
    let terminal = File::from(pty.slave);
    let mut command = Command::new("setsid");
    command
        .args(["--ctty", "--wait", RELENT])
        .args(args)
        .env_remove("RELENT_POLICY")
        .env_remove("NO_COLOR")
        // In a CI, colours are enabled for any terminal.
        .env_remove("CI")
        .env_remove("CLICOLOR")
        .env_remove("CLICOLOR_FORCE")
        .env("TERM", "xterm")
        .envs(environment.iter().copied())
        .stdin(terminal.try_clone().unwrap())
        .stdout(terminal.try_clone().unwrap())
        .stderr(terminal);
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut seen = Vec::new();
    // The last process to leave ends the reading with an error.
    let _ = File::from(pty.master).read_to_end(&mut seen);
    child.wait().unwrap();
    String::from_utf8(seen).unwrap()
}
