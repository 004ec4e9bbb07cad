//! Tests of signals in `relent run`: they reach the whole process group, and end the run.

use std::io::{BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};

use crate::run_support::{
    code, command, eventually, finish, is_dead, line, parse_pid, pid, sh, text,
};

fn start(mut relent: Command) -> (Child, BufReader<ChildStderr>) {
    let mut child = relent.spawn().unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    (child, stderr)
}

/// Reads the rest. A shell may report there that its current `sleep`, which is also a member of the group,
/// was ended.
fn rest(mut stderr: BufReader<ChildStderr>) -> String {
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    rest
}

#[test]
fn a_signal_reaches_every_member_of_the_group_and_no_attempt_follows() {
    for signal in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        // From a watchdog, a timer, `ulimit -t`, a debugger, and others that end a process by default.
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
    ] {
        // A shell starts background commands with SIGINT and SIGQUIT ignored; a pipeline's are not.
        let script = "sleep 1000 | { sleep 1000 | (echo $$ >&2; exec sleep 1000); }";
        let (child, mut stderr) = start(sh(&["--max-retries", "5"], script));
        let leader = parse_pid(&line(&mut stderr));
        kill(pid(&child), signal).unwrap();
        assert_eq!(code(&finish(child)), 128 + signal as i32, "{signal}");
        eventually("no member of the group is left", || {
            killpg(leader, None).is_err() || is_dead(leader)
        });
        assert_eq!(line(&mut stderr), "", "no other attempt is made");
    }
}

#[test]
fn a_run_signal_is_handled_while_the_trace_pipe_has_no_reader() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let marker = folder.path().join("began");
    let script = format!("echo > {}", marker.display());
    let child = sh(&["--trace", pipe.to_str().unwrap()], &script).spawn();
    let child = child.unwrap();
    // Once it handles signals, it waits for the pipe only.
    let status = format!("/proc/{}/status", child.id());
    eventually("relent listens to signals", || {
        let status = std::fs::read_to_string(&status).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
        caught >> (Signal::SIGTERM as u32 - 1) & 1 == 1
    });
    kill(pid(&child), Signal::SIGTERM).unwrap();
    assert_eq!(code(&finish(child)), 128 + Signal::SIGTERM as i32);
    assert!(!marker.exists(), "the command does not begin");
}

#[test]
fn a_command_that_handles_the_signal_decides_the_status() {
    let script =
        "trap 'echo cleaned up; exit 7' TERM; echo ready >&2; while :; do sleep 0.02; done";
    let (child, mut stderr) = start(sh(&["--max-retries", "5"], script));
    assert_eq!(line(&mut stderr), "ready");
    kill(pid(&child), Signal::SIGTERM).unwrap();
    let result = finish(child);
    assert_eq!((code(&result), text(&result.stdout)), (7, "cleaned up\n"));
    assert!(!rest(stderr).contains("ready"), "no other attempt is made");
}

#[test]
fn user_signals_are_forwarded_without_ending_the_run() {
    let script = "trap 'echo one >&2' USR1; trap 'echo two >&2' USR2; trap 'echo size >&2; exit' WINCH; \
                  echo ready >&2; while :; do sleep 0.02; done";
    let (child, mut stderr) = start(sh(&["--max-retries", "5"], script));
    assert_eq!(line(&mut stderr), "ready");
    for (signal, heard) in [
        (Signal::SIGUSR1, "one"),
        (Signal::SIGUSR2, "two"),
        (Signal::SIGWINCH, "size"),
    ] {
        kill(pid(&child), signal).unwrap();
        // The whole group gets it: the shell may also report the end of its current `sleep`.
        eventually(heard, || line(&mut stderr) == heard);
    }
    assert_eq!(code(&finish(child)), 0);
}

