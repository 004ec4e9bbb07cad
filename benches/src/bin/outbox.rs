//! Prints how many messages an outbox enqueues, claims and settles in a second, beside the same rows written by nothing
//! but their statements: in SQLite through the same writer, in PostgreSQL by a loop with `SKIP LOCKED`.
//!
//! A batch of Relent and one of the floor follow each other, in turns who is first, and the ratio of the two is what
//! counts: other work on the machine slows both. The medians of the batches are printed, and the lowest and highest
//! ratio.

#[path = "../../../crates/relent-server/tests/support/servers.rs"]
mod servers;

use std::error::Error;
use std::time::{Duration, Instant};

use relent_outbox::endpoint::Endpoint;
use relent_outbox::message::NewMessage;
use relent_outbox::store::{AttemptRecord, Next, Owned, Postgres, Settled, Sqlite, Store, Wanted};
use relent_server::postgres::{Client, pool};
use relent_server::sqlite::{Writer, WriterError};

type Failed = Box<dyn Error + Send + Sync>;

const BATCHES: usize = 7;
const ENDPOINTS: i64 = 10;
/// Rounds in a batch.
const ROUNDS: u64 = 40;
/// Messages in a round, which is three commits.
const MESSAGES: i64 = 100;
const PAYLOAD: [u8; 500] = [b'x'; 500];
const WORKER: &str = "worker";

#[tokio::main]
async fn main() -> Result<(), Failed> {
    println!("| | Relent, messages a second | the floor | ratio | lowest, highest |");
    println!("|---|---|---|---|---|");
    let directory = tempfile::tempdir()?;
    let store = Sqlite::open(directory.path().join("relent.db"))?;
    let set_up = |connection: &rusqlite::Connection| Sqlite::create_tables(connection);
    let floor = Writer::open(directory.path().join("floor.db"), set_up)?;
    compare("SQLite", &store, async |round| write(&floor, round).await).await?;
    if let Some(server) = servers::postgres(&[]) {
        let store = Postgres::new(pool(&server.config(), 4)?);
        store.create_tables().await?;
        let bare = format!("{} options='-c search_path=bare'", server.config());
        let bare = pool(&bare, 4)?.get().await?;
        bare.batch_execute("CREATE SCHEMA bare").await?;
        bare.batch_execute(Postgres::TABLES).await?;
        compare("PostgreSQL", &store, async |round| {
            skip_locked(&bare, round).await
        })
        .await?;
    }
    Ok(())
}

/// Both, in turns.
async fn compare<S: Store>(
    what: &str,
    store: &S,
    floor: impl AsyncFn(u64) -> Result<(), Failed>,
) -> Result<(), Failed> {
    for endpoint in 0..ENDPOINTS {
        let endpoint = Endpoint::new(endpoint.to_string(), "https://shop.example/notify");
        store.put_endpoint(endpoint).await?;
    }
    enqueue(store, u64::MAX).await?;
    store.beat(WORKER, Duration::from_secs(3600)).await?;
    let work = store.find_work(WORKER, Duration::ZERO, 1000).await?;
    let endpoints = work.iter().map(|work| work.endpoint).collect();
    let owned = store.acquire(WORKER, endpoints).await?;
    deliver(store, &owned).await?;
    let mut pairs = Vec::new();
    for batch in 0..BATCHES as u64 {
        let rounds = || batch * ROUNDS..(batch + 1) * ROUNDS;
        let ours = async || {
            let began = Instant::now();
            for round in rounds() {
                enqueue(store, round).await?;
                deliver(store, &owned).await?;
            }
            Ok::<_, Failed>(began.elapsed())
        };
        let theirs = async || {
            let began = Instant::now();
            for round in rounds() {
                floor(round).await?;
            }
            Ok::<_, Failed>(began.elapsed())
        };
        let rate = |took: Duration| (ROUNDS as f64 * MESSAGES as f64) / took.as_secs_f64();
        pairs.push(if batch % 2 == 0 {
            let ours = rate(ours().await?);
            (ours, rate(theirs().await?))
        } else {
            let theirs = rate(theirs().await?);
            (rate(ours().await?), theirs)
        });
    }
    let column = |of: fn(&(f64, f64)) -> f64| {
        let mut of: Vec<_> = pairs.iter().map(of).collect();
        of.sort_by(f64::total_cmp);
        (of[BATCHES / 2], of[0], of[BATCHES - 1])
    };
    let (ratio, lowest, highest) = column(|pair| pair.0 / pair.1);
    let (ours, theirs) = (column(|pair| pair.0).0, column(|pair| pair.1).0);
    println!("| {what} | {ours:.0} | {theirs:.0} | {ratio:.2} | {lowest:.2}, {highest:.2} |");
    Ok(())
}

async fn enqueue<S: Store>(store: &S, round: u64) -> Result<(), Failed> {
    let message = |number: i64| {
        let endpoint = (number % ENDPOINTS).to_string();
        NewMessage::new(endpoint, format!("{round}-{number}"), &PAYLOAD[..])
    };
    store.enqueue((0..MESSAGES).map(message).collect()).await?;
    Ok(())
}

