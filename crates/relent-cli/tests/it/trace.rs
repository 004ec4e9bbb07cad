//! Tests of `--trace`: the file conforms to docs/schema/trace.schema.json, and is complete or absent.

use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::json_schema::Schema;
use crate::support::{self, finish, relent, run};

const SCHEMA: &str = include_str!("../../../../docs/schema/trace.schema.json");

fn check(value: &Value) -> Result<(), String> {
    Schema::parse(SCHEMA).check(value)
}

fn read(text: &str) -> Value {
    let trace = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text:?}"));
    check(&trace).unwrap();
    trace
}

const QUICK: [&str; 6] = ["--quiet", "--initial", "5ms", "--jitter", "none", "--trace"];

fn traced(options: &[&str], command: &[&str]) -> (i32, Value) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let ran = run(&[
        &["run"],
        &QUICK[..],
        &[file.to_str().unwrap()],
        options,
        &["--"],
        command,
    ]
    .concat());
    let trace = read(&std::fs::read_to_string(file).unwrap());
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        1,
        "nothing else is left"
    );
    (ran.status, trace)
}

#[test]
fn the_schema_check_detects_invalid_traces() {
    let good = run(&["schedule", "--quiet", "--json", "--trace", "-"]).stderr;
    for (from, to) in [
        ("\"gave_up\"", "\"failed\""),
        ("\"retry_at\":null,", ""),
        ("\"attempt\":1,", "\"attempt\":0,"),
        ("\"wait_ms\":500.0", "\"wait_ms\":\"500ms\""),
        ("\"result\"", "\"extra\":1,\"result\""),
    ] {
        assert!(good.contains(from), "{from}: {good}");
        let bad: Value = serde_json::from_str(&good.replacen(from, to, 1)).unwrap();
        assert!(check(&bad).is_err(), "{to}");
    }
}

