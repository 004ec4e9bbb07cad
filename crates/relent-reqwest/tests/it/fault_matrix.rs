//! Every fault with every request, over real sockets. The function [`expected`] derives the results from the rules
//! for repeatable requests and for the classes of failures, independently of the code under test.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use relent::policy::{Pattern, PolicyBuilder};
use relent::trace::TraceEntry;
use relent::{Backoff, Jitter, Policy, StopReason};
use relent_reqwest::default_builder;
use relent_reqwest::{Client, Error};
use tokio::task::spawn_blocking;

use crate::scripted::{self, Server, Step, cut, response};

/// The delay of the policy, without jitter.
const WAIT: Duration = Duration::from_millis(5);
/// Longer than any operation here takes, on any machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The delay that the servers ask for, longer than `WAIT`.
const HINT: Duration = Duration::from_millis(20);
const HINT_FIELD: (&str, &str) = ("retry-after-ms", "20");
fn policy() -> PolicyBuilder {
    Policy::builder(Backoff::constant(WAIT))
        .jitter(Jitter::None)
        .max_retries(3)
}

fn client(policy: PolicyBuilder) -> Client {
    let plain = || default_builder().no_proxy().tls_certs_only([]);
    Client::from_builder(plain, policy.build().unwrap())
        .unwrap()
        .traced()
}

/// A request of the matrix: its method, what makes it repeatable, and whether it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Column {
    method: &'static str,
    field: Option<(&'static str, &'static str)>,
    repeatable: bool,
}

const fn column(method: &'static str, repeatable: bool) -> Column {
    Column {
        method,
        field: None,
        repeatable,
    }
}

const KEYED: Column = Column {
    field: Some(("idempotency-key", "\"k\"")),
    ..column("POST", true)
};
const COLUMNS: [Column; 8] = [
    column("GET", true),
    column("HEAD", true),
    column("PUT", true),
    column("DELETE", true),
    column("POST", false),
    KEYED,
    column("PATCH", false),
    Column {
        field: Some(("if-match", "\"v1\"")),
        ..column("PATCH", true)
    },
];

/// The class of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rule {
    /// The server did not begin.
    NotProcessed,
    /// The request may have taken effect.
    Ambiguous,
    /// A retry cannot help.
    Permanent,
    /// A 409 with a delay: throttled if the request has a key, otherwise permanent.
    InFlight,
    /// The server sent a no-retry marker.
    DoNotRetry,
}

/// The result of one fault followed by a 200: the number of attempts, and the reason to stop.
fn expected(rule: Rule, column: Column) -> (u32, Option<StopReason>) {
    let again = match rule {
        Rule::NotProcessed => Ok(()),
        Rule::Ambiguous if column.repeatable => Ok(()),
        Rule::Ambiguous => Err(StopReason::NotRepeatable),
        Rule::InFlight if column == KEYED => Ok(()),
        Rule::InFlight | Rule::Permanent => Err(StopReason::Permanent),
        Rule::DoNotRetry => Err(StopReason::DoNotRetry),
    };
    match again {
        Ok(()) => (2, None),
        Err(reason) => (1, Some(reason)),
    }
}

/// A row of the matrix.
struct Fault {
    name: String,
    step: Step,
    rule: Rule,
    /// The final status if nothing follows; `None` if there is no response.
    status: Option<u16>,
    /// Whether the head of a good response arrives before the fault.
    in_body: bool,
    /// Whether only the length of the body is wrong, so that a response to HEAD has no fault.
    of_length: bool,
    hinted: bool,
    /// Whether the response is not valid HTTP, which is retried once.
    malformed: bool,
}

impl Fault {
    /// Whether it is a fault only if there is a body.
    const fn ends_in_body(&self) -> bool {
        self.in_body || self.of_length
    }
}

fn answered(status: u16, fields: &[(&str, &str)], rule: Rule) -> Fault {
    let name = format!("{status} {fields:?}");
    Fault {
        name,
        step: Step::Answer(response(status, fields, "no")),
        rule,
        status: Some(status),
        in_body: false,
        of_length: false,
        hinted: fields.contains(&HINT_FIELD),
        malformed: false,
    }
}

fn broken(name: &str, step: Step) -> Fault {
    Fault {
        name: name.to_owned(),
        step,
        rule: Rule::Ambiguous,
        status: None,
        in_body: false,
        of_length: false,
        hinted: false,
        malformed: false,
    }
}

