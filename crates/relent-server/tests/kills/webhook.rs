//! Tests with a receiver that is killed between the effect of a message and its acknowledgement: the message is
//! delivered again, and has one effect.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use http::StatusCode;
use relent_server::store::Sqlite;
use relent_server::transactional::{Transactional, WorkError};
use relent_server::webhook::{Delivery, WebhookLayer};
use rusqlite::Connection;

use crate::support::{Message, serve, verifier};

const DATABASE: &str = "RELENT_WEBHOOK_CRASH";
/// The point at which the process dies, when the first message reaches it.
const POINT: &str = "RELENT_WEBHOOK_POINT";
const POINTS: [&str; 4] = ["before", "effect", "commit", "none"];
const NOW: u64 = 1_800_000_000;

fn die_at(point: &str) {
    if std::env::var(POINT).unwrap() == point {
        // No cleanup, as after kill -9.
        std::process::abort();
    }
}

async fn settle(
    Extension(once): Extension<Transactional<Sqlite>>,
    Extension(delivery): Extension<Delivery>,
) -> Response {
    die_at("before");
    let settled = once.run(move |transaction| {
        transaction.execute("INSERT INTO payments VALUES (?1)", [delivery.id()])?;
        die_at("effect");
        Ok::<_, WorkError>(http::Response::new("success"))
    });
    let settled = settled.await;
    die_at("commit");
    settled
        .map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
        .into_response()
}

fn open(database: &Path) -> Sqlite {
    Sqlite::open_with(database, |connection| {
        connection.execute_batch("CREATE TABLE IF NOT EXISTS payments (message TEXT NOT NULL)")
    })
    .unwrap()
}

/// The process that is killed.
#[test]
fn child() {
    let Some(database) = std::env::var_os(DATABASE) else {
        return; // The test below starts this as a process.
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let layer = WebhookLayer::new(open(Path::new(&database)), "acquirer", verifier())
            .clock(|| UNIX_EPOCH + Duration::from_secs(NOW))
            .transactional();
        let app = Router::new().route("/hook", post(settle)).layer(layer);
        println!("listens on {}", serve(app).await);
        std::future::pending::<()>().await;
    });
}

fn start(database: &Path, point: &str) -> (Child, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "webhook::child", "--nocapture"])
        .env(DATABASE, database)
        .env(POINT, point)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = lines.find_map(|line| {
        let line = line.unwrap();
        let (_, address) = line.split_once("listens on ")?;
        Some(address.to_owned())
    });
    (child, address.unwrap())
}

#[tokio::test]
async fn a_message_has_one_effect_despite_a_killed_receiver() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("shop.db");
    let connection = || Connection::open(&database).unwrap();
    let payments = |id: &str| {
        let count = "SELECT count(*) FROM payments WHERE message = ?1";
        connection().query_row(count, [id], |row| row.get::<_, u32>(0))
    };
    for point in POINTS {
        // Delivers each message until it is acknowledged, first to a process that dies.
        let id = format!("msg_{point}");
        let (mut child, address) = start(&database, point);
        let first = Message::new(&id, NOW).try_send(&address).await;
        assert_eq!(first.is_some(), point == "none", "{point}");
        child.kill().unwrap();
        child.wait().unwrap();
        let committed = matches!(point, "commit" | "none");
        assert_eq!(payments(&id).unwrap(), u32::from(committed), "{point}");

        let (mut child, address) = start(&database, "nowhere");
        for repeated in [committed, true] {
            let reply = Message::new(&id, NOW + 5).send(&address).await;
            assert_eq!((reply.status, &*reply.body), (StatusCode::OK, "success"));
            let replayed = reply.field("idempotent-replayed").is_some();
            assert_eq!(replayed, repeated, "{point}");
            assert_eq!(payments(&id).unwrap(), 1, "{point}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
