//! Tests of the output of `relent fetch`: the complete body, once.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Duration;

use crate::fetch_support::{background, command, entries, fetch, finish, interrupt, until};
use crate::scripted::{Server, Step, cut, pattern, response, rest};
use crate::support::on_terminal;

/// The positions at which the server cuts the body, one for each attempt.
fn cuts(whole: &[u8], seed: u64) -> Vec<usize> {
    pattern(seed, 9)
        .chunks(3)
        .map(|bytes| {
            bytes
                .iter()
                .fold(0, |sum, byte| sum * 256 + usize::from(*byte))
                % whole.len()
        })
        .collect()
}

/// Serves `whole`, cut short at each of `cuts`; supports ranges if it has a strong tag.
fn cutting(whole: &[u8], etag: Option<&'static str>, cuts: Vec<usize>) -> Server {
    let whole = whole.to_vec();
    Server::answering(move |index, seen| {
        let length = cuts.get(index).copied().unwrap_or(usize::MAX);
        let tag: &[(&str, &str)] = &[("etag", etag.unwrap_or("W/\"weak\""))];
        Step::Close(match (etag, seen.range_start()) {
            (Some(etag), Some(first)) => rest(first, &whole, etag, length),
            _ => cut(200, tag, &whole, length),
        })
    })
}

#[test]
fn a_body_that_is_cut_at_random_points_arrives_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let file = file.to_str().unwrap();
    for (seed, length) in [(1, 5000), (2, 900_000), (3, 4_000_000), (4, 4_000_000)] {
        let whole = pattern(seed, length);
        for etag in [None, Some("\"v1\"")] {
            let server = cutting(&whole, etag, cuts(&whole, seed));
            let fetched = fetch(&[&server.url("/")]);
            assert_eq!(fetched.status, 0, "{}", fetched.stderr);
            assert!(fetched.stdout == whole, "{length} bytes, tag {etag:?}");

            let server = cutting(&whole, etag, cuts(&whole, seed + 10));
            let fetched = fetch(&["-o", file, &server.url("/")]);
            assert_eq!(
                (fetched.status, fetched.stdout.len()),
                (0, 0),
                "{}",
                fetched.stderr
            );
            assert!(
                fs::read(file).unwrap() == whole,
                "{length} bytes, tag {etag:?}"
            );
        }
        let server = cutting(&whole, Some("\"v1\""), cuts(&whole, seed + 20));
        let fetched = fetch(&["--stream", &server.url("/")]);
        assert_eq!(fetched.status, 0, "{}", fetched.stderr);
        assert!(fetched.stdout == whole, "{length} bytes");
    }
}

#[test]
fn a_body_that_changes_between_attempts_is_never_mixed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let file = file.to_str().unwrap();
    for length in [50_000, 3_000_000] {
        let (old, new) = (pattern(1, length), pattern(2, length));
        let changing = || {
            Server::script([
                Step::Close(cut(200, &[("etag", "\"old\"")], &old, length / 2)),
                Step::Answer(response(200, &[("etag", "\"new\"")], &new)),
            ])
        };
        let fetched = fetch(&["-o", file, &changing().url("/")]);
        assert_eq!(fetched.status, 0, "{}", fetched.stderr);
        assert!(fs::read(file).unwrap() == new);

        let fetched = fetch(&[&changing().url("/")]);
        if length < 1 << 20 {
            assert_eq!(fetched.status, 0, "{}", fetched.stderr);
            assert!(fetched.stdout == new, "what was kept back can begin anew");
        } else {
            assert_eq!(fetched.status, 18);
            assert!(
                fetched.stdout == old[..length / 2],
                "what has left stays what it was"
            );
            assert!(
                fetched.stderr.contains("with -o FILE it can"),
                "{}",
                fetched.stderr
            );
        }
    }
}

#[test]
fn an_error_response_is_not_appended_to_earlier_output() {
    let whole = pattern(1, 3_000_000);
    let server = Server::script([
        Step::Close(cut(200, &[("etag", "\"v1\"")], &whole, 2_000_000)),
        Step::Answer(response(404, &[], "gone")),
    ]);
    let fetched = fetch(&[&server.url("/")]);
    assert_eq!((fetched.status, server.count()), (22, 2));
    assert!(fetched.stdout == whole[..2_000_000]);
    assert!(
        fetched
            .stderr
            .contains("the body could not be printed completely"),
        "{}",
        fetched.stderr
    );
}

