//! Tests of the help, and of the messages for wrong input.

use std::fs::{File, Permissions};
use std::io::{Read, Write, pipe};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::support::{RELENT, finish, relent, run, run_with};

/// A pipe that holds no more bytes, with its reader.
fn full_pipe() -> (impl Read, impl Write + Into<std::process::Stdio>) {
    let (reader, mut writer) = pipe().unwrap();
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok_and(|written| written > 0) {}
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    (reader, writer)
}

#[test]
fn a_stalled_reader_of_standard_error_does_not_delay_the_end() {
    let unreachable = "http://127.0.0.1:1/";
    for (args, status) in [
        (&["run", "--max-retries=0", "--", "false"][..], 1),
        (&["run", "--", "no-such-command-4711"], 127),
        (&["fetch", "-v", "--max-retries=0", unreachable], 7),
        (&["deliver", "send", "--event=e"], 2),
    ] {
        let (unread, stderr) = full_pipe();
        let mut relent = relent(args);
        let ran = finish(relent.stderr(stderr).spawn().unwrap());
        assert_eq!(ran.status, status, "{args:?}");
        drop(unread);
    }
}

#[test]
fn the_short_help_lists_options_and_the_long_help_explains_them() {
    let short = run(&["-h"]);
    assert_eq!((short.status, short.stderr.as_str()), (0, ""));
    for subcommand in [
        "run",
        "schedule",
        "simulate",
        "advise",
        "deliver",
        "policy",
        "completions",
        "man",
    ] {
        assert!(
            short.stdout.contains(&format!("\n  {subcommand} ")),
            "{subcommand}"
        );
    }
    for (subcommand, says) in [
        (
            "run",
            &["124", "125", "126", "127", "128+n", "RELENT_ATTEMPT"][..],
        ),
        (
            "schedule",
            &["delay_ms, min_ms, max_ms and total_ms", "2 if the options"],
        ),
        (
            "policy",
            &["1 if there is an error", "3 if there are warnings"],
        ),
    ] {
        let short = run(&[subcommand, "-h"]).stdout;
        let long = run(&[subcommand, "--help"]).stdout;
        assert!(!short.contains("Examples:"), "{subcommand}");
        assert!(
            long.contains("Examples:") && long.contains("Exit status"),
            "{subcommand}"
        );
        for text in says {
            assert!(long.contains(text), "{subcommand}: {text}");
        }
        for line in long.lines() {
            assert!(line.chars().count() <= 100, "{subcommand}: {line}");
        }
    }
}

/// clap wraps wider lines again, in the middle of a paragraph or a table.
#[test]
fn the_end_of_every_help_fits_80_columns() {
    for subcommand in [
        "run",
        "fetch",
        "schedule",
        "simulate",
        "simulate run",
        "simulate list",
        "simulate show",
        "simulate template",
        "simulate random",
        "simulate grid",
        "advise",
        "deliver",
        "deliver serve",
        "deliver send",
        "deliver list",
        "deliver replay",
        "deliver endpoints",
        "deliver verify",
        "policy",
    ] {
        let args: Vec<&str> = subcommand.split(' ').chain(["--help"]).collect();
        let help = run(&args).stdout;
        let end = help
            .find("\nExamples:")
            .expect("examples behind the options");
        for line in help[end..].lines() {
            assert!(line.chars().count() <= 80, "{subcommand}: {line}");
        }
    }
}

#[test]
fn the_policy_options_are_the_same_everywhere() {
    let options = [
        "--policy",
        "--max-retries",
        "--initial",
        "--factor",
        "--max-delay",
        "--jitter",
        "--deadline",
        "--attempt-timeout",
        "--seed",
        "--trace",
        "--quiet",
    ];
    let section = |subcommand| {
        let help = run(&[subcommand, "--help"]).stdout;
        let start = help.find("Policy options:").expect("a section of its own");
        let end = help.find("Examples:").expect("examples behind it");
        help[start..end].to_owned()
    };
    let of_run = section("run");
    for option in options {
        assert!(
            of_run.contains(&format!("{option} ")) || of_run.contains(&format!("{option}\n")),
            "{option}"
        );
    }
    assert_eq!(of_run, section("schedule"));
}

