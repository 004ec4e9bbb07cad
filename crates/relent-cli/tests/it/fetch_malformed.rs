//! Tests of `relent fetch` with broken redirects and with responses that are not valid HTTP.

use crate::fetch_support::fetch;
use crate::scripted::{Server, Step, response};
/// Fetches with and without data, with reqwest's redirects and with those for a custom `Host`: exit status, requests
/// and message are the same.
fn assert_refused(to: &str, says: &[&str]) {
    assert_fields_refused(&[("location", to)], says);
}

fn assert_fields_refused(fields: &[(&str, &str)], says: &[&str]) {
    for status in [301, 302, 303, 307, 308] {
        for host in [&[][..], &["-H", "Host: a.example"]] {
            for data in [&[][..], &["-d", "amount=5"]] {
                let server = Server::script([Step::Answer(response(status, fields, "moved"))]);
                let url = server.url("/pay");
                let fetched =
                    fetch(&[&["-L", "--max-retries", "10"], host, data, &[&url]].concat());
                let name = format!("{status} {fields:?} {host:?} {data:?}: {}", fetched.stderr);
                assert_eq!(fetched.status, 47, "{name}");
                let posts = server
                    .seen()
                    .iter()
                    .filter(|seen| seen.method() == "POST")
                    .count();
                assert_eq!(posts, usize::from(!data.is_empty()), "{name}");
                assert!(server.count() <= 2, "{name}");
                assert!(
                    says.iter().any(|says| fetched.stderr.contains(says)),
                    "{name}"
                );
                assert!(!fetched.stderr.contains("hunter2"), "{name}");
            }
        }
    }
}

#[test]
fn a_redirect_with_an_invalid_location_is_reported() {
    assert_fields_refused(&[], &["it has no Location"]);
    assert_refused("", &["Location is empty"]);
    assert_refused("/pay", &["redirect loop: http://127.0.0.1:"]);
    assert_refused(
        "ftp://user:hunter2@h/x?token=hunter2",
        &["only http:// and https:// are followed"],
    );
    assert_refused(
        "javascript:alert(1)",
        &[
            "javascript:alert(1), and only http",
            "redirect to javascript:alert(1): only http",
        ],
    );
    assert_refused(
        "data:,x",
        &["data:,x, and only http", "redirect to data:,x: only http"],
    );
    assert_refused(
        "file:///etc/passwd",
        &[
            "its Location is file:///etc/passwd, and only http",
            "redirect to file:///etc/passwd: only http",
        ],
    );
    assert_refused(
        "http://",
        &[
            "its Location is not a URL: http:// (empty host)",
            "redirect not followed: its Location is not a URL",
        ],
    );
    assert_refused(
        "//",
        &[
            "its Location is not a URL: // (empty host)",
            "redirect not followed: its Location is not a URL",
        ],
    );
}

#[test]
fn a_malformed_response_is_reported_and_requested_at_most_twice() {
    let ok = "HTTP/1.1 200 OK\r\n";
    for (bytes, says) in [
        ("<html></html>\r\n\r\n".to_owned(), "malformed response: "),
        (
            format!("{ok}content-length: 5\r\ncontent-length: 6\r\n\r\nhello"),
            "malformed response: ",
        ),
        (
            format!("{ok}content-length: -1\r\n\r\nhello"),
            "malformed response: ",
        ),
        (format!("{ok}no colon\r\n\r\nhello"), "malformed response: "),
        (
            format!("{ok}transfer-encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
            "malformed response: the body has the transfer coding \"gzip, chunked\"",
        ),
        (
            format!("{ok}transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nhello"),
            "malformed response: ",
        ),
    ] {
        let server = Server::script([Step::Close(bytes.clone().into())]);
        for (args, requests) in [(&[][..], 2), (&["-d", "amount=5"], 1)] {
            let before = server.count();
            let url = server.url("/");
            let fetched = fetch(&[&["--max-retries", "10", &url], args].concat());
            assert_eq!(
                (fetched.status, server.count() - before),
                (8, requests),
                "{bytes}: {}",
                fetched.stderr
            );
            assert!(fetched.stdout.is_empty(), "{bytes}: {fetched:?}");
            assert!(fetched.stderr.contains(says), "{bytes}: {}", fetched.stderr);
        }
    }
}

#[test]
fn a_folded_header_field_is_printed_as_one_line() {
    let head = "HTTP/1.1 200 OK\r\nx-a: one\r\n two\r\ncontent-length: 2\r\n\r\nok";
    let server = Server::script([Step::Answer(head.into())]);
    let fetched = fetch(&["-i", &server.url("/")]);
    let printed = String::from_utf8(fetched.stdout).unwrap();
    let line = printed
        .lines()
        .find(|line| line.starts_with("x-a:"))
        .unwrap();
    assert_eq!(
        line.split_ascii_whitespace().collect::<Vec<_>>(),
        ["x-a:", "one", "two"]
    );
}
