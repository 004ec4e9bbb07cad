//! Tests of `relent fetch -o FILE`: existing files, attributes and limits.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::fetch_support::{
    Fetched, background, command, entries, fetch, finish, interrupt, until,
};
use crate::scripted::{Server, Step, cut, pattern, response};
use crate::support::RELENT;

fn answer(status: u16, fields: &[(&str, &str)], body: &str) -> Server {
    Server::script([Step::Answer(response(status, fields, body))])
}

/// `relent fetch ARGS` in a shell that has run `before`.
fn in_shell(before: &str, args: &[&str]) -> Fetched {
    let line = format!("{before} exec \"$0\" fetch --max-retries 0 \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &line, RELENT]).args(args);
    command.env("NO_PROXY", "*").env_remove("RELENT_POLICY");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    finish(command.spawn().unwrap())
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_replaced_file_keeps_its_mode_and_symbolic_links() {
    let folder = tempfile::tempdir().unwrap();
    let server = answer(200, &[], "new");
    let file = folder.path().join("file");
    // Some have more permissions than the umask leaves for a new file.
    for bits in [0o666, 0o640, 0o755, 0o200] {
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(bits)).unwrap();
        let fetched = fetch(&["-o", file.to_str().unwrap(), &server.url("/")]);
        assert_eq!((fetched.status, fetched.stderr.as_str()), (0, ""));
        assert_eq!(mode(&file), bits);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
    }
    fs::remove_file(&file).unwrap();

    let (link, chain) = (folder.path().join("link"), folder.path().join("chain"));
    symlink("there", &link).unwrap();
    symlink("link", &chain).unwrap();
    let fetched = fetch(&["-o", chain.to_str().unwrap(), &server.url("/")]);
    assert_eq!(fetched.status, 0, "{}", fetched.stderr);
    assert_eq!(fs::read(folder.path().join("there")).unwrap(), b"new");
    assert_eq!(entries(folder.path()), ["chain", "link", "there"]);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
}

#[test]
fn a_replaced_file_keeps_its_owner_or_the_change_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    if fs::metadata(folder.path()).unwrap().uid() != 0 {
        return; // Nobody but root may give files away.
    }
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let server = answer(200, &[], "new");
    let file = folder.path().join("file");
    fs::write(&file, "old").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    chown(&file, Some(4321), Some(4322)).unwrap();
    let args = ["-o", file.to_str().unwrap(), &server.url("/")];
    let fetched = fetch(&args);
    assert_eq!((fetched.status, fetched.stderr.as_str()), (0, ""));
    let there = fs::metadata(&file).unwrap();
    assert_eq!((there.uid(), there.gid()), (4321, 4322));

    // As a user that may write the file, but does not own it. Only root may have access to the folder of the binary.
    let copy = folder.path().join("relent");
    // Copied by another process: a child that another test forks meanwhile would hold the file open for writing,
    // so that it could not be run.
    let copied = Command::new("cp").arg(RELENT).arg(&copy).status().unwrap();
    assert!(copied.success());
    let mut other = Command::new(&copy);
    other.arg("fetch").args(args).env("NO_PROXY", "*");
    other.stdout(Stdio::piped()).stderr(Stdio::piped());
    other.uid(65_534).gid(65_534);
    let fetched = finish(other.spawn().unwrap());
    assert_eq!(fetched.status, 0, "{}", fetched.stderr);
    assert!(
        fetched
            .stderr
            .contains("belonged to user 4321 and group 4322"),
        "{}",
        fetched.stderr
    );
    assert_eq!(fs::metadata(&file).unwrap().uid(), 65_534);
}

#[test]
fn a_success_without_a_representation_keeps_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "old").unwrap();
    let name = file.to_str().unwrap();
    for (status, says) in [
        (304, "not modified"),
        (204, "no content"),
        (205, "no content"),
    ] {
        let server = answer(status, &[("etag", "\"v1\"")], "");
        let args = ["-H", "If-None-Match: \"v1\"", "-o", name, &server.url("/")];
        let fetched = fetch(&args);
        assert_eq!(
            (fetched.status, fetched.stdout.len()),
            (0, 0),
            "{}",
            fetched.stderr
        );
        assert!(fetched.stderr.contains(says), "{}", fetched.stderr);
        assert_eq!(fs::read(&file).unwrap(), b"old", "{status}");
        assert_eq!(entries(folder.path()), ["file"]);
    }
}