#[test]
fn without_a_subcommand_the_help_is_shown_and_it_is_an_error() {
    let nothing = run(&[]);
    assert_eq!((nothing.status, nothing.stdout.as_str()), (2, ""));
    assert!(nothing.stderr.contains("Usage: relent"));
}

#[test]
fn usage_errors_are_one_line_with_advice() {
    for (args, status, says) in [
        (
            &["shedule"][..],
            2,
            "a similar subcommand exists: 'schedule'",
        ),
        (
            &["rnu", "--", "true"],
            2,
            "a similar subcommand exists: 'run'",
        ),
        (
            &["deliver", "sned"],
            2,
            "a similar subcommand exists: 'send'",
        ),
        (
            &["deliver", "dead"],
            2,
            "a similar subcommand exists: 'dead-letters'",
        ),
        (
            &["deliver", "work", "--nats", "nats://127.0.0.1:9"],
            2,
            "a similar subcommand exists: 'worker'",
        ),
        (
            &["deliver", "serve", "--keep", "1h"],
            2,
            "there is no --keep here: use --retention",
        ),
        (
            &["deliver", "worker", "--drain", "1s"],
            2,
            "there is no --drain here: use --shutdown-timeout",
        ),
        (
            &["deliver", "endpoints", "add", "--skip-dead"],
            2,
            "there is no --skip-dead here: use --on-dead-letter skip",
        ),
        (
            &["deliver", "worker", "--in-flight", "9"],
            2,
            "there is no --in-flight here: use --concurrency",
        ),
        (
            &["deliver", "send", "--delay", "1h"],
            2,
            "there is no --delay here: use --send-after",
        ),
        (
            &["deliver", "verify", "--headers", "headers"],
            2,
            "there is no --headers here: use --header-file",
        ),
        (
            &["--policy", "standard", "run", "true"],
            2,
            "there is no --policy here: use `relent run --policy`",
        ),
        (&["make", "deploy"], 2, "use `relent run -- make`"),
        (
            &["schedule", "--radom", "1"],
            2,
            "a similar argument exists: '--random'",
        ),
        (
            &["schedule", "--random", "1.5"],
            2,
            "use a number from 0 to 1",
        ),
        (
            &["schedule", "--random", "NaN"],
            2,
            "use a number from 0 to 1",
        ),
        (&["schedule", "--status", "200"], 2, "from 400 to 599"),
        (&["schedule", "--status", "-1"], 2, "from 400 to 599"),
        (
            &["schedule", "--seed", "1", "--random", "1"],
            2,
            "cannot be used with",
        ),
        (&["schedule", "--initial", "-5s"], 2, "is negative"),
        (&["schedule", "--initial", "5"], 2, "has no unit"),
        (
            &["schedule", "--deadline", "99999999999999999999d"],
            2,
            "longer than 584 years",
        ),
        (
            &["schedule", "--max-delay", "10ms"],
            2,
            "--max-delay 10ms: the maximum delay may not be below",
        ),
        (
            &["schedule", "--initial", "1h"],
            2,
            "give a higher --max-delay too",
        ),
        (
            &["schedule", "--policy", "/no/such/file"],
            2,
            "--policy /no/such/file: no policy",
        ),
        (&["schedule", "--policy", ""], 2, "no policy"),
        (&["schedule", "--policy", "/"], 2, "cannot be read"),
        (&["schedule", "--policy", "/dev/zero"], 2, "at most"),
        (
            &["schedule", "--trace", "/no/such/folder/file"],
            2,
            "cannot be written: No such file",
        ),
        (&["policy", "show", "patiemt"], 2, "did you mean `patient`?"),
        (
            &["policy", "shwo"],
            2,
            "a similar subcommand exists: 'show'",
        ),
        (&["completions", "tcsh"], 2, "possible values"),
        (
            &["man", "/no/such/folder"],
            1,
            "cannot write manual pages into /no/such/folder",
        ),
        // `run` reserves the low statuses for its command.
        (&["run"], 125, "not provided: <CMD>..."),
        (
            &["run", "--max-retrys", "1", "--", "true"],
            125,
            "a similar argument exists: '--max-retries'",
        ),
        (
            &["run", "--max-retries", "many", "--", "true"],
            125,
            "a whole number from 0 to 4294967295",
        ),
        (
            &["run", "--retry-on-exit", "1,256", "--", "true"],
            125,
            "above 255",
        ),
        (
            &["run", "--stop-on-exit", "-1", "--", "true"],
            125,
            "is not a number",
        ),
        (
            &["run", "--retry-on-output", "(", "--", "true"],
            125,
            "unclosed group",
        ),
        (
            &["run", "--policy", "patiemt", "--", "true"],
            125,
            "did you mean `patient`?",
        ),
        (&["run", "--factor", "0", "--", "true"], 125, "from 1 up"),
    ] {
        let ran = run(args);
        assert_eq!(ran.status, status, "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{args:?}");
        assert!(
            ran.stderr.starts_with("relent: "),
            "{args:?}: {}",
            ran.stderr
        );
        assert!(ran.stderr.contains(says), "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn an_error_in_a_policy_file_names_line_and_nearest_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.toml");
    std::fs::write(
        &file,
        "max_retries = 3\nmax_dela = \"1s\"\nbackoff = \"none\"\n",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    for (args, status) in [
        (&["schedule", "--policy", file][..], 2),
        (&["run", "--policy", file, "--", "echo", "ran"], 125),
        (&["policy", "show", file], 2),
        (&["policy", "check", file], 1),
    ] {
        let ran = run(args);
        assert_eq!((ran.status, ran.stdout.as_str()), (status, ""), "{args:?}");
        assert!(ran.stderr.contains("line 2"), "{args:?}: {}", ran.stderr);
        assert!(
            ran.stderr.contains("did you mean `max_delay`?"),
            "{args:?}: {}",
            ran.stderr
        );
    }
}

#[test]
fn an_error_in_relent_policy_names_the_variable() {
    for (value, says) in [
        ("patiemt", "did you mean `patient`?"),
        ("/no/such/file", "no file"),
        ("/", "cannot be read"),
    ] {
        let ran = finish(
            relent(&["schedule"])
                .env("RELENT_POLICY", value)
                .spawn()
                .unwrap(),
        );
        assert_eq!(ran.status, 2);
        assert!(
            ran.stderr.starts_with(&format!(
                "relent: RELENT_POLICY={value} in the environment: "
            )),
            "{}",
            ran.stderr
        );
        assert!(ran.stderr.contains(says), "{}", ran.stderr);
    }
}

#[test]
fn an_operator_turns_retries_off_by_the_environment() {
    let script = "echo $RELENT_ATTEMPT; exit 3";
    let mut command = relent(&["run", "--max-retries", "5", "--", "sh", "-c", script]);
    let ran = finish(command.env("RELENT_POLICY", "off").spawn().unwrap());
    assert_eq!((ran.status, ran.stdout.as_str()), (3, "1\n"));
    assert!(
        ran.stderr.starts_with("relent: gave up after 1 attempt ")
            && ran
                .stderr
                .ends_with(": RELENT_POLICY=off turns retries off (last: exit 3)\n"),
        "{}",
        ran.stderr
    );
    let never = ["run", "--max-retries", "0", "--", "false"];
    let ran = finish(relent(&never).spawn().unwrap());
    assert!(
        ran.stderr
            .ends_with(": the policy allows no retries (last: exit 1)\n"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_closed_stdout_ends_quietly() {
    for args in [
        &["--help"][..],
        &["run", "--help"],
        &["schedule", "--json"],
        &["policy", "list"],
        &["policy", "show", "patient"],
        &["completions", "bash"],
        &["man"],
    ] {
        let mut child = relent(args).spawn().unwrap();
        drop(child.stdout.take());
        let ran = finish(child);
        assert_eq!((ran.status, ran.stderr.as_str()), (0, ""), "{args:?}");
    }
}

#[test]
fn a_full_disk_is_reported_for_every_subcommand() {
    for args in [
        &["--help"][..],
        &["schedule"],
        &["policy", "list"],
        &["completions", "bash"],
        &["man"],
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ran = finish(relent(args).stdout(full).spawn().unwrap());
        assert_eq!(ran.status, 1, "{args:?}");
        assert!(
            ran.stderr
                .contains("cannot write to standard output: No space left"),
            "{args:?}: {}",
            ran.stderr
        );
    }
}

#[test]
fn policy_check_accepts_the_output_of_policy_show() {
    for name in relent::presets::names() {
        let shown = run(&["policy", "show", name]);
        assert_eq!(shown.stdout, relent::presets::get(name).unwrap().text);
        let checked = run_with(&["policy", "check", "-"], &shown.stdout);
        assert_eq!(
            (checked.status, checked.stdout.as_str()),
            (0, "standard input: ok\n")
        );
    }
}

#[test]
fn policy_show_prints_an_equivalent_toml_policy() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("two.json");
    let text = r#"{"policies": {
        "quick": {"description": "for \"us\"", "max_retries": 2, "backoff": {"constant": {"delay": "5ms"}}},
        "slow": {"backoff": {"exponential": {"initial": "1m"}}}
    }}"#;
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let spec = format!("{file}#quick");
    let shown = run(&["policy", "show", &spec]);
    assert_eq!(shown.status, 0, "{}", shown.stderr);
    let read = relent::policy::PolicyFile::parse(&shown.stdout).unwrap();
    let original = relent::NamedPolicy::load(&spec).unwrap();
    assert_eq!(read.get(None).unwrap().policy, original.policy);
    assert_eq!(read.get(None).unwrap().description, original.description);

    let checked = run(&["policy", "check", file]);
    assert_eq!(
        checked.stdout,
        format!("{file}#quick: ok\n{file}#slow: ok\n")
    );
    let ambiguous = run(&["policy", "show", file]);
    assert_eq!(ambiguous.status, 2);
    assert!(
        ambiguous.stderr.contains("quick, slow"),
        "{}",
        ambiguous.stderr
    );
}

#[test]
fn policy_check_continues_after_a_bad_file_and_returns_the_worst_status() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &[u8]| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let bad = path("bad", b"backoff = 1");
    let binary = path("binary", b"\xff\xfe");
    let good = path("good", b"backoff = \"none\"");
    let checked = run(&["policy", "check", &bad, &binary, &good]);
    assert_eq!(
        (checked.status, checked.stdout),
        (1, format!("{good}: ok\n"))
    );
    assert!(
        checked
            .stderr
            .contains(&format!("{binary}: error: is not UTF-8 text")),
        "{}",
        checked.stderr
    );
    let checked = run(&["policy", "check", "/no/such/file", &bad]);
    assert_eq!(checked.status, 2);
}

#[test]
fn policy_check_takes_every_name_that_policy_show_takes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("two.toml");
    let two = "[policies.a]\nbackoff = 'none'\n[policies.b]\nbackoff = 'none'\n";
    std::fs::write(&file, two).unwrap();
    let file = file.to_str().unwrap();
    let one = format!("{file}#a");
    for given in relent::NamedPolicy::names().into_iter().chain([&*one]) {
        let checked = run(&["policy", "check", given]);
        let expected = format!("{given}: ok\n");
        assert_eq!((checked.status, checked.stdout), (0, expected), "{given}");
        assert_eq!(run(&["policy", "show", given]).status, 0, "{given}");
    }
    let absent = run(&["policy", "check", &format!("{file}#c")]);
    assert_eq!(absent.status, 1);
    let says = format!("{file}: error: holds no [policies.c]");
    assert!(absent.stderr.contains(&says), "{}", absent.stderr);
    let unknown = ["check", "show"].map(|command| run(&["policy", command, "standart"]));
    assert_eq!(unknown.each_ref().map(|ran| ran.status), [2, 2]);
    assert!(unknown[0].stderr.contains("did you mean `standard`?"));
    assert_eq!(unknown[0].stderr, unknown[1].stderr);
}

