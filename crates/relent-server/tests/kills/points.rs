//! Tests with a process that is killed or stopped at each named point: the response to the retry, and the number of
//! charges.

use std::convert::Infallible;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use relent_core::idempotency::{ClaimConfig, Fingerprint, Lease, Takeover};
use relent_server::idempotency::{Body, Execution, IdempotencyLayer};
use relent_server::sqlite::WriterError;
use relent_server::store::{
    Change, Claimed, Key, Resolution, ResolveError, Sqlite, SqliteError, Store, UnknownOutcome,
    WriteError,
};
use tower::{Layer, ServiceExt, service_fn};

#[cfg(feature = "postgres")]
use crate::servers;

const DIRECTORY: &str = "RELENT_KILL_POINTS";
const POINT: &str = "RELENT_KILL_POINT";
const TABLE: &str = "CREATE TABLE IF NOT EXISTS charges (fence INTEGER NOT NULL)";

/// Before and after every await between the request and its response.
const POINTS: [&str; 6] = [
    "before the claim",
    "after the claim",
    "before the charge",
    "after the charge",
    "before the record",
    "after the record",
];

/// Simulates a kill at this point.
fn at(point: &str) {
    if std::env::var(POINT).is_ok_and(|chosen| chosen == point) {
        std::process::abort();
    }
}

/// A store whose process is killed at a point.
struct Dying(Sqlite);

impl Store for Dying {
    type Error = SqliteError;

    async fn claim(
        &self,
        key: &Key,
        owner: u128,
        fingerprint: Fingerprint,
        config: &ClaimConfig,
    ) -> Result<Claimed, SqliteError> {
        at(POINTS[0]);
        let claimed = self.0.claim(key, owner, fingerprint, config).await;
        at(POINTS[1]);
        claimed
    }

    async fn write(
        &self,
        key: &Key,
        lease: &Lease,
        change: Change,
        config: &ClaimConfig,
    ) -> Result<Lease, WriteError<SqliteError>> {
        let ends = matches!(change, Change::Complete(_));
        if ends {
            at(POINTS[4]);
        }
        let written = self.0.write(key, lease, change, config).await;
        if ends {
            at(POINTS[5]);
        }
        written
    }

    async fn find_unknown(
        &self,
        after: Option<&UnknownOutcome>,
        most: usize,
        config: &ClaimConfig,
    ) -> Result<Vec<UnknownOutcome>, SqliteError> {
        self.0.find_unknown(after, most, config).await
    }

    async fn resolve(
        &self,
        found: &UnknownOutcome,
        resolution: Resolution,
        config: &ClaimConfig,
    ) -> Result<(), ResolveError<SqliteError>> {
        self.0.resolve(found, resolution, config).await
    }

    async fn remove_expired(&self, most: usize) -> Result<usize, SqliteError> {
        self.0.remove_expired(most).await
    }
}

fn open(directory: &Path) -> Sqlite {
    let create = |connection: &rusqlite::Connection| connection.execute_batch(TABLE);
    Sqlite::open_with(directory.join("shop.db"), create).unwrap()
}

/// Charges, unless an execution that has taken over has charged: the resource compares fencing tokens.
async fn charge(store: &Sqlite, fence: u64) -> bool {
    let charge = store.writer().run(move |connection| {
        let insert = "INSERT INTO charges SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM charges WHERE fence > ?1)";
        connection
            .execute(insert, [fence.cast_signed()])
            .map_err(WriterError::from)
    });
    charge.await.unwrap() == 1
}

async fn charges(store: &Sqlite) -> Vec<i64> {
    let charges = store.writer().run(|connection| {
        let mut select = connection.prepare("SELECT fence FROM charges")?;
        let charges = select.query_map([], |row| row.get(0))?;
        charges.collect::<Result<_, _>>().map_err(WriterError::from)
    });
    charges.await.unwrap()
}

/// Sends the request once; returns status, body and whether it is a replay. The handler waits for `think` before it
/// charges.
async fn pay(store: &Sqlite, takeover: Takeover, think: Duration) -> (u16, String, bool) {
    let layer = IdempotencyLayer::anonymous(Dying(store.clone()))
        .claim(ClaimConfig {
            lease: Duration::from_millis(300),
            takeover,
            ..ClaimConfig::DEFAULT
        })
        .unwrap()
        .wait(Duration::ZERO);
    let store = store.clone();
    let handler = service_fn(move |request: Request<Body<Full<Bytes>>>| {
        let store = store.clone();
        async move {
            let fence = request.extensions().get::<Execution>().unwrap().fence();
            println!("begun {fence}");
            tokio::time::sleep(think).await;
            at(POINTS[2]);
            let charged = charge(&store, fence).await;
            at(POINTS[3]);
            println!("charged {charged}");
            let answer = format!("charged by {fence}");
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(answer)))
        }
    });
    let request = Request::post("/payments").header("idempotency-key", "k");
    let request = request.body(Full::from("5 EUR")).unwrap();
    let response = layer.layer(handler).oneshot(request).await.unwrap();
    let replayed = response.headers().contains_key("idempotent-replayed");
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap(), replayed)
}

