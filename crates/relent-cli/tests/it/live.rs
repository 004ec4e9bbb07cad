//! Tests of the countdown on a terminal, and of the lines in a log.

use crate::support::{finish, on_terminal, relent, run};
const QUICK: [&str; 7] = [
    "run",
    "--initial",
    "300ms",
    "--jitter",
    "none",
    "--max-retries",
    "1",
];

#[test]
fn a_log_has_a_line_for_each_retry_and_one_for_the_end() {
    let ran = run(&[&QUICK[..], &["--", "sh", "-c", "exit 3"]].concat());
    let lines: Vec<_> = ran.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{}", ran.stderr);
    assert_eq!(lines[0], "relent: attempt 1 failed: exit 3; next in 300ms");
    assert!(
        lines[1].starts_with("relent: gave up after 2 attempts in "),
        "{}",
        lines[1]
    );
    assert!(
        lines[1].ends_with(": the retries are used up (last: exit 3)"),
        "{}",
        lines[1]
    );
    assert_eq!(ran.status, 3);
}

#[test]
fn a_success_prints_no_message() {
    let ran = run(&["run", "--", "true"]);
    assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
}

#[test]
fn exit_status_lists_explain_why_there_is_no_retry() {
    for (options, says) in [
        (
            ["--stop-on-exit", "3"],
            "exit 3 is not retried: it is in --stop-on-exit",
        ),
        (
            ["--retry-on-exit", "4"],
            "exit 3 is not retried: it is not in --retry-on-exit",
        ),
    ] {
        let ran = run(&[&QUICK[..], &options, &["--", "sh", "-c", "exit 3"]].concat());
        assert_eq!((ran.status, ran.stderr), (3, format!("relent: {says}\n")));
    }
}

#[test]
fn quiet_still_reports_a_command_that_cannot_run() {
    let ran = run(&[&QUICK[..], &["-q", "--", "false"]].concat());
    assert_eq!((ran.status, ran.stderr.as_str()), (1, ""));
    let ran = run(&[&QUICK[..], &["-q", "--", "/no/such/command"]].concat());
    assert_eq!(
        ran.stderr,
        "relent: cannot run /no/such/command: command not found\n"
    );
}

#[test]
fn on_a_terminal_one_line_counts_down_and_is_erased() {
    let seen = on_terminal(
        &[],
        &[&QUICK[..], &["--", "sh", "-c", "echo out; exit 3"]].concat(),
    );
    assert!(seen.starts_with("out\r\n"), "{seen:?}");
    assert!(
        seen.contains("\r\x1b[2K\x1b[2mrelent:\x1b[0m attempt 1 failed: exit 3; next in 300ms"),
        "{seen:?}"
    );
    // A busy machine may skip one.
    let counted = ["next in 200ms", "next in 100ms"].map(|next| seen.contains(next));
    assert!(counted.contains(&true), "{seen:?}");
    // The output of the second attempt replaces the line.
    assert!(seen.contains("ms\r\x1b[2Kout\r\n"), "{seen:?}");
}

#[test]
fn no_color_disables_colours() {
    let args = [&QUICK[..], &["--", "false"]].concat();
    let seen = on_terminal(&[("NO_COLOR", "1")], &args);
    assert!(
        seen.contains("attempt 1 failed") && !seen.contains("\x1b[2m") && !seen.contains("\x1b[1m"),
        "{seen:?}"
    );
    let seen = on_terminal(&[("TERM", "dumb")], &args);
    assert!(
        seen.contains("attempt 1 failed") && !seen.contains('\x1b'),
        "{seen:?}"
    );
    let piped = finish(relent(&args).env("TERM", "xterm").spawn().unwrap());
    assert!(!piped.stderr.contains('\x1b'), "{:?}", piped.stderr);
}

#[test]
fn quiet_is_quiet_on_a_terminal_too() {
    let seen = on_terminal(
        &[],
        &[&QUICK[..], &["-q", "--", "sh", "-c", "echo out; exit 3"]].concat(),
    );
    assert_eq!(seen, "out\r\nout\r\n");
}
