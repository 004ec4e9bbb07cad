//! Compares `relent fetch` with curl, by the table in `curl_table/`: exit status, standard output, FILE, and whether
//! there is a message on standard error. docs/curl.md shows the table.
//!
//! `RELENT_RECORD=1 cargo test -p relent-cli --test it fetch_curl` rewrites `results.toml` and docs/curl.md. It
//! needs curl 7.88; with another version the recorded results of curl are used.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde::{Deserialize, Serialize};

use crate::fetch_support::{finish, refused, tls};
use crate::scripted::{Seen, Server, Step};
use crate::support::{RELENT, run};

const CASES: &str = "tests/curl_table/cases.toml";
const RESULTS: &str = "tests/curl_table/results.toml";
const PAGE: &str = "../../docs/curl.md";
const VERSION: &str = "curl 7.88";

/// Placeholders for addresses and paths in the cases and on the page.
const PLACES: [(&str, &str); 11] = [
    ("{url}", "URL"),
    ("{port}", "PORT"),
    ("{refused}", "REFUSED"),
    ("{socks}", "SOCKS"),
    ("{tls}", "https://TLS"),
    ("{cacert}", "CERTIFICATE"),
    ("{socket}", "SOCKET"),
    ("{data}", "DATA"),
    ("{file}", "FILE"),
    ("{dir}", "FOLDER"),
    ("?{token}", ""),
];

#[derive(Deserialize)]
struct Table {
    /// The options that curl does not have.
    own: Vec<String>,
    case: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    option: String,
    case: String,
    args: Vec<String>,
    /// The contents of FILE before the case.
    before: Option<String>,
    /// The reason why relent differs from curl.
    why: Option<String>,
}

impl Case {
    fn name(&self) -> String {
        format!("{}: {}", self.option, self.case)
    }
}

#[derive(Deserialize, Serialize, Default)]
struct Results {
    /// The results by name of the case.
    #[serde(default)]
    result: BTreeMap<String, Compared>,
}

#[derive(Clone, Deserialize, Serialize)]
struct Compared {
    curl: Outcome,
    /// `None` if it is the same as that of curl.
    relent: Option<Outcome>,
}

#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
struct Outcome {
    status: i32,
    stdout: String,
    /// Whether standard error has more than a progress meter.
    says: bool,
    file: Option<String>,
}

/// The servers and files for the cases.
struct Place {
    server: Server,
    tls: String,
    cacert: tempfile::NamedTempFile,
    refused: String,
    /// A SOCKS proxy that takes no authentication method.
    socks: String,
    folder: tempfile::TempDir,
}

impl Place {
    fn open() -> Self {
        let (tls, cacert) = tls();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("data"), "a=1\nb=2\n").unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(&ok(""));
            }
        });
        let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
        let socks = proxy.local_addr().unwrap().to_string();
        thread::spawn(move || {
            for stream in proxy.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 64]);
                let _ = stream.write_all(&[5, 0xff]);
            }
        });
        let busy = Mutex::new(HashMap::new());
        let server = Server::answering(move |_, seen| {
            let mut busy = busy.lock().unwrap();
            step(seen, busy.entry(seen.path().to_owned()).or_default())
        });
        Self {
            server,
            tls,
            cacert,
            refused: refused().to_string(),
            socks,
            folder,
        }
    }

    fn fill(&self, text: &str, dir: &Path, token: &str) -> String {
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let shared = self.folder.path();
        [
            ("{url}", self.server.url("")),
            ("{port}", self.server.address.port().to_string()),
            ("{refused}", self.refused.clone()),
            ("{socks}", self.socks.clone()),
            ("{tls}", self.tls.clone()),
            ("{cacert}", path(self.cacert.path())),
            ("{socket}", path(&shared.join("socket"))),
            ("{data}", path(&shared.join("data"))),
            ("{file}", path(&dir.join("out"))),
            ("{dir}", path(dir)),
            ("{token}", token.to_owned()),
        ]
        .iter()
        .fold(text.to_owned(), |text, (name, value)| {
            text.replace(name, value)
        })
    }

    /// Runs a program with a case.
    fn observe(&self, program: &str, case: &Case) -> Outcome {
        let dir = tempfile::tempdir().unwrap();
        if let Some(before) = &case.before {
            fs::write(dir.path().join("out"), before).unwrap();
        }
        let token = format!("{program}{}", dir.path().display());
        let mut command = Command::new(program);
        if program == RELENT {
            command.args([
                "fetch",
                "--initial",
                "1ms",
                "--max-delay",
                "1ms",
                "--jitter",
                "none",
            ]);
        } else {
            // This must be the first option; it ignores the user's configuration.
            command.arg("-q");
        }
        command.args(
            case.args
                .iter()
                .map(|arg| self.fill(arg, dir.path(), &token)),
        );
        for name in ["http_proxy", "https_proxy", "all_proxy", "no_proxy"] {
            command.env_remove(name).env_remove(name.to_uppercase());
        }
        for name in [
            "CURL_CA_BUNDLE",
            "SSL_CERT_FILE",
            "SSL_CERT_DIR",
            "RELENT_POLICY",
        ] {
            command.env_remove(name);
        }
        let command = command.current_dir(dir.path()).stdin(Stdio::null());
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let ran = finish(command.spawn().unwrap());
        let file = ["out", "ok"]
            .iter()
            .find_map(|name| fs::read_to_string(dir.path().join(name)).ok());
        Outcome {
            status: ran.status,
            stdout: String::from_utf8(ran.stdout).unwrap(),
            says: ran.stderr.split(['\n', '\r']).any(|line| !is_meter(line)),
            file,
        }
    }
}

