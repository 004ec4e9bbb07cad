//! Guarantees for producers.

use std::collections::HashSet;

use super::shop::{LONG, Shop, endpoint, message};
use crate::message::{NewEvent, NewMessage};
use crate::store::{EnqueueError, Filter, MessageState, Refusal, Store};

pub(super) async fn check<S: Store>(make: &impl AsyncFn() -> S) {
    an_event_is_stored_once_per_endpoint(make).await;
    messages_are_enqueued_all_or_none(make).await;
    concurrent_producers_store_each_event_once(make).await;
    an_event_reaches_its_subscribers(make).await;
    events_are_published_all_or_none(make).await;
}

async fn an_event_is_stored_once_per_endpoint<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    shop.put(endpoint("shop").tenant("acme")).await;
    shop.put(endpoint("bank")).await;
    let messages = [
        message("paid"),
        message("paid").tenant("acme"),
        NewMessage::new("bank", "paid", "paid"),
        message("refunded"),
        message("paid"),
    ];
    let first = shop.enqueue(messages.clone()).await;
    let duplicates = first.iter().map(|one| one.duplicate).collect::<Vec<_>>();
    assert_eq!(duplicates, [false, false, false, false, true]);
    assert_eq!(first[0].id, first[4].id);
    let ids: HashSet<_> = first.iter().map(|one| &one.id).collect();
    assert_eq!(ids.len(), 4, "each has an identifier of its own");
    // A different delay does not make a different message.
    let again = messages.map(|message| message.delay(LONG));
    for (first, again) in first.iter().zip(shop.enqueue(again).await) {
        assert_eq!((&first.id, true), (&again.id, again.duplicate));
    }
    assert_eq!(shop.0.summary().await.unwrap().pending, 4);
    assert_eq!(shop.enqueue([]).await, []);
}

async fn messages_are_enqueued_all_or_none<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let first = shop.enqueue([message("paid")]).await.remove(0);
    let other = Refusal::OtherPayload(first.id);
    let mut other_payload = message("paid");
    other_payload.payload = "other".into();
    let too_long = message(&"e".repeat(1000));
    let Err(invalid) = too_long.check() else {
        panic!("the name of the event is too long");
    };
    for (refused, why) in [
        (other_payload, other.clone()),
        (message("paid").content_type("text/plain"), other.clone()),
        (message("paid").topic("payment"), other.clone()),
        (message("paid").in_order("order-17"), other),
        (message("new").tenant("acme"), Refusal::UnknownEndpoint),
        (NewMessage::new("bank", "new", ""), Refusal::UnknownEndpoint),
        (too_long, Refusal::Invalid(invalid)),
    ] {
        let messages = vec![message("before"), refused, message("after")];
        match shop.0.enqueue(messages).await {
            Err(EnqueueError::Refused { index: 1, refusal }) => assert_eq!(refusal, why),
            other => panic!("{why}: {other:?}"),
        }
    }
    assert_eq!(shop.events(Filter::default()).await, ["paid"]);
}

/// Sixteen producers concurrently enqueue the same events in both orders: each is stored once, and all producers get
/// the same identifiers.
async fn concurrent_producers_store_each_event_once<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let producers: Vec<_> = (0..16)
        .map(|producer| {
            let store = shop.0.clone();
            tokio::spawn(async move {
                let event = |number| message(&format!("event {number}"));
                let mut messages: Vec<_> = (0..8).map(event).collect();
                if producer % 2 == 1 {
                    messages.reverse();
                }
                let mut enqueued = store.enqueue(messages).await.unwrap();
                if producer % 2 == 1 {
                    enqueued.reverse();
                }
                enqueued
            })
        })
        .collect();
    let mut all = Vec::new();
    for producer in producers {
        all.push(producer.await.unwrap());
    }
    for event in 0..8 {
        let ids: HashSet<_> = all.iter().map(|one| &one[event].id).collect();
        let new = all.iter().filter(|one| !one[event].duplicate).count();
        assert_eq!((ids.len(), new), (1, 1), "event {event}");
    }
    assert_eq!(shop.0.summary().await.unwrap().pending, 8);
}

fn event(topic: &str, event: &str) -> NewEvent {
    NewEvent::new(topic, event, format!("{event}: \0 and \u{ff}"))
}

