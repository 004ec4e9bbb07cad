//! Tests of `relent run`: exit status, output exactly once, the environment of the command.

use std::fs::File;
use std::io::{BufReader, Read};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use crate::run_support::{
    code, command, cut_short, eventually, finish, is_dead, line, output, parse_pid, sh,
    sh_with_messages, text,
};

/// Fails in attempts 1 and 2.
const THIRD_TIME: &str = r#"echo "out $RELENT_ATTEMPT"; [ "$RELENT_ATTEMPT" = 3 ]"#;

#[test]
fn the_exit_status_is_that_of_the_last_attempt() {
    for (options, script, status) in [
        (&["--max-retries", "0"][..], "exit 0", 0),
        (&["--max-retries", "0"], "exit 3", 3),
        (&["--max-retries", "2"], "exit $((10 + RELENT_ATTEMPT))", 13),
        (&["--max-retries", "5"], "[ $RELENT_ATTEMPT = 4 ]", 0),
        (&["--max-retries", "1"], "exit 255", 255),
        (&["--max-retries", "1"], "kill -KILL $$", 137),
        (&["--max-retries", "1"], "kill -TERM $$", 143),
        (
            &["--max-retries", "1", "--attempt-timeout", "50ms"],
            "sleep 1000",
            124,
        ),
        // The time limit counts, for any reaction of the command to SIGTERM.
        (
            &["--max-retries", "0", "--attempt-timeout", "300ms"],
            "trap 'exit 0' TERM; sleep 1000 & wait",
            124,
        ),
        (
            &["--max-retries", "9", "--stop-on-exit", "3"],
            "exit $RELENT_ATTEMPT",
            3,
        ),
        (
            &["--max-retries", "9", "--retry-on-exit", "1-3"],
            "exit $RELENT_ATTEMPT",
            4,
        ),
    ] {
        let result = output(sh(options, script));
        assert_eq!(code(&result), status, "{options:?} {script}");
    }
}

#[test]
fn a_run_that_gives_up_never_exits_with_0() {
    for (options, script, status, says) in [
        (
            &["--retry-on-exit", "0", "--max-retries", "2"][..],
            "exit 0",
            123,
            "gave up after 3 attempts",
        ),
        (
            &["--retry-on-exit", "0", "--max-retries", "0"],
            "exit 0",
            123,
            "(last: exit 0, which is in --retry-on-exit)",
        ),
        (
            &["--retry-on-output", "not yet", "--max-retries", "1"],
            "echo not yet",
            123,
            "(last: exit 0, and --retry-on-output matched)",
        ),
        (
            &["--retry-on-output", "not yet", "--policy", "off"],
            "echo not yet >&2",
            123,
            "the policy allows no retries",
        ),
        // The time limit is reported first.
        (
            &[
                "--retry-on-output=not yet",
                "--policy=standard",
                "--deadline=1h",
                "--initial=2h",
                "--max-delay=2h",
            ],
            "echo not yet",
            124,
            "the deadline leaves no time",
        ),
        (
            &["--retry-on-output", "not yet", "--max-retries", "1"],
            "echo not yet; exit 7",
            7,
            "(last: exit 7, and --retry-on-output matched)",
        ),
        (
            &["--max-retries", "1"],
            "kill -KILL $$",
            137,
            "(last: signal 9)",
        ),
    ] {
        let result = output(sh_with_messages(options, script));
        let stderr = text(&result.stderr);
        assert_eq!(code(&result), status, "{options:?} {script}: {stderr}");
        assert!(stderr.contains(says), "{options:?} {script}: {stderr}");
    }
}

#[test]
fn a_command_that_cannot_run_is_never_retried() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("not-executable");
    std::fs::write(&file, "text").unwrap();
    let start = Instant::now();
    for (program, status, says) in [
        ("/no/such/command", 127, "not found"),
        ("relent-test-no-such-command", 127, "not found"),
        ("", 127, "not found"),
        (file.to_str().unwrap(), 126, "ermission denied"),
        ("/", 126, "ermission denied"),
    ] {
        let result = output(command(
            &["--max-retries", "1000", "--initial", "1000ms"],
            &[program],
        ));
        assert_eq!(code(&result), status, "{program:?}");
        assert!(
            text(&result.stderr).contains(says),
            "{program:?}: {}",
            text(&result.stderr)
        );
    }
    assert!(start.elapsed() < Duration::from_secs(900));
}

