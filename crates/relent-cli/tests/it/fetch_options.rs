//! Tests of curl's options in `relent fetch`, and of the messages for options that it does not have.

use std::fs;
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use crate::fetch_support::{
    Fetched, background, command, entries, fetch, finish, interrupt, until,
};
use crate::scripted::{Seen, Server, Step, response};
use crate::support::{self, on_terminal, relent};

fn answer(status: u16, fields: &[(&str, &str)], body: &str) -> Server {
    Server::script([Step::Answer(response(status, fields, body))])
}

fn text(fetched: &Fetched) -> &str {
    std::str::from_utf8(&fetched.stdout).unwrap()
}

/// The request for these arguments.
fn asked(args: &[&str]) -> Seen {
    let server = answer(200, &[], "");
    let fetched = fetch(&[args, &[&server.url("/a/?x=1")]].concat());
    assert_eq!(fetched.status, 0, "{args:?}: {}", fetched.stderr);
    server.seen()[0].clone()
}

#[test]
fn fail_discards_the_body_of_a_failure() {
    for args in [&["-f"][..], &["--fail"], &["-fsSL"]] {
        let fetched = fetch(&[args, &[&answer(404, &[], "gone").url("/")]].concat());
        assert_eq!((fetched.status, text(&fetched)), (22, ""));
        let fetched = fetch(&[args, &[&answer(200, &[], "there").url("/")]].concat());
        assert_eq!((fetched.status, text(&fetched)), (0, "there"));
    }
}

#[test]
fn silent_reports_nothing_and_show_error_only_the_final_error() {
    let url = answer(503, &[], "").url("/");
    assert_eq!(fetch(&["-s", &url]).stderr, "");
    let fetched = fetch(&["-sS", &url]);
    assert_eq!(fetched.stderr.lines().count(), 1, "{}", fetched.stderr);
    assert!(
        fetched.stderr.contains("gave up after 4 attempts"),
        "{}",
        fetched.stderr
    );
    assert_eq!(fetch(&["-S", &url]).stderr.lines().count(), 4);
}

#[test]
fn remote_name_takes_the_file_name_from_the_url() {
    let folder = tempfile::tempdir().unwrap();
    let server = answer(200, &[], "body");
    let run = |url: &str| {
        let child = command(&["-O", url]).current_dir(folder.path()).spawn();
        finish(child.unwrap())
    };
    assert_eq!(run(&server.url("/a/b%20c.txt?q=/d")).status, 0);
    assert_eq!(entries(folder.path()), ["b%20c.txt"]);
    for path in ["/", "/a/"] {
        let fetched = run(&server.url(path));
        assert_eq!(fetched.status, 2);
        assert!(fetched.stderr.contains("use -o FILE"), "{}", fetched.stderr);
    }
    assert_eq!(run(&server.url("/a/..")).status, 2);
    assert_eq!(run(&server.url("/a/-")).status, 0);
    assert_eq!(
        entries(folder.path()),
        ["-", "b%20c.txt"],
        "not standard output"
    );
    // As in curl, the name is as typed; the server gets it percent-encoded.
    assert_eq!(run(&server.url("/a/größe 1.txt#top")).status, 0);
    assert!(folder.path().join("größe 1.txt").exists());
    assert_eq!(
        server.seen().last().unwrap().path(),
        "/a/gr%C3%B6%C3%9Fe%201.txt"
    );
    assert_eq!(run(&server.url("/a\\c\td")).status, 0);
    assert!(folder.path().join("cd").exists(), "as the URL is read");
}

#[test]
fn head_sends_a_head_request_and_prints_the_head() {
    let server = answer(200, &[("x-a", "1")], "body");
    let fetched = fetch(&["-I", &server.url("/")]);
    assert_eq!(server.seen()[0].method(), "HEAD");
    assert_eq!(
        text(&fetched),
        "HTTP/1.1 200 OK\r\ncontent-length: 4\r\nx-a: 1\r\n\r\n"
    );
    let fetched = fetch(&["-I", &answer(404, &[], "").url("/")]);
    assert_eq!(fetched.status, 22);
    assert!(text(&fetched).starts_with("HTTP/1.1 404 "), "{fetched:?}");
}

