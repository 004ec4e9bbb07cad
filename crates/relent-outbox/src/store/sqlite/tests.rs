#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

mod clock;
mod costs;
mod unreadable;
mod upgrade;

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use rusqlite::StatementStatus;
use tempfile::TempDir;

use super::*;
use crate::message::MAX_PAYLOAD;
use crate::store::{AfterAttempt, AttemptRecord, Claimed, MessageState, RECENT_ATTEMPTS, Refusal};

const LEASE: Duration = Duration::from_secs(30);

fn open() -> (Sqlite, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let store = Sqlite::open(directory.path().join("outbox.db")).unwrap();
    (store, directory)
}

/// Opens the store with this clock, in microseconds.
fn open_at(directory: &TempDir, time: &Arc<AtomicI64>) -> Sqlite {
    let time = Arc::clone(time);
    let clock = Clock::new(move || time.load(Ordering::Relaxed));
    Sqlite::open_at(directory.path().join("outbox.db"), |_| Ok(()), clock).unwrap()
}

/// A store with a clock that the test controls.
fn open_with_clock() -> (Sqlite, TempDir, Arc<AtomicI64>) {
    let directory = tempfile::tempdir().unwrap();
    let time = Arc::new(AtomicI64::new(1_700_000_000_000_000));
    (open_at(&directory, &time), directory, time)
}

fn message(event: &str) -> NewMessage {
    NewMessage::new("shop", event.to_owned(), "{}")
}

async fn shop(store: &Sqlite) {
    let endpoint = Endpoint::new("shop", "https://shop.example/notify");
    store.put_endpoint(endpoint).await.unwrap();
}

/// The worker takes all endpoints with work.
async fn take(store: &Sqlite, worker: &str) -> Vec<OwnedEndpoint> {
    store.heartbeat(worker, LEASE, true).await.unwrap();
    let work = store.find_work(worker, Duration::ZERO, 100).await.unwrap();
    let endpoints = work.iter().map(|work| work.endpoint).collect();
    store.acquire(worker, endpoints).await.unwrap()
}

async fn claim(store: &Sqlite, worker: &str, owned: &OwnedEndpoint) -> Vec<Claimed> {
    let wanted = ClaimRequest::of(owned, 10);
    store.claim(worker, vec![wanted]).await.unwrap().messages
}

fn settled(claimed: &Claimed, next: AfterAttempt) -> Settled {
    Settled {
        row: claimed.row,
        endpoint: claimed.endpoint,
        fence: claimed.fence,
        revision: claimed.revision,
        number: claimed.attempt,
        began: claimed.began,
        ordered: claimed.ordered,
        next,
        session: vec![claimed.attempt as u8],
        attempt: None,
        health: None,
        disable: None,
    }
}

/// A message whose worker stalls beyond its lease and continues.
#[tokio::test]
async fn a_late_worker_writes_nothing_and_its_attempt_counts_as_lost() {
    let (store, _directory, time) = open_with_clock();
    shop(&store).await;
    store.enqueue(vec![message("paid")]).await.unwrap();
    let first = take(&store, "first").await;
    let sent = claim(&store, "first", &first[0]).await;
    assert_eq!((sent[0].attempt, sent[0].lost, sent.len()), (1, false, 1));

    // Thirty seconds pass.
    time.fetch_add(30_000_000, Ordering::Relaxed);
    let second = take(&store, "second").await;
    assert!(second[0].fence > first[0].fence);
    let refused = store
        .settle(vec![settled(&sent[0], AfterAttempt::Delivered)])
        .await;
    assert_eq!(refused.unwrap(), [false]);
    assert!(claim(&store, "first", &first[0]).await.is_empty());

    let lost = claim(&store, "second", &second[0]).await;
    assert_eq!((lost[0].attempt, lost[0].lost), (1, true));
    assert_eq!((&lost[0].id, lost[0].payload.len()), (&sent[0].id, 0));
    let again = settled(&lost[0], AfterAttempt::Again(Duration::ZERO));
    assert_eq!(store.settle(vec![again.clone()]).await.unwrap(), [true]);
    let sent = claim(&store, "second", &second[0]).await;
    assert_eq!((sent[0].attempt, &sent[0].session[..]), (2, &[1][..]));
    // The response to the settle was lost, and it is repeated.
    assert_eq!(store.settle(vec![again]).await.unwrap(), [false]);
    assert!(!store.heartbeat("first", LEASE, true).await.unwrap().kept);
    assert!(store.heartbeat("second", LEASE, true).await.unwrap().kept);
}