#[test]
fn policy_check_has_a_separate_exit_status_for_warnings() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let doubtful = path(
        "doubtful",
        r#"
        [policies.hasty]
        deadline = "1s"
        retry_on = [404, "5xx"]
        stop_on = [404]
        backoff.constant = { delay = "2s" }
        [[policies.hasty.rules]]
        on = [429]
        [policies.hasty.budget]
        ratio = 2

        [policies.fine]
        backoff = "none"
        "#,
    );
    let checked = run(&["policy", "check", &doubtful]);
    assert_eq!(
        (checked.status, checked.stdout),
        (3, format!("{doubtful}#fine: ok\n"))
    );
    for warning in [
        "deadline: 1s is shorter than the first delay (up to 2s), so no retry can happen",
        "retry_on: 404 is never retried: stop_on lists 404",
        "rules[0].on: 429 has no effect: retry_on does not list it",
        "budget.ratio: 2 is above 1",
    ] {
        let line = format!("{doubtful}#hasty: warning: {warning}");
        assert!(checked.stderr.contains(&line), "{line}\n{}", checked.stderr);
    }
    // An error outranks warnings.
    let bad = path("bad", "backoff = \"none\"\nretry_on = [101]");
    for files in [[&bad, &doubtful], [&doubtful, &bad]] {
        let checked = run(&["policy", "check", files[0], files[1]]);
        assert_eq!(checked.status, 1);
        assert!(
            checked.stderr.contains(&format!("{bad}: error: "))
                && checked.stderr.contains("a status below 200"),
            "{}",
            checked.stderr
        );
    }
    for name in relent::presets::names() {
        let shown = run(&["policy", "show", name]);
        let checked = run_with(&["policy", "check", "-"], &shown.stdout);
        assert_eq!((checked.status, checked.stderr.as_str()), (0, ""), "{name}");
    }
}