#[test]
fn a_body_that_never_completes_is_not_printed() {
    let whole = pattern(1, 50_000);
    // A download that makes progress arrives in the end; this one makes none.
    let stuck = [&[10_000][..], &[0; 9]].concat();
    for (etag, cuts) in [(None, vec![10_000; 4]), (Some("\"v1\""), stuck)] {
        let server = cutting(&whole, etag, cuts);
        let fetched = fetch(&[&server.url("/")]);
        assert_eq!(
            (fetched.status, fetched.stdout.len()),
            (18, 0),
            "{}",
            fetched.stderr
        );
    }
}

#[test]
fn a_streamed_body_is_written_as_it_arrives_and_not_retried() {
    let server = Server::script([Step::Stall(cut(200, &[], b"first, and more", 5))]);
    let mut child = background(&["--stream", &server.url("/")]);
    let mut first = [0; 5];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    assert_eq!(&first, b"first");
    interrupt(&child);
    assert_eq!(finish(child).status, 130);

    let server = Server::script([Step::Close(cut(200, &[], b"first, and more", 5))]);
    let fetched = fetch(&["--stream", &server.url("/")]);
    assert_eq!(
        (fetched.status, fetched.stdout.as_slice(), server.count()),
        (18, &b"first"[..], 1)
    );
    assert!(
        fetched
            .stderr
            .contains("a part of the body was written already"),
        "{}",
        fetched.stderr
    );

    let server = Server::script([
        Step::Close(Vec::new()),
        Step::Answer(response(200, &[], "done")),
    ]);
    let fetched = fetch(&["--stream", &server.url("/")]);
    assert_eq!(
        (fetched.status, fetched.stdout.as_slice()),
        (0, &b"done"[..])
    );
}

#[test]
fn a_long_resumable_body_is_written_before_it_is_complete() {
    let whole = pattern(1, 3 << 20);
    let server = Server::script([Step::Stall(cut(
        200,
        &[("etag", "\"v1\"")],
        &whole,
        2 << 20,
    ))]);
    let mut child = background(&[&server.url("/")]);
    let mut begun = vec![0; 3 << 19];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut begun)
        .unwrap();
    assert!(begun == whole[..begun.len()]);
    interrupt(&child);
    assert_eq!(finish(child).status, 130);
}

#[test]
fn a_file_is_replaced_only_when_the_body_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let name = file.to_str().unwrap();
    fs::write(&file, "old").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    for (step, status, body) in [
        (Step::Close(cut(200, &[], b"new", 0)), 18, ""),
        (
            Step::Close(cut(200, &[("accept-ranges", "none")], b"new", 1)),
            18,
            "",
        ),
        (Step::Close(Vec::new()), 56, ""),
        (
            Step::Answer(response(404, &[], "not found")),
            22,
            "not found",
        ),
        (
            Step::Answer(response(503, &[("retry-after", "9999")], "later")),
            75,
            "later",
        ),
    ] {
        let server = Server::script([step]);
        let fetched = fetch(&["-o", name, &server.url("/")]);
        // Standard output has only the output of -w.
        assert_eq!((fetched.status, fetched.stdout.len()), (status, 0));
        assert!(fetched.stderr.contains(body), "{}", fetched.stderr);
        let start = match status {
            22 => "relent: failed after 1 attempt",
            _ => "relent: gave up",
        };
        assert!(
            fetched.stderr.lines().any(|line| line.starts_with(start)),
            "{}",
            fetched.stderr
        );
        let silent = fetch(&["-sSw", "%{exitcode}", "-o", name, &server.url("/")]);
        assert_eq!(silent.stdout, status.to_string().as_bytes());
        assert_eq!(silent.stderr.lines().count(), 1, "{}", silent.stderr);
        assert_eq!(fs::read(&file).unwrap(), b"old");
        assert_eq!(entries(folder.path()), ["file"], "nothing is left behind");
    }
    let server = Server::script([Step::Stall(cut(
        200,
        &[("accept-ranges", "none")],
        b"new",
        1,
    ))]);
    let child = background(&["-o", name, &server.url("/")]);
    until(|| server.count() == 1);
    interrupt(&child);
    assert_eq!(finish(child).status, 130);
    assert_eq!(
        (fs::read(&file).unwrap(), entries(folder.path())),
        (b"old".to_vec(), vec!["file".to_owned()])
    );

    let server = Server::script([Step::Answer(response(200, &[], "new"))]);
    let link = folder.path().join("link");
    symlink("file", &link).unwrap();
    let fetched = fetch(&["-o", link.to_str().unwrap(), &server.url("/")]);
    assert_eq!(
        (fetched.status, fetched.stdout.len()),
        (0, 0),
        "{}",
        fetched.stderr
    );
    assert_eq!(fs::read(&file).unwrap(), b"new");
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o640
    );
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
}