#[tokio::test]
async fn messages_of_an_order_key_are_claimed_one_after_another() {
    let (store, _directory, time) = open_with_clock();
    shop(&store).await;
    let messages = ["1", "2", "3"].map(|event| message(event).in_order("key"));
    let enqueued = store.enqueue(messages.to_vec()).await.unwrap();
    let owned = take(&store, "worker").await;
    for enqueued in enqueued {
        let claimed = claim(&store, "worker", &owned[0]).await;
        assert_eq!(claimed.len(), 1);
        assert_eq!((&claimed[0].id, claimed[0].ordered), (&enqueued.id, true));
        let again = settled(&claimed[0], AfterAttempt::Again(Duration::from_secs(60)));
        assert_eq!(store.settle(vec![again]).await.unwrap(), [true]);
        let work = store.find_work("worker", Duration::from_secs(59), 10);
        assert_eq!(work.await.unwrap(), []);
        assert!(claim(&store, "worker", &owned[0]).await.is_empty());
        time.fetch_add(60_000_000, Ordering::Relaxed);
        store.heartbeat("worker", LEASE * 100, true).await.unwrap();
        let claimed = claim(&store, "worker", &owned[0]).await;
        let delivered = settled(&claimed[0], AfterAttempt::Delivered);
        assert_eq!(store.settle(vec![delivered]).await.unwrap(), [true]);
    }
    assert_eq!(store.summary().await.unwrap(), Summary::default());
}

#[tokio::test]
async fn a_message_exists_only_if_the_callers_transaction_commits() {
    let (store, directory) = open();
    shop(&store).await;
    let count = async || store.messages(Filter::default(), 10).await.unwrap().len();
    let refused = store.writer().run(|connection| {
        Sqlite::enqueue_in(connection, &[message("undone")])?;
        let unknown = NewMessage::new("nobody", "undone", "{}");
        Sqlite::enqueue_in(connection, &[message("also undone"), unknown])
    });
    let refused = refused.await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "nothing is enqueued, for the message at index 1: no endpoint has this tenant and name: register it first"
    );
    assert_eq!(count().await, 0);

    let mut connection = Connection::open(directory.path().join("outbox.db")).unwrap();
    let transaction = connection.transaction().unwrap();
    Sqlite::enqueue_in(&transaction, &[message("rolled back")]).unwrap();
    transaction.rollback().unwrap();
    assert_eq!(count().await, 0);
    let transaction = connection.transaction().unwrap();
    let unknown = NewMessage::new("nobody", "undone", "{}");
    let refused = Sqlite::enqueue_in(&transaction, &[message("undone"), unknown]);
    let refused = refused.unwrap_err();
    let unknown = matches!(
        refused,
        EnqueueError::Refused {
            index: 1,
            refusal: Refusal::UnknownEndpoint
        }
    );
    assert!(unknown, "{refused}");
    // The caller's transaction continues without them.
    Sqlite::enqueue_in(&transaction, &[message("committed")]).unwrap();
    transaction.commit().unwrap();
    let messages = store.messages(Filter::default(), 10).await.unwrap();
    assert_eq!((messages.len(), &messages[0].event[..]), (1, "committed"));
}

/// Another operator resends it in between, or a worker delivers it.
#[tokio::test]
async fn a_change_applies_only_to_messages_that_are_still_in_the_state_of_its_filter() {
    let (store, _directory) = open();
    shop(&store).await;
    store
        .enqueue(vec![message("a"), message("b")])
        .await
        .unwrap();
    let all = store.cancel(Filter::default()).await.unwrap();
    assert_eq!(all, 2);
    let cancelled = Filter {
        state: Some(MessageState::Cancelled),
        ..Filter::default()
    };
    let (resend, states) = operate::resend();
    let selected = cancelled.clone();
    let rows = store
        .read(move |connection, _| read::rows(connection, &selected, states, i64::MAX, 0, 10))
        .await
        .unwrap();
    assert_eq!(rows.len(), 2);
    let first = Filter {
        event: Some("a".to_owned()),
        ..Filter::default()
    };
    assert_eq!(store.resend(first.clone()).await.unwrap(), 1);
    let owned = take(&store, "worker").await;
    let claimed = claim(&store, "worker", &owned[0]).await;
    let delivered = vec![settled(&claimed[0], AfterAttempt::Delivered)];
    store.settle(delivered).await.unwrap();

    let in_state = cancelled.in_state();
    let resent = store
        .write(move |connection, now| {
            operate::change_rows(connection, now, &rows, resend, in_state, i64::MAX)
        })
        .await;
    assert_eq!(resent.unwrap(), 1, "the delivered one stays delivered");
    let is_delivered = store.messages(first, 10).await.unwrap();
    assert_eq!(is_delivered[0].state, MessageState::Delivered);
}