#[test]
fn a_signal_during_a_delay_ends_the_run_immediately() {
    let options = ["--max-retries", "5", "--initial", "1h", "--max-delay", "1h"];
    let (child, mut stderr) = start(sh(&options, "echo failed; exit 1"));
    // The output of the first attempt appears when the delay starts.
    assert_eq!(line(&mut stderr), "failed");
    let start = Instant::now();
    kill(pid(&child), Signal::SIGINT).unwrap();
    let result = finish(child);
    assert_eq!((code(&result), text(&result.stdout)), (130, ""));
    assert!(start.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_signal_ends_a_run_with_a_stalled_reader() {
    let mut relent = sh(&["--max-retries", "3"], "seq 400000; echo done >&2");
    let mut child = relent.spawn().unwrap();
    let stdout = child.stdout.take();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    assert_eq!(line(&mut stderr), "done");
    // The command has written everything, and relent blocks on a full pipe.
    kill(pid(&child), Signal::SIGTERM).unwrap();
    // The signal arrives before or after the end of the command; a second one arrives while relent writes.
    eventually("relent ends", || {
        let _ = kill(pid(&child), Signal::SIGTERM);
        child.try_wait().unwrap().is_some()
    });
    assert_eq!(child.wait().unwrap().code(), Some(143));
    drop(stdout);
}

#[test]
fn signals_ignored_at_the_start_stay_ignored() {
    // As under nohup: neither relent nor the command ends when its terminal does.
    let script = format!(
        "trap '' HUP; exec {} run --max-retries 0 -- sh -c 'echo ready >&2; read x; echo \"$x\"'",
        env!("CARGO_BIN_EXE_relent")
    );
    let (reader, writer) = std::io::pipe().unwrap();
    let mut nohup = Command::new("sh");
    nohup.args(["-c", &script]).stdin(reader);
    nohup.stdout(Stdio::piped()).stderr(Stdio::piped());
    let (child, mut stderr) = start(nohup);
    assert_eq!(line(&mut stderr), "ready");
    kill(pid(&child), Signal::SIGHUP).unwrap();
    (&writer).write_all(b"alive\n").unwrap();
    let result = finish(child);
    assert_eq!((code(&result), text(&result.stdout)), (0, "alive\n"));
}

#[test]
fn signals_to_relents_own_group_do_not_reach_the_command_twice() {
    // As from a terminal: the group of relent gets the signal, and relent forwards it once.
    // The shell waits in a builtin: a signal may interrupt it, but only a line ends it.
    let script = "trap 'echo heard >&2' INT; echo ready >&2; until read x; do :; done";
    let mut relent = sh(&["--max-retries", "5"], script);
    relent.stdin(Stdio::piped()).process_group(0);
    let (mut child, mut stderr) = start(relent);
    assert_eq!(line(&mut stderr), "ready");
    killpg(pid(&child), Signal::SIGINT).unwrap();
    assert_eq!(line(&mut stderr), "heard");
    child.stdin.take().unwrap().write_all(b"enough\n").unwrap();
    assert_eq!(code(&finish(child)), 0);
    assert!(!rest(stderr).contains("heard"), "it is heard once");
}

/// A script that ignores all signals that can be ignored, and prints its process id.
const IGNORES_SIGNALS: &str =
    "trap '' INT TERM HUP QUIT; echo $$ >&2; while :; do sleep 0.05; done";

#[test]
fn no_group_member_is_left_after_any_terminating_signal() {
    for (signal, name) in [
        (Signal::SIGINT, "INT"),
        (Signal::SIGTERM, "TERM"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGQUIT, "QUIT"),
    ] {
        let deaf = IGNORES_SIGNALS.replace('\'', "\"");
        let leaves = format!("trap 'exit 7' {name}; sh -c '{deaf}' & while :; do sleep 0.05; done");
        for (script, status) in [(IGNORES_SIGNALS, 137), (leaves.as_str(), 7)] {
            for options in [
                &["--kill-after", "300ms"][..],
                &["--kill-after", "300ms", "--stream"],
            ] {
                let (child, mut stderr) = start(sh(options, script));
                let member = parse_pid(&line(&mut stderr));
                kill(pid(&child), signal).unwrap();
                assert_eq!(code(&finish(child)), status, "{signal}: {script}");
                assert!(is_dead(member), "{signal}: it outlives relent: {script}");
            }
        }
    }
}

/// The shell becomes relent, which is then the parent of the shell's child, as process 1 of a container is that of
/// orphans. One of the children ends before relent starts, one later.
#[cfg(target_os = "linux")]
#[test]
fn an_adopted_process_does_not_stay_in_the_process_table() {
    let relent = env!("CARGO_BIN_EXE_relent");
    // A real-time signal, which has no name, ends the last one.
    for adopted in ["true", "sleep 0.3", "sh -c 'kill -37 $$'"] {
        let script = format!(
            "{adopted} & exec '{relent}' run --quiet --max-retries 0 --attempt-timeout 10s -- \
             sh -c 'while [ -e /proc/$0 ]; do sleep 0.01; done' $!"
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).env_remove("RELENT_POLICY");
        shell
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        assert_eq!(code(&finish(shell.spawn().unwrap())), 0, "{adopted}");
    }
}

/// Container images name such a signal as their stop signal.
#[cfg(target_os = "linux")]
#[test]
fn a_real_time_signal_ends_the_group_like_sigterm() {
    let (child, mut stderr) = start(sh(&["--kill-after", "300ms"], IGNORES_SIGNALS));
    let member = parse_pid(&line(&mut stderr));
    let sent = Command::new("kill")
        .args(["-37", &pid(&child).to_string()])
        .status();
    assert!(sent.unwrap().success());
    assert_eq!(code(&finish(child)), 137);
    assert!(is_dead(member));
}

#[test]
fn a_signal_does_not_interrupt_the_cleanup_of_an_attempt() {
    let deaf = IGNORES_SIGNALS.replace('\'', "\"");
    for output in ["", ">/dev/null"] {
        let script = format!("echo $$ >&2; sh -c '{deaf}' {output} & read x; exit 1");
        let mut relent = sh(&["--kill-after", "1s", "--max-retries", "3"], &script);
        relent.stdin(Stdio::piped());
        let (mut child, mut stderr) = start(relent);
        let leader = parse_pid(&line(&mut stderr));
        let member = parse_pid(&line(&mut stderr));
        child.stdin.take().unwrap().write_all(b"end\n").unwrap();
        eventually("the leader ends", || is_dead(leader));
        kill(pid(&child), Signal::SIGTERM).unwrap();
        let _ = code(&finish(child));
        assert!(is_dead(member), "it is killed before relent ends");
    }
}

/// The inner one has its command in another group, which the outer one cannot kill.
#[test]
fn a_nested_run_ends_its_command_before_the_outer_one_kills_it() {
    for inner in ["2s", "1h"] {
        let nested = [
            env!("CARGO_BIN_EXE_relent"),
            "run",
            "--quiet",
            "--kill-after",
            inner,
            "--",
            "sh",
            "-c",
            IGNORES_SIGNALS,
        ];
        let (child, mut stderr) = start(command(&["--kill-after", "2s"], &nested));
        let grandchild = parse_pid(&line(&mut stderr));
        kill(pid(&child), Signal::SIGTERM).unwrap();
        let _ = finish(child);
        let died = is_dead(grandchild);
        let _ = kill(grandchild, Signal::SIGKILL);
        assert!(died, "--kill-after {inner}: it outlives both");
    }
}
