//! Tests of `relent fetch` against failing servers: retries and exit status.

use std::io::{Read, Write};
use std::process::Stdio;

use crate::fetch_support::{
    Fetched, background, command, fetch, finish, hangs_up, interrupt, refused, tls, until,
};
use crate::scripted::{Server, Step, cut, response};

fn answer(status: u16, body: &str) -> Step {
    Step::Answer(response(status, &[], body))
}

fn text(fetched: &Fetched) -> &str {
    std::str::from_utf8(&fetched.stdout).unwrap()
}

/// Fetches the only resource of a server with this script.
fn fetch_from(steps: impl IntoIterator<Item = Step>, args: &[&str]) -> (Server, Fetched) {
    let server = Server::script(steps);
    let fetched = fetch(&[args, &[&server.url("/")]].concat());
    (server, fetched)
}

#[test]
fn a_complete_response_below_400_is_status_0() {
    for status in [200, 204, 301, 304] {
        let body = if status == 200 { "body" } else { "" };
        let condition = ["-H", "If-None-Match: \"1\""];
        let (_, fetched) = fetch_from([answer(status, body)], &condition);
        assert_eq!(
            (fetched.status, text(&fetched), fetched.stderr.as_str()),
            (0, body, "")
        );
    }
}

#[test]
fn only_the_final_response_is_printed_and_once() {
    let busy = Step::Answer(response(503, &[("retry-after", "0")], "busy"));
    let (server, fetched) = fetch_from(
        [busy.clone(), answer(500, "broken"), answer(200, "done")],
        &[],
    );
    assert_eq!(
        (fetched.status, text(&fetched), server.count()),
        (0, "done", 3)
    );
    assert_eq!(
        fetched.stderr,
        "relent: attempt 1 failed: status 503 (Retry-After 0s); next in 1ms\n\
         relent: attempt 2 failed: status 500; next in 2ms\n"
    );
    let (server, fetched) = fetch_from([busy], &[]);
    assert_eq!(
        (fetched.status, text(&fetched), server.count()),
        (22, "busy", 4)
    );
    assert!(
        fetched.stderr.contains("gave up after 4 attempts in "),
        "{}",
        fetched.stderr
    );
    assert!(
        fetched
            .stderr
            .ends_with(": the retries are used up (last: status 503)\n"),
        "{}",
        fetched.stderr
    );
}

#[test]
fn a_status_of_400_or_above_is_status_22() {
    for status in [400, 404, 418, 501] {
        let (server, fetched) = fetch_from([answer(status, "why")], &[]);
        assert_eq!(
            (fetched.status, text(&fetched), server.count()),
            (22, "why", 1)
        );
    }
}

#[test]
fn network_failures_have_the_exit_status_of_curl() {
    let cut_short = Step::Close(cut(200, &[], b"long", 1));
    let head = b"HTTP/1.1 200 OK\r\ncont".to_vec();
    let garbage = Step::Close(b"SSH-2.0-OpenSSH_9.2p1\r\n".to_vec());
    for (fault, status, says, requests) in [
        (cut_short, 18, "response cut short", 4),
        (Step::Close(Vec::new()), 56, "connection reset", 4),
        (Step::Reset(Vec::new()), 56, "connection reset", 4),
        (Step::Close(head), 56, "connection reset", 4),
        // A server that does not speak HTTP is retried once only.
        (garbage, 8, "malformed response: ", 2),
    ] {
        let (server, fetched) = fetch_from([fault.clone()], &[]);
        assert_eq!((fetched.status, text(&fetched)), (status, ""), "{fault:?}");
        assert_eq!(server.count(), requests, "{fault:?}");
        assert!(
            fetched.stderr.contains(&format!("(last: {says}")),
            "{}",
            fetched.stderr
        );
    }
}

#[test]
fn no_connection_is_status_7() {
    let fetched = fetch(&[&format!("http://{}/", refused())]);
    assert_eq!(fetched.status, 7);
    assert!(
        fetched.stderr.contains("gave up after 4 attempts"),
        "{}",
        fetched.stderr
    );
    assert!(
        fetched.stderr.contains("Connection refused"),
        "{}",
        fetched.stderr
    );
}

#[test]
fn a_name_that_does_not_exist_is_status_6() {
    let fetched = fetch(&["http://no-such-name.invalid/"]);
    assert_eq!(fetched.status, 6, "{}", fetched.stderr);
}