#[test]
fn the_list_has_a_line_for_each_name_of_a_policy() {
    let list = run(&["policy", "list"]).stdout;
    let names: Vec<_> = list
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(names, relent::NamedPolicy::names());
    assert!(
        list.lines().all(|line| line.split_once("  ").is_some()),
        "each is described"
    );
}

#[test]
fn completions_and_pages_cover_the_subcommands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]).stdout;
        // An option of a subcommand, and one of a subcommand's subcommand.
        for option in ["max-retries", "generator"] {
            assert!(script.contains(option), "{shell}: {option}");
        }
    }
    assert!(run(&["man"]).stdout.starts_with(".ie"));
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(run(&["man", folder.path().to_str().unwrap()]).status, 0);
    for page in [
        "relent.1",
        "relent-run.1",
        "relent-schedule.1",
        "relent-advise.1",
        "relent-simulate.1",
        "relent-simulate-run.1",
        "relent-deliver-endpoints-add.1",
    ] {
        assert!(folder.path().join(page).exists(), "{page}");
    }
}

#[test]
fn an_unwritable_trace_fails_before_the_first_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let closed = folder.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, Permissions::from_mode(0o555)).unwrap();
    let in_closed = closed.join("trace.json");
    let mut bad = vec!["/no/such/folder/trace.json", "/"];
    // Permissions do not restrict root.
    if File::create(&in_closed).is_err() {
        bad.push(in_closed.to_str().unwrap());
    }
    for trace in bad {
        let ran = run(&["run", "--trace", trace, "--", "echo", "ran"]);
        assert_eq!((ran.status, ran.stdout.as_str()), (125, ""), "{trace}");
        assert!(
            ran.stderr
                .starts_with(&format!("relent: --trace {trace}: cannot be written: "))
        );
        assert!(!ran.stderr.contains("relent-trace-"), "{}", ran.stderr);
    }
}

#[test]
fn a_reader_that_stops_early_causes_no_error() {
    let mut child = relent(&["man"]).spawn().unwrap();
    let mut first = [0];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(finish(child).status, 0);
}

#[test]
fn too_few_files_are_an_error_and_no_panic() {
    for (subcommand, args, status) in [
        ("run", "-- true", 125),
        ("fetch", "--max-retries 0 http://localhost:1/", 1),
    ] {
        // From the number of files that only the dynamic loader needs, up to a sufficient one.
        let mut said_so = 0;
        for files in 4..16 {
            let line = format!("ulimit -n {files}; exec {RELENT} {subcommand} {args}");
            let shell = Command::new("sh").args(["-c", &line]).output().unwrap();
            let said = String::from_utf8_lossy(&shell.stderr);
            assert!(!said.contains("panicked"), "{files}: {said}");
            if said.contains("cannot start: Too many open files") {
                assert_eq!(shell.status.code(), Some(status), "{files}: {said}");
                said_so += 1;
            }
        }
        assert!(said_so > 0, "{subcommand}");
    }
}
