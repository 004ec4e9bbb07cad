//! The cost of a call in instructions of SQLite does not grow with the number of pending or ended messages.

use super::*;
use crate::store::MessageState;

/// A store with `each` pending messages per endpoint, of which a quarter is not due and a tenth is behind another. As
/// many are delivered, and one is dead.
fn filled(endpoints: i64, each: i64) -> (Connection, Arc<AtomicU64>) {
    let mut connection = Connection::open_in_memory().unwrap();
    keep_statements(&connection).unwrap();
    Sqlite::create_tables(&connection).unwrap();
    let fill = format!(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {endpoints})
         INSERT INTO relent_endpoint_1 (tenant, name, spec, on_dead_letter, wake)
         SELECT '', i, json_object('name', '' || i, 'url', 'https://shop.example/'), 0, 1 FROM n;
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {endpoints} * {each} * 2)
         INSERT INTO relent_message_1 (row, id, endpoint, event, topic, content_type, payload, created)
         SELECT i, printf('msg_%032d', i), i % {endpoints} + 1, i, '', 'application/json', x'7b7d', i FROM n;
         INSERT INTO relent_delivery_1 (row, endpoint, state, due, began, ended, order_key)
         SELECT row, endpoint, CASE
                 WHEN row = 5 THEN 3
                 WHEN row / {endpoints} % 2 THEN 2
                 WHEN row / {endpoints} / 2 % 10 = 9 THEN 5
                 ELSE 0 END,
             iif(row / {endpoints} / 2 % 4 = 3, 1000000000, row), row, iif(row / {endpoints} % 2 OR row = 5, row, NULL),
             iif(row / {endpoints} / 2 % 10 = 9, 'key', NULL)
         FROM relent_message_1;"
    );
    connection.execute_batch(&fill).unwrap();
    let steps = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&steps);
    let count = move || {
        counted.fetch_add(10, Ordering::Relaxed);
        false
    };
    connection.progress_handler(10, Some(count)).unwrap();
    (connection, steps)
}

/// The instructions of each call, by name.
fn steps(endpoints: i64, each: i64) -> Vec<(&'static str, u64)> {
    let (connection, steps) = filled(endpoints, each);
    let connection = &connection;
    let mut measured = Vec::new();
    let mut measure = |name, work: &mut dyn FnMut()| {
        steps.store(0, Ordering::Relaxed);
        work();
        measured.push((name, steps.load(Ordering::Relaxed)));
    };
    let now = 500_000_000;
    let (mut owned, mut claimed) = (Vec::new(), Vec::new());
    measure("heartbeat", &mut || {
        work::heartbeat(connection, now, "worker", LEASE, true).unwrap();
    });
    measure("find", &mut || {
        let found = work::find(connection, now, "worker", Duration::ZERO, 100);
        assert_eq!(found.unwrap().len(), 100);
    });
    measure("acquire", &mut || {
        owned = work::acquire(connection, now, "worker", &[1, 2, 3]).unwrap();
    });
    measure("claim", &mut || {
        let wanted = owned.iter().map(|owned| ClaimRequest::of(owned, 5));
        let wanted: Vec<_> = wanted.collect();
        claimed = claim::claim(connection, now, "worker", &wanted)
            .unwrap()
            .messages;
        assert_eq!(claimed.len(), 15);
    });
    measure("settle", &mut || {
        let next = |number| match number % 3 {
            0 => AfterAttempt::Delivered,
            1 => AfterAttempt::Again(LEASE),
            _ => AfterAttempt::Dead("no".to_owned()),
        };
        let all = claimed.iter().enumerate();
        let all: Vec<_> = all
            .map(|(number, one)| settled(one, next(number)))
            .collect();
        assert_eq!(settle::settle(connection, now, &all).unwrap(), [true; 15]);
    });
    measure("enqueue", &mut || {
        let message = |number: i64| {
            let one = NewMessage::new(number.to_string(), format!("new {number}"), "{}");
            [
                one.clone(),
                NewMessage {
                    event: format!("key {number}"),
                    ..one
                }
                .in_order("key"),
            ]
        };
        let messages: Vec<_> = (4..9).flat_map(message).collect();
        enqueue::enqueue(connection, now, &messages).unwrap();
    });
    measure("release", &mut || {
        let owned: Vec<_> = owned.iter().map(|owned| (owned.id, owned.fence)).collect();
        work::release(connection, "worker", &owned).unwrap();
    });
    let all = Filter::default();
    let filters = [
        ("list", all.clone()),
        (
            "list of one state",
            Filter {
                state: Some(MessageState::Dead),
                ..all.clone()
            },
        ),
        (
            "list of an endpoint",
            Filter {
                endpoint: Some("9".to_owned()),
                ..all.clone()
            },
        ),
        (
            "list of a state of an endpoint",
            Filter {
                endpoint: Some("9".to_owned()),
                state: Some(MessageState::Dead),
                ..all.clone()
            },
        ),
        (
            "list from one on",
            Filter {
                before: Some(1000),
                ..all.clone()
            },
        ),
        (
            "one message",
            Filter {
                id: Some(format!("msg_{:032}", 7).parse().unwrap()),
                ..all.clone()
            },
        ),
    ];
    for (name, filter) in filters {
        measure(name, &mut || {
            read::messages(connection, &filter, 3).unwrap();
        });
    }
    measure("the latest end", &mut || {
        read::latest_end(connection).unwrap();
    });
    measure("what is to be purged", &mut || {
        read::purgeable(connection, 0, 100).unwrap();
    });
    measure("delete some messages of an endpoint", &mut || {
        let some = operate::delete_some(connection, "", "9", true, &[8, 8 + endpoints]);
        let deleted = Deletion::Deleted { messages: 2 };
        assert_eq!(some.unwrap(), (deleted, false, false));
    });
    measure("attempts", &mut || {
        read::attempts(connection, &format!("msg_{:032}", 7).parse().unwrap()).unwrap();
    });
    measured
}

/// The cost may grow with the number of endpoints, or with that of messages per endpoint, but not with their product.
#[test]
fn no_sqlite_call_scans_all_messages() {
    let (fewer_endpoints, fewer_each, many) = (steps(100, 100), steps(1000, 10), steps(1000, 100));
    for ((fewer_endpoints, fewer_each), (name, many)) in
        fewer_endpoints.iter().zip(&fewer_each).zip(&many)
    {
        let most = fewer_endpoints.1 + fewer_each.1;
        assert!(*many <= most + 100, "{name}: {most}, {many}");
    }
}
