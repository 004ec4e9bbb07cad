//! Tests of standard input in `relent run`: it is replayed to every attempt while it streams.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::process::Stdio;
use std::thread;

use crate::run_support::{code, eventually, finish, line, output, sh, sh_with_messages, text};

#[test]
fn every_attempt_reads_the_input_from_its_beginning() {
    let mut relent = sh(&["--max-retries", "5"], "cat; [ $RELENT_ATTEMPT = 3 ]");
    let mut child = relent.stdin(Stdio::piped()).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"one\ntwo\n")
        .unwrap();
    let result = finish(child);
    assert_eq!((code(&result), text(&result.stdout)), (0, "one\ntwo\n"));
    assert_eq!(text(&result.stderr).matches("one\ntwo\n").count(), 2);
}

#[test]
fn input_larger_than_memory_is_replayed_completely() {
    let input: Vec<u8> = (0..5_000_000u32).map(|i| (i / 7 % 251) as u8).collect();
    for retries in ["5", "1"] {
        // The first attempt reads a part of the input, the second all of it.
        let script = "if [ $RELENT_ATTEMPT = 1 ]; then head -c 2000000 >/dev/null; exit 1; fi; cat";
        let mut child = sh(&["--max-retries", retries], script)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let sent = input.clone();
        let sender = thread::spawn(move || stdin.write_all(&sent));
        let result = finish(child);
        sender.join().unwrap().unwrap();
        assert_eq!(code(&result), 0);
        assert!(result.stdout == input);
    }
}

#[test]
fn input_beyond_max_buffer_is_passed_through_and_not_retried() {
    let options = ["--max-buffer", "200KiB", "--max-retries", "2"];
    for (script, status, attempts, repeated) in [
        ("wc -c; exit $RELENT_ATTEMPT", 1, "300000\n", false),
        (
            "head -c 10 | wc -c; [ $RELENT_ATTEMPT = 3 ]",
            0,
            "10\n",
            true,
        ),
    ] {
        let mut relent = sh_with_messages(&options, script);
        relent.stdin(Stdio::piped());
        let mut child = relent.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let writing = thread::spawn(move || {
            // A command that reads only the beginning leaves the rest.
            let _ = stdin.write_all(&[b'x'; 300_000]);
        });
        let result = finish(child);
        writing.join().unwrap();
        assert_eq!(code(&result), status, "{result:?}");
        assert_eq!(text(&result.stdout), attempts);
        let said = text(&result.stderr);
        let exceeded = "standard input exceeds --max-buffer (200.00 KiB)";
        assert_eq!(
            said.matches(exceeded).count(),
            usize::from(!repeated),
            "{said}"
        );
        assert_eq!(said.contains("and was not kept"), !repeated, "{said}");
    }
}

#[test]
fn an_attempt_gets_early_input_before_the_rest_arrives() {
    let script = "read a; echo \"$RELENT_ATTEMPT $a\" >&2; read b; echo \"$RELENT_ATTEMPT $b\" >&2; \
                  [ $RELENT_ATTEMPT = 2 ]";
    let mut child = sh(&["--max-retries", "5"], script)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let stdin = child.stdin.as_mut().unwrap();
    stdin.write_all(b"first\n").unwrap();
    assert_eq!(line(&mut stderr), "1 first");
    stdin.write_all(b"second\n").unwrap();
    assert_eq!(line(&mut stderr), "1 second");
    // The second attempt gets both, although standard input is still open.
    assert_eq!(line(&mut stderr), "2 first");
    assert_eq!(line(&mut stderr), "2 second");
    // The test closes its end of the pipe only now: the run must end without that.
    let stdin = child.stdin.take();
    assert_eq!(code(&finish(child)), 0);
    drop(stdin);
}

#[test]
fn input_that_arrives_between_attempts_goes_to_the_next() {
    let script = "if [ $RELENT_ATTEMPT = 1 ]; then read a; echo \"1 $a\" >&2; exit 1; fi; cat";
    let mut child = sh(&["--max-retries", "5"], script)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"a\n").unwrap();
    assert_eq!(line(&mut stderr), "1 a");
    stdin.write_all(b"b\n").unwrap();
    drop(stdin);
    assert_eq!(text(&finish(child).stdout), "a\nb\n");
}