#[test]
fn an_output_that_cannot_be_written_is_status_23_and_sends_nothing() {
    let server = Server::script([Step::Answer(response(200, &[], "body"))]);
    let folder = tempfile::tempdir().unwrap();
    for name in ["/no/such/folder/file", folder.path().to_str().unwrap()] {
        let fetched = fetch(&["-o", name, &server.url("/")]);
        assert_eq!(fetched.status, 23);
        assert!(
            fetched
                .stderr
                .contains(&format!("-o {name}: cannot be written")),
            "{}",
            fetched.stderr
        );
    }
    assert_eq!(server.count(), 0);
}

#[test]
fn a_body_beyond_max_buffer_is_written_as_it_arrives_and_not_retried() {
    let body = vec![b'y'; 100_000];
    let ends = |length: usize| {
        let whole = response(200, &[], &body);
        Step::Close(whole[..whole.len() - length].to_vec())
    };
    let server = Server::script([ends(10), ends(0)]);
    let short = fetch(&["--max-buffer", "64KiB", &server.url("/")]);
    assert_eq!((short.status, server.count()), (18, 1), "{}", short.stderr);
    assert_eq!(short.stdout.len(), body.len() - 10);
    let says = "the body exceeds --max-buffer (64.00 KiB): it is written as it arrives";
    assert_eq!(short.stderr.matches(says).count(), 1, "{}", short.stderr);
    // Input that may never end is not buffered beyond the limit either.
    let server = Server::script([ends(0)]);
    for data in [
        ["-d", "@/dev/zero"],
        ["-T", "/dev/zero"],
        ["-F", "a=@/dev/zero"],
    ] {
        let endless = fetch(&[&data[..], &["--max-buffer", "64KiB", &server.url("/")]].concat());
        let said = endless.stderr;
        assert_eq!((endless.status, server.count()), (26, 0), "{said}");
        assert!(
            said.contains("it exceeds --max-buffer (64.00 KiB)"),
            "{said}"
        );
    }
    // A body within the limit is buffered, and printed once.
    let server = Server::script([ends(10), ends(0)]);
    let whole = fetch(&["--max-buffer", "1MiB", &server.url("/")]);
    assert_eq!((whole.status, server.count()), (0, 2), "{}", whole.stderr);
    assert!(whole.stdout == body);
}

#[test]
fn a_full_disk_is_status_23_and_is_not_retried() {
    let body = vec![b'x'; 100_000];
    let server = Server::script([Step::Answer(response(200, &[], body))]);
    let fetched = fetch(&["-o", "/dev/full", &server.url("/")]);
    assert_eq!((fetched.status, server.count()), (23, 1));
    assert!(
        fetched
            .stderr
            .contains("cannot write the response to /dev/full: No space left"),
        "{}",
        fetched.stderr
    );

    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    for args in [&[][..], &["--stream"]] {
        let child = command(&[args, &[&server.url("/")]].concat())
            .stdout(full.try_clone().unwrap())
            .spawn();
        let fetched = finish(child.unwrap());
        assert_eq!(fetched.status, 23);
        assert!(
            fetched.stderr.contains("standard output: No space left"),
            "{}",
            fetched.stderr
        );
    }
}

#[test]
fn a_missing_temporary_folder_is_reported() {
    let server = Server::script([Step::Answer(response(200, &[], vec![0; 3 << 20]))]);
    let child = command(&[&server.url("/")])
        .env("TMPDIR", "/no/such/folder")
        .spawn();
    let fetched = finish(child.unwrap());
    assert_eq!(
        (fetched.status, fetched.stdout.len(), server.count()),
        (23, 0, 1)
    );
    assert!(fetched.stderr.contains("TMPDIR"), "{}", fetched.stderr);
}

