//! Tests of output that `relent run` passes on immediately, of readers that go away, and of closed streams.

use std::fs::File;
use std::io::{BufReader, Write};
use std::process::{Command, Stdio};

use crate::run_support::{code, finish, is_dead, line, output, parse_pid, sh, text};

const RELENT: &str = env!("CARGO_BIN_EXE_relent");

#[test]
fn stream_passes_on_the_output_of_every_attempt_immediately() {
    let script = "echo \"out $RELENT_ATTEMPT\"; read x; [ $RELENT_ATTEMPT = 2 ]";
    for options in [
        &["--stream", "--max-retries=3"][..],
        &["--stream=always", "--max-retries=1"],
        &["--stream", "--max-retries=3", "--retry-on-output=nothing"],
    ] {
        let mut relent = sh(options, script);
        let mut child = relent.stdin(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        // The command waits for a response to its output.
        assert_eq!(line(&mut stdout), "out 1", "{options:?}");
        child.stdin.take().unwrap().write_all(b"go on\n").unwrap();
        assert_eq!(line(&mut stdout), "out 2", "{options:?}");
        let result = finish(child);
        assert_eq!(
            (code(&result), text(&result.stderr)),
            (0, ""),
            "{options:?}"
        );
        assert_eq!(line(&mut stdout), "", "{options:?}");
    }
}

#[test]
fn output_that_is_passed_on_can_be_searched() {
    let script = "echo try $RELENT_ATTEMPT";
    let options = ["--stream", "--max-retries=5", "--retry-on-output=try [12]"];
    let result = output(sh(&options, script));
    assert_eq!(
        (code(&result), text(&result.stdout)),
        (0, "try 1\ntry 2\ntry 3\n")
    );
}

#[test]
fn a_pipe_gets_one_output_unless_stream_is_given() {
    let script = "echo \"out $RELENT_ATTEMPT\"; [ $RELENT_ATTEMPT = 2 ]";
    for options in [
        &["--max-retries=3"][..],
        &["--stream=never", "--max-retries=3"],
    ] {
        assert_eq!(text(&output(sh(options, script)).stdout), "out 2\n");
    }
}

#[test]
fn a_reader_that_goes_away_ends_the_run() {
    for options in [
        &["--stream", "--max-retries=unlimited"][..],
        &[
            "--stream",
            "--max-retries=unlimited",
            "--retry-on-output=nothing",
        ],
        &["--stream", "--max-retries=0"],
        &["--max-retries=0"],
    ] {
        // As `relent run -- yes | head -2`.
        let mut child = sh(options, "exec yes").spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        assert_eq!(
            (line(&mut stdout), line(&mut stdout)),
            ("y".into(), "y".into())
        );
        drop(stdout);
        let result = finish(child);
        assert_eq!(
            (code(&result), text(&result.stderr)),
            (141, ""),
            "{options:?}"
        );
    }
}

#[test]
fn a_missing_reader_ends_the_run_even_if_output_is_buffered() {
    for options in [
        &["--max-retries=unlimited"][..],
        &["--retry-on-output=nothing"],
    ] {
        let mut child = sh(options, "exec yes").spawn().unwrap();
        drop(child.stdout.take());
        let result = finish(child);
        assert_eq!(
            (code(&result), text(&result.stderr)),
            (141, ""),
            "{options:?}"
        );
    }
}

#[test]
fn no_attempt_follows_after_the_reader_has_gone() {
    let script = "echo out; echo ready >&2; read x; exit 6";
    let mut relent = sh(&["--stream", "--max-retries=unlimited"], script);
    let mut child = relent.stdin(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    assert_eq!(line(&mut stderr), "ready");
    drop(child.stdout.take());
    child.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    assert_eq!(code(&finish(child)), 6);
    assert_eq!(line(&mut stderr), "", "no other attempt is made");
}

#[test]
fn a_full_disk_ends_streamed_output() {
    let mut relent = sh(
        &["--stream", "--max-retries=9", "--retry-on-output=nothing"],
        "echo result; sleep 1000",
    );
    relent.stdout(File::options().write(true).open("/dev/full").unwrap());
    let result = output(relent);
    assert_eq!(code(&result), 125);
    assert!(text(&result.stderr).contains("cannot write to standard output: No space left"));
}

/// `relent ARGS REDIRECTION`, through a shell.
fn redirected(args: &str, redirection: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec {RELENT} {args} {redirection}")]);
    shell.env_remove("RELENT_POLICY");
    shell
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    shell
}

#[test]
fn a_closed_standard_stream_is_an_error_before_the_first_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let ran = folder.path().join("ran");
    let run = format!("run -- touch {}", ran.display());
    for (redirection, says) in [
        (
            ">&-",
            "relent: standard output is closed; if nothing is wanted there, use >/dev/null\n",
        ),
        (
            "<&-",
            "relent: standard input is closed; if nothing is wanted there, use </dev/null\n",
        ),
        (
            "<&- >&-",
            "relent: standard input is closed; if nothing is wanted there, use </dev/null\n",
        ),
        // There is no stream for the message.
        ("2>&-", ""),
    ] {
        let result = output(redirected(&run, redirection));
        assert_eq!(
            (code(&result), text(&result.stdout), text(&result.stderr)),
            (125, "", says),
            "{redirection}"
        );
        assert!(!ran.exists(), "{redirection}");
    }
}

#[test]
fn dev_null_does_not_count_as_a_closed_stream() {
    for redirection in [
        ">/dev/null",
        "</dev/null",
        "2>/dev/null",
        "1<>/dev/null",
        "2>&1 >/dev/null",
    ] {
        let result = output(redirected("run -- true", redirection));
        assert_eq!(code(&result), 0, "{redirection}");
    }
}

#[test]
fn every_command_with_a_result_fails_if_standard_output_is_closed() {
    for args in [
        "policy list",
        "schedule",
        "--help",
        "run --help",
        "--version",
        "man",
    ] {
        let result = output(redirected(args, ">&-"));
        assert_eq!(code(&result), 1, "{args}");
        assert!(
            text(&result.stderr).contains("cannot write to standard output: it is closed"),
            "{args}: {}",
            text(&result.stderr)
        );
    }
}

#[test]
fn a_command_without_output_continues_without_a_reader() {
    let mut child = sh(&["--max-retries=3"], "[ $RELENT_ATTEMPT = 3 ]")
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(code(&finish(child)), 0);
}

#[test]
fn a_run_beyond_the_file_size_limit_fails_and_leaves_no_process() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let much = "echo $$ > \"$0\"; head -c 3000000 /dev/zero; exec sleep 600";
    let line = "ulimit -f 100; exec \"$0\" run --max-retries 1 --kill-after 0ms -- sh -c \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", line, RELENT, much]).arg(&pid);
    command.env_remove("RELENT_POLICY").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let result = finish(command.spawn().unwrap());
    let stderr = text(&result.stderr);
    assert_eq!(code(&result), 125, "{stderr}");
    assert!(stderr.contains("File too large"), "{stderr}");
    assert!(is_dead(parse_pid(&std::fs::read_to_string(&pid).unwrap())));
}