/// Otherwise a replay of delivered messages would continue into those that it has resent, and into new ones.
#[tokio::test]
async fn a_resend_selects_no_message_that_ends_after_its_start() {
    let (store, _directory) = open();
    shop(&store).await;
    let events = ["ended", "ends later"].map(message);
    let enqueued = store.enqueue(events.to_vec()).await.unwrap();
    let first = Filter {
        id: Some(enqueued[0].id.clone()),
        ..Filter::default()
    };
    assert_eq!(store.cancel(first).await.unwrap(), 1);
    let ends = store.writer().run(|connection| {
        // In the year 2096.
        connection.execute_batch(
            "CREATE TRIGGER ends AFTER UPDATE ON relent_delivery_1 WHEN NEW.row = 1 BEGIN
                 UPDATE relent_delivery_1 SET state = 2, ended = 4000000000000000 WHERE row = 2;
             END",
        )?;
        Ok::<_, WriterError>(())
    });
    ends.await.unwrap();
    assert_eq!(store.resend(Filter::default()).await.unwrap(), 1);
    let messages = store.messages(Filter::default(), 10).await.unwrap();
    let states: Vec<_> = messages.iter().rev().map(|one| one.state).collect();
    assert_eq!(states, [MessageState::Pending, MessageState::Delivered]);
}

#[tokio::test]
async fn messages_of_an_event_exist_only_if_its_transaction_commits() {
    let (store, directory) = open();
    for name in ["a", "b"] {
        let endpoint = Endpoint::new(name, "https://shop.example/").topics(["order.*"]);
        store.put_endpoint(endpoint).await.unwrap();
    }
    let event = |event: &str, payload: &'static str| NewEvent::new("order.paid", event, payload);
    let mut connection = Connection::open(directory.path().join("outbox.db")).unwrap();
    let transaction = connection.transaction().unwrap();
    let undone = Sqlite::publish_in(&transaction, &[event("undone", "")]).unwrap();
    assert_eq!(undone[0].len(), 2);
    transaction.rollback().unwrap();
    let transaction = connection.transaction().unwrap();
    Sqlite::publish_in(&transaction, &[event("committed", "")]).unwrap();
    let refused = Sqlite::publish_in(
        &transaction,
        &[event("refused", ""), event("committed", "other")],
    );
    let refused = refused.unwrap_err();
    assert!(
        matches!(refused, EnqueueError::Refused { index: 1, .. }),
        "{refused}"
    );
    transaction.commit().unwrap();
    let found = store.messages(Filter::default(), 10).await.unwrap();
    let found: Vec<_> = found
        .iter()
        .map(|one| (&one.endpoint[..], &one.event[..]))
        .collect();
    assert_eq!(found, [("b", "committed"), ("a", "committed")]);
}

#[tokio::test]
async fn hints_are_kept_while_their_receiver_is_not_waiting() {
    let (store, _directory) = open();
    shop(&store).await;
    let mut hints = store.clone().hints();
    let nothing = tokio::time::timeout(Duration::ZERO, hints.next()).await;
    assert!(nothing.is_err());
    store.enqueue(vec![message("paid")]).await.unwrap();
    let shop = store.find_work("worker", Duration::ZERO, 1).await.unwrap()[0].endpoint;
    assert_eq!(hints.next().await, Hinted::Endpoints([shop].into()));
    // A duplicate causes no hint.
    store.enqueue(vec![message("paid")]).await.unwrap();
    store.hint();
    assert_eq!(hints.next().await, Hinted::Anything);
    let later = message("later").delay(Duration::from_secs(1));
    store.enqueue(vec![message("now"), later]).await.unwrap();
    assert_eq!(hints.next().await, Hinted::Anything);
    let nothing = tokio::time::timeout(Duration::ZERO, hints.next()).await;
    assert!(nothing.is_err());
    // The store is gone: no hint arrives, and no loop spins.
    drop(store);
    let nothing = tokio::time::timeout(Duration::ZERO, hints.next()).await;
    assert!(nothing.is_err());
}