#[test]
fn every_data_option_sends_the_same_body_as_curl() {
    let form = Some("application/x-www-form-urlencoded");
    let seen = asked(&["-d", "a=1", "--data-raw", "@b", "--data-urlencode", "c=d e"]);
    assert_eq!(
        (seen.method(), seen.body.clone()),
        ("POST", b"a=1&@b&c=d%20e".to_vec())
    );
    assert_eq!(asked(&["-d", "a"]).header("content-type"), form);
    let seen = asked(&["--json", "{\"a\":", "--json", "1}"]);
    assert_eq!((seen.method(), &seen.body[..]), ("POST", &b"{\"a\":1}"[..]));
    assert_eq!(seen.header("content-type"), Some("application/json"));
    assert_eq!(seen.header("accept"), Some("application/json"));
    let seen = asked(&["-G", "-d", "y=2", "--data-urlencode", "z=3 4"]);
    assert_eq!((seen.method(), seen.path()), ("GET", "/a/?x=1&y=2&z=3%204"));
    assert_eq!((seen.body.len(), seen.header("content-type")), (0, None));
    let seen = asked(&["-F", "a=1", "-F", "b=2;type=text/x"]);
    assert_eq!(seen.method(), "POST");
    let kind = seen.header("content-type").unwrap();
    assert!(kind.starts_with("multipart/form-data; boundary="), "{kind}");
    let body = String::from_utf8(seen.body.clone()).unwrap();
    assert!(
        body.contains("name=\"b\"\r\nContent-Type: text/x\r\n\r\n2\r\n"),
        "{body}"
    );
    let seen = asked(&["-F", "a=1", "-H", "Content-Type: multipart/x"]);
    let kind = seen.header("content-type").unwrap();
    let boundary = kind.strip_prefix("multipart/x; boundary=").unwrap();
    let body = String::from_utf8(seen.body.clone()).unwrap();
    assert!(body.starts_with(&format!("--{boundary}\r\n")), "{body}");
}

#[test]
fn upload_file_sends_a_put_with_the_file_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a b.txt");
    for length in [4, 2 << 20] {
        let contents = vec![b'x'; length];
        fs::write(&file, &contents).unwrap();
        let seen = asked(&["-T", file.to_str().unwrap()]);
        assert_eq!((seen.method(), seen.path()), ("PUT", "/a/a%20b.txt?x=1"));
        assert!(seen.body == contents);
    }
    let server = answer(200, &[], "");
    let mut child = command(&["-T", "-", &server.url("/a/")])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"in").unwrap();
    assert_eq!(finish(child).status, 0);
    assert_eq!(
        (server.seen()[0].path(), &server.seen()[0].body[..]),
        ("/a/", &b"in"[..])
    );
}

#[test]
fn header_options_set_their_header_fields() {
    let seen = asked(&["-A", "me/1", "-e", "http://r/", "-u", "user:pass"]);
    assert_eq!(seen.header("user-agent"), Some("me/1"));
    assert_eq!(seen.header("referer"), Some("http://r/"));
    assert_eq!(seen.header("authorization"), Some("Basic dXNlcjpwYXNz"));
    // Credentials of a URL are sent, and removed from it.
    let server = answer(200, &[], "");
    let url = server.url("/").replace("http://", "http://user:pass@");
    assert_eq!(fetch(&[&url]).status, 0);
    assert_eq!(
        server.seen()[0].header("authorization"),
        Some("Basic dXNlcjpwYXNz")
    );
    assert!(!server.seen()[0].head.contains('@'));
}

#[test]
fn limits_accept_the_option_names_of_curl() {
    let busy = || answer(503, &[], "");
    let server = busy();
    let quick = ["fetch", "--initial", "1ms", "--jitter", "none"];
    let mut child = support::relent(&[&quick[..], &["--retry", "2", &server.url("/")]].concat());
    child.env("NO_PROXY", "*");
    assert_eq!(finish(child.spawn().unwrap()).status, 22);
    assert_eq!(server.count(), 3);
    let silent = Server::script([Step::Stall(Vec::new())]);
    for time in ["0.2", "200ms"] {
        let fetched = fetch(&["-m", time, &silent.url("/")]);
        assert_eq!(fetched.status, 28, "{}", fetched.stderr);
    }
}