#[test]
fn a_time_limit_is_status_28() {
    let stalled = || Step::Stall(cut(200, &[], b"long", 1));
    let (server, fetched) = fetch_from(
        [stalled()],
        &["--attempt-timeout", "2s", "--max-retries", "1"],
    );
    assert_eq!((fetched.status, server.count()), (28, 2));
    assert!(
        fetched.stderr.contains("attempt timed out after 2s"),
        "{}",
        fetched.stderr
    );
    let (server, fetched) = fetch_from([stalled()], &["--deadline", "2s"]);
    assert_eq!((fetched.status, server.count()), (28, 1));
    assert!(
        fetched.stderr.contains("the deadline leaves no time"),
        "{}",
        fetched.stderr
    );
}

/// Without a limit, a silent server would block the fetch for ever.
#[test]
fn a_silent_server_ends_an_attempt() {
    for said in [Vec::new(), cut(200, &[], b"long", 1)] {
        let idle = ["--idle-timeout", "2s", "--initial", "1ms"];
        let (server, fetched) = fetch_from([Step::Stall(said.clone()), answer(200, "done")], &idle);
        assert_eq!(
            (fetched.status, text(&fetched), server.count()),
            (0, "done", 2),
            "{}",
            fetched.stderr
        );
        let post = ["--idle-timeout", "2s", "-d", "x"];
        let (server, fetched) = fetch_from([Step::Stall(said), answer(200, "twice")], &post);
        assert_eq!(
            (fetched.status, server.count()),
            (28, 1),
            "{}",
            fetched.stderr
        );
    }
    let none = fetch(&["--idle-timeout", "0", "http://127.0.0.1/"]);
    assert_eq!(none.status, 2);
}

#[test]
fn an_untrusted_certificate_is_status_60_and_permanent() {
    let (url, certificate) = tls();
    let fetched = fetch(&[&url]);
    assert_eq!((fetched.status, text(&fetched)), (60, ""));
    assert!(
        fetched.stderr.contains("failed after 1 attempt ("),
        "{}",
        fetched.stderr
    );
    assert!(
        fetched.stderr.contains("certificate rejected: "),
        "{}",
        fetched.stderr
    );

    let trusting = command(&[&url])
        .env("SSL_CERT_FILE", certificate.path())
        .spawn();
    let fetched = finish(trusting.unwrap());
    assert_eq!((fetched.status, text(&fetched)), (0, "secret"));
}

#[test]
fn a_broken_handshake_is_status_35() {
    let fetched = fetch(&[&format!("https://{}/", hangs_up())]);
    assert_eq!(fetched.status, 35);
    assert!(
        fetched.stderr.contains("gave up after 4 attempts"),
        "{}",
        fetched.stderr
    );
}

#[test]
fn a_retry_after_beyond_the_limits_is_status_75_with_the_time() {
    for (status, limit) in [(503, &[][..]), (429, &[]), (503, &["--deadline", "10s"])] {
        let seconds = if limit.is_empty() { "7380" } else { "60" };
        let later = Step::Answer(response(status, &[("retry-after", seconds)], "later"));
        let (server, fetched) = fetch_from([later], limit);
        assert_eq!(
            (fetched.status, text(&fetched), server.count()),
            (75, "later", 1)
        );
        let (_, at) = fetched.stderr.split_once("; come back at ").unwrap();
        let (instant, ahead) = at.split_once(" (in ").unwrap();
        assert!(
            instant.len() == "2026-01-02T03:04:05.000Z".len() && instant.ends_with('Z'),
            "{at}"
        );
        let wanted = if limit.is_empty() { "2h 2m)\n" } else { "s)\n" };
        assert!(ahead.ends_with(wanted), "{at}");
    }
}

#[test]
fn any_status_in_retry_on_is_a_failure() {
    let script = || {
        [
            answer(202, "wait"),
            answer(202, "wait"),
            answer(200, "done"),
        ]
    };
    let (server, fetched) = fetch_from(script(), &["--retry-on", "202", "--initial", "1ms"]);
    assert_eq!(
        (fetched.status, text(&fetched), server.count()),
        (0, "done", 3)
    );
    let options = [
        "--retry-on",
        "202",
        "--initial",
        "1ms",
        "--max-retries",
        "1",
    ];
    let (server, fetched) = fetch_from(script(), &options);
    assert_eq!(
        (fetched.status, text(&fetched), server.count()),
        (22, "wait", 2)
    );
    let (server, fetched) = fetch_from(script(), &[]);
    assert_eq!(
        (fetched.status, text(&fetched), server.count()),
        (0, "wait", 1)
    );
}