#[tokio::test]
async fn after_an_interrupted_deletion_no_message_waits_for_a_deleted_one() {
    let (store, _directory) = open();
    shop(&store).await;
    let ordered = ["first", "second"].map(|event| message(event).in_order("key"));
    store.enqueue(ordered.to_vec()).await.unwrap();
    let owned = take(&store, "worker").await;
    let first = claim(&store, "worker", &owned[0]).await;
    let delivered = vec![settled(&first[0], AfterAttempt::Delivered)];
    store.settle(delivered).await.unwrap();
    let second = claim(&store, "worker", &owned[0]).await;
    assert_eq!(second.len(), 1);
    // It waits for the second, which runs.
    assert_eq!(store.resend(Filter::default()).await.unwrap(), 1);
    assert_eq!(claim(&store, "worker", &owned[0]).await, []);

    let row = second[0].row;
    let some = move |connection: &Connection, _| {
        operate::delete_some(connection, "", "shop", true, &[row])
    };
    let (deletion, is_end, _) = store.write(some).await.unwrap();
    let deleted = Deletion::Deleted { messages: 1 };
    assert_eq!((deletion, is_end), (deleted, false));
    let work = store.find_work("worker", Duration::ZERO, 1).await.unwrap();
    assert_eq!(work.len(), 1);
    let again = claim(&store, "worker", &owned[0]).await;
    assert_eq!((again.len(), &again[0].id), (1, &first[0].id));
}

/// Attempts are deleted with their messages.
#[tokio::test]
async fn statistics_of_many_attempts_cover_their_time_even_if_one_is_deleted() {
    let (store, _directory) = open();
    shop(&store).await;
    let began = micros(SystemTime::now()) / 1000 - 1000;
    let fill = store.writer().run(move |connection| {
        connection.execute(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1 + 100)
             INSERT INTO relent_attempt_1 (id, row, number, began, took, error, excerpt, address)
             SELECT i, 1, 1, ?2, 1, '', '', '' FROM n WHERE i <> 101",
            (RECENT_ATTEMPTS as i64, began),
        )?;
        Ok::<_, WriterError>(())
    });
    fill.await.unwrap();
    let recent = store.recent("", "shop").await.unwrap().unwrap();
    assert!(recent.window_ms < 60_000, "{recent:?}");
}

/// Inserts messages that are due at `due`; every second one waits behind another of its order key.
fn backlog(connection: &Connection, due: i64, many: i64) {
    connection
        .execute(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
             INSERT INTO relent_message_1 (id, endpoint, event, topic, content_type, payload, created)
             SELECT i, 1, i, '', 'text/plain', x'', 1 FROM n",
            [many],
        )
        .unwrap();
    connection
        .execute(
            "INSERT INTO relent_delivery_1 (row, endpoint, state, due, began, order_key)
             SELECT row, endpoint, iif(row % 2, 0, 5), ?1, 1, iif(row % 2, NULL, 'key') FROM relent_message_1",
            [due],
        )
        .unwrap();
    connection
        .execute("UPDATE relent_delivery_1 SET state = 0 WHERE row = 2", [])
        .unwrap();
    invariants::wake(connection, 1).unwrap();
}