/// Whether this is a line of curl's progress meter.
fn is_meter(line: &str) -> bool {
    let line = line.trim();
    // A message may follow on the line of the meter.
    !line.contains("curl: (")
        && (line.is_empty()
            || line.starts_with("% Total")
            || line.starts_with("Dload")
            || line.contains("--:--:--"))
}

fn ok(fields: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n{fields}\r\nhello\n").into_bytes()
}

fn redirect(status: &str, to: &str) -> Step {
    Step::Answer(
        format!("HTTP/1.1 {status}\r\nlocation: {to}\r\ncontent-length: 6\r\n\r\nmoved\n")
            .into_bytes(),
    )
}

/// The server's reaction to a request; `before`: the number of earlier requests to this path.
fn step(seen: &Seen, before: &mut u32) -> Step {
    *before += 1;
    if seen.method() == "CONNECT" {
        return Step::Answer(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n".to_vec());
    }
    let raw = |text: &str| Step::Close(text.as_bytes().to_vec());
    let path = seen.path();
    // A proxy gets an absolute URL.
    let path = path.strip_prefix("http://name.invalid").unwrap_or(path);
    match path.split('?').next().unwrap() {
        "/ok" | "/a/../ok" => Step::Answer(ok("content-type: text/plain\r\n")),
        "/dated" => Step::Answer(ok("last-modified: Wed, 01 Jan 2020 00:00:00 GMT\r\n")),
        "/404" => {
            Step::Answer(b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\n\r\ngone\n".to_vec())
        }
        "/moved" => redirect("302 Found", "/ok"),
        "/to-echo" => redirect("302 Found", "/echo"),
        "/loop" => redirect("307 Temporary Redirect", "/loop"),
        "/empty" => redirect("302 Found", ""),
        "/no-location" => {
            Step::Answer(b"HTTP/1.1 302 Found\r\ncontent-length: 6\r\n\r\nmoved\n".to_vec())
        }
        "/javascript" => redirect("302 Found", "javascript:alert(1)"),
        "/cut" => raw("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhel"),
        "/close" => raw(""),
        "/garbage" => raw("<html>hello</html>\r\n\r\n"),
        "/bad-length" => raw("HTTP/1.1 200 OK\r\ncontent-length: five\r\n\r\nhello"),
        "/two-lengths" => {
            raw("HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello\n")
        }
        "/coding" => raw("HTTP/1.1 200 OK\r\ntransfer-encoding: unknown\r\n\r\nhello\n"),
        "/bad-chunk" => raw("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nhello\r\n"),
        "/folded" => raw("HTTP/1.1 200 OK\r\nx-a: one\r\n two\r\n\r\n"),
        "/no-length" => raw("HTTP/1.1 200 OK\r\n\r\nhello\n"),
        "/stall" => Step::Stall(Vec::new()),
        "/busy" if *before == 1 => {
            Step::Answer(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n".to_vec())
        }
        "/busy" => Step::Answer(ok("")),
        "/range" => match seen.range_start() {
            Some(3) => Step::Answer(
                b"HTTP/1.1 206 Partial Content\r\netag: \"1\"\r\ncontent-range: bytes 3-5/6\r\n\
                  content-length: 3\r\n\r\nlo\n"
                    .to_vec(),
            ),
            _ => Step::Answer(ok("etag: \"1\"\r\n")),
        },
        path if path.starts_with("/echo") => echo(seen),
        path => panic!("{path}"),
    }
}

/// Responds with the parts of the request that show the effect of an option.
fn echo(seen: &Seen) -> Step {
    let mut text = format!("{} {}\n", seen.method(), seen.path());
    for line in seen.head.lines().skip(1) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let name = name.to_ascii_lowercase();
        let tells = match name.as_str() {
            "accept" => value.trim() != "*/*",
            "user-agent" => !value.contains('/'),
            _ => ["authorization", "content-type", "referer", "x-a"].contains(&name.as_str()),
        };
        if tells {
            // The boundary of a form is random.
            let value = value.split(';').next().unwrap().trim();
            writeln!(text, "{name}: {value}").unwrap();
        }
    }
    if !text.contains("multipart") {
        text.push_str(&String::from_utf8_lossy(&seen.body));
    }
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", text.len());
    Step::Answer((head + &text).into_bytes())
}

fn curl_is_the_recorded_one() -> bool {
    let version = Command::new("curl").arg("--version").output();
    version.is_ok_and(|version| version.stdout.starts_with(VERSION.as_bytes()))
}

/// Runs each case with both programs; without curl if another version is installed.
fn observe_all(cases: &[Case]) -> Vec<(Option<Outcome>, Outcome)> {
    let place = Place::open();
    let has_curl = curl_is_the_recorded_one();
    let next = AtomicUsize::new(0);
    let observed = Mutex::new(BTreeMap::new());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(index) else {
                        return;
                    };
                    let curl = has_curl.then(|| place.observe("curl", case));
                    let relent = place.observe(RELENT, case);
                    observed.lock().unwrap().insert(index, (curl, relent));
                }
            });
        }
    });
    observed.into_inner().unwrap().into_values().collect()
}