#[test]
fn a_bad_command_line_is_status_2_and_sends_nothing() {
    let server = Server::script([answer(200, "")]);
    let url = server.url("/");
    for (args, says) in [
        (&[][..], "<URL>"),
        (&["example.com"], "as in http://example.com"),
        (&["ftp://example.com/"], "not ftp://"),
        (&["http://"], "no URL"),
        (&["-H", "no colon", &url], "written as 'Name: value'"),
        (&["-H", "a: b\nc: d", &url], "no line ends"),
        (&["-H", "Content-Length: 5", &url], "sets this field"),
        (&["-X", "G T", &url], "not a method"),
        (&["-X", "CONNECT", &url], "tunnel"),
        (&["--idempotency-key", "", &url], "a key is not empty"),
        (&["--idempotency-key", "ö", &url], "printable ASCII"),
        (
            &["--idempotency-key", "a", "-H", "idempotency-key: b", &url],
            "already has an Idempotency-Key",
        ),
        (
            &["--retry-on", "9xx", &url],
            "\"9xx\" names no failure: use a status (503, 500-504, 5xx), grpc:unavailable, timeout",
        ),
        (&["--retry-on", "exit:1", &url], "a failure of commands"),
        (&["--retry-on", "101", &url], "a status below 200"),
        (&["--connect-timeout", "0s", &url], "use a time above 0"),
        (&["--connect-timeout", "-1s", &url], "negative"),
        (&["--attempt-timeout", "0s", &url], "needs some time"),
        (&["--policy", "patiemt", &url], "did you mean `patient`?"),
        (&["--trace", "/no/such/folder/t", &url], "cannot be written"),
        (&["--stream", "-o", "x", &url], "cannot be used with"),
        (&["--no-such-option", &url], "unexpected argument"),
    ] {
        let fetched = fetch(args);
        assert_eq!(
            (fetched.status, text(&fetched)),
            (2, ""),
            "{args:?}: {}",
            fetched.stderr
        );
        assert!(
            fetched.stderr.contains(says),
            "{args:?}: {}",
            fetched.stderr
        );
        assert_eq!(fetched.stderr.lines().count(), 1, "{}", fetched.stderr);
    }
    assert_eq!(server.count(), 0);
}

#[test]
fn a_post_that_may_have_taken_effect_is_not_repeated() {
    for fault in [
        Step::Close(Vec::new()),
        answer(500, ""),
        Step::Close(cut(200, &[], b"long", 1)),
    ] {
        for list in [&[][..], &["--retry-on", "any"]] {
            let (server, fetched) = fetch_from([fault.clone()], &[&["-d", "x"], list].concat());
            assert_ne!(fetched.status, 0);
            assert_eq!(server.count(), 1, "{fault:?}");
            assert!(
                fetched.stderr.contains("POST is not repeated"),
                "{}",
                fetched.stderr
            );
            assert!(
                fetched.stderr.contains("--idempotency-key auto"),
                "{}",
                fetched.stderr
            );
        }
    }
    let (server, _) = fetch_from(
        [Step::Answer(response(429, &[], "")), answer(200, "")],
        &["-d", "x"],
    );
    assert_eq!(server.count(), 2, "what was not processed is repeated");
}