#[test]
fn only_a_complete_body_replaces_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "old").unwrap();
    let name = file.to_str().unwrap();
    let part = [("content-range", "bytes 0-2/9")];
    let grpc = [("content-type", "application/grpc"), ("grpc-status", "5")];
    for (server, status) in [
        (answer(206, &part, "new"), 8),
        // A 304 without a condition in the request.
        (answer(304, &[], ""), 8),
        (
            answer(101, &[("upgrade", "x"), ("connection", "upgrade")], ""),
            56,
        ),
        (answer(200, &grpc, ""), 22),
        (answer(302, &[("location", "/new")], "moved"), 47),
        (answer(300, &[], "choose"), 47),
    ] {
        let fetched = fetch(&["-o", name, &server.url("/")]);
        assert_eq!(fetched.status, status, "{}", fetched.stderr);
        assert_eq!(fs::read(&file).unwrap(), b"old", "{status}");
        assert_eq!(entries(folder.path()), ["file"], "{status}");
    }
    for (fields, advice) in [
        (&[("location", "/new")][..], "use -L to follow it"),
        (&[], "no Location"),
    ] {
        let server = answer(302, fields, "moved");
        let fetched = fetch(&["-o", name, &server.url("/")]);
        assert!(fetched.stderr.contains(advice), "{}", fetched.stderr);
    }
    // A requested range is the complete result.
    let asked = ["-H", "Range: bytes=0-2", "-o", name];
    let fetched = fetch(&[&asked[..], &[&answer(206, &part, "new").url("/")]].concat());
    assert_eq!(fetched.status, 0, "{}", fetched.stderr);
    assert_eq!(fs::read(&file).unwrap(), b"new");
}

#[test]
fn an_output_that_is_closed_is_an_error_and_sends_nothing() {
    let server = answer(200, &[], "body");
    let fetched = in_shell("exec >&-;", &[&server.url("/")]);
    assert_eq!(
        (fetched.status, server.count()),
        (23, 0),
        "{}",
        fetched.stderr
    );
    assert!(
        fetched
            .stderr
            .contains("standard output cannot be written: "),
        "{}",
        fetched.stderr
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let fetched = in_shell(
        "exec >&-;",
        &["-o", file.to_str().unwrap(), &server.url("/")],
    );
    assert_eq!((fetched.status, fetched.stderr.as_str()), (0, ""));
    assert_eq!(fs::read(&file).unwrap(), b"body");
    // A failure keeps its own status.
    let fetched = in_shell(
        "exec >&-;",
        &[
            "-o",
            file.to_str().unwrap(),
            &answer(404, &[], "gone").url("/"),
        ],
    );
    assert_eq!(fetched.status, 22, "{}", fetched.stderr);
    // A null device that was given is not affected.
    let fetched = in_shell("exec <>/dev/null >&0;", &[&server.url("/")]);
    assert_eq!(fetched.status, 0, "{}", fetched.stderr);

    let help = Command::new("sh")
        .args(["-c", "exec \"$0\" policy list >&-", RELENT])
        .output()
        .unwrap();
    assert_eq!(help.status.code(), Some(1));
}

#[test]
fn an_interrupt_while_standard_input_is_read_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = answer(200, &[], "");
    let mut child = command(&["-d", "@-", &server.url("/")])
        .env("TMPDIR", folder.path())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, &vec![b'x'; 3 << 20]).unwrap();
    until(|| entries(folder.path()).len() == 1);
    interrupt(&child);
    assert_eq!(finish(child).status, 130);
    assert_eq!(entries(folder.path()), [""; 0]);
    assert_eq!(server.count(), 0);
    drop(stdin);
}

#[test]
fn a_fetch_beyond_the_file_size_limit_fails_and_leaves_only_the_part() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "old").unwrap();
    let whole = pattern(1, 1 << 20);
    let server = Server::script([Step::Answer(response(200, &[("etag", "\"1\"")], &whole))]);
    let args = ["-o", file.to_str().unwrap(), &server.url("/")];
    let fetched = in_shell("ulimit -f 100;", &args);
    assert_eq!(fetched.status, 23, "{}", fetched.stderr);
    assert!(
        fetched.stderr.contains("File too large"),
        "{}",
        fetched.stderr
    );
    assert_eq!(fs::read(&file).unwrap(), b"old");
    assert_eq!(
        entries(folder.path()),
        ["file", "file.part", "file.part.json"]
    );
    let part = fs::read(folder.path().join("file.part")).unwrap();
    assert!(part == whole[..part.len()]);
}