async fn deliver<S: Store>(store: &S, owned: &[Owned]) -> Result<(), Failed> {
    let wanted = owned.iter().map(|owned| Wanted {
        endpoint: owned.id,
        fence: owned.fence,
        most: 100,
    });
    let claimed = store.claim(WORKER, wanted.collect()).await?;
    let settled = claimed.iter().map(|claimed| Settled {
        row: claimed.row,
        endpoint: claimed.endpoint,
        fence: claimed.fence,
        number: claimed.attempt,
        began: claimed.began,
        next: Next::Delivered,
        session: vec![1; 50],
        attempt: Some(AttemptRecord {
            number: 1,
            began_ms: 1,
            took_ms: 1,
            status: Some(200),
            error: String::new(),
            excerpt: "ok".to_owned(),
            address: "192.0.2.1:443".to_owned(),
        }),
        health: None,
        disable: None,
    });
    let settled = store.settle(settled.collect()).await?;
    if settled.len() != MESSAGES as usize || settled.contains(&false) {
        return Err("not all are delivered".into());
    }
    Ok(())
}

/// The same rows in three commits of the writer.
async fn write(writer: &Writer, round: u64) -> Result<(), Failed> {
    let rows = writer.run(move |connection| {
        let mut message = connection.prepare_cached(
            "INSERT INTO relent_message_1 (id, endpoint, event, topic, content_type, payload, created)
             VALUES ('msg_' || ?1 || '_000000000000000000000', ?2, ?1, '', 'application/json', ?3, 1)",
        )?;
        let mut delivery = connection.prepare_cached(
            "INSERT INTO relent_delivery_1 (row, endpoint, state, due, began) VALUES (?1, ?2, 0, 1, 1)",
        )?;
        let mut rows = Vec::new();
        for number in 0..MESSAGES {
            let event = format!("{round}-{number}");
            let endpoint = 1 + number % ENDPOINTS;
            message.execute((event, endpoint, &PAYLOAD[..]))?;
            let row = connection.last_insert_rowid();
            delivery.execute((row, endpoint))?;
            rows.push(row);
        }
        Ok::<_, WriterError>(rows)
    });
    let rows = rows.await?;
    let claimed = writer.run(move |connection| {
        let mut claim = connection.prepare_cached(
            "UPDATE relent_delivery_1 SET state = 1, fence = 1, attempt = 1 WHERE row = ?1",
        )?;
        let mut read = connection.prepare_cached(
            "SELECT id, content_type, payload FROM relent_message_1 WHERE row = ?1",
        )?;
        for row in &rows {
            claim.execute([row])?;
            read.query_row([row], |row| row.get::<_, Vec<u8>>(2))?;
        }
        Ok::<_, WriterError>(rows)
    });
    let rows = claimed.await?;
    let settled = writer.run(move |connection| {
        let mut settle = connection.prepare_cached(
            "UPDATE relent_delivery_1 SET state = 2, session = ?2, ended = 1 WHERE row = ?1",
        )?;
        let mut attempt = connection.prepare_cached(
            "INSERT INTO relent_attempt_1 (row, number, began, took, status, error, excerpt, address)
             VALUES (?1, 1, 1, 1, 200, '', 'ok', '192.0.2.1:443')",
        )?;
        for row in rows {
            settle.execute((row, [1; 50]))?;
            attempt.execute([row])?;
        }
        Ok::<_, WriterError>(())
    });
    settled.await?;
    Ok(())
}

/// The same rows in three commits: one that inserts, one that takes what is due, past what others have, and one that
/// ends it.
async fn skip_locked(client: &Client, round: u64) -> Result<(), Failed> {
    let events: Vec<_> = (0..MESSAGES)
        .map(|number| format!("{round}-{number}"))
        .collect();
    let insert = client
        .prepare_cached(
            "WITH new AS (
                 INSERT INTO relent_message_1 (id, endpoint, event, topic, content_type, payload, created)
                 SELECT 'msg_' || event || '_000000000000000000000', 1 + n % 10, event, '', 'application/json', $2, 1
                 FROM unnest($1::text[]) WITH ORDINALITY AS i (event, n) RETURNING row, endpoint)
             INSERT INTO relent_delivery_1 (row, endpoint, due, began) SELECT row, endpoint, 1, 1 FROM new",
        )
        .await?;
    client.execute(&insert, &[&events, &&PAYLOAD[..]]).await?;
    let claim = client
        .prepare_cached(
            "WITH due AS MATERIALIZED (
                 SELECT row FROM relent_delivery_1 WHERE state = 0 AND due <= 2 LIMIT 100 FOR UPDATE SKIP LOCKED),
             claimed AS (
                 UPDATE relent_delivery_1 SET state = 1, fence = 1, attempt = attempt + 1
                 WHERE row IN (SELECT row FROM due) RETURNING row)
             SELECT row, id, content_type, payload FROM claimed JOIN relent_message_1 USING (row)",
        )
        .await?;
    let claimed = client.query(&claim, &[]).await?;
    if claimed.len() != MESSAGES as usize {
        return Err(format!("{} are claimed", claimed.len()).into());
    }
    let rows: Vec<i64> = claimed.iter().map(|row| row.get(0)).collect();
    let settle = client
        .prepare_cached(
            "WITH settled AS (
                 UPDATE relent_delivery_1 SET state = 2, session = $2, ended = 1
                 WHERE row = ANY($1::bigint[]) AND state = 1 AND fence = 1 RETURNING row)
             INSERT INTO relent_attempt_1 (row, number, began, took, status, error, excerpt, address)
             SELECT row, 1, 1, 1, 200, '', 'ok', '192.0.2.1:443' FROM settled",
        )
        .await?;
    client.execute(&settle, &[&rows, &&[1_u8; 50][..]]).await?;
    Ok(())
}