#[test]
fn a_command_that_closes_its_input_early_is_no_error() {
    for retries in ["5", "0"] {
        let mut child = sh(&["--max-retries", retries], "exec <&-; exit 0")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let sender = thread::spawn(move || stdin.write_all(&vec![b'x'; 10_000_000]));
        let result = finish(child);
        assert_eq!((code(&result), text(&result.stderr)), (0, ""));
        assert_eq!(
            sender.join().unwrap().unwrap_err().kind(),
            ErrorKind::BrokenPipe
        );
    }
}

#[test]
fn input_that_never_ends_does_not_outlive_the_command() {
    let mut child = sh(&["--max-retries", "3"], "head -c 5")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let sender = thread::spawn(move || while stdin.write_all(b"y\n").is_ok() {});
    let result = finish(child);
    assert_eq!((code(&result), text(&result.stdout)), (0, "y\ny\ny"));
    sender.join().unwrap();
}

#[test]
fn relent_reads_little_more_input_than_the_command_consumes() {
    // A command that reads nothing must not make relent swallow an endless input.
    let script = "echo started >&2; while [ ! -e \"$0\" ]; do sleep 0.02; done";
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let mut relent = sh(&["--max-retries", "3"], script);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut child = relent.arg(&go).stdin(reader).spawn().unwrap();
    drop(relent);
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    assert_eq!(line(&mut stderr), "started");
    let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
    nix::fcntl::fcntl(&writer, flags).unwrap();
    // The pipes and one piece fill up, and then relent reads no more.
    let (mut taken, mut refused) = (0, 0);
    eventually("the input is no longer read", || {
        match writer.write(&[b'y'; 4096]) {
            Ok(n) => (taken, refused) = (taken + n, 0),
            Err(e) if e.kind() == ErrorKind::WouldBlock => refused += 1,
            Err(e) => panic!("{e}"),
        }
        refused == 40 || taken > 64 << 20
    });
    assert!(taken < 1 << 20, "{taken} bytes were taken");
    File::create(go).unwrap();
    assert_eq!(code(&finish(child)), 0);
}

/// A shell loop shares the position of its file with each command: `while read -r host; do …; done < hosts`.
#[test]
fn a_file_is_read_only_as_far_as_the_command_reads_it() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"one\ntwo\nthree\n").unwrap();
    for retries in ["3", "0"] {
        file.seek(SeekFrom::Start(4)).unwrap();
        let script = format!("read -r a; echo $a; [ $RELENT_ATTEMPT -gt {retries} ]");
        let mut relent = sh(&["--max-retries", retries], &script);
        relent.stdin(file.try_clone().unwrap());
        let result = output(relent);
        assert_eq!((code(&result), text(&result.stdout)), (0, "two\n"));
        let mut rest = String::new();
        file.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "three\n", "{retries}");
        // The command reads nothing.
        file.seek(SeekFrom::Start(4)).unwrap();
        let mut relent = sh(&["--max-retries", retries], "echo");
        relent.stdin(file.try_clone().unwrap());
        output(relent);
        assert_eq!(file.stream_position().unwrap(), 4, "{retries}");
    }
}

#[test]
fn an_unreadable_standard_input_is_reported() {
    let mut relent = sh(&["--max-retries", "3"], "cat");
    relent.stdin(File::open("/").unwrap());
    let result = output(relent);
    assert_eq!(code(&result), 125);
    assert!(text(&result.stderr).contains("cannot read standard input: Is a directory"));
}

#[test]
fn a_write_only_standard_input_is_inherited() {
    // `nohup` gives its command such a standard input.
    let mut relent = sh(&["--max-retries", "3"], "echo fine");
    relent.stdin(File::options().write(true).open("/dev/null").unwrap());
    assert_eq!(text(&output(relent).stdout), "fine\n");
}

#[test]
fn a_non_blocking_pipe_is_read_completely() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
    nix::fcntl::fcntl(&reader, flags).unwrap();
    let script = "echo ready >&2; read a; echo \"$a\"";
    let mut child = sh(&["--max-retries", "3"], script)
        .stdin(reader)
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    assert_eq!(line(&mut stderr), "ready");
    writer.write_all(b"late\n").unwrap();
    let result = finish(child);
    assert_eq!((code(&result), text(&result.stdout)), (0, "late\n"));
}
