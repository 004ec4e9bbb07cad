//! Tests of `relent fetch -C -`: a download that is resumed in another call.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::fetch_support::{background, entries, fetch, finish, interrupt, until};
use crate::scripted::{Seen, Server, Step, cut, pattern, response, rest};

const LENGTH: usize = 200_000;
const TAG: &str = "\"v1\"";

/// A folder, a file in it, and its part.
fn place() -> (TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (file, part) = (folder.path().join("file"), folder.path().join("file.part"));
    (folder, file, part)
}

/// Serves `whole`: the first response stalls after `length` bytes, later ones support ranges.
fn stalling(whole: &[u8], fields: &[(&'static str, &'static str)], length: usize) -> Server {
    let (whole, fields) = (whole.to_vec(), fields.to_vec());
    Server::answering(
        move |index, seen: &Seen| match (index, seen.range_start()) {
            (0, _) => Step::Stall(cut(200, &fields, &whole, length)),
            (_, Some(first)) => Step::Answer(rest(first, &whole, TAG, usize::MAX)),
            (_, None) => Step::Answer(response(200, &fields, &whole)),
        },
    )
}

/// Starts a download to `file`, and ends it with `signal` when the part has `length` bytes.
fn broken_off(server: &Server, file: &Path, length: u64, signal: Signal) {
    let child = background(&["-o", file.to_str().unwrap(), &server.url("/x")]);
    let part = file.with_extension("part");
    until(|| fs::metadata(&part).is_ok_and(|part| part.len() == length));
    if signal == Signal::SIGINT {
        interrupt(&child);
        let fetched = finish(child);
        assert_eq!(fetched.status, 130);
        assert!(
            fetched.stderr.contains("-C - resumes"),
            "{}",
            fetched.stderr
        );
    } else {
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        finish(child);
    }
}

#[test]
fn an_interrupted_download_is_resumed_by_another_call() {
    let whole = pattern(1, LENGTH);
    // A killed process cannot write any more, so everything must be on the disk before.
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let (folder, file, part) = place();
        let server = stalling(&whole, &[("etag", TAG)], 50_000);
        broken_off(&server, &file, 50_000, signal);
        assert!(!file.exists());
        assert_eq!(fs::read(&part).unwrap(), whole[..50_000]);
        let side = folder.path().join("file.part.json");
        assert_eq!(
            fs::metadata(&side).unwrap().permissions().mode() & 0o777,
            0o600
        );

        let args = ["-C", "-", "-o", file.to_str().unwrap(), &server.url("/x")];
        let fetched = fetch(&args);
        assert_eq!((fetched.status, fetched.stderr.as_str()), (0, ""));
        let seen = &server.seen()[1];
        assert_eq!(seen.header("range"), Some("bytes=50000-"));
        assert_eq!(seen.header("if-range"), Some(TAG));
        assert!(fs::read(&file).unwrap() == whole);
        assert_eq!(entries(folder.path()), ["file"]);
    }
}

#[test]
fn a_part_is_resumed_only_with_the_continue_option() {
    let whole = pattern(1, LENGTH);
    let (folder, file, _) = place();
    let server = stalling(&whole, &[("etag", TAG)], 50_000);
    broken_off(&server, &file, 50_000, Signal::SIGINT);
    let fetched = fetch(&["-o", file.to_str().unwrap(), &server.url("/x")]);
    assert_eq!(fetched.status, 0, "{}", fetched.stderr);
    assert_eq!(server.seen()[1].header("range"), None);
    assert!(fs::read(&file).unwrap() == whole);
    assert_eq!(entries(folder.path()), ["file"]);
}

#[test]
fn a_part_survives_a_failed_call() {
    let whole = pattern(1, LENGTH);
    let (_folder, file, part) = place();
    let server = stalling(&whole, &[("etag", TAG)], 50_000);
    broken_off(&server, &file, 50_000, Signal::SIGINT);
    for more in [&[][..], &["--continue"]] {
        let gone = Server::script([Step::Answer(response(404, &[], "gone"))]);
        let (name, url) = (file.to_str().unwrap(), gone.url("/x"));
        assert_eq!(fetch(&[more, &["-o", name, &url]].concat()).status, 22);
        assert_eq!(fs::read(&part).unwrap().len(), 50_000);
    }
}

