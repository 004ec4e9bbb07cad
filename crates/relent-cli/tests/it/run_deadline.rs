//! Tests of the deadline of `relent run`: no process of an attempt outlives it.

use std::cell::Cell;
use std::io::Read;
use std::process::Output;
use std::time::{Duration, Instant};

use crate::run_support::{
    code, eventually, is_dead, output, parse_pid, sh, sh_with_messages, text, when_ready,
};

/// Runs a script that gets SIGTERM as soon as it is ready, and SIGKILL after an hour. This detects a SIGTERM only at
/// the deadline, and an early SIGKILL.
fn asked_soon(script: &str) -> Output {
    when_ready(300, |millis| {
        let kill_after = format!("--kill-after={}ms", 3_600_000 - millis);
        sh_within(&["--deadline=1h", &kill_after], script)
    })
}

fn sh_within(limits: &[&str], script: &str) -> Output {
    output(sh(&[limits, &["--max-retries=9"]].concat(), script))
}

#[test]
fn kill_after_is_part_of_the_deadline() {
    // The trap does not change the status: the time limit counts.
    for end in ["exit 0", "exit 7", "kill -KILL $$"] {
        let script =
            format!("trap 'echo asked; {end}' TERM; echo ready >&2; while :; do sleep 0.02; done");
        let result = asked_soon(&script);
        assert_eq!(
            (code(&result), text(&result.stdout)),
            (124, "asked\n"),
            "{end}"
        );
    }
}

#[test]
fn a_stalled_reader_does_not_extend_the_deadline() {
    // The output is more than a pipe holds. In the last case it is written by relent before the attempt has ended.
    for (limits, script, status) in [
        (&[][..], "seq 400000; sleep 1000", 124),
        (&[], "seq 400000; exit 7", 7),
        (&["--stream"], "seq 400000; sleep 1000", 124),
    ] {
        let deadline = ["--deadline=1s", "--max-retries=0", "--retry-on-output=x"];
        let mut relent = sh(&[&deadline[..], limits].concat(), script)
            .spawn()
            .unwrap();
        let unread = relent.stdout.take();
        eventually("relent ends", || relent.try_wait().unwrap().is_some());
        assert_eq!(relent.wait().unwrap().code(), Some(status), "{script}");
        drop(unread);
    }
}

#[test]
fn a_stalled_reader_of_standard_error_extends_no_time_limit() {
    // More than a pipe holds. In the first case relent writes it, in the others the command. The last message of relent
    // does not fit behind it.
    let command = "seq 400000 >&2; sleep 1000";
    for (limits, script) in [
        (
            &["--deadline=1s", "--max-retries=9"][..],
            "seq 400000; exit 7",
        ),
        (&["--deadline=1s", "--max-retries=0"], command),
        (&["--attempt-timeout=1s", "--max-retries=0"], command),
        (
            &["--deadline=1s", "--max-retries=0", "--retry-on-output=x"],
            command,
        ),
        (
            &[
                "--attempt-timeout=1s",
                "--max-retries=0",
                "--retry-on-output=x",
            ],
            command,
        ),
        (&["--deadline=1s", "--max-retries=0", "--trace=-"], command),
    ] {
        let mut relent = sh_with_messages(limits, script).spawn().unwrap();
        let unread = relent.stderr.take();
        eventually("relent ends", || relent.try_wait().unwrap().is_some());
        assert_eq!(relent.wait().unwrap().code(), Some(124), "{limits:?}");
        drop(unread);
    }
}

#[test]
fn a_stalled_reader_gets_all_output_of_a_success() {
    for limits in [&["--stream"][..], &[], &["--max-buffer=1KiB"]] {
        let deadline = ["--deadline=1s", "--max-retries=0", "--retry-on-output=x"];
        let mut relent = sh(&[&deadline[..], limits].concat(), "seq 20000")
            .spawn()
            .unwrap();
        let mut stdout = relent.stdout.take().unwrap();
        // Longer than the deadline and the time that a stalled reader gets after it. Pipes and buffers hold the output.
        std::thread::sleep(Duration::from_secs(4));
        let mut output = String::new();
        stdout.read_to_string(&mut output).unwrap();
        assert_eq!(output.lines().count(), 20_000, "{limits:?}");
        assert_eq!(relent.wait().unwrap().code(), Some(0), "{limits:?}");
    }
}

#[test]
fn no_process_of_the_group_runs_after_the_deadline() {
    // Neither the command nor its child reacts to SIGTERM.
    let script = "trap '' TERM; sleep 1000 & echo $! >&2; echo $$ >&2; echo ready >&2; \
                  while :; do wait; done";
    let result = when_ready(500, |millis| {
        let start = Instant::now();
        let deadline = format!("--deadline={}ms", 2 * millis);
        let kill_after = format!("--kill-after={millis}ms");
        let result = sh_within(&[&deadline, &kill_after], script);
        let given = start.elapsed();
        assert!(
            given >= Duration::from_millis(2 * millis) || !text(&result.stderr).contains("ready"),
            "it had until the deadline, and was killed after {given:?}"
        );
        result
    });
    assert_eq!(code(&result), 124);
    let lines: Vec<_> = text(&result.stderr).lines().collect();
    assert_eq!((lines.len(), lines[2]), (3, "ready"), "{lines:?}");
    for process in &lines[..2] {
        let process = parse_pid(process);
        eventually("it is dead", || is_dead(process));
    }
}

#[test]
fn a_group_member_that_outlives_its_leader_has_until_the_deadline() {
    // The leader ends on SIGTERM; its child cleans up first.
    let script = "sh -c 'trap \"echo cleaned up; exit\" TERM; echo ready >&2; \
                         while :; do sleep 0.02; done' & wait";
    let result = asked_soon(script);
    assert_eq!((code(&result), text(&result.stdout)), (124, "cleaned up\n"));
}