#[test]
fn repeatable_permits_retries_of_any_method() {
    let server = Server::script([
        Step::Close(Vec::new()),
        Step::Answer(response(200, &[], "")),
    ]);
    let fetched = fetch(&["--repeatable", "-d", "x", &server.url("/")]);
    assert_eq!(
        (fetched.status, server.count()),
        (0, 2),
        "{}",
        fetched.stderr
    );
}

#[test]
fn verbose_shows_heads_without_credentials() {
    let fields = [("set-cookie", "hunter2"), ("x-seen", "yes")];
    let server = answer(200, &fields, "body");
    let url = server
        .url("/x?token=hunter2")
        .replace("http://", "http://a:hunter2@");
    let args = [
        "-v",
        "-H",
        "Cookie: hunter2",
        "-H",
        "X-Api-Key: hunter2",
        "-H",
        "X-A: b",
        &url,
    ];
    let fetched = fetch(&args);
    assert_eq!((fetched.status, text(&fetched)), (0, "body"));
    for line in [
        "> GET http://",
        "> x-a: b",
        "< HTTP/1.1 200 OK",
        "< x-seen: yes",
    ] {
        assert!(fetched.stderr.contains(line), "{}", fetched.stderr);
    }
    assert!(!fetched.stderr.contains("hunter2"), "{}", fetched.stderr);
}

#[test]
fn write_out_fills_in_the_results_of_the_fetch() {
    let format = "%{http_code} %{num_retries} %{size_download} %{content_type} %{exitcode}\\n";
    let server = Server::script([
        Step::Answer(response(503, &[], "")),
        Step::Answer(response(200, &[("content-type", "text/x")], "body")),
    ]);
    let fetched = fetch(&["-s", "-w", format, &server.url("/")]);
    assert_eq!(text(&fetched), "body200 1 4 text/x 0\n");
    let fetched = fetch(&["-s", "-w", "%{http_code}", "http://127.0.0.1:1/"]);
    assert_eq!((fetched.status, text(&fetched)), (7, "000"));
    let fetched = fetch(&["-w", "%{no_such}", "http://127.0.0.1:1/"]);
    assert_eq!(fetched.status, 2);
}

#[test]
fn write_out_describes_the_last_response_even_if_it_breaks() {
    let format = "%{http_code} %{size_download} %{content_type} %{exitcode}\\n";
    let cut = response(200, &[("content-type", "text/x")], "body");
    let cut = || Step::Close(cut[..cut.len() - 1].to_vec());
    let args = ["-s", "--max-retries", "1", "-o", "/dev/null", "-w", format];
    let ends = |steps: [Step; 2]| {
        let server = Server::script(steps);
        text(&fetch(&[&args[..], &[&server.url("/")]].concat())).to_owned()
    };
    assert_eq!(ends([cut(), cut()]), "200 3 text/x 18\n");
    let nothing = || Step::Close(Vec::new());
    assert_eq!(ends([cut(), nothing()]), "000 0  56\n");
    let refusal = Step::Answer(response(503, &[("content-type", "text/y")], "no"));
    assert_eq!(ends([refusal, nothing()]), "000 0  56\n");
}

#[test]
fn an_unsupported_curl_option_is_refused_with_its_replacement() {
    for (args, says) in [
        (&["--compressed"][..], "-H 'Accept-Encoding: gzip'"),
        (&["--retry-delay", "3"], "--initial"),
        (&["--retry-max-time=3"], "--deadline"),
        (&["-N"], "--stream"),
        (&["-b", "a=b"], "-H 'Cookie: "),
        (&["-#"], "leave it out"),
    ] {
        let fetched = fetch(&[args, &["http://127.0.0.1:1/"]].concat());
        assert_eq!((fetched.status, fetched.stderr.lines().count()), (2, 1));
        assert!(fetched.stderr.contains(says), "{}", fetched.stderr);
    }
}

#[test]
fn a_redirect_that_is_not_followed_is_reported() {
    let server = answer(302, &[("location", "/new")], "moved");
    let fetched = fetch(&[&server.url("/")]);
    assert_eq!((fetched.status, text(&fetched)), (0, "moved"));
    assert!(
        fetched
            .stderr
            .contains("redirect (302) not followed; use -L to follow it"),
        "{}",
        fetched.stderr
    );
    assert_eq!(fetch(&["-s", &server.url("/")]).stderr, "");
    // A status that no client follows by itself.
    let folder = tempfile::tempdir().unwrap();
    let server = answer(300, &[("location", "/new")], "choose");
    let name = folder.path().join("file");
    let fetched = fetch(&["-L", "-o", name.to_str().unwrap(), &server.url("/")]);
    assert_eq!(fetched.status, 47);
    let says = "redirect (300) not followed, the file is unchanged; no redirect with this status is followed";
    assert!(fetched.stderr.contains(says), "{}", fetched.stderr);
}