#[test]
fn a_part_of_a_changed_representation_is_not_mixed_with_the_new_one() {
    let (old, new) = (pattern(1, LENGTH), pattern(2, LENGTH));
    let (folder, file, _) = place();
    let server = Server::answering(move |index, _| match index {
        0 => Step::Stall(cut(200, &[("etag", TAG)], &old, 50_000)),
        _ => Step::Answer(response(200, &[("etag", "\"v2\"")], &new)),
    });
    broken_off(&server, &file, 50_000, Signal::SIGINT);
    let args = ["-C", "-", "-o", file.to_str().unwrap(), &server.url("/x")];
    assert_eq!(fetch(&args).status, 0);
    assert!(fs::read(&file).unwrap() == pattern(2, LENGTH));
    assert_eq!(entries(folder.path()), ["file"]);
}

#[test]
fn a_part_never_has_more_permissions_than_the_file() {
    let whole = pattern(1, LENGTH);
    let (_folder, file, part) = place();
    let server = stalling(&whole, &[("etag", TAG)], 50_000);
    broken_off(&server, &file, 50_000, Signal::SIGINT);
    fs::set_permissions(&part, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&file, "private").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let other = stalling(&whole, &[("etag", TAG)], 60_000);
    broken_off(&other, &file, 60_000, Signal::SIGINT);
    let mode = fs::metadata(&part).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_part_of_another_url_is_not_resumed() {
    let whole = pattern(1, LENGTH);
    let (_folder, file, _) = place();
    let server = stalling(&whole, &[("etag", TAG)], 50_000);
    broken_off(&server, &file, 50_000, Signal::SIGINT);
    let args = ["-C", "-", "-o", file.to_str().unwrap(), &server.url("/y")];
    let fetched = fetch(&args);
    assert_eq!(fetched.status, 0, "{}", fetched.stderr);
    assert_eq!(server.seen()[1].header("range"), None);
    assert!(
        fetched.stderr.contains("a part of another URL"),
        "{}",
        fetched.stderr
    );
}

#[test]
fn without_a_validator_the_continue_option_vouches_for_the_part() {
    let whole = pattern(1, LENGTH);
    let (_folder, file, _) = place();
    let server = stalling(&whole, &[], 50_000);
    broken_off(&server, &file, 50_000, Signal::SIGINT);
    let args = ["-C", "-", "-o", file.to_str().unwrap(), &server.url("/x")];
    assert_eq!(fetch(&args).status, 0);
    let seen = &server.seen()[1];
    assert_eq!(seen.header("range"), Some("bytes=50000-"));
    assert_eq!(seen.header("if-range"), None);
    assert!(fs::read(&file).unwrap() == whole);
}

#[test]
fn a_part_of_another_length_is_neither_mixed_nor_taken_as_complete() {
    let (old, new) = (pattern(1, LENGTH), pattern(2, LENGTH + 1));
    for status in [206, 416] {
        let (folder, file, _) = place();
        let (old, served) = (old.clone(), new.clone());
        let server = Server::answering(move |index, seen| match (index, seen.range_start()) {
            // Without a validator.
            (0, _) => Step::Stall(cut(200, &[], &old, 50_000)),
            (_, Some(first)) if status == 206 => {
                Step::Answer(rest(first, &served, TAG, usize::MAX))
            }
            (_, Some(_)) => {
                let none_left = [("content-range", "bytes */50000")];
                Step::Answer(response(416, &none_left, ""))
            }
            (_, None) => Step::Answer(response(200, &[], &served)),
        });
        broken_off(&server, &file, 50_000, Signal::SIGINT);
        let args = ["-C", "-", "-o", file.to_str().unwrap(), &server.url("/x")];
        let fetched = fetch(&args);
        assert_eq!(fetched.status, 0, "{}", fetched.stderr);
        assert_eq!(server.seen()[1].header("range"), Some("bytes=50000-"));
        assert!(fs::read(&file).unwrap() == new, "{status}");
        assert_eq!(entries(folder.path()), ["file"]);
    }
}

#[test]
fn a_complete_part_replaces_the_file_without_a_request() {
    let whole = pattern(1, LENGTH);
    let (folder, file, part) = place();
    let server = stalling(&whole, &[("etag", TAG)], 50_000);
    broken_off(&server, &file, 50_000, Signal::SIGINT);
    fs::write(&part, &whole).unwrap();
    let args = ["-C", "-", "-o", file.to_str().unwrap(), &server.url("/x")];
    let fetched = fetch(&args);
    assert_eq!(
        (fetched.status, server.count()),
        (0, 1),
        "{}",
        fetched.stderr
    );
    assert!(fs::read(&file).unwrap() == whole);
    assert_eq!(entries(folder.path()), ["file"]);
}

#[test]
fn the_file_itself_is_resumed_as_in_curl() {
    let whole = pattern(1, LENGTH);
    let (folder, file, _) = place();
    fs::write(&file, &whole[..70_000]).unwrap();
    let serve = whole.clone();
    let server = Server::answering(move |_, seen| {
        let first = seen.range_start().unwrap();
        let complete = format!("bytes */{LENGTH}");
        match first {
            LENGTH => Step::Answer(response(416, &[("content-range", &complete)], "")),
            _ => Step::Answer(rest(first, &serve, TAG, usize::MAX)),
        }
    });
    let args = ["-C", "-", "-o", file.to_str().unwrap(), &server.url("/x")];
    let fetched = fetch(&args);
    assert_eq!(fetched.status, 0, "{}", fetched.stderr);
    assert_eq!(server.seen()[0].header("range"), Some("bytes=70000-"));
    assert!(fs::read(&file).unwrap() == whole);
    assert_eq!(entries(folder.path()), ["file"]);

    let fetched = fetch(&args);
    assert_eq!(fetched.status, 0, "{}", fetched.stderr);
    assert!(
        fetched.stderr.contains("is complete already"),
        "{}",
        fetched.stderr
    );
    assert!(fs::read(&file).unwrap() == whole);
    assert_eq!(entries(folder.path()), ["file"]);
}

#[test]
fn progress_is_success_and_resets_the_count_of_retries() {
    let whole = pattern(1, 4 << 20);
    let (_folder, file, _) = place();
    let serve = whole.clone();
    let server = Server::answering(move |_, seen| {
        let first = seen.range_start().unwrap_or(0);
        Step::Close(match first {
            0 => cut(200, &[("etag", TAG)], &serve, 300_000),
            first => rest(first, &serve, TAG, 300_000),
        })
    });
    let fetched = fetch(&["-o", file.to_str().unwrap(), &server.url("/x")]);
    assert_eq!(fetched.status, 0, "{}", fetched.stderr);
    assert!(server.count() > 10, "with 3 retries at a time");
    assert!(fs::read(&file).unwrap() == whole);
}

#[test]
fn the_continue_option_requires_a_file() {
    for args in [&["-C", "-"][..], &["--continue"]] {
        let fetched = fetch(&[args, &["http://127.0.0.1:1/x"]].concat());
        assert_eq!(fetched.status, 2);
        assert!(
            fetched.stderr.contains("use it with -o FILE"),
            "{}",
            fetched.stderr
        );
    }
    let fetched = fetch(&["-C", "-", "-d", "x", "-o", "f", "http://127.0.0.1:1/x"]);
    assert_eq!(fetched.status, 2, "{}", fetched.stderr);
    let fetched = fetch(&["-C", "100", "-O", "http://127.0.0.1:1/x"]);
    assert_eq!(fetched.status, 2);
    assert!(fetched.stderr.contains("use -C -"), "{}", fetched.stderr);
}

/// Otherwise the range would be taken for the missing bytes, and replace FILE.
#[test]
fn a_custom_range_header_is_refused_with_continue() {
    let whole = pattern(1, LENGTH);
    let server = stalling(&whole, &[("etag", TAG)], LENGTH);
    let (_folder, file, part) = place();
    fs::write(&file, "before").unwrap();
    for field in ["Range: bytes=0-99", "If-Range: \"v1\""] {
        let to = ["-C", "-", "-o", file.to_str().unwrap()];
        let fetched = fetch(&[&to[..], &["-H", field, &server.url("/x")]].concat());
        assert_eq!(fetched.status, 2, "{}", fetched.stderr);
        assert!(fetched.stderr.contains("leave out"), "{}", fetched.stderr);
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "before");
    assert!(!part.exists());
    assert_eq!(server.count(), 0);
}

/// Serves `whole` from the requested position, and cuts each response short.
fn cutting(
    whole: &[u8],
    part: usize,
    fields: impl Fn(usize) -> Vec<(&'static str, String)> + Send + Sync + 'static,
) -> Server {
    let whole = whole.to_vec();
    Server::answering(move |index, seen| {
        Step::Close(piece(&whole, part, &fields(index), seen.range_start()))
    })
}

/// A response with the whole body, or the rest from `first` on, of which `part` bytes arrive.
fn piece(whole: &[u8], part: usize, fields: &[(&str, String)], first: Option<usize>) -> Vec<u8> {
    let mut fields: Vec<_> = fields
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let Some(first) = first else {
        return cut(200, &fields, whole, part);
    };
    let range = format!("bytes {first}-{}/{}", whole.len() - 1, whole.len());
    fields.push(("content-range", range.as_str()));
    cut(206, &fields, &whole[first..], part)
}

/// The start positions of all requests that received a part of the body.
fn starts(server: &Server) -> Vec<usize> {
    let seen = server.seen();
    let files = seen.iter().filter(|seen| !seen.path().starts_with("/get"));
    files.map(|seen| seen.range_start().unwrap_or(0)).collect()
}

/// Calls without retries, until one succeeds or `most` have failed; returns the messages of each.
fn call_by_call(most: usize, args: &[&str]) -> Vec<String> {
    let mut said = Vec::new();
    for _ in 0..most {
        let once = ["--max-retries", "0", "-C", "-"];
        let fetched = fetch(&[&once[..], args].concat());
        said.push(fetched.stderr);
        if fetched.status == 0 {
            break;
        }
        assert_eq!(fetched.status, 18, "{}", said.concat());
        // The message promises what the next call does.
        assert!(said.concat().contains("-C - resumes"), "{}", said.concat());
    }
    said
}

#[test]
fn a_download_through_signed_redirects_is_resumed_by_the_next_call() {
    let whole = pattern(1, LENGTH);
    let (folder, file, _) = place();
    let serve = whole.clone();
    let server = Server::answering(move |index, seen| {
        let tag = [("etag", TAG.to_owned())];
        match seen.path() {
            "/get" => {
                let to = format!("/file?signature={index}");
                Step::Answer(response(302, &[("location", &to)], ""))
            }
            _ => Step::Close(piece(&serve, 50_000, &tag, seen.range_start())),
        }
    });
    let args = ["-L", "-o", file.to_str().unwrap(), &server.url("/get")];
    assert_eq!(call_by_call(9, &args).len(), 4);
    assert!(fs::read(&file).unwrap() == whole);
    assert_eq!(starts(&server), [0, 50_000, 100_000, 150_000]);
    assert_eq!(entries(folder.path()), ["file"]);
}

#[test]
fn different_signed_urls_resume_if_the_validator_is_equal() {
    let whole = pattern(1, LENGTH);
    let tag: fn(usize) -> Vec<_> = |_| vec![("etag", TAG.to_owned())];
    let untagged: fn(usize) -> Vec<_> = |_| Vec::new();
    for (fields, goes_on) in [(tag, true), (untagged, false)] {
        let (_folder, file, _) = place();
        let server = cutting(&whole, 120_000, fields);
        let name = file.to_str().unwrap();
        for call in 0..2 {
            let url = server.url(&format!("/file?signature={call}"));
            let said = call_by_call(1, &["-o", name, &url]).concat();
            let refuses = said.contains("a part of another URL");
            assert_eq!(refuses, call == 1 && !goes_on, "{said}");
        }
        assert_eq!(starts(&server), [0, if goes_on { 120_000 } else { 0 }]);
        assert_eq!(file.exists(), goes_on);
    }
}

#[test]
fn retries_with_continue_resume_like_the_next_call() {
    const NOW: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    type Fields = fn(usize) -> Vec<(&'static str, String)>;
    let kinds: [Fields; 8] = [
        |_| Vec::new(),
        |_| vec![("etag", "W/\"v1\"".to_owned())],
        |_| vec![("last-modified", NOW.to_owned()), ("date", NOW.to_owned())],
        |_| vec![("last-modified", NOW.to_owned())],
        // Each server has its own tag.
        |index| vec![("etag", format!("\"node-{index}\""))],
        |index| vec![("etag", format!("W/\"node-{index}\""))],
        // The body of a .gz file, which some servers label in this way.
        |_| vec![("content-encoding", "gzip".to_owned())],
        |_| {
            vec![
                ("content-encoding", "x-gzip".to_owned()),
                ("etag", TAG.to_owned()),
            ]
        },
    ];
    let whole = pattern(1, LENGTH);
    for (kind, fields) in kinds.into_iter().enumerate() {
        let (_folder, file, part) = place();
        let name = file.to_str().unwrap();
        let server = cutting(&whole, 40_000, fields);
        let fetched = fetch(&["-C", "-", "-o", name, &server.url("/x")]);
        assert_eq!(fetched.status, 0, "{kind}: {}", fetched.stderr);
        assert!(fs::read(&file).unwrap() == whole, "{kind}");
        let in_one = starts(&server);

        if fields(0)
            .iter()
            .any(|(name, _)| *name == "content-encoding")
        {
            continue;
        }
        fs::remove_file(&file).unwrap();
        let server = cutting(&whole, 40_000, fields);
        let said = call_by_call(9, &["-o", name, &server.url("/x")]);
        assert_eq!(said.len(), 5, "{kind}: {said:?}");
        assert!(
            fs::read(&file).unwrap() == whole && !part.exists(),
            "{kind}"
        );
        assert_eq!(starts(&server), in_one, "{kind}");
    }
}

/// RFC 9110 §14.4 permits `*` for a length that the server does not know.
#[test]
fn ranges_of_unknown_total_continue_a_response_of_known_length() {
    let whole = pattern(1, LENGTH);
    for tag in [Some(TAG), None] {
        let (_folder, file, _) = place();
        let name = file.to_str().unwrap();
        let serve = || {
            let whole = whole.clone();
            Server::answering(move |_, seen| {
                let mut fields: Vec<_> = tag.map(|tag| ("etag", tag)).into_iter().collect();
                let Some(first) = seen.range_start() else {
                    return Step::Close(cut(200, &fields, &whole, 40_000));
                };
                let range = format!("bytes {first}-{}/*", LENGTH - 1);
                fields.push(("content-range", &range));
                Step::Close(cut(206, &fields, &whole[first..], 40_000))
            })
        };
        let server = serve();
        let fetched = fetch(&["-C", "-", "-o", name, &server.url("/x")]);
        assert_eq!(fetched.status, 0, "{tag:?}: {}", fetched.stderr);
        assert!(fs::read(&file).unwrap() == whole, "{tag:?}");
        let in_one = starts(&server);

        fs::remove_file(&file).unwrap();
        let server = serve();
        let said = call_by_call(9, &["-o", name, &server.url("/x")]);
        assert_eq!(starts(&server), in_one, "{tag:?}: {said:?}");
        assert!(fs::read(&file).unwrap() == whole, "{tag:?}");
    }
}

/// Some object stores send no `Content-Range` with a 416.
#[test]
fn a_416_without_a_length_is_complete_only_if_the_whole_is_as_long() {
    let whole = pattern(1, LENGTH);
    for (there, is_complete) in [(LENGTH, true), (LENGTH + 1, false)] {
        let (folder, file, _) = place();
        fs::write(&file, pattern(1, there)).unwrap();
        let modified = || fs::metadata(&file).unwrap().modified().unwrap();
        let (before, serve) = (modified(), whole.clone());
        let server = Server::answering(move |_, seen| match seen.range_start() {
            Some(_) => Step::Answer(response(416, &[], "<Error/>")),
            None => Step::Answer(response(200, &[("etag", TAG)], &serve)),
        });
        let fetched = fetch(&["-C", "-", "-o", file.to_str().unwrap(), &server.url("/x")]);
        assert_eq!(fetched.status, 0, "{}", fetched.stderr);
        let says = fetched.stderr.contains("is complete already");
        assert_eq!(says, is_complete, "{}", fetched.stderr);
        assert_eq!(modified() == before, is_complete);
        assert!(fs::read(&file).unwrap() == whole);
        assert_eq!(entries(folder.path()), ["file"]);
    }
}

/// The next call does not know the coding of the part.
#[test]
fn a_part_of_an_encoded_body_is_not_joined_with_a_plain_rest_by_the_next_call() {
    let whole = pattern(1, LENGTH);
    let (_folder, file, _) = place();
    let name = file.to_str().unwrap();
    let serve = whole.clone();
    let server = Server::answering(move |index, seen| match (index, seen.range_start()) {
        (0, _) => {
            let encoded = [("content-encoding", "gzip".to_owned())];
            Step::Close(piece(&pattern(2, LENGTH), 40_000, &encoded, None))
        }
        (_, first) => Step::Close(piece(&serve, LENGTH, &[], first)),
    });
    let url = server.url("/x");
    let once = fetch(&["--max-retries", "0", "-C", "-", "-o", name, &url]);
    assert_ne!(once.status, 0, "{}", once.stderr);
    let fetched = fetch(&["-C", "-", "-o", name, &url]);
    assert_eq!(fetched.status, 0, "{}", fetched.stderr);
    assert!(fs::read(&file).unwrap() == whole);
}

#[test]
fn a_server_that_ignores_ranges_with_if_range_is_resumed_without_it() {
    let whole = pattern(1, LENGTH);
    let (_folder, file, _) = place();
    let name = file.to_str().unwrap();
    let serve = move |one_tag: bool| {
        let whole = pattern(1, LENGTH);
        Server::answering(move |index, seen| {
            let tag = match one_tag {
                true => TAG.to_owned(),
                false => format!("\"node-{index}\""),
            };
            let first = seen.range_start();
            let first = first.filter(|_| seen.header("if-range").is_none());
            Step::Close(piece(&whole, 40_000, &[("etag", tag)], first))
        })
    };
    let fetched = fetch(&["-o", name, &serve(true).url("/x")]);
    assert_eq!(fetched.status, 0, "{}", fetched.stderr);
    assert!(fs::read(&file).unwrap() == whole);
    for one_tag in [true, false] {
        fs::remove_file(&file).unwrap();
        let server = serve(one_tag);
        let said = call_by_call(9, &["-o", name, &server.url("/x")]);
        assert_eq!(said.len(), 5, "{one_tag}: {said:?}");
        assert!(fs::read(&file).unwrap() == whole, "{one_tag}");
        // Once the tags are known to differ, no call uses them.
        let conditions = server.seen();
        let conditions = conditions.iter().filter_map(|seen| seen.header("if-range"));
        assert_eq!(conditions.count(), if one_tag { 4 } else { 1 });
    }
}

/// In the format of earlier versions.
#[test]
fn side_files_of_earlier_versions_are_understood() {
    let whole = pattern(1, LENGTH);
    for named in [true, false] {
        let (folder, file, part) = place();
        let server = cutting(&whole, usize::MAX, |_| vec![("etag", TAG.to_owned())]);
        let url = server.url("/x");
        let (final_url, validator) = match named {
            true => (format!("\"{url}\""), "\"\\\"v1\\\"\"".to_owned()),
            false => ("null".to_owned(), "null".to_owned()),
        };
        let side = format!(
            "{{\n  \"format\": \"relent-part-1\",\n  \"url\": \"{url}\",\n  \"can_be_resumed\": true,\n  \
             \"final_url\": {final_url},\n  \"validator\": {validator},\n  \"total\": {LENGTH}\n}}"
        );
        fs::write(&part, &whole[..70_000]).unwrap();
        fs::write(folder.path().join("file.part.json"), side).unwrap();
        let fetched = fetch(&["-C", "-", "-o", file.to_str().unwrap(), &url]);
        assert_eq!((fetched.status, &*fetched.stderr), (0, ""));
        assert!(fs::read(&file).unwrap() == whole);
        let seen = &server.seen()[0];
        assert_eq!(seen.range_start(), Some(70_000));
        assert_eq!(seen.header("if-range"), named.then_some(TAG));
    }
}

#[test]
fn a_call_that_starts_over_reports_it() {
    let whole = pattern(2, LENGTH);
    let (_folder, file, _) = place();
    let name = file.to_str().unwrap();
    let changed = response(200, &[("etag", "\"v2\"")], &whole);
    let server = Server::script([Step::Answer(changed)]);
    fs::write(&file, "before").unwrap();
    let fetched = fetch(&["-C", "-", "-o", name, &server.url("/x")]);
    assert_eq!(fetched.status, 0, "{}", fetched.stderr);
    assert!(
        fetched.stderr.contains("the download started over"),
        "{}",
        fetched.stderr
    );
    assert!(fs::read(&file).unwrap() == whole);
}

/// Otherwise the end of the part would be taken for the end of the file.
#[test]
fn a_server_that_sends_less_than_the_rest_does_not_shorten_the_file() {
    let whole = pattern(1, LENGTH);
    let (_folder, file, _) = place();
    fs::write(&file, &whole[..70_000]).unwrap();
    let serve = whole.clone();
    let server = Server::answering(move |_, seen| {
        let first = seen.range_start().unwrap();
        let end = LENGTH.min(first + 50_000);
        let range = format!("bytes {first}-{}/{LENGTH}", end - 1);
        Step::Answer(response(
            206,
            &[("content-range", &range)],
            &serve[first..end],
        ))
    });
    let said = call_by_call(9, &["-o", file.to_str().unwrap(), &server.url("/x")]);
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(fs::read(&file).unwrap() == whole);
}