fn statuses() -> Vec<Fault> {
    let mut rows = Vec::new();
    for status in [421, 425, 429] {
        rows.push(answered(status, &[], Rule::NotProcessed));
    }
    for status in [408, 429, 503] {
        rows.push(answered(status, &[HINT_FIELD], Rule::NotProcessed));
    }
    for status in [408, 503] {
        rows.push(answered(
            status,
            &[("x-should-retry", "true")],
            Rule::NotProcessed,
        ));
        rows.push(answered(
            status,
            &[("retry-after", "soon")],
            Rule::Ambiguous,
        ));
    }
    for status in [408, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529] {
        rows.push(answered(status, &[], Rule::Ambiguous));
    }
    // `Retry-After` does not prove that a gateway has not forwarded the request.
    for status in [500, 502, 504] {
        rows.push(answered(status, &[HINT_FIELD], Rule::Ambiguous));
    }
    for status in [
        400, 401, 403, 404, 405, 409, 410, 412, 413, 422, 431, 451, 501, 505, 511,
    ] {
        rows.push(answered(status, &[], Rule::Permanent));
    }
    rows.push(answered(409, &[HINT_FIELD], Rule::InFlight));
    for status in [429, 500, 503] {
        let fields = [("x-should-retry", "false"), ("retry-after-ms", "1")];
        rows.push(answered(status, &fields, Rule::DoNotRetry));
    }
    rows
}

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n";
const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

fn faults() -> Vec<Fault> {
    let mut rows = Vec::new();
    for (name, bytes) in [
        ("before the head", b"".as_slice()),
        ("within the status line", b"HTTP/1."),
        ("within the head", b"HTTP/1.1 200 OK\r\ncontent-le"),
        (
            "before the end of the head",
            b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n",
        ),
    ] {
        rows.push(broken(&format!("FIN {name}"), Step::Close(bytes.to_vec())));
        rows.push(broken(&format!("RST {name}"), Step::Reset(bytes.to_vec())));
        rows.push(broken(
            &format!("silence {name}"),
            Step::Stall(bytes.to_vec()),
        ));
    }
    for (name, bytes) in [
        ("another protocol", b"SSH-2.0-OpenSSH_9.2p1\r\n".as_slice()),
        ("zeroes", &[0; 64]),
        ("a TLS alert", b"\x15\x03\x01\x00\x02\x02\x28"),
        ("no status", b"HTTP/1.1 OK\r\n\r\n"),
    ] {
        rows.push(Fault {
            malformed: true,
            ..broken(name, Step::Close(bytes.to_vec()))
        });
    }
    for (name, bytes) in [
        (
            "two lengths",
            b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab".as_slice(),
        ),
        (
            "a length that is none",
            b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        ),
    ] {
        rows.push(Fault {
            of_length: true,
            ..broken(name, Step::Close(bytes.to_vec()))
        });
    }
    let mut chunk = CHUNKED.to_vec();
    chunk.extend_from_slice(b"5\r\nhel");
    let mut between = CHUNKED.to_vec();
    between.extend_from_slice(b"5\r\nhello\r\n");
    let mut wrong = CHUNKED.to_vec();
    wrong.extend_from_slice(b"xyz\r\n");
    for (name, bytes) in [
        ("after the head", HEAD.to_vec()),
        ("within the body", cut(200, &[], b"a body that is cut", 5)),
        ("within a chunk", chunk),
        ("between chunks", between),
        ("no size of a chunk", wrong),
    ] {
        for (how, step) in [
            ("FIN", Step::Close(bytes.clone())),
            ("RST", Step::Reset(bytes.clone())),
            ("silence", Step::Stall(bytes.clone())),
        ] {
            rows.push(Fault {
                status: Some(200),
                in_body: true,
                ..broken(&format!("{how} {name}"), step)
            });
        }
    }
    rows
}

/// Whether an attempt includes reading the body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scope {
    Head,
    Whole,
}