#[test]
fn shell_syntax_is_reported_with_the_sh_command_to_use() {
    for (words, says) in [
        (
            &["seq 3 | wc -l"][..],
            "cannot run 'seq 3 | wc -l': command not found; for a pipeline or other shell syntax, \
             use: sh -c 'seq 3 | wc -l'",
        ),
        (&["echo it's $HOME"], r"use: sh -c 'echo it'\''s $HOME'"),
        (
            &["sleep 5"],
            "this is one word with spaces: remove the quotes (sleep 5), or use: sh -c \
             'sleep 5'",
        ),
        (
            &["pushd", "/tmp", "&&", "make", "a b"],
            r"pushd is a shell builtin, so use: sh -c 'pushd /tmp && make '\''a b'\'''",
        ),
        (
            &["LEVEL=3", "make", "all"],
            "to set LEVEL for a command, use: env LEVEL=3 make all",
        ),
    ] {
        let result = output(command(&[], words));
        let stderr = text(&result.stderr);
        assert_eq!(
            (code(&result), stderr.lines().count()),
            (127, 1),
            "{stderr}"
        );
        assert!(stderr.contains(says), "{words:?}: {stderr}");
    }
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    std::fs::write(&script, "#!/no/such/shell\n").unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, executable).unwrap();
    let result = output(command(&[], &[script.to_str().unwrap()]));
    assert!(text(&result.stderr).contains("but not the interpreter in its first line"));
    // A plain name gets no suggestion.
    let result = output(command(&[], &["relent-test-no-such-command", "a|b"]));
    assert!(text(&result.stderr).ends_with("command not found\n"));
}

#[test]
fn a_pipe_gets_the_output_of_the_final_attempt_exactly_once() {
    // Success before the last possible attempt, and in it.
    for retries in ["5", "2"] {
        let result = output(sh(&["--max-retries", retries], THIRD_TIME));
        assert_eq!(code(&result), 0);
        assert_eq!(text(&result.stdout), "out 3\n");
        assert_eq!(text(&result.stderr).matches("out 1\n").count(), 1);
        assert_eq!(text(&result.stderr).matches("out 2\n").count(), 1);
    }
    // After giving up, the output of the final attempt is also printed.
    let result = output(sh(&["--max-retries", "1"], THIRD_TIME));
    assert_eq!((code(&result), text(&result.stdout)), (1, "out 2\n"));
}

#[test]
fn output_larger_than_memory_arrives_complete_and_in_order() {
    let script = "seq 400000; [ $RELENT_ATTEMPT = 2 ]";
    let result = output(sh(&["--max-retries", "5"], script));
    let expected: String = (1..=400_000).map(|i| format!("{i}\n")).collect();
    assert!(expected.len() > 2 << 20);
    assert_eq!(code(&result), 0);
    assert!(text(&result.stdout) == expected);
    assert!(text(&result.stderr).contains(&expected));
}

#[test]
fn a_closed_stdout_ends_quietly_with_the_status_of_the_attempt() {
    for (retries, script, status) in [("3", "seq 400000", 0), ("1", "seq 400000; exit 9", 9)] {
        let mut relent = sh(&["--max-retries", retries, "--stop-on-exit", "9"], script);
        let mut child = relent.spawn().unwrap();
        let mut first = [0];
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut first).unwrap();
        drop(stdout);
        let result = finish(child);
        assert_eq!(code(&result), status);
        assert_eq!(text(&result.stderr), "");
    }
}