/// A file, by its path from this crate.
fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The contents of the file; empty if it does not exist.
fn read(path: &str) -> String {
    fs::read_to_string(at(path)).unwrap_or_default()
}

#[test]
fn fetch_behaves_like_curl_or_the_table_explains_the_difference() {
    let table: Table = toml::from_str(&read(CASES)).unwrap();
    let recorded: Results = toml::from_str(&read(RESULTS)).unwrap();
    let observed = observe_all(&table.case);
    let records = std::env::var_os("RELENT_RECORD").is_some();
    let mut results = Results::default();
    let mut wrong = String::new();
    for (case, (curl, relent)) in table.case.iter().zip(observed) {
        let name = case.name();
        let known = recorded.result.get(&name);
        let curl = match (curl, known) {
            (Some(curl), Some(known)) if curl != known.curl && !records => {
                writeln!(wrong, "{name}\n  curl: {curl:?}\n  not {:?}", known.curl).unwrap();
                curl
            }
            (Some(curl), _) => curl,
            (None, Some(known)) => known.curl.clone(),
            (None, None) => {
                writeln!(wrong, "{name}: no result of curl is recorded").unwrap();
                continue;
            }
        };
        let expected = known.map(|known| known.relent.as_ref().unwrap_or(&known.curl));
        if !records && expected != Some(&relent) {
            writeln!(wrong, "{name}\n  relent: {relent:?}\n  not {expected:?}").unwrap();
        }
        if (curl == relent) == case.why.is_some() {
            writeln!(
                wrong,
                "{name}\n  relent: {relent:?}\n  curl: {curl:?}\n  why: {:?}",
                case.why
            )
            .unwrap();
        }
        let relent = (relent != curl).then_some(relent);
        results.result.insert(name, Compared { curl, relent });
    }
    let page = page(&table, &results);
    if records {
        fs::write(at(RESULTS), toml::to_string(&results).unwrap()).unwrap();
        fs::write(at(PAGE), page).unwrap();
    } else if read(PAGE) != page {
        wrong.push_str("docs/curl.md is not what RELENT_RECORD=1 writes");
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_option_of_fetch_is_in_the_table() {
    let table: Table = toml::from_str(&read(CASES)).unwrap();
    let help = run(&["fetch", "--help"]).stdout;
    let options = help
        .lines()
        .map(str::trim_start)
        .filter(|line| line.starts_with('-'));
    let long = |line: &str| {
        let mut words = line.split([' ', ',', '=']);
        words.find(|word| word.starts_with("--")).map(str::to_owned)
    };
    let known = |option: &String| {
        table.own.contains(option)
            || table
                .case
                .iter()
                .any(|case| case.option.split(", ").any(|name| name == option))
    };
    let options: Vec<_> = options.filter_map(long).collect();
    assert!(options.len() > 50, "{options:?}");
    let missing: Vec<_> = options.iter().filter(|option| !known(option)).collect();
    assert!(
        missing.is_empty(),
        "add a case for {missing:?} to {CASES}, or the names to its list `own`"
    );
    for own in &table.own {
        assert!(options.contains(own), "{own} is no option of relent fetch");
    }
}

/// Generates docs/curl.md.
fn page(table: &Table, results: &Results) -> String {
    let mut page = format!(
        "# relent fetch and curl\n\n\
         `relent fetch` has many options of curl, but it is another program. Three differences apply to every use:\n\n\
         - **Retries.** `relent fetch` retries without `--retry`: up to ten times, by the preset `patient`. `--max-retries 0`\n\
         \x20 turns retries off.\n\
         - **Safety.** After an ambiguous failure, such as a timeout, `relent fetch` repeats a POST only with an idempotency\n\
         \x20 key or `--repeatable`. `curl --retry` repeats it in any case.\n\
         - **Output.** Standard output gets a body when it is complete. Exceptions are `--stream`, a body longer than\n\
         \x20 `--max-buffer` (1 GiB), and a body above 1 MiB that `relent fetch` can resume.\n\n\
         The tables compare single cases with {VERSION}. The test `fetch_curl` runs every case, and generates this page.\n\n\
         - **A result** is the exit status, followed by the contents of standard output and FILE. \"A message\" means that\n\
         \x20 standard error has text other than a progress meter.\n\
         - **⏎** is a line feed.\n\
         - **URL** is a server that responds with `hello` and a line feed, unless the case says otherwise.\n\
         - **FILE**, **DATA** and other words in capitals stand for paths and addresses.\n\
         - **Command lines** are shown without the quotes that a shell needs.\n\n\
         Any option of curl that is not on this page is an error with exit status 2. The message names a replacement, if any.\n\n\
         ## Intended differences\n\n\
         | option | case | command line | curl | relent fetch | reason |\n|---|---|---|---|---|---|\n"
    );
    let mut same = String::new();
    for case in &table.case {
        let Some(result) = results.result.get(&case.name()) else {
            continue;
        };
        let command = PLACES
            .iter()
            .fold(case.args.join(" "), |text, (name, shown)| {
                text.replace(name, shown)
            });
        let (option, name, curl) = (&case.option, &case.case, show(&result.curl));
        let option = match option.starts_with('-') {
            true => format!("`{option}`"),
            false => option.clone(),
        };
        match (&result.relent, &case.why) {
            (Some(relent), Some(why)) => {
                let relent = show(relent);
                let line =
                    format!("| {option} | {name} | `{command}` | {curl} | {relent} | {why} |\n");
                page.push_str(&line);
            }
            _ => writeln!(same, "| {option} | {name} | `{command}` | {curl} |").unwrap(),
        }
    }
    page.push_str(
        "\n## The same in both\n\n| option | case | command line | both |\n|---|---|---|---|\n",
    );
    page.push_str(&same);
    page.push_str(
        "\n## Options that curl does not have\n\n`relent fetch --help` explains these options:\n\n",
    );
    let own: Vec<_> = table
        .own
        .iter()
        .map(|option| format!("`{option}`"))
        .collect();
    page.push_str(&format!("{}.\n", own.join(", ")));
    page
}

/// Formats an outcome for a table cell.
fn show(outcome: &Outcome) -> String {
    let text = |text: &str| {
        let text = text
            .replace('\r', "")
            .replace('\n', "⏎")
            .replace('|', "\\|");
        format!("`{text}`")
    };
    let mut cell = format!("{}", outcome.status);
    if !outcome.stdout.is_empty() {
        write!(cell, ", prints {}", text(&outcome.stdout)).unwrap();
    }
    match &outcome.file {
        Some(file) if file.is_empty() => cell.push_str(", FILE is empty"),
        Some(file) => write!(cell, ", FILE is {}", text(file)).unwrap(),
        None => {}
    }
    if outcome.says {
        cell.push_str(", a message");
    }
    cell
}