/// Sends a request of each column, each with its own client.
async fn each(
    server: &Server,
    scope: Scope,
    body: &'static [u8],
    policy: fn() -> PolicyBuilder,
) -> Vec<(Column, Outcome)> {
    let sent = COLUMNS.iter().enumerate().map(async |(index, column)| {
        let url = server.url(&format!("/{index}"));
        let mut request = client(policy()).request(column.method.parse().unwrap(), url);
        if let Some((name, value)) = column.field {
            request = request.header(name, value);
        }
        if !matches!(column.method, "GET" | "HEAD") {
            request = request.body(body);
        }
        if scope == Scope::Whole {
            request = request.whole_body();
        }
        let outcome = match request.send().await {
            Ok(response) => {
                let (status, summary) = (response.status().as_u16(), response.summary().clone());
                let text = (scope == Scope::Whole).then_some(response.text());
                let text = match text {
                    Some(text) => text.await.unwrap(),
                    None => String::new(),
                };
                Outcome::new(Some(status), summary, text)
            }
            Err(Error::GaveUp(gave_up)) => {
                Outcome::new(None, gave_up.summary().clone(), String::new())
            }
            Err(error) => panic!("{error}"),
        };
        (*column, outcome)
    });
    join_all(sent).await
}

struct Outcome {
    status: Option<u16>,
    reason: Option<StopReason>,
    attempts: u32,
    waits: Vec<Duration>,
    text: String,
}

impl Outcome {
    fn new(status: Option<u16>, summary: relent::Summary, text: String) -> Self {
        let trace = summary.trace.unwrap();
        Self {
            status,
            reason: summary.reason,
            attempts: summary.attempts,
            waits: trace.entries().filter_map(TraceEntry::wait).collect(),
            text,
        }
    }
}

/// Sends these responses, one sequence per path. The last step repeats.
fn for_each(steps: Vec<Step>) -> Server {
    let next = counter();
    Server::answering(move |_, seen| steps[next(seen.path()).min(steps.len() - 1)].clone())
}

/// Counts the earlier requests for a path.
fn counter() -> impl Fn(&str) -> usize + Send + Sync {
    let counts = Mutex::new(HashMap::<String, usize>::new());
    move |path| {
        let mut counts = counts.lock().unwrap();
        let count = counts.entry(path.to_owned()).or_default();
        *count += 1;
        *count - 1
    }
}

fn ok() -> Step {
    Step::Answer(response(200, &[], "done"))
}

/// Checks the delays that the client reports, and those that the server saw between requests.
fn check_gaps(server: &Server, column: Column, outcome: &Outcome, hinted: bool, what: &str) {
    let index = COLUMNS.iter().position(|other| *other == column).unwrap();
    let path = format!("/{index}");
    let seen: Vec<_> = server
        .seen()
        .into_iter()
        .filter(|seen| seen.path() == path)
        .collect();
    assert_eq!(seen.len(), outcome.attempts as usize, "{what}");
    for (pair, wait) in seen.windows(2).zip(&outcome.waits) {
        if hinted {
            // At least the server's delay, and at most twice as long (`retry_after_jitter` is 1).
            assert!((HINT..=2 * HINT).contains(wait), "{what}: {wait:?}");
        } else {
            assert_eq!(*wait, WAIT, "{what}");
        }
        assert!(pair[1].at - pair[0].at >= *wait, "{what}");
    }
    // Every attempt sends the same request.
    for again in &seen[1..] {
        assert_eq!(
            (&again.head, &again.body),
            (&seen[0].head, &seen[0].body),
            "{what}"
        );
    }
    for seen in &seen {
        assert_eq!(seen.header("idempotency-key").is_some(), column == KEYED);
    }
}

/// The fault, and then a good response.
fn once(fault: &Fault) -> Server {
    for_each(vec![fault.step.clone(), ok()])
}