#[test]
fn an_idempotency_key_makes_a_post_repeatable_and_is_printed_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let trace = trace.to_str().unwrap();
    let args = ["-d", "x", "--idempotency-key", "auto", "--trace", trace];
    let (server, fetched) = fetch_from([Step::Close(Vec::new())], &args);
    assert_eq!((fetched.status, server.count()), (56, 4));
    let (_, key) = fetched.stderr.split_once("--idempotency-key ").unwrap();
    let key = key.trim_end();
    assert_eq!(key.len(), "01a1fc5a-20fc-73a9-9289-b336054353ef".len());
    for seen in server.seen() {
        assert_eq!(seen.header("idempotency-key"), Some(&*format!("\"{key}\"")));
    }
    let trace = std::fs::read_to_string(trace).unwrap();
    assert!(
        trace.contains(&format!(r#""idempotency_key":"{key}""#)),
        "{trace}"
    );

    let args = ["-d", "x", "-H", "Idempotency-Key: raw", "--trace", "-"];
    let (server, fetched) = fetch_from([answer(200, "")], &args);
    assert_eq!(server.seen()[0].header("idempotency-key"), Some("raw"));
    assert!(
        fetched.stderr.contains(r#""idempotency_key":"raw""#),
        "{}",
        fetched.stderr
    );

    let args = ["-d", "x", "--idempotency-key", "mine"];
    let (server, fetched) = fetch_from([Step::Close(Vec::new()), answer(200, "")], &args);
    assert_eq!((fetched.status, server.count()), (0, 2));
    assert_eq!(server.seen()[1].header("idempotency-key"), Some("\"mine\""));
}

/// Without its key, the same command would send the request with a new one.
#[test]
fn a_final_error_is_printed_with_the_key() {
    let args = ["-sS", "-d", "x", "--idempotency-key", "auto"];
    let (server, fetched) = fetch_from([Step::Close(Vec::new())], &args);
    assert_eq!((fetched.status, server.count()), (56, 4));
    let (end, key) = fetched.stderr.split_once("--idempotency-key ").unwrap();
    assert!(end.contains("gave up after 4 attempts"), "{end}");
    let sent = format!("\"{}\"", key.trim_end());
    assert_eq!(server.seen()[3].header("idempotency-key"), Some(&*sent));
}

#[test]
fn listed_failures_are_retried_and_no_others() {
    let created = || {
        [
            answer(404, "not yet"),
            answer(404, "not yet"),
            answer(200, "there"),
        ]
    };
    let (server, fetched) = fetch_from(created(), &["--retry-on", "404,5xx,network"]);
    assert_eq!(
        (fetched.status, text(&fetched), server.count()),
        (0, "there", 3)
    );
    let (server, fetched) = fetch_from([answer(503, "")], &["--retry-on", "404"]);
    assert_eq!((fetched.status, server.count()), (22, 1));
}

#[test]
fn retries_can_be_turned_off() {
    let server = Server::script([answer(503, "busy")]);
    let off = command(&[&server.url("/")])
        .env("RELENT_POLICY", "off")
        .spawn();
    let fetched = finish(off.unwrap());
    assert_eq!(
        (fetched.status, text(&fetched), server.count()),
        (22, "busy", 1)
    );
}

#[test]
fn quiet_reports_no_attempts() {
    let (_, fetched) = fetch_from(
        [Step::Close(Vec::new())],
        &["-q", "-d", "x", "--idempotency-key", "auto"],
    );
    assert_eq!((fetched.status, fetched.stderr.as_str()), (56, ""));
}

#[test]
fn every_attempt_sends_the_data_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (small, large) = (b"line 1\r\nline 2\n".to_vec(), vec![7; 3 << 20]);
    std::fs::write(path("small"), &small).unwrap();
    std::fs::write(path("large"), &large).unwrap();
    let busy = || {
        [
            Step::Answer(response(503, &[("retry-after", "0")], "")),
            answer(200, ""),
        ]
    };
    let cases = [
        (vec!["a=1".to_owned()], b"a=1".to_vec()),
        (
            vec!["a=1".to_owned(), "b=@2".to_owned()],
            b"a=1&b=@2".to_vec(),
        ),
        (vec![format!("@{}", path("small"))], small.clone()),
        (
            vec!["a=1".to_owned(), format!("@{}", path("small"))],
            [b"a=1&", &small[..]].concat(),
        ),
        (vec![format!("@{}", path("large"))], large),
        (vec![String::new()], Vec::new()),
    ];
    for (data, wanted) in cases {
        let args: Vec<&str> = data.iter().flat_map(|data| ["-d", data]).collect();
        let (server, fetched) = fetch_from(busy(), &args);
        assert_eq!(
            (fetched.status, server.count()),
            (0, 2),
            "{}",
            fetched.stderr
        );
        for seen in server.seen() {
            assert!(seen.head.starts_with("POST / "));
            assert_eq!(
                seen.header("content-type"),
                Some("application/x-www-form-urlencoded")
            );
            assert_eq!(
                seen.header("content-length"),
                Some(&*wanted.len().to_string())
            );
            assert!(seen.body == wanted);
        }
    }
    let fetched = fetch(&["-d", "@/no/such/file", "http://127.0.0.1:1/"]);
    assert_eq!(fetched.status, 26);
    assert!(
        fetched.stderr.contains("-d @/no/such/file: cannot be read"),
        "{}",
        fetched.stderr
    );
}

#[test]
fn every_attempt_sends_standard_input() {
    for length in [10, 3 << 20] {
        let input = vec![b'x'; length];
        let server = Server::script([Step::Answer(response(429, &[], "")), answer(200, "done")]);
        let mut child = command(&["-d", "@-", &server.url("/")])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&input).unwrap();
        let fetched = finish(child);
        assert_eq!((fetched.status, text(&fetched)), (0, "done"));
        assert!(server.seen().iter().all(|seen| seen.body == input));
        assert_eq!(server.count(), 2);
    }
}