#[test]
fn a_deadline_without_time_for_another_attempt_is_status_124() {
    let options = [
        "--policy=standard",
        "--deadline=1h",
        "--initial=2h",
        "--max-delay=2h",
    ];
    let result = output(sh_with_messages(&options, "echo out; exit 3"));
    assert_eq!((code(&result), text(&result.stdout)), (124, "out\n"));
    let stderr = text(&result.stderr);
    assert!(stderr.contains("gave up after 1 attempt "), "{stderr}");
    assert!(
        stderr.contains("the deadline leaves no time (last: exit 3)"),
        "{stderr}"
    );
    // An attempt that is not retried keeps its own status.
    for options in [
        &["--deadline=1h", "--stop-on-exit=3"][..],
        &["--deadline=1h", "--max-retries=0"],
    ] {
        assert_eq!(code(&output(sh(options, "exit 3"))), 3);
    }
}

#[test]
fn a_delay_that_is_shortened_for_a_final_attempt_is_reported() {
    let options = ["--deadline=5s", "--initial=10s"];
    let result = output(sh_with_messages(&options, "exit 3"));
    let stderr = text(&result.stderr);
    let why = ", shortened so that a final attempt fits before the time limit\n";
    assert_eq!(stderr.matches(why).count(), 1, "{stderr}");
    assert!(stderr.contains("gave up after 2 attempts "), "{stderr}");
}

#[test]
fn an_attempt_that_ends_by_itself_before_the_deadline_keeps_its_status() {
    for (script, status) in [("exit 0", 0), ("exit 5", 5)] {
        let options = ["--deadline=1h", "--max-retries=1"];
        assert_eq!(code(&output(sh(&options, script))), status);
    }
}

#[test]
fn processes_of_a_failed_attempt_are_ended_before_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("process");
    // The process left behind ignores SIGTERM, and holds no output open.
    let script = "if [ $RELENT_ATTEMPT = 1 ]; then \
                      trap '' TERM; sleep 1000 >/dev/null 2>&1 & echo $! >\"$0\"; exit 1; fi; \
                  state=$(sed 's/.*) //' \"/proc/$(cat \"$0\")/stat\" 2>/dev/null | cut -c 1); \
                  case $state in ''|Z) ;; *) exit 9;; esac";
    let mut relent = sh(
        &["--stop-on-exit=9", "--max-retries=3", "--kill-after=100ms"],
        script,
    );
    relent.arg(&file);
    let result = output(relent);
    assert_eq!(code(&result), 0, "{}", text(&result.stderr));
    assert!(is_dead(parse_pid(&std::fs::read_to_string(file).unwrap())));
}

#[test]
fn processes_of_the_last_failed_attempt_are_ended() {
    let script = "sleep 1000 >/dev/null 2>&1 & echo $! >&2; exit 4";
    let result = output(sh(&["--max-retries=0"], script));
    assert_eq!(code(&result), 4);
    let left = parse_pid(text(&result.stderr));
    eventually("it is dead", || is_dead(left));
}

#[test]
fn kill_after_beyond_the_deadline_is_refused_before_the_first_attempt() {
    for options in [
        &["--deadline=5s", "--kill-after=5s"][..],
        &["--deadline=5s", "--kill-after=1m"],
    ] {
        let result = output(sh(options, "echo ran"));
        assert_eq!((code(&result), text(&result.stdout)), (125, ""));
        let stderr = text(&result.stderr);
        assert!(
            stderr.contains("must be shorter than the deadline (5s), of which it is a part"),
            "{stderr}"
        );
    }
    // The default fits every deadline.
    for deadline in ["--deadline=24h", "--deadline=10m", "--deadline=40s"] {
        assert_eq!(code(&output(sh(&[deadline], "exit 0"))), 0);
    }
    assert_eq!(code(&output(sh(&["--deadline=10ms"], "sleep 1000"))), 124);
}

#[test]
fn with_kill_after_zero_a_command_is_killed_immediately() {
    let script = "trap 'sleep 1000' TERM; sleep 1000 & echo $! >&2; wait";
    let options = [
        "--attempt-timeout=300ms",
        "--kill-after=0s",
        "--max-retries=0",
    ];
    let result = output(sh(&options, script));
    assert_eq!(code(&result), 124);
    if let Ok(child) = text(&result.stderr).trim().parse() {
        let child = nix::unistd::Pid::from_raw(child);
        eventually("it is dead", || is_dead(child));
    }
}

/// The process has left the group, so it cannot be ended, and its output is lost.
#[test]
fn a_process_that_has_left_the_group_does_not_delay_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().join("there").display().to_string();
    // The process runs while the file exists, and holds the standard output of the command open.
    let script = format!(
        "touch {there}; setsid sh -c 'while [ -e {there} ]; do sleep 0.05; done' 2>/dev/null & \
         echo out; echo ready >&2; sleep 1000"
    );
    let trace = folder.path().join("trace.json");
    // The machine may be late, but not each time by the whole time that relent waits for silence.
    let mut late = (0..5).map(|_| {
        let given = Cell::new(0);
        let result = when_ready(1000, |millis| {
            given.set(millis);
            let deadline = format!("--deadline={millis}ms");
            let trace = format!("--trace={}", trace.display());
            sh_within(&[&deadline, "--kill-after=100ms", &trace], &script)
        });
        assert_eq!((code(&result), text(&result.stdout)), (124, "out\n"));
        let trace = std::fs::read_to_string(&trace).unwrap();
        let trace: serde_json::Value = serde_json::from_str(&trace).unwrap();
        trace["elapsed_ms"].as_f64().unwrap() - given.get() as f64
    });
    assert!(late.any(|late| late < 900.0));
}