async fn one_fault(server: &Server, fault: &Fault, scope: Scope, policy: fn() -> PolicyBuilder) {
    for (column, outcome) in each(server, scope, b"payload", policy).await {
        let what = format!("{}, {scope:?}: {column:?}", fault.name);
        // A response to HEAD is whole with its head. So is any response that counts by its head.
        let head = column.method == "HEAD";
        let unseen = fault.in_body && scope == Scope::Head || fault.ends_in_body() && head;
        let (attempts, reason) = match unseen {
            true => (1, None),
            false => expected(fault.rule, column),
        };
        let (status, text) = match (attempts, unseen) {
            (1, true) => (Some(200), None),
            (1, false) if fault.in_body => (None, None),
            (1, false) => (fault.status, fault.status.map(|_| "no")),
            _ => (Some(200), Some("done")),
        };
        assert_eq!(
            (outcome.attempts, outcome.reason),
            (attempts, reason),
            "{what}"
        );
        assert_eq!(outcome.status, status, "{what}");
        if scope == Scope::Whole && column.method != "HEAD" {
            assert_eq!(outcome.text, text.unwrap_or_default(), "{what}");
        }
        let unprocessed = u32::from(fault.rule == Rule::NotProcessed);
        assert!(column.repeatable || attempts - unprocessed <= 1, "{what}");
        check_gaps(server, column, &outcome, fault.hinted, &what);
    }
}

/// Whether the client waits until its timeout. It does not after invalid HTTP.
fn silent(fault: &Fault) -> bool {
    matches!(fault.step, Step::Stall(_)) && !fault.name.ends_with("no size of a chunk")
}

#[tokio::test]
async fn every_status_is_retried_exactly_as_specified() {
    for fault in statuses() {
        for scope in [Scope::Head, Scope::Whole] {
            one_fault(&once(&fault), &fault, scope, policy).await;
        }
    }
}

#[tokio::test]
async fn every_broken_response_is_retried_exactly_as_specified() {
    for fault in faults().iter().filter(|fault| !silent(fault)) {
        for scope in [Scope::Head, Scope::Whole] {
            one_fault(&once(fault), fault, scope, policy).await;
        }
    }
}