#[test]
fn headers_and_method_are_sent() {
    let args = [
        "-X",
        "patch",
        "-H",
        "If-Match: \"v1\"",
        "-H",
        "Content-Type: text/plain",
        "-H",
        "A: 1",
        "-H",
        "a: 2",
        "-d",
        "x",
    ];
    let (server, fetched) = fetch_from([Step::Close(Vec::new()), answer(200, "")], &args);
    assert_eq!(
        (fetched.status, server.count()),
        (0, 2),
        "a precondition makes it repeatable"
    );
    let seen = &server.seen()[1];
    assert!(seen.head.starts_with("PATCH / HTTP/1.1\r\n"));
    assert_eq!(seen.header("content-type"), Some("text/plain"));
    assert!(seen.head.contains("a: 1\r\na: 2\r\n"), "{}", seen.head);
    assert_eq!(
        seen.header("user-agent"),
        Some(concat!("relent/", env!("CARGO_PKG_VERSION")))
    );
}

#[test]
fn redirects_are_followed_only_with_location() {
    let moved = |status: u16| {
        Server::answering(move |_, seen| {
            if seen.head.contains(" /new ") {
                answer(200, "here")
            } else {
                Step::Answer(response(status, &[("location", "/new")], "moved"))
            }
        })
    };
    let fetched = fetch(&[&moved(302).url("/old")]);
    assert_eq!((fetched.status, text(&fetched)), (0, "moved"));
    let fetched = fetch(&["-L", &moved(302).url("/old")]);
    assert_eq!((fetched.status, text(&fetched)), (0, "here"));
    let server = moved(307);
    let fetched = fetch(&["-L", "-d", "x", &server.url("/old")]);
    assert_eq!((fetched.status, text(&fetched)), (0, "here"));
    assert_eq!(server.seen()[1].body, b"x");
    assert_eq!(server.seen()[1].header("referer"), None);

    let circle = Server::script([Step::Answer(response(302, &[("location", "/")], ""))]);
    let fetched = fetch(&["-L", &circle.url("/")]);
    assert_eq!((fetched.status, circle.count()), (47, 1));
    assert!(
        fetched.stderr.contains("redirect loop"),
        "{}",
        fetched.stderr
    );
    let endless = Server::answering(|index, _| {
        let next = format!("/{}", index + 1);
        Step::Answer(response(302, &[("location", &next)], ""))
    });
    let fetched = fetch(&["-L", &endless.url("/")]);
    assert_eq!((fetched.status, endless.count()), (47, 11));
    assert!(
        fetched.stderr.contains("too many redirects"),
        "{}",
        fetched.stderr
    );
}