#[test]
fn a_full_disk_is_reported_as_an_error_of_relent() {
    let mut relent = sh(&["--max-retries", "3"], "echo result");
    relent.stdout(File::options().write(true).open("/dev/full").unwrap());
    let result = output(relent);
    assert_eq!(code(&result), 125);
    assert!(text(&result.stderr).contains("cannot write to standard output"));
    assert!(text(&result.stderr).contains("No space left"));
}

#[test]
fn output_that_cannot_be_buffered_ends_the_command_with_the_folder_name() {
    let mut relent = sh(
        &["--max-retries", "3"],
        "echo $$ >&2; seq 400000; sleep 1000",
    );
    relent.env("TMPDIR", "/no/such/directory");
    let result = output(relent);
    assert_eq!(code(&result), 125);
    let stderr = text(&result.stderr);
    assert!(
        stderr.contains("/no/such/directory") && stderr.contains("TMPDIR"),
        "{stderr}"
    );
    let command = parse_pid(stderr.lines().next().unwrap());
    assert!(is_dead(command));
}

#[test]
fn the_command_gets_the_default_action_for_a_closed_pipe() {
    assert_eq!(
        code(&output(sh(
            &["--max-retries", "0"],
            "kill -PIPE $$; exit 0"
        ))),
        141
    );
}

#[test]
fn an_attempt_is_retried_if_its_output_matches() {
    for stream in ["1", "2"] {
        // The text is written in two pieces.
        let script = format!(
            "if [ $RELENT_ATTEMPT -lt 3 ]; then printf 'try ag' >&{stream}; sleep 0.05; \
             printf 'ain later' >&{stream}; else echo fine; fi"
        );
        let options = ["--max-retries", "5", "--retry-on-output", "try again"];
        let result = output(sh(&options, &script));
        assert_eq!((code(&result), text(&result.stdout)), (0, "fine\n"));
        assert_eq!(text(&result.stderr).matches("try again later").count(), 2);
    }
}

#[test]
fn stderr_is_live_while_it_is_searched() {
    let script = "echo waiting >&2; read answer; echo \"$answer\"";
    let mut relent = sh(&["--retry-on-output", "nothing"], script);
    let mut child = relent.stdin(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    assert_eq!(line(&mut stderr), "waiting");
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"seen\n").unwrap();
    assert_eq!(text(&finish(child).stdout), "seen\n");
}

#[test]
fn a_timeout_ends_the_whole_group_even_one_that_ignores_sigterm() {
    let script = "trap '' TERM; sleep 1000 & echo $! >&2; \
                  while :; do wait; done";
    let named = |result: &Output| !result.stderr.is_empty();
    let (result, took) = cut_short(&["--max-retries", "0"], script, named);
    assert_eq!(code(&result), 124);
    assert!(took >= Duration::from_secs(2), "the grace was given");
    let grandchild = parse_pid(text(&result.stderr));
    eventually("the grandchild is dead", || is_dead(grandchild));
}

#[test]
fn group_members_keep_the_grace_period_after_their_leader_has_ended() {
    // The leader ends immediately; its child cleans up first, and its output is kept.
    let script = "sh -c 'trap \"sleep 0.3; echo cleaned up; exit\" TERM; echo ready >&2; \
                  while :; do sleep 0.05; done' & wait";
    let result = output(sh(&["--stop-on-exit", "0"], "exit 0"));
    assert_eq!(code(&result), 0);
    let ready = |result: &Output| text(&result.stderr).contains("ready");
    let (result, _) = cut_short(&["--max-retries", "1"], script, ready);
    assert_eq!(code(&result), 124);
    assert!(
        text(&result.stderr).contains("cleaned up"),
        "{}",
        text(&result.stderr)
    );
}

#[test]
fn a_timeout_reaches_a_stopped_command() {
    let script = "trap 'echo heard >&2; exit' TERM; echo ready >&2; kill -STOP $$; sleep 1000";
    let ready = |result: &Output| text(&result.stderr).starts_with("ready\n");
    let (result, _) = cut_short(&["--max-retries", "0"], script, ready);
    assert_eq!(code(&result), 124);
    assert_eq!(text(&result.stderr), "ready\nheard\n");
}

