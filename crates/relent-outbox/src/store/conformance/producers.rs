//! What producers rely on.

use std::collections::HashSet;

use super::{LONG, Shop, endpoint, message};
use crate::message::NewMessage;
use crate::store::{EnqueueError, Filter, Refusal, Store};

pub(super) async fn check<S: Store>(make: &impl AsyncFn() -> S) {
    an_event_is_there_once_for_each_endpoint(make).await;
    all_or_none(make).await;
    producers_at_once(make).await;
}

async fn an_event_is_there_once_for_each_endpoint<S: Store>(make: &impl AsyncFn() -> S) {
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
    // Another delay is no other message.
    let again = messages.map(|message| message.delay(LONG));
    for (first, again) in first.iter().zip(shop.enqueue(again).await) {
        assert_eq!((&first.id, true), (&again.id, again.duplicate));
    }
    assert_eq!(shop.0.summary().await.unwrap().pending, 4);
    assert_eq!(shop.enqueue([]).await, []);
}

async fn all_or_none<S: Store>(make: &impl AsyncFn() -> S) {
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

/// Sixteen producers enqueue the same events at once, forwards and backwards: each is there once, and they all hear
/// the same identifiers.
async fn producers_at_once<S: Store>(make: &impl AsyncFn() -> S) {
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