#[test]
fn an_invalid_form_field_is_a_usage_error_before_any_data_is_read() {
    for wrong in ["a", "=x", "a=b;type=x\ny"] {
        let fetched = fetch(&["-F", "f=@/no/such/file", "-F", wrong, "http://127.0.0.1:1/"]);
        assert_eq!(fetched.status, 2, "{wrong:?}: {}", fetched.stderr);
        assert!(fetched.stderr.contains("-F"), "{}", fetched.stderr);
    }
    let kind = "Content-Type: multipart/form-data; boundary=x";
    let fetched = fetch(&["-F", "f=@/no/such/file", "-H", kind, "http://127.0.0.1:1/"]);
    assert_eq!(fetched.status, 2, "{}", fetched.stderr);
    assert!(fetched.stderr.contains("boundary"), "{}", fetched.stderr);
}

#[test]
fn credentials_and_host_are_not_sent_to_another_origin() {
    let given = [
        "-L",
        "-H",
        "Host: by.hand",
        "-H",
        "Authorization: secret",
        "-H",
        "Cookie: secret",
        "-H",
        "X-Other: stays",
    ];
    for status in [301, 302, 303, 307, 308] {
        let last = answer(200, &[], "here");
        let target = last.url("/new");
        let first = Server::answering(move |index, _| {
            let to = if index == 0 { "/same" } else { &target };
            Step::Answer(response(status, &[("location", to)], "moved"))
        });
        let fetched = fetch(&[&given[..], &["-d", "x", &first.url("/")]].concat());
        assert_eq!(
            (fetched.status, text(&fetched)),
            (0, "here"),
            "{}",
            fetched.stderr
        );
        // Within the origin the fields are sent.
        for seen in first.seen() {
            assert_eq!(seen.header("host"), Some("by.hand"));
            assert_eq!(seen.header("authorization"), Some("secret"));
        }
        let seen = &last.seen()[0];
        assert_eq!(seen.header("host"), Some(&*last.address.to_string()));
        assert_eq!(
            (seen.header("authorization"), seen.header("cookie")),
            (None, None)
        );
        assert_eq!(seen.header("x-other"), Some("stays"));
        let again = matches!(status, 307 | 308);
        assert_eq!(seen.method(), if again { "POST" } else { "GET" });
        assert_eq!(seen.body, if again { &b"x"[..] } else { b"" });
    }
}

/// The 303 turns the completed POST into a GET; a 307 after it repeats that GET.
#[test]
fn a_post_turned_into_a_get_stays_a_get_at_another_origin() {
    for moved in [301, 302, 303] {
        for host in [&[][..], &["-H", "Host: by.hand"]] {
            let last = answer(200, &[], "here");
            let target = last.url("/new");
            let first = Server::answering(move |index, _| {
                let (status, to) = match index {
                    0 => (moved, "/same"),
                    _ => (307, &*target),
                };
                Step::Answer(response(status, &[("location", to)], ""))
            });
            let fetched = fetch(&[&["-L", "-d", "x", &first.url("/")][..], host].concat());
            assert_eq!(fetched.status, 0, "{}", fetched.stderr);
            let seen = &last.seen()[0];
            assert_eq!((seen.method(), &*seen.body), ("GET", &b""[..]), "{moved}");
        }
    }
}