/// The process that is killed or stopped.
#[tokio::test]
async fn child() {
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        return; // The tests below start this as a process.
    };
    let stopped = std::env::var(POINT).is_err();
    let think = if stopped { 100 } else { 0 };
    let store = open(Path::new(&directory));
    let (status, ..) = pay(&store, Takeover::Rerun, Duration::from_millis(think)).await;
    println!("answered {status}");
}

fn begin(directory: &Path, point: Option<&str>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "points::child", "--nocapture"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if let Some(point) = point {
        command.env(POINT, point);
    }
    command.spawn().unwrap()
}

#[tokio::test]
async fn a_kill_between_claim_and_record_leaves_an_unknown_outcome() {
    for (point, charged_before, expected) in [
        (POINTS[0], 0, 200),
        // The charge is in doubt, so the request does not run again.
        (POINTS[1], 0, 409),
        (POINTS[2], 0, 409),
        (POINTS[3], 1, 409),
        (POINTS[4], 1, 409),
        (POINTS[5], 1, 200),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let output = begin(directory.path(), Some(point)).wait_with_output();
        let said = String::from_utf8(output.unwrap().stdout).unwrap();
        assert!(!said.contains("answered"), "{point}: {said}");
        let store = open(directory.path());
        assert_eq!(charges(&store).await.len(), charged_before, "{point}");
        // Until its lease has expired.
        tokio::time::sleep(Duration::from_millis(310)).await;
        let mut answers = Vec::new();
        for _ in 0..2 {
            let answer = pay(&store, Takeover::Refuse, Duration::ZERO).await;
            assert_eq!(answer.0, expected, "{point}: {answer:?}");
            if expected == 409 {
                assert!(answer.1.contains("unknown"), "{point}: {answer:?}");
            }
            answers.push(answer.1);
        }
        assert_eq!(answers[0], answers[1], "{point}");
        let charged = charged_before.max(usize::from(expected == 200));
        assert_eq!(charges(&store).await.len(), charged, "{point}");
    }
}

/// A process stalls for longer than its lease, another one takes over, and then it continues.
#[tokio::test]
async fn a_process_suspended_past_its_lease_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = begin(directory.path(), None);
    let signal = |signal: &str, child: &Child| {
        let process = child.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &process]).status();
        assert!(sent.unwrap().success());
    };
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut says = |what: &str| {
        let line = lines.find(|line| {
            let line = line.as_ref().unwrap();
            assert!(!line.contains("charged true"), "{line}");
            line.contains(what)
        });
        assert!(line.is_some(), "the child does not say: {what}");
    };
    says("begun 1");
    signal("STOP", &child);
    tokio::time::sleep(Duration::from_millis(320)).await;
    let store = open(directory.path());
    let answer = pay(&store, Takeover::Rerun, Duration::ZERO).await;
    assert_eq!(answer, (200, "charged by 2".to_owned(), false));
    signal("CONT", &child);
    // Its handler finds its fencing token outdated, or a renewal drops the handler. Its client gets 409, retries, and
    // gets the final response.
    says("answered 409");
    assert!(child.wait().unwrap().success());
    assert_eq!(charges(&store).await, [2]);
    let again = pay(&store, Takeover::Rerun, Duration::ZERO).await;
    assert_eq!(again, (200, "charged by 2".to_owned(), true));
}