#[test]
fn the_trace_has_the_reason_of_every_kind_of_end() {
    let third_time = ["sh", "-c", "[ $RELENT_ATTEMPT = 3 ]"];
    let (status, trace) = traced(&[], &third_time);
    assert_eq!(
        (status, &trace["result"], &trace["reason"]),
        (0, &"success".into(), &Value::Null)
    );
    let attempts = trace["attempts"].as_array().unwrap();
    let told: Vec<_> = attempts
        .iter()
        .map(|a| {
            (
                a["outcome"].as_str().unwrap(),
                a["decision"].as_str().unwrap(),
                a["wait_ms"].as_f64(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            ("exit 1", "retry", Some(5.0)),
            ("exit 1", "retry", Some(10.0)),
            ("exit 0", "success", None)
        ]
    );

    for (options, script, status, reason, outcome) in [
        (
            &["--max-retries", "1"][..],
            "exit 9",
            9,
            "retries_exhausted",
            "exit 9",
        ),
        (
            &["--max-retries", "0"],
            "kill -KILL $$",
            137,
            "retries_exhausted",
            "signal 9",
        ),
        (&["--stop-on-exit", "3"], "exit 3", 3, "permanent", "exit 3"),
        (
            &["--retry-on-exit", "75"],
            "exit 3",
            3,
            "permanent",
            "exit 3",
        ),
        (
            &["--retry-on-exit", "75"],
            "kill -KILL $$",
            137,
            "permanent",
            "signal 9",
        ),
        (
            &["--deadline", "60ms"],
            "sleep 1000",
            124,
            "deadline",
            "attempt timed out",
        ),
        (
            &[
                "--attempt-timeout",
                "60ms",
                "--max-retries",
                "1",
                "--retry-on-exit",
                "75",
            ],
            "sleep 1000",
            124,
            "retries_exhausted",
            "attempt timed out",
        ),
        (
            &[
                "--retry-on-output",
                "busy",
                "--max-retries",
                "1",
                "--retry-on-exit",
                "75",
            ],
            "echo busy",
            123,
            "retries_exhausted",
            "output matched",
        ),
    ] {
        let (ended, trace) = traced(options, &["sh", "-c", script]);
        assert_eq!(
            (ended, &trace["reason"]),
            (status, &reason.into()),
            "{options:?} {script}"
        );
        let last = trace["attempts"].as_array().unwrap().last().unwrap();
        assert_eq!(last["outcome"], outcome, "{options:?} {script}");
        assert_eq!(
            (&last["decision"], &last["wait_ms"]),
            (&"stop".into(), &Value::Null)
        );
    }
    let (status, trace) = traced(&[], &["/no/such/command"]);
    assert_eq!((status, &trace["reason"]), (127, &"permanent".into()));
}

#[test]
fn a_retry_on_list_for_http_does_not_prevent_retries_of_commands() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, listed: &str| {
        let path = folder.path().join(name);
        let text = format!("backoff.constant = {{ delay = \"5ms\" }}\nretry_on = [{listed}]\n");
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let http = file("http.toml", "503, \"network\", \"timeout\"");
    let exits = file("exits.toml", "\"exit:75\"");
    for (policy, options, script, attempts) in [
        (&http, &[][..], "exit 1", 4),
        (&exits, &[], "exit 75", 4),
        (&exits, &[], "exit 1", 1),
        // An option takes precedence over the list of the policy.
        (&exits, &["--retry-on-exit", "1"], "exit 1", 4),
        (&exits, &["--retry-on-exit", "1"], "exit 75", 1),
        (&exits, &["--retry-on-output", "busy"], "echo busy", 4),
        // A command that cannot run is never retried, with any list.
        (
            &exits,
            &["--retry-on-exit", "0-255"],
            "exec /no/such/command",
            4,
        ),
    ] {
        let run = ["run", "--quiet", "--trace", "-", "--policy", policy];
        let ran = support::run(&[&run[..], options, &["--", "sh", "-c", script]].concat());
        let trace = read(ran.stderr.lines().last().unwrap());
        assert_eq!(
            trace["attempts"].as_array().unwrap().len(),
            attempts,
            "{options:?} {script}"
        );
    }
    let options = [
        "run",
        "--trace",
        "-",
        "--policy",
        &exits,
        "--retry-on-exit",
        "0-255",
    ];
    let ran = run(&[&options[..], &["--", "/no/such/command"]].concat());
    assert_eq!(
        read(ran.stderr.lines().last().unwrap())["attempts"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn the_trace_is_written_when_a_signal_ends_the_run() {
    let folder = tempfile::tempdir().unwrap();
    // During a delay, and during an attempt.
    for (number, script) in ["exit 3", "echo ready >&2; sleep 1000"]
        .into_iter()
        .enumerate()
    {
        let file = folder.path().join(number.to_string());
        let child = relent(&["run", "--initial", "10s", "--jitter", "none"])
            .args(["--trace".as_ref(), file.as_os_str()])
            .args(["--", "sh", "-c", script])
            .spawn();
        let mut child = child.unwrap();
        let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut stderr, &mut line).unwrap();
        assert!(!file.exists(), "it appears at the end, complete");
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
        assert_eq!(finish(child).status, 143);
        let trace = read(&std::fs::read_to_string(&file).unwrap());
        assert_eq!(
            (&trace["result"], &trace["reason"]),
            (&"gave_up".into(), &"cancelled".into())
        );
        assert_eq!(trace["attempts"][0]["decision"], "stop");
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut stderr, &mut rest).unwrap();
        assert!(
            !rest.contains("gave up"),
            "whoever interrupts knows why: {rest}"
        );
    }
}

#[test]
fn a_trace_that_cannot_be_written_keeps_the_status_of_the_command() {
    for (script, status) in [("exit 0", 0), ("exit 9", 9)] {
        let options = [
            "run",
            "--quiet",
            "--max-retries",
            "0",
            "--trace",
            "/dev/full",
        ];
        let ran = run(&[&options[..], &["--", "sh", "-c", script]].concat());
        assert_eq!(ran.status, status);
        assert!(
            ran.stderr
                .contains("--trace /dev/full: the trace could not be written: No space left"),
            "{}",
            ran.stderr
        );
    }
    let ran = run(&["schedule", "--trace", "/dev/full"]);
    assert_eq!(ran.status, 1, "here the trace is a part of the result");
}

#[test]
fn a_reader_of_the_trace_that_takes_nothing_does_not_delay_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut both = std::fs::File::options();
    let mut unread = both.read(true).write(true).open(&pipe).unwrap();
    // The pipe holds no more bytes.
    fcntl(&unread, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    while unread.write(&[b'x'; 4096]).is_ok() {}
    let trace = format!("--trace={}", pipe.display());
    let ran = run(&["run", "--max-retries=0", &trace, "--", "sh", "-c", "exit 9"]);
    assert_eq!(ran.status, 9);
    assert!(
        ran.stderr
            .contains("the trace could not be written: its reader takes nothing"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_replaced_trace_keeps_links_permissions_and_devices() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("file"), folder.path().join("link"));
    std::fs::write(&file, "old").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
    symlink(&file, &link).unwrap();
    let trace = |path: &Path| {
        let ran = run(&["run", "--trace", path.to_str().unwrap(), "--", "true"]);
        assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
    };
    trace(&link);
    assert!(link.is_symlink(), "a link stays");
    read(&std::fs::read_to_string(&file).unwrap());
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    // A device is not replaced.
    trace(Path::new("/dev/null"));
    assert!(!Path::new("/dev/null").metadata().unwrap().is_file());
    // In the current folder, by a bare file name.
    let relative = relent(&["run", "--trace", "here.json", "--", "true"])
        .current_dir(folder.path())
        .spawn();
    assert_eq!(finish(relative.unwrap()).status, 0);
    assert!(folder.path().join("here.json").exists());
}

#[test]
fn a_schedule_is_traced_in_virtual_time() {
    let ran = run(&[
        "schedule",
        "--json",
        "--trace",
        "-",
        "--max-retries",
        "2",
        "--random",
        "1",
    ]);
    let trace = read(&ran.stderr);
    assert_eq!(
        trace["elapsed_ms"].as_f64(),
        Some(Duration::from_secs(3).as_millis() as f64)
    );
    assert_eq!(trace["attempts"].as_array().unwrap().len(), 3);
    // A truncated body is no success.
    let ran = run(&[
        "schedule",
        "--quiet",
        "--json",
        "--trace",
        "-",
        "--max-retries",
        "unlimited",
    ]);
    assert_eq!(read(&ran.stderr)["reason"], "cancelled");
}