#[test]
fn a_fetch_does_not_repeat_a_redirected_post() {
    let refusing = format!("http://{}/", refused());
    let soon = [("retry-after-ms", "1")];
    let limited = |status| Step::Answer(response(status, &soon, "later"));
    for redirect in [301, 302, 303] {
        for (target, then) in [
            ("/", limited(429)),
            ("/done", limited(429)),
            ("/done", limited(503)),
            ("/done", limited(421)),
            ("/done", limited(425)),
            ("/", Step::Close(Vec::new())),
            (refusing.as_str(), limited(429)),
        ] {
            let moved = response(redirect, &[("location", target)], "paid");
            let answering = then.clone();
            let server = Server::answering(move |_, seen| match seen.method() {
                "POST" => Step::Answer(moved.clone()),
                _ => answering.clone(),
            });
            let posts = || {
                let seen = server.seen();
                seen.iter().filter(|seen| seen.method() == "POST").count()
            };
            let fetched = fetch(&["-L", "-d", "amount=5", &server.url("/")]);
            assert_ne!(fetched.status, 0);
            assert_eq!(posts(), 1, "{redirect} to {target}, then {then:?}");
            assert!(
                fetched.stderr.contains("POST is not repeated"),
                "{}",
                fetched.stderr
            );
        }
    }
}

#[test]
fn a_post_with_an_idempotency_key_is_retried_after_a_redirect() {
    let server = Server::answering(|index, seen| match seen.method() {
        "POST" => Step::Answer(response(303, &[("location", "/")], "paid")),
        _ if index == 1 => Step::Answer(response(429, &[("retry-after-ms", "1")], "later")),
        _ => answer(200, "receipt"),
    });
    let fetched = fetch(&[
        "-L",
        "-d",
        "amount=5",
        "--idempotency-key",
        "auto",
        &server.url("/"),
    ]);
    assert_eq!((fetched.status, text(&fetched)), (0, "receipt"));
    let posts = server.seen();
    let posts = posts.iter().filter(|seen| seen.method() == "POST");
    assert_eq!(posts.count(), 2);
}

#[test]
fn include_prints_the_head_of_the_final_response_once() {
    let busy = Step::Answer(response(503, &[("x-who", "first")], "busy"));
    let done = Step::Answer(response(
        200,
        &[("x-who", "last"), ("x-who", "too")],
        "done",
    ));
    let (_, fetched) = fetch_from([busy, done], &["-i"]);
    assert_eq!(
        text(&fetched),
        "HTTP/1.1 200 OK\r\ncontent-length: 4\r\nx-who: last\r\nx-who: too\r\n\r\ndone"
    );
    let (_, fetched) = fetch_from([answer(404, "gone")], &["-i"]);
    assert_eq!(
        text(&fetched),
        "HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\ngone"
    );
}

#[test]
fn the_proxy_of_the_environment_is_used() {
    let proxy = Server::script([answer(503, ""), answer(200, "by proxy")]);
    let child = command(&["http://example.invalid/x"])
        .env("http_proxy", proxy.url(""))
        .spawn();
    let fetched = finish(child.unwrap());
    assert_eq!((fetched.status, text(&fetched)), (0, "by proxy"));
    assert!(
        proxy.seen()[1]
            .head
            .starts_with("GET http://example.invalid/x HTTP/1.1\r\n")
    );
}

#[test]
fn a_signal_ends_an_attempt_immediately_and_leaves_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let server = Server::script([Step::Stall(cut(200, &[], b"long", 1))]);
    let child = background(&["--trace", trace.to_str().unwrap(), &server.url("/")]);
    until(|| server.count() == 1);
    interrupt(&child);
    let fetched = finish(child);
    assert_eq!((fetched.status, text(&fetched)), (130, ""));
    let trace = std::fs::read_to_string(trace).unwrap();
    assert!(
        trace.contains(r#""result":"gave_up","reason":"cancelled""#),
        "{trace}"
    );
    assert!(trace.contains(r#""attempt":1"#), "{trace}");
}

#[test]
fn a_signal_ends_a_fetch_delay_immediately() {
    let server = Server::script([Step::Answer(response(503, &[("retry-after", "60")], ""))]);
    let mut child = background(&["--trace", "-", &server.url("/")]);
    // Waits for the line with the delay: an earlier interrupt would end the attempt.
    let mut said = Vec::new();
    while !said.ends_with(b"\n") {
        let mut byte = [0];
        child
            .stderr
            .as_mut()
            .unwrap()
            .read_exact(&mut byte)
            .unwrap();
        said.push(byte[0]);
    }
    assert!(String::from_utf8(said).unwrap().contains("next in"));
    interrupt(&child);
    // The fetch ends immediately, not after a minute.
    let fetched = finish(child);
    assert_eq!(fetched.status, 130);
    assert!(
        fetched.stderr.contains(r#""outcome":"status 503""#),
        "{}",
        fetched.stderr
    );
}