/// Transactional on PostgreSQL: the process is killed before and after each message to the database.
#[cfg(feature = "postgres")]
mod messages {
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicBool, Ordering};

    use relent_server::postgres::pool;
    use relent_server::store::Postgres;
    use relent_server::transactional::{Keyed, TransactionResult, WorkError};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{UnixListener, UnixStream};

    use super::*;

    const DATABASE: &str = "RELENT_KILL_DATABASE";
    const SOCKET: &str = ".s.PGSQL.5432";

    async fn charge(store: &Postgres, number: u8) -> String {
        let keyed = Keyed::new(Key([number; 32]), Fingerprint([0; 32]));
        loop {
            let done = store.transactional(keyed, |transaction| {
                Box::pin(async move {
                    let insert = "INSERT INTO charges VALUES ($1)";
                    transaction.execute(insert, &[&i64::from(number)]).await?;
                    Ok::<_, WorkError>(Response::new(format!("charged {number}")))
                })
            });
            let body = match done.await.unwrap() {
                TransactionResult::Ran(response) => response.into_body(),
                TransactionResult::Not(Claimed::Replay(answer)) => answer.body.unwrap(),
                // The transaction of the killed process has not ended yet.
                TransactionResult::Not(Claimed::InFlight(_)) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                }
                other => panic!("{other:?}"),
            };
            return String::from_utf8(body.to_vec()).unwrap();
        }
    }

    fn config(directory: &Path) -> String {
        format!("host={} user=relent dbname=postgres", directory.display())
    }

    /// Forwards messages, and kills the process before a message, or after PostgreSQL's response to it.
    async fn proxy(listener: UnixListener, database: PathBuf, deadly: usize, before: bool) {
        let (client, _) = listener.accept().await.unwrap();
        let server = UnixStream::connect(database).await.unwrap();
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let armed = AtomicBool::new(false);
        let back = async {
            let mut bytes = vec![0; 1 << 16];
            while let Ok(length @ 1..) = from_server.read(&mut bytes).await {
                if armed.load(Ordering::Relaxed) {
                    std::process::abort();
                }
                to_client.write_all(&bytes[..length]).await.unwrap();
            }
        };
        let there = async {
            let mut bytes = vec![0; 1 << 16];
            let mut sent = 0;
            while let Ok(length @ 1..) = from_client.read(&mut bytes).await {
                if sent == deadly && before {
                    std::process::abort();
                }
                armed.store(sent == deadly, Ordering::Relaxed);
                to_server.write_all(&bytes[..length]).await.unwrap();
                sent += 1;
            }
        };
        tokio::join!(back, there);
    }

    /// The process that is killed.
    #[tokio::test]
    async fn sender() {
        let Some(database) = std::env::var_os(DATABASE) else {
            return; // The test below starts this as a process.
        };
        let point = std::env::var(POINT).unwrap();
        let (deadly, when) = point.split_once(' ').unwrap();
        let (number, before) = deadly_number(deadly, when);
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join(SOCKET)).unwrap();
        let database = Path::new(&database).join(SOCKET);
        let deadly = deadly.parse().unwrap();
        tokio::spawn(proxy(listener, database, deadly, before));
        let store = Postgres::new(pool(&config(directory.path()), 1).unwrap());
        println!("told {}", charge(&store, number).await);
    }

    /// Each point has its own key.
    fn deadly_number(deadly: &str, when: &str) -> (u8, bool) {
        let before = when == "before";
        (deadly.parse::<u8>().unwrap() * 2 + u8::from(before), before)
    }

    #[tokio::test]
    async fn a_kill_at_any_message_leaves_one_charge_and_one_response() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let database = server.server.directory();
        let store = Postgres::new(pool(&config(database), 2).unwrap());
        store.create_tables().await.unwrap();
        let client = store.pool().get().await.unwrap();
        let create = "CREATE TABLE charges (number BIGINT NOT NULL)";
        client.batch_execute(create).await.unwrap();
        let mut committed = Vec::new();
        for deadly in 0.. {
            let mut told = 0;
            for when in ["before", "after"] {
                let output = Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "points::messages::sender", "--nocapture"])
                    .env(DATABASE, database)
                    .env(POINT, format!("{deadly} {when}"))
                    .output();
                let said = String::from_utf8(output.unwrap().stdout).unwrap();
                told += usize::from(said.contains("told"));
                let (number, _) = deadly_number(&deadly.to_string(), when);
                let count = "SELECT count(*) FROM charges WHERE number = $1";
                let row = client.query_one(count, &[&i64::from(number)]).await;
                committed.push(row.unwrap().get::<_, i64>(0));
                // The request is repeated.
                assert_eq!(charge(&store, number).await, format!("charged {number}"));
                let row = client.query_one(count, &[&i64::from(number)]).await;
                assert_eq!(row.unwrap().get::<_, i64>(0), 1, "{when} message {deadly}");
            }
            if told == 2 {
                // There are no further messages.
                break;
            }
        }
        // Start, three statements, BEGIN, claim, the charge and its statement, record, COMMIT.
        assert!(committed.len() >= 16, "{committed:?}");
        // Only after the last one it is committed without a confirmation.
        let last = committed.len() - 3;
        assert_eq!(
            committed.iter().position(|&charges| charges == 1),
            Some(last),
            "{committed:?}"
        );
    }
}