#[test]
fn a_fetch_ends_quietly_when_its_reader_goes_away() {
    let whole = pattern(1, 3 << 20);
    for (fields, args) in [
        (&[][..], &[][..]),
        (&[("etag", "\"v1\"")], &[]),
        (&[], &["--stream"]),
    ] {
        let server = Server::script([Step::Answer(response(200, fields, &whole))]);
        let mut child = background(&[args, &[&server.url("/")]].concat());
        let mut begun = [0; 10];
        child.stdout.take().unwrap().read_exact(&mut begun).unwrap();
        assert_eq!(begun, whole[..10]);
        let fetched = finish(child);
        assert_eq!((fetched.status, fetched.stderr.as_str()), (0, ""));
    }
}

#[test]
fn a_signal_is_handled_while_the_reader_is_slow() {
    let server = Server::script([Step::Answer(response(200, &[], vec![0; 3 << 20]))]);
    let mut child = background(&[&server.url("/")]);
    let mut stdout = child.stdout.take().unwrap();
    // The reader stops, so the pipe is full and writing blocks.
    stdout.read_exact(&mut [0; 1]).unwrap();
    interrupt(&child);
    assert_eq!(finish(child).status, 130);
    drop(stdout);
}

#[test]
fn a_stalled_reader_does_not_extend_the_deadline() {
    // Both are larger than a pipe. The second is the body of a failure, which is printed at the end.
    let long = pattern(5, 1 << 20);
    for (status, options, exit) in [
        (200, &["--stream", "--deadline", "500ms"][..], 28),
        (200, &["--deadline", "500ms"], 28),
        (404, &["--deadline", "500ms"], 22),
    ] {
        let server = Server::script([Step::Answer(response(status, &[], &long))]);
        let mut child = background(&[options, &["-s", &server.url("/")]].concat());
        let unread = child.stdout.take().unwrap();
        let mut ended = None;
        until(|| {
            ended = child.try_wait().unwrap();
            ended.is_some()
        });
        assert_eq!(ended.unwrap().code(), Some(exit), "{status} {options:?}");
        drop(unread);
    }
}

#[test]
fn special_files_are_written_to_and_not_replaced() {
    let server = Server::script([Step::Answer(response(200, &[], "body"))]);
    for name in ["/dev/null", "/dev/stdout"] {
        let fetched = fetch(&["-o", name, &server.url("/")]);
        assert_eq!(fetched.status, 0, "{}", fetched.stderr);
        assert_eq!(fetched.stdout == b"body", name == "/dev/stdout");
    }
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
}

#[test]
fn an_attempt_timeout_does_not_tear_a_write() {
    let whole = pattern(1, 200_000);
    let slow = response(200, &[("etag", "\"v1\"")], &whole);
    let answers = whole.clone();
    let server = Server::answering(move |_, seen| match seen.range_start() {
        None => Step::Slow(Duration::from_millis(20), 20_000, slow.clone()),
        Some(first) => Step::Slow(
            Duration::from_millis(20),
            20_000,
            rest(first, &answers, "\"v1\"", usize::MAX),
        ),
    });
    let fetched = fetch(&[
        "--attempt-timeout",
        "130ms",
        "--max-retries",
        "1000",
        &server.url("/"),
    ]);
    assert_eq!(fetched.status, 0, "{}", fetched.stderr);
    assert!(fetched.stdout == whole);
    assert!(server.count() > 1);
}

#[test]
fn a_long_download_shows_and_clears_a_progress_bar() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let slow = response(200, &[], vec![b'x'; 150_000]);
    let server = Server::script([Step::Slow(Duration::from_millis(100), 10_000, slow)]);
    let (file, url) = (file.to_str().unwrap(), server.url("/"));
    let seen = on_terminal(&[("NO_PROXY", "*")], &["fetch", "-o", file, &url]);
    assert!(seen.contains("146.48 KiB"), "{seen:?}");
    assert!(seen.ends_with("\u{1b}[2K"), "{seen:?}");
    assert_eq!(fs::read(file).unwrap().len(), 150_000);

    let quiet = on_terminal(&[("NO_PROXY", "*")], &["fetch", "-q", "-o", file, &url]);
    assert_eq!(quiet, "");
    let mixed = on_terminal(&[("NO_PROXY", "*")], &["fetch", &url]);
    assert_eq!(mixed, "x".repeat(150_000), "no bar in a body");
}
