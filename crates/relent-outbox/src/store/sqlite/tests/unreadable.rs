//! Rows that other programs have written, or that are corrupted.

use super::*;
use crate::endpoint::OnDeadLetter;
use crate::store::{MessageState, MessageStatus};

async fn states(store: &Sqlite) -> Vec<(String, MessageState)> {
    let found = store.messages(Filter::default(), 10).await.unwrap();
    let state = |one: MessageStatus| (one.event, one.state);
    found.into_iter().rev().map(state).collect()
}

#[tokio::test]
async fn an_unreadable_message_becomes_a_dead_letter_and_blocks_no_other() {
    let (store, _directory) = open();
    let endpoint = Endpoint::new("shop", "https://shop.example/notify");
    store
        .put_endpoint(endpoint.on_dead_letter(OnDeadLetter::Skip))
        .await
        .unwrap();
    let plain = ["1", "2", "3"].map(message);
    let ordered = ["4", "5"].map(|event| message(event).in_order("key"));
    let enqueued = store.enqueue([plain.to_vec(), ordered.to_vec()].concat());
    let enqueued = enqueued.await.unwrap();
    let spoil = store.writer().run(|connection| {
        connection.execute_batch(
            "UPDATE relent_message_1 SET id = 'no.id' WHERE row = 1;
             UPDATE relent_message_1 SET content_type = x'ff00' WHERE row = 2;
             DELETE FROM relent_message_1 WHERE row = 4;",
        )?;
        Ok::<_, WriterError>(())
    });
    spoil.await.unwrap();
    let owned = take(&store, "worker").await;
    let claimed = claim(&store, "worker", &owned[0]).await;
    let found: Vec<_> = claimed.iter().map(|one| &one.id).collect();
    assert_eq!(found, [&enqueued[2].id]);
    // It does not block the next message of its order key, either.
    let claimed = claim(&store, "worker", &owned[0]).await;
    assert_eq!((&claimed[0].id, claimed.len()), (&enqueued[4].id, 1));
    assert!(claim(&store, "worker", &owned[0]).await.is_empty());
    assert!(
        store
            .find_work("worker", Duration::ZERO, 9)
            .await
            .unwrap()
            .is_empty()
    );

    let dead = Filter {
        state: Some(MessageState::Dead),
        ..Filter::default()
    };
    let found = store.messages(dead.clone(), 10).await.unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!((found[1].id.as_str(), &found[1].event[..]), ("no.id", "1"));
    for found in &found {
        assert!(found.reason.contains("cannot be read"), "{}", found.reason);
    }
    assert_eq!(store.summary().await.unwrap().dead, 3);

    // After a correction and a resend, it is claimed.
    let mend = store.writer().run(|connection| {
        connection.execute(
            "UPDATE relent_message_1 SET content_type = 'text/plain' WHERE row = 2",
            [],
        )?;
        Ok::<_, WriterError>(())
    });
    mend.await.unwrap();
    assert_eq!(store.resend(dead).await.unwrap(), 2);
    let claimed = claim(&store, "worker", &owned[0]).await;
    assert_eq!((&claimed[0].id, claimed.len()), (&enqueued[1].id, 1));
    let is = [
        ("1", MessageState::Dead),
        ("2", MessageState::Running),
        ("3", MessageState::Running),
        ("5", MessageState::Running),
    ];
    assert_eq!(
        states(&store).await,
        is.map(|(event, state)| (event.to_owned(), state))
    );
}

/// As another version has written it.
#[tokio::test]
async fn an_unreadable_endpoint_can_be_deleted() {
    let (store, _directory) = open();
    shop(&store).await;
    let spoil = store.writer().run(|connection| {
        connection.execute("UPDATE relent_endpoint_1 SET spec = '{}'", [])?;
        Ok::<_, WriterError>(())
    });
    spoil.await.unwrap();
    store.endpoint("", "shop").await.unwrap_err();
    let deleted = store.delete_endpoint("", "shop", false).await.unwrap();
    assert_eq!(deleted, Deletion::Deleted { messages: 0 });
}

/// An unreadable message that was running when its worker died.
#[tokio::test]
async fn an_unreadable_lost_message_becomes_a_dead_letter() {
    let (store, _directory, time) = open_with_clock();
    shop(&store).await;
    store
        .enqueue(vec![message("1"), message("2")])
        .await
        .unwrap();
    let owned = take(&store, "dead").await;
    assert_eq!(claim(&store, "dead", &owned[0]).await.len(), 2);
    let spoil = store.writer().run(|connection| {
        connection.execute(
            "UPDATE relent_delivery_1 SET session = 'text' WHERE row = 1",
            [],
        )?;
        Ok::<_, WriterError>(())
    });
    spoil.await.unwrap();
    time.fetch_add(30_000_000, Ordering::Relaxed);
    let owned = take(&store, "worker").await;
    let claimed = claim(&store, "worker", &owned[0]).await;
    assert_eq!((claimed[0].row, claimed.len()), (2, 1));
    let is = [("1", MessageState::Dead), ("2", MessageState::Running)];
    assert_eq!(
        states(&store).await,
        is.map(|(event, state)| (event.to_owned(), state))
    );
}

/// Whatever is stored there: such a message does not wait for ever, and blocks nothing else.
#[tokio::test]
async fn a_message_with_an_invalid_due_time_becomes_a_dead_letter() {
    for (due, busy) in [
        ("'2026-11-22 12:00:00'", false),
        ("'2026-11-22 12:00:00'", true),
        ("x'00'", true),
        ("1.5", false),
        ("1.5", true),
    ] {
        let (store, _directory) = open();
        shop(&store).await;
        store.enqueue(vec![message("1")]).await.unwrap();
        if busy {
            let later = NewMessage {
                delay: Duration::from_secs(3600),
                ..message("2")
            };
            store.enqueue(vec![later, message("3")]).await.unwrap();
        }
        let spoil = format!("UPDATE relent_delivery_1 SET due = {due} WHERE row = 1");
        let spoil = store.writer().run(move |connection| {
            connection.execute_batch(&spoil)?;
            Ok::<_, WriterError>(())
        });
        spoil.await.unwrap();
        assert_eq!(
            states(&store).await[0],
            ("1".to_owned(), MessageState::Pending)
        );
        store.summary().await.unwrap();
        store.endpoint("", "shop").await.unwrap();
        let owned = take(&store, "worker").await;
        let claimed = claim(&store, "worker", &owned[0]).await;
        let found: Vec<_> = claimed.iter().map(|one| one.row).collect();
        assert_eq!(found, if busy { vec![3] } else { vec![] });
        let dead = Filter {
            state: Some(MessageState::Dead),
            ..Filter::default()
        };
        let dead = store.messages(dead, 9).await.unwrap();
        assert_eq!((dead.len(), &dead[0].event[..]), (1, "1"));
        assert!(
            dead[0].reason.contains("cannot be read"),
            "{}",
            dead[0].reason
        );
        let resent = store.resend(Filter::default()).await.unwrap();
        assert_eq!(resent, 1);
        assert_eq!(claim(&store, "worker", &owned[0]).await[0].row, 1);
    }
}