/// A failure after the redirect is retried at its target: the POST before it was processed.
#[test]
fn redirects_with_a_custom_host_do_not_repeat_the_post() {
    let last = Server::script([
        Step::Close(Vec::new()),
        Step::Answer(response(200, &[], "here")),
    ]);
    let first = answer(303, &[("location", &last.url("/new"))], "");
    let args = ["-L", "-H", "Host: by.hand", "-d", "x", &first.url("/")];
    let fetched = fetch(&args);
    assert_eq!(
        (fetched.status, text(&fetched)),
        (0, "here"),
        "{}",
        fetched.stderr
    );
    assert_eq!((first.count(), last.count()), (1, 2));
    let circle = Server::answering(|_, seen| {
        let port = seen.header("x-port").unwrap().to_owned();
        let other = match seen.header("host").unwrap().starts_with("localhost") {
            true => format!("http://127.0.0.1:{port}/"),
            false => format!("http://localhost:{port}/"),
        };
        Step::Answer(response(302, &[("location", &other)], ""))
    });
    let port = format!("X-Port: {}", circle.address.port());
    let fetched = fetch(&["-L", "-H", "Host: by.hand", "-H", &port, &circle.url("/")]);
    assert_eq!(
        (fetched.status, circle.count()),
        (47, 2),
        "{}",
        fetched.stderr
    );
}

#[test]
fn data_of_a_file_follows_a_redirect() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&vec![b'x'; 3 << 20]).unwrap();
    let data = format!("@{}", file.path().display());
    for (status, args, methods) in [
        (307, ["-T", &data[1..]], ["PUT", "PUT"]),
        (302, ["-T", &data[1..]], ["PUT", "PUT"]),
        (308, ["-d", &data], ["POST", "POST"]),
        (302, ["-d", &data], ["POST", "GET"]),
    ] {
        let server = Server::answering(move |_, seen| match seen.path() {
            "/from" => Step::Answer(response(status, &[("location", "/to")], "")),
            _ => Step::Answer(response(200, &[], "done")),
        });
        let fetched = fetch(&[&["-L"][..], &args, &[&server.url("/from")]].concat());
        assert_eq!(
            (fetched.status, &*fetched.stdout),
            (0, &b"done"[..]),
            "{status} {args:?}"
        );
        for (seen, method) in server.seen().iter().zip(methods) {
            let length = if method == "GET" { 0 } else { 3 << 20 };
            assert!(
                seen.head.starts_with(&format!("{method} /")),
                "{}",
                seen.head
            );
            assert_eq!(seen.body.len(), length, "{status} {args:?}");
        }
    }
}

#[test]
fn the_progress_bar_is_correct_after_a_resume() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, vec![b'x'; 50_000_000]).unwrap();
    let server = Server::answering(move |_, seen| {
        let first = seen.range_start().unwrap();
        let fields = format!("content-range: bytes {first}-50000999/50001000\r\n");
        let head = format!("HTTP/1.1 206 x\r\ncontent-length: 1000\r\n{fields}\r\n");
        let bytes = [head.into_bytes(), vec![b'x'; 1000]].concat();
        Step::Slow(std::time::Duration::from_millis(150), 70, bytes)
    });
    let (file, url) = (file.to_str().unwrap(), server.url("/"));
    let seen = on_terminal(
        &[("NO_PROXY", "*")],
        &["fetch", "-C", "-", "-o", file, &url],
    );
    assert!(seen.contains("47.68 MiB/47.68 MiB"), "{seen:?}");
    // 70 bytes every 150 ms are below 1 KiB/s on any machine.
    assert!(seen.contains(" B/s, "), "{seen:?}");
    assert!(
        !seen.contains("MiB/s") && !seen.contains("KiB/s"),
        "{seen:?}"
    );
}

#[test]
fn max_time_zero_is_no_limit_as_in_curl() {
    let policy = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    std::fs::write(policy.path(), "deadline = '20ms'\nbackoff = 'none'\n").unwrap();
    let policy = ["--policy", policy.path().to_str().unwrap()];
    let late = Step::Slow(
        Duration::from_millis(300),
        usize::MAX,
        response(200, &[], "late"),
    );
    for (limit, status) in [(&[][..], 28), (&["-m", "0"], 0), (&["--max-time", "0s"], 0)] {
        let server = Server::script([late.clone()]);
        let url = server.url("/");
        // Without the quick retries of the other tests, which this policy does not allow.
        let args = [&["fetch", "-s"], &policy[..], limit, &[&url]].concat();
        let fetched = finish(relent(&args).spawn().unwrap());
        assert_eq!(fetched.status, status, "{limit:?}: {}", fetched.stderr);
    }
}