/// Claiming, settling and enqueuing cost the same with two hundred thousand messages that are not due or wait for their
/// order key as with ten. The unit is instructions of SQLite's virtual machine, which do not depend on the machine's
/// load.
#[test]
fn messages_that_are_not_due_do_not_slow_sqlite_calls() {
    let mut costs = Vec::new();
    for many in [10, 200_000] {
        let mut connection = Connection::open_in_memory().unwrap();
        let steps = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&steps);
        let count = move || {
            count.fetch_add(1, Ordering::Relaxed);
            false
        };
        connection.progress_handler(1, Some(count)).unwrap();
        let connection = &connection;
        Sqlite::create_tables(connection).unwrap();
        let endpoint = Endpoint::new("shop", "https://shop.example/notify");
        operate::put_endpoint(connection, &endpoint).unwrap();
        backlog(connection, 1_000_000_000, many);
        work::heartbeat(connection, 1, "worker", LEASE, true).unwrap();
        let owned = work::acquire(connection, 1, "worker", &[1]).unwrap();
        let wanted = ClaimRequest::of(&owned[0], 10);
        let cost = |claimed: usize| {
            let before = steps.load(Ordering::Relaxed);
            let messages = [
                message(&format!("a{before}")),
                message(&format!("b{before}")).in_order(format!("other {before}")),
                message(&format!("c{before}")).in_order("key"),
            ];
            enqueue::enqueue(connection, 1, &messages).unwrap();
            let enqueued = steps.load(Ordering::Relaxed);
            let found = claim::claim(connection, 1, "worker", &[wanted])
                .unwrap()
                .messages;
            assert_eq!(found.len(), claimed);
            let claimed = steps.load(Ordering::Relaxed);
            let delivered = found
                .iter()
                .map(|one| settled(one, AfterAttempt::Delivered));
            settle::settle(connection, 1, &delivered.collect::<Vec<_>>()).unwrap();
            let settled = steps.load(Ordering::Relaxed);
            [enqueued - before, claimed - enqueued, settled - claimed]
        };
        // The first call prepares all statements.
        cost(2);
        costs.push(cost(2));
    }
    assert_eq!(costs[0], costs[1]);
    assert!(costs[0].iter().all(|cost| *cost > 20), "{costs:?}");
}

/// Searching for work reads only endpoints with work, and none of ten thousand others.
#[tokio::test]
async fn work_is_found_without_scanning_all_endpoints() {
    let (store, _directory) = open();
    shop(&store).await;
    store.enqueue(vec![message("0")]).await.unwrap();
    let fill = store.writer().run(|connection| {
        connection.execute(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
             INSERT INTO relent_endpoint_1 (tenant, name, spec, on_dead_letter, owner, wake)
             SELECT '', i, '', 0, iif(i % 2, 'other', ''), iif(i % 4 < 2, 1, ?1) FROM n WHERE i % 4 <> 0",
            [micros(SystemTime::now()) + 3_600_000_000],
        )?;
        connection.execute("INSERT INTO relent_endpoint_1 (tenant, name, spec, on_dead_letter) VALUES ('', 'none', '', 0)", [])?;
        Ok::<_, WriterError>(())
    });
    fill.await.unwrap();
    let find = store.writer().run(|connection| {
        let now = micros(SystemTime::now());
        let mut find = connection.prepare(work::FIND)?;
        let found = find.query_map(("", now), |row| row.get::<_, i64>(0))?;
        assert_eq!(found.map(Result::unwrap).collect::<Vec<_>>(), [1]);
        let steps = find.get_status(rusqlite::StatementStatus::VmStep);
        assert!(steps < 50, "{steps}");
        for select in [
            work::FIND,
            claim::DUE,
            claim::ONE,
            claim::LOST,
            claim::NO_TIME,
            invariants::FIND_LEFT_RUNNING,
            invariants::NEXT,
        ] {
            let plan = format!("EXPLAIN QUERY PLAN {select}");
            let mut plan = connection.prepare(&plan)?;
            let values = [1; 3];
            let values = rusqlite::params_from_iter(&values[..plan.parameter_count()]);
            let plan = plan.query_map(values, |row| row.get::<_, String>(3))?;
            let plan: Vec<_> = plan.map(Result::unwrap).collect();
            let searched = plan.iter().all(|step| step.contains("SEARCH"));
            assert!(!plan.is_empty() && searched, "{plan:?}");
        }
        Ok::<_, WriterError>(())
    });
    find.await.unwrap();
}