/// Blocks until this many requests have met a silent server.
fn await_silences(servers: &[Server], silences: usize) {
    let begun = Instant::now();
    loop {
        let met: usize = servers.iter().map(Server::silences).sum();
        if met == silences {
            return;
        }
        assert!(
            begun.elapsed() < TEST_TIMEOUT,
            "{met} of {silences} silences"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

// Time is paused while requests are sent, so that a slow machine uses up no attempt's time.
#[tokio::test(start_paused = true)]
async fn every_silent_server_is_retried_exactly_as_specified() {
    /// Only the attempt that meets the silence has this limit.
    const LIMIT: Duration = Duration::from_millis(500);
    fn impatient() -> PolicyBuilder {
        policy().attempt_timeout(LIMIT).rule(relent::policy::Rule {
            attempt_timeout: Some(TEST_TIMEOUT),
            ..relent::policy::Rule::on([Pattern::Timeout])
        })
    }
    let rows: Vec<Fault> = faults().into_iter().filter(silent).collect();
    assert!(rows.len() > 5);
    let scopes = [Scope::Head, Scope::Whole];
    let cases: Vec<(&Fault, Scope)> = rows
        .iter()
        .flat_map(|row| scopes.map(|scope| (row, scope)))
        .collect();
    let servers: Vec<Server> = cases.iter().map(|(row, _)| once(row)).collect();

    // Paused time does not advance by itself while a thread is blocked.
    let (watched, silences) = (servers.clone(), cases.len() * COLUMNS.len());
    let silence = spawn_blocking(move || await_silences(&watched, silences));
    let limit = async {
        silence.await.unwrap();
        tokio::time::sleep(LIMIT).await;
        // The servers measure the delays before the second attempts with a real clock.
        tokio::time::resume();
    };
    let requests = cases
        .iter()
        .zip(&servers)
        .map(|((row, scope), server)| one_fault(server, row, *scope, impatient));
    tokio::join!(limit, join_all(requests));
}

/// The result of a sequence: attempts, reason and last status.
fn expected_of_sequence(rows: &[&Fault], column: Column) -> (u32, Option<StopReason>, Option<u16>) {
    let mut perhaps_done = false;
    let mut once = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let attempts = index as u32 + 1;
        let end = |reason| (attempts, Some(reason), row.status);
        if let (_, Some(reason)) = expected(row.rule, column) {
            let unmet =
                row.status == Some(412) && column.field.is_some_and(|(name, _)| name == "if-match");
            return match unmet && perhaps_done {
                true => end(StopReason::OutcomeUnknown),
                false => end(reason),
            };
        }
        if attempts == 4 {
            return end(StopReason::RetriesExhausted);
        }
        // Invalid HTTP counts like 425: both are retried once.
        let counted = if row.malformed { Some(425) } else { row.status };
        if matches!(counted, Some(421 | 425)) {
            if once.contains(&counted) {
                return end(StopReason::RetriesExhausted);
            }
            once.push(counted);
        }
        perhaps_done |= row.rule == Rule::Ambiguous;
    }
    (rows.len() as u32 + 1, None, Some(200))
}

#[tokio::test]
async fn any_sequence_of_faults_ends_as_specified() {
    let rows: Vec<Fault> = statuses()
        .into_iter()
        .chain(
            faults()
                .into_iter()
                .filter(|fault| !silent(fault) && !fault.ends_in_body()),
        )
        .collect();
    let of = |status| rows.iter().find(|row| row.status == Some(status)).unwrap();
    let mut sequences: Vec<Vec<&Fault>> = vec![
        vec![],
        vec![of(429), of(500), of(502)],
        vec![of(500); 4],
        vec![of(429); 4],
        vec![of(421), of(421)],
        vec![of(425), of(429), of(425)],
        vec![of(421), of(425)],
        vec![of(500), of(412)],
        vec![of(429), of(412)],
        vec![of(500), of(429), of(412)],
    ];
    // A permanent fault ends the sequence, so a few of them suffice.
    let lasting: Vec<&Fault> = rows
        .iter()
        .filter(|row| matches!(row.rule, Rule::NotProcessed | Rule::Ambiguous))
        .collect();
    for draw in scripted::pattern(2026, 200).chunks(5) {
        let pick = |byte: &u8| lasting[usize::from(*byte) % lasting.len()];
        sequences.push(
            draw.iter()
                .map(pick)
                .take(usize::from(draw[0]) % 6)
                .collect(),
        );
    }
    for sequence in &sequences {
        let steps = sequence.iter().map(|row| row.step.clone()).chain([ok()]);
        let server = for_each(steps.collect());
        let names: Vec<&str> = sequence.iter().map(|row| row.name.as_str()).collect();
        for (column, outcome) in each(&server, Scope::Head, b"payload", policy).await {
            let ended = (outcome.attempts, outcome.reason, outcome.status);
            assert_eq!(
                ended,
                expected_of_sequence(sequence, column),
                "{names:?}: {column:?}"
            );
            let processed = sequence.iter().take(outcome.attempts as usize);
            let processed = processed.filter(|row| row.rule == Rule::Ambiguous).count();
            assert!(column.repeatable || processed <= 1, "{names:?}");
        }
    }
}

/// Larger than the buffers of a connection.
static LARGE: [u8; 8 << 20] = [b'x'; 8 << 20];

#[tokio::test]
async fn a_response_before_the_end_of_the_request_is_classified_normally() {
    let refused = |status, fields| response(status, fields, "no");
    for (name, bytes, rule, status) in [
        (
            "503 with a hint",
            refused(503, &[HINT_FIELD][..]),
            Rule::NotProcessed,
            503,
        ),
        ("413", refused(413, &[]), Rule::Permanent, 413),
        ("500", refused(500, &[]), Rule::Ambiguous, 500),
    ] {
        for reads in [true, false] {
            let next = counter();
            let early = bytes.clone();
            let server = Server::answering_early(move |_, seen| match next(seen.path()) {
                0 => Step::Early(early.clone(), reads),
                _ => ok(),
            });
            for (column, outcome) in each(&server, Scope::Head, &LARGE, policy).await {
                let what = format!("{name}, {reads}: {column:?}");
                let (attempts, reason) = expected(rule, column);
                assert_eq!(
                    (outcome.attempts, outcome.reason),
                    (attempts, reason),
                    "{what}"
                );
                let last = if attempts == 1 { status } else { 200 };
                assert_eq!(outcome.status, Some(last), "{what}");
                // The whole body is sent again, and not on a connection that still sends the first one.
                let path = format!(
                    "/{}",
                    COLUMNS.iter().position(|other| *other == column).unwrap()
                );
                let seen: Vec<_> = server
                    .seen()
                    .into_iter()
                    .filter(|seen| seen.path() == path)
                    .collect();
                if attempts == 2 && column.method.starts_with('P') {
                    assert_eq!(seen[1].body.len(), LARGE.len(), "{what}");
                    assert!(reads || seen[0].connection != seen[1].connection, "{what}");
                }
            }
        }
    }
}