#[test]
fn two_fetches_to_the_same_file_do_not_mix() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let name = file.to_str().unwrap();
    let first = Server::script([Step::Stall(cut(200, &[], b"first", 2))]);
    let second = answer(200, &[], "second");
    let child = background(&["-o", name, &first.url("/")]);
    until(|| first.silences() == 1);
    let fetched = fetch(&["-o", name, &second.url("/")]);
    assert_eq!(
        (fetched.status, second.count()),
        (23, 0),
        "{}",
        fetched.stderr
    );
    assert!(
        fetched
            .stderr
            .contains("file.part: another fetch is writing it"),
        "{}",
        fetched.stderr
    );
    interrupt(&child);
    assert_eq!(finish(child).status, 130);
    let fetched = fetch(&["-o", name, &second.url("/")]);
    assert_eq!(fetched.status, 0, "{}", fetched.stderr);
    assert_eq!(fs::read(&file).unwrap(), b"second");
    assert_eq!(entries(folder.path()), ["file"]);
}

#[test]
fn a_foreign_part_file_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(folder.path().join("file.part"), "of a browser").unwrap();
    let server = answer(200, &[], "new");
    for more in [&[][..], &["-C", "-"]] {
        let (name, url) = (file.to_str().unwrap(), server.url("/"));
        let fetched = fetch(&[more, &["-o", name, &url]].concat());
        assert_eq!(
            (fetched.status, server.count()),
            (23, 0),
            "{}",
            fetched.stderr
        );
        assert!(
            fetched.stderr.contains("move it away"),
            "{}",
            fetched.stderr
        );
    }
    let part = fs::read(folder.path().join("file.part")).unwrap();
    assert_eq!(part, b"of a browser");
}

#[test]
fn a_foreign_side_file_is_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let (file, side) = (
        folder.path().join("file"),
        folder.path().join("file.part.json"),
    );
    let server = answer(200, &[], "new");
    let args = ["-o", file.to_str().unwrap(), &server.url("/")];
    for theirs in ["{\"precious\": true}", "precious"] {
        fs::write(&side, theirs).unwrap();
        let fetched = fetch(&args);
        assert_eq!((fetched.status, server.count()), (23, 0));
        assert!(
            fetched.stderr.contains("not relent's: move it away"),
            "{}",
            fetched.stderr
        );
        assert_eq!(fs::read(&side).unwrap(), theirs.as_bytes());
        assert_eq!(entries(folder.path()), ["file.part.json"]);
    }
    // Side files of relent that a power failure has truncated.
    for ours in ["", "{\n  \"form", "{\n  \"format\": \"relent-part-1\",\n"] {
        fs::write(&side, ours).unwrap();
        let fetched = fetch(&args);
        assert_eq!(fetched.status, 0, "{}", fetched.stderr);
        assert_eq!(entries(folder.path()), ["file"]);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_signal_is_handled_while_the_output_pipe_has_no_reader() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let server = answer(200, &[], "new");
    let child = background(&["-o", pipe.to_str().unwrap(), &server.url("/")]);
    let status = format!("/proc/{}/status", child.id());
    let listens = |line: &str| {
        let caught = line.strip_prefix("SigCgt:").unwrap_or("0");
        u64::from_str_radix(caught.trim(), 16).unwrap() >> 1 & 1 == 1
    };
    until(|| fs::read_to_string(&status).unwrap().lines().any(listens));
    interrupt(&child);
    assert_eq!((finish(child).status, server.count()), (130, 0));
}

/// Rust replaces a closed standard input by /dev/null, and a PUT of nothing would replace what is there.
#[test]
fn a_closed_standard_input_is_no_empty_data() {
    let server = answer(200, &[], "");
    let url = server.url("/");
    for (option, data) in [
        ("-T", "-"),
        ("-d", "@-"),
        ("--data-urlencode", "@-"),
        ("-F", "a=@-"),
    ] {
        let fetched = in_shell("exec <&-;", &[option, data, &url]);
        assert_eq!((fetched.status, server.count()), (26, 0), "{option}");
        let says = "standard input is closed";
        assert!(fetched.stderr.contains(says), "{}", fetched.stderr);
    }
}