/// SQLite re-prepares some statements whenever their values change. No statement on the path of a message may be one.
#[test]
fn no_sqlite_statement_is_prepared_twice() {
    let connection = &Connection::open_in_memory().unwrap();
    keep_statements(connection).unwrap();
    Sqlite::create_tables(connection).unwrap();
    for name in ["1", "2", "3"] {
        let endpoint = Endpoint::new(name, "https://shop.example/notify");
        operate::put_endpoint(connection, &endpoint).unwrap();
    }
    work::heartbeat(connection, 1, "worker", LEASE, true).unwrap();
    let owned = work::acquire(connection, 1, "worker", &[1, 2, 3]).unwrap();
    for round in 1..20 {
        let message = |endpoint: &OwnedEndpoint| {
            let one = NewMessage::new(&*endpoint.endpoint.name, format!("{round}"), "{}");
            let other = NewMessage::new(&*endpoint.endpoint.name, format!("o{round}"), "{}");
            [one, other.in_order(format!("{}", round % 5))]
        };
        let messages: Vec<_> = owned.iter().flat_map(message).collect();
        enqueue::enqueue(connection, round, &messages).unwrap();
        let wanted = owned
            .iter()
            .map(|owned| ClaimRequest::of(owned, 1 + usize::try_from(round).unwrap() % 4));
        let wanted: Vec<_> = wanted.collect();
        let claimed = claim::claim(connection, round, "worker", &wanted)
            .unwrap()
            .messages;
        let settled = claimed.iter().map(|claimed| Settled {
            attempt: Some(attempt(claimed.attempt)),
            ..settled(
                claimed,
                match round % 3 {
                    0 => AfterAttempt::Delivered,
                    1 => AfterAttempt::Again(Duration::from_micros(2)),
                    _ => AfterAttempt::Dead("no".to_owned()),
                },
            )
        });
        let settled: Vec<_> = settled.collect();
        let written = settle::settle(connection, round, &settled).unwrap();
        assert!(!written.is_empty() && !written.contains(&false));
    }
    let statements = [
        enqueue::ENDPOINT,
        enqueue::MESSAGE,
        enqueue::DELIVERY,
        claim::OWNED,
        claim::LOST,
        claim::DUE,
        claim::TAKE,
        settle::ENDPOINT,
        settle::SETTLE,
        settle::SETTLE_ORDERED,
        settle::ATTEMPT,
        invariants::EARLIER,
        invariants::WAKE,
        invariants::FIND_LEFT_RUNNING,
        invariants::NEXT,
        invariants::RUNNING,
        invariants::FIRST,
    ];
    let again = statements.into_iter().filter(|text| {
        let statement = connection.prepare_cached(text).unwrap();
        assert!(statement.get_status(StatementStatus::Run) > 5, "{text}");
        statement.get_status(StatementStatus::RePrepare) > 0
    });
    assert_eq!(again.collect::<Vec<_>>(), [""; 0]);
}

fn attempt(number: u32) -> AttemptRecord {
    AttemptRecord {
        number,
        started_ms: 1,
        duration_ms: 1,
        status: None,
        error: String::new(),
        excerpt: String::new(),
        address: String::new(),
        request: String::new(),
        response: String::new(),
    }
}

#[test]
fn an_outbox_in_an_in_memory_database_is_refused() {
    for path in [":memory:", ""] {
        let refused = Sqlite::open(path).unwrap_err();
        assert!(matches!(refused, SqliteError::NotAFile), "{refused}");
    }
}

#[tokio::test]
async fn while_the_disk_hangs_jobs_of_departed_callers_hold_at_most_64_mib() {
    let (store, _directory) = open();
    shop(&store).await;
    let (release, released) = std::sync::mpsc::channel::<()>();
    let (begin, begun) = tokio::sync::oneshot::channel();
    let writer = store.writer().clone();
    let hanging = tokio::spawn(async move {
        let hang = move |_: &Connection| {
            let _ = begin.send(());
            let _ = released.recv();
            Ok::<_, SqliteError>(())
        };
        writer.run(hang).await
    });
    begun.await.unwrap();
    for event in 0..100 {
        let large = NewMessage::new("shop", format!("{event}"), vec![0; MAX_PAYLOAD]);
        let left = tokio::time::timeout(Duration::ZERO, store.enqueue(vec![large])).await;
        assert!(left.is_err(), "the caller leaves");
    }
    drop(release);
    hanging.await.unwrap().unwrap();
    // It waits for room, and is the last.
    store.enqueue(vec![message("last")]).await.unwrap();
    let pending = store.summary().await.unwrap().pending;
    assert_eq!(pending, 63 + 1, "those that found room, and the last");
}

#[tokio::test]
async fn long_lists_of_operators_delay_no_read_of_a_worker() {
    let (store, _directory) = open();
    shop(&store).await;
    store.enqueue(vec![message("paid")]).await.unwrap();
    store.heartbeat("worker", LEASE, true).await.unwrap();
    let all = u32::try_from(OPERATOR_READERS).unwrap();
    let _lists = store.readers.for_operators.acquire_many(all).await.unwrap();
    let find = store.find_work("worker", Duration::ZERO, 100);
    let found = tokio::time::timeout(LEASE, find).await.unwrap();
    assert_eq!(found.unwrap().len(), 1);
}