#[test]
fn a_fetch_signal_is_handled_while_the_trace_pipe_has_no_reader() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let pipe = pipe.to_str().unwrap();
    for option in ["--cacert", "--cert", "--trace", "-o"] {
        let child = background(&[option, pipe, "http://localhost:1/"]);
        // Once it handles signals, it waits for the pipe only.
        let status = format!("/proc/{}/status", child.id());
        until(|| listens_to_sigint(&std::fs::read_to_string(&status).unwrap()));
        interrupt(&child);
        assert_eq!(finish(child).status, 130, "{option}");
    }
}

fn listens_to_sigint(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = u64::from_str_radix(mask.unwrap().trim(), 16).unwrap();
    mask >> (nix::sys::signal::Signal::SIGINT as u32 - 1) & 1 == 1
}

#[test]
fn remote_time_sets_the_file_time_to_last_modified() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let name = file.to_str().unwrap();
    let dated = [("last-modified", "Wed, 01 Jan 2020 00:00:00 GMT")];
    let at = || fs::metadata(&file).unwrap().modified().unwrap();
    let seconds = |time: std::time::SystemTime| {
        time.duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs()
    };
    let url = answer(200, &dated, "body").url("/");
    assert_eq!(fetch(&["-R", "-o", name, &url]).status, 0);
    assert_eq!(seconds(at()), 1_577_836_800);
    assert_eq!(fetch(&["-o", name, &url]).status, 0);
    assert!(seconds(at()) > 1_577_836_800);
    // Without a valid date, the file gets the current time.
    for fields in [&[][..], &[("last-modified", "yesterday")]] {
        let url = answer(200, fields, "body").url("/");
        assert_eq!(fetch(&["-R", "-o", name, &url]).status, 0);
        assert!(seconds(at()) > 1_577_836_800);
    }
}

#[test]
fn limit_rate_and_max_filesize_apply_to_a_body() {
    let body = "x".repeat(600);
    let url = answer(200, &[], &body).url("/");
    let began = std::time::Instant::now();
    let fetched = fetch(&["--limit-rate", "1k", &url]);
    assert_eq!((fetched.status, fetched.stdout.len()), (0, 600));
    assert!(began.elapsed() >= Duration::from_millis(550));
    for (size, status) in [("600", 0), ("599", 63), ("0.5k", 63), ("1M", 0), ("0", 0)] {
        let fetched = fetch(&["--max-filesize", size, &url]);
        assert_eq!(fetched.status, status, "{size}: {}", fetched.stderr);
        assert_eq!(fetched.stdout.is_empty(), status != 0);
    }
    // The limit applies to the requested body only.
    let missing = answer(404, &[], "not here").url("/");
    let fetched = fetch(&["--max-filesize", "3", &missing]);
    assert_eq!((fetched.status, text(&fetched)), (22, "not here"));
    for wrong in ["", "-1", "1x", "k", "1.5.5", "99999999999G", "1.1234567"] {
        let fetched = fetch(&["--max-filesize", wrong, &url]);
        assert_eq!(fetched.status, 2, "{wrong}: {}", fetched.stderr);
    }
    assert_eq!(fetch(&["--limit-rate", "0", &url]).status, 2);
}

#[test]
fn refused_curl_options_and_values_are_named_in_the_error() {
    for (args, says) in [
        (
            &["-K", "file"][..],
            "fetch has no -K: write the options on the command line",
        ),
        (&["--config", "file"], "--policy"),
        (
            &["--path-as-is"],
            "fetch has no --path-as-is: /../ in a path is resolved",
        ),
        (&["--resolve", "a"], "use HOST:PORT:ADDRESS"),
        (
            &["--resolve", "127.0.0.1:7:127.0.0.1"],
            "is requested at port 1,",
        ),
    ] {
        let fetched = fetch(&[args, &["http://127.0.0.1:1/"]].concat());
        assert_eq!(fetched.status, 2, "{args:?}: {}", fetched.stderr);
        assert!(
            fetched.stderr.contains(says),
            "{args:?}: {}",
            fetched.stderr
        );
    }
}

#[test]
fn a_missing_unix_socket_is_named() {
    let args = [
        "--unix-socket",
        "/no/such/socket",
        "-x",
        "http://127.0.0.1:1",
        "http://a.example/",
    ];
    let fetched = fetch(&args);
    assert_eq!(fetched.status, 7, "{}", fetched.stderr);
    let says = "(a.example:80 at the socket /no/such/socket)";
    assert!(fetched.stderr.contains(says), "{}", fetched.stderr);
}