async fn an_event_reaches_its_subscribers<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    for (tenant, name, topics) in [
        ("", "all", &["*"][..]),
        ("", "exact", &["order.paid"]),
        ("", "orders", &["order.*", "order.paid", "order.paid"]),
        ("", "deep", &["order.paid.eu"]),
        ("acme", "others", &["*"]),
    ] {
        let endpoint = endpoint(name).tenant(tenant);
        shop.put(endpoint.topics(topics.iter().copied())).await;
    }
    let publish = async |event: NewEvent| {
        let published = shop.0.publish(vec![event]).await.unwrap().remove(0);
        let of = |(name, one): (String, crate::store::Enqueued)| (name, one.duplicate);
        published.into_iter().map(of).collect::<Vec<_>>()
    };
    let reached = |names: &[(&str, bool)]| {
        let owned = names.iter().map(|(name, is)| ((*name).to_owned(), *is));
        owned.collect::<Vec<_>>()
    };
    let three = [("all", false), ("exact", false), ("orders", false)];
    assert_eq!(publish(event("order.paid", "1")).await, reached(&three));
    let again = three.map(|(name, _)| (name, true));
    assert_eq!(publish(event("order.paid", "1")).await, reached(&again));
    let deep = [("all", false), ("deep", false), ("orders", false)];
    assert_eq!(publish(event("order.paid.eu", "2")).await, reached(&deep));
    assert_eq!(
        publish(event("order", "3")).await,
        reached(&[("all", false)])
    );
    let acme = event("order", "3").tenant("acme");
    assert_eq!(publish(acme).await, reached(&[("others", false)]));
    assert_eq!(publish(event("order.paid", "4").tenant("nobody")).await, []);
    assert_eq!(shop.0.summary().await.unwrap().pending, 8);
    // A message enqueued by name equals one published to its subscriber.
    let by_name = NewMessage::new("exact", "1", "1: \0 and \u{ff}").topic("order.paid");
    assert!(shop.enqueue([by_name]).await[0].duplicate);

    // New subscribers get the event, former subscribers do not.
    shop.put(endpoint("late").topics(["order.paid"])).await;
    shop.put(endpoint("exact").topics(["other"])).await;
    assert_eq!(
        shop.0.delete_endpoint("", "all", true).await.unwrap(),
        crate::store::Deletion::Deleted { messages: 3 }
    );
    assert_eq!(
        publish(event("order.paid", "1")).await,
        reached(&[("late", false), ("orders", true)])
    );
    shop.put(endpoint("all")).await;
    assert_eq!(
        publish(event("something", "5")).await,
        [],
        "it is another one"
    );
    let waits = NewEvent::new("other", "6", "").in_order("key").delay(LONG);
    assert_eq!(publish(waits).await, reached(&[("exact", false)]));
    let filter = Filter {
        search: Some("6".to_owned()),
        state: Some(MessageState::Pending),
        ..Filter::default()
    };
    let found = shop.0.messages(filter, 1).await.unwrap().remove(0);
    assert_eq!(
        (found.order.as_deref(), &found.topic[..]),
        (Some("key"), "other")
    );
    assert_eq!(found.due_ms, Some(found.created_ms + 3_600_000));
}

async fn events_are_published_all_or_none<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    for name in ["a", "b"] {
        shop.put(endpoint(name).topics(["order.*"])).await;
    }
    let first = shop
        .0
        .publish(vec![event("order.paid", "1")])
        .await
        .unwrap();
    let other = NewEvent::new("order.paid", "1", "other");
    let refused = Refusal::OtherPayload(first[0][0].1.id.clone());
    let large = NewEvent::new("order.paid", "large", vec![0; 1 << 20]);
    let Err(invalid) = event("order.*", "5").check() else {
        panic!("no topic has a star in it");
    };
    for (wrong, why) in [
        (vec![event("order.paid", "2"), other], (1, refused)),
        (
            vec![event("order.paid", "3"), event("order.*", "5")],
            (1, Refusal::Invalid(invalid)),
        ),
        (vec![large; 33], (32, Refusal::TooManyEndpoints)),
    ] {
        let refused = shop.0.publish(wrong).await;
        let Err(EnqueueError::Refused { index, refusal }) = refused else {
            panic!("it is refused: {refused:?}");
        };
        assert_eq!((index, refusal), why);
        assert_eq!(shop.0.summary().await.unwrap().pending, 2);
    }
    assert_eq!(
        shop.0.publish(Vec::new()).await.unwrap(),
        Vec::<Vec<_>>::new()
    );
    shop.0
        .put_endpoint(endpoint("c").topics(["*.paid"]))
        .await
        .unwrap_err();
}