/// As execvp does it, and therefore env(1), `xargs` and every shell.
#[test]
fn a_script_without_an_interpreter_line_runs_in_the_shell() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("import");
    std::fs::write(&script, "echo \"$0 $1 $RELENT_ATTEMPT\"\nexit 3\n").unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let script = script.to_str().unwrap();
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    for program in [script, "import"] {
        let mut relent = command(&["--max-retries", "1"], &[program, "a b"]);
        relent.env("PATH", &path);
        let result = output(relent);
        assert_eq!(code(&result), 3, "{result:?}");
        assert_eq!(text(&result.stdout), format!("{script} a b 2\n"));
    }
    // A file that is not executable is not run, as in env(1).
    std::fs::set_permissions(script, PermissionsExt::from_mode(0o644)).unwrap();
    assert_eq!(code(&output(command(&[], &[script]))), 126);
}

#[test]
fn output_beyond_max_buffer_is_passed_on_and_not_retried() {
    let said = "standard output exceeds --max-buffer (100.00 KiB)";
    let options = ["--max-buffer", "100KiB", "--max-retries", "3"];
    // An endless writer needs a reader that ends it: relent must not buffer its output for ever.
    let script = "yes | head -c 10000000; echo left >&2; yes";
    let mut relent = sh_with_messages(&options, script).spawn().unwrap();
    let mut read = vec![0; 10_000_000];
    relent.stdout.take().unwrap().read_exact(&mut read).unwrap();
    assert!(read.chunks(2).all(|line| line == b"y\n"));
    let result = finish(relent);
    assert_eq!(code(&result), 141, "SIGPIPE ends it: {result:?}");
    assert_eq!(text(&result.stderr).matches(said).count(), 1, "{result:?}");

    // The output is passed on completely and once, and the attempt is not repeated.
    let script = "echo $RELENT_ATTEMPT; [ $RELENT_ATTEMPT = 1 ] || seq 100000; exit 5";
    let result = output(sh_with_messages(&options, script));
    assert_eq!(code(&result), 5);
    let expected: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
    assert_eq!(text(&result.stdout), format!("2\n{expected}"));
    assert!(text(&result.stderr).contains("is not retried: its output exceeded"));

    // An attempt whose output fits is repeated.
    let script = "[ $RELENT_ATTEMPT = 3 ] || head -c 102400 /dev/zero; [ $RELENT_ATTEMPT = 3 ]";
    let result = output(sh_with_messages(&options, script));
    assert_eq!((code(&result), text(&result.stdout)), (0, ""));
    assert!(!text(&result.stderr).contains(said));
}

#[test]
fn a_process_left_behind_does_not_block_the_run_after_its_early_output() {
    let script = "(exec 2>/dev/null; sleep 0.1; echo late; exec sleep 1000) & \
                  echo $! >&2; echo early";
    let result = output(sh(&["--max-retries", "3"], script));
    assert_eq!((code(&result), text(&result.stdout)), (0, "early\nlate\n"));
    let stderr = text(&result.stderr);
    assert!(stderr.contains("left behind"), "{stderr}");
    let left = parse_pid(stderr.lines().next().unwrap());
    assert!(
        !is_dead(left),
        "a background process of a command that succeeded is not ours to end"
    );
    nix::sys::signal::kill(left, nix::sys::signal::Signal::SIGKILL).unwrap();
}

#[test]
fn a_process_that_never_stops_writing_does_not_block_the_run() {
    let script = "(while :; do echo again; sleep 0.1; done) & echo $! >&2";
    let start = Instant::now();
    let result = output(sh(&["--max-retries", "3"], script));
    assert_eq!(code(&result), 0);
    assert!(start.elapsed() > Duration::from_secs(9));
    assert!(text(&result.stderr).contains("left behind"));
    // The closed pipe ends the process.
    let left = parse_pid(text(&result.stderr).lines().next().unwrap());
    eventually("the writer ends by SIGPIPE", || is_dead(left));
}
