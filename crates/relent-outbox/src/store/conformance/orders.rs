//! Guarantees of order keys.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::shop::{LONG, Shop, endpoint, message, wanted};
use crate::endpoint::{Activity, OnDeadLetter};
use crate::message::NewMessage;
use crate::store::{AfterAttempt, Claimed, Filter, MessageState, OwnedEndpoint, Store, Summary};

pub(super) async fn check<S: Store>(make: &impl AsyncFn() -> S) {
    messages_of_a_key_are_claimed_in_order(make).await;
    keys_and_endpoints_are_independent(make).await;
    dead_letters_block_as_configured(make).await;
    resent_messages_go_first(make).await;
    one_message_of_a_key_runs(make).await;
    the_next_message_is_free_when_the_running_one_ends(make).await;
    a_lost_running_message_blocks_its_key(make).await;
    one_message_of_a_key_runs_under_concurrency(make).await;
    dead_letters_that_block_none_are_purged(make).await;
    the_order_survives_the_death_of_an_owner(make).await;
    a_long_queue_blocks_no_other_message(make).await;
}

fn ordered(event: &str) -> NewMessage {
    message(event).in_order("key")
}

fn of(id: &crate::message::MessageId) -> Filter {
    Filter {
        id: Some(id.clone()),
        ..Filter::default()
    }
}

fn dead() -> AfterAttempt {
    AfterAttempt::Dead("all attempts are used".to_owned())
}

impl<S: Store> Shop<S> {
    /// Claims exactly these events, and delivers them.
    async fn deliver(&self, owned: &OwnedEndpoint, events: &[&str]) {
        let (found, claimed) = self.claim_events("worker", owned).await;
        assert_eq!(found, events);
        for claimed in claimed {
            assert!(self.settle(&claimed, AfterAttempt::Delivered).await);
        }
    }
}

async fn messages_of_a_key_are_claimed_in_order<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    shop.enqueue([ordered("1").delay(LONG)]).await;
    shop.enqueue([ordered("2"), message("free"), ordered("3")])
        .await;
    let owned = shop.take_one("worker").await;
    shop.deliver(&owned, &["free"]).await;
    assert!(shop.work("worker").await.is_empty(), "2 and 3 wait for 1");
    let all = shop.0.messages(Filter::default(), 10).await.unwrap();
    assert!(
        all.iter()
            .all(|one| one.event == "free" || one.state == MessageState::Pending)
    );
    let one = all.iter().find(|one| one.event == "1").unwrap();
    assert_eq!(shop.0.cancel(of(&one.id)).await.unwrap(), 1);
    assert_eq!(shop.work("worker").await, [owned.id]);

    let (events, claimed) = shop.claim_events("worker", &owned).await;
    assert_eq!(events, ["2"]);
    shop.enqueue([ordered("4")]).await;
    shop.deliver(&owned, &[]).await;
    assert!(shop.settle(&claimed[0], AfterAttempt::Again(LONG)).await);
    shop.deliver(&owned, &[]).await;
    assert_eq!(shop.0.cancel(of(&claimed[0].id)).await.unwrap(), 1);
    let (events, claimed) = shop.claim_events("worker", &owned).await;
    assert_eq!(events, ["3"]);
    assert!(shop.settle(&claimed[0], AfterAttempt::Unsent).await);
    shop.deliver(&owned, &["3"]).await;
    shop.deliver(&owned, &["4"]).await;
    shop.deliver(&owned, &[]).await;
    // The queue of the key is empty, and starts again.
    shop.enqueue([ordered("5")]).await;
    shop.deliver(&owned, &["5"]).await;
}

async fn keys_and_endpoints_are_independent<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    shop.put(endpoint("bank")).await;
    let mut bank = ordered("bank 1");
    bank.endpoint = "bank".to_owned();
    shop.enqueue([
        ordered("a1"),
        bank,
        message("b1").in_order("other"),
        ordered("a2"),
        message("b2").in_order("other"),
    ])
    .await;
    let mut owned = shop.take("worker").await;
    owned.sort_by(|a, b| b.endpoint.name.cmp(&a.endpoint.name));
    shop.deliver(&owned[0], &["a1", "b1"]).await;
    shop.deliver(&owned[1], &["bank 1"]).await;
    shop.deliver(&owned[0], &["a2", "b2"]).await;
}

async fn dead_letters_block_as_configured<S: Store>(make: &impl AsyncFn() -> S) {
    for on_dead_letter in [OnDeadLetter::Block, OnDeadLetter::Skip] {
        let shop = Shop::open(make).await;
        let rule = |on_dead_letter| shop.put(endpoint("shop").on_dead_letter(on_dead_letter));
        rule(on_dead_letter).await;
        shop.enqueue([ordered("1"), ordered("2"), ordered("3")])
            .await;
        let owned = shop.take_one("worker").await;
        let claimed = shop.claim("worker", &owned).await;
        assert!(shop.settle(&claimed[0], dead()).await);
        if on_dead_letter == OnDeadLetter::Block {
            assert!(shop.work("worker").await.is_empty());
            shop.deliver(&owned, &[]).await;
            assert_eq!(
                shop.0.purge(Duration::ZERO, 10).await.unwrap(),
                0,
                "2 waits for it"
            );
            // The rule changes back and forth.
            rule(OnDeadLetter::Skip).await;
            assert_eq!(shop.work("worker").await, [owned.id]);
            rule(OnDeadLetter::Block).await;
            shop.deliver(&owned, &[]).await;
            assert_eq!(shop.0.cancel(of(&claimed[0].id)).await.unwrap(), 1);
        }
        shop.deliver(&owned, &["2"]).await;
        shop.deliver(&owned, &["3"]).await;
        assert_eq!(shop.0.purge(Duration::ZERO, 10).await.unwrap(), 3);
        shop.enqueue([ordered("1")]).await;
        shop.deliver(&owned, &["1"]).await;
    }
}

async fn resent_messages_go_first<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let enqueued = shop
        .enqueue([ordered("1"), ordered("2"), ordered("3"), ordered("4")])
        .await;
    let owned = shop.take_one("worker").await;
    let claimed = shop.claim("worker", &owned).await;
    assert!(shop.settle(&claimed[0], dead()).await);
    assert_eq!(shop.0.resend(of(&enqueued[0].id)).await.unwrap(), 1);
    shop.deliver(&owned, &["1"]).await;
    shop.deliver(&owned, &["2"]).await;
    // Both precede 3 again, in their order, whether 3 is pending or running.
    assert_eq!(shop.0.resend(of(&enqueued[1].id)).await.unwrap(), 1);
    assert_eq!(shop.0.resend(of(&enqueued[0].id)).await.unwrap(), 1);
    shop.deliver(&owned, &["1"]).await;
    shop.deliver(&owned, &["2"]).await;
    let (events, three) = shop.claim_events("worker", &owned).await;
    assert_eq!(events, ["3"]);
    assert_eq!(shop.0.resend(of(&enqueued[0].id)).await.unwrap(), 1);
    assert!(
        shop.settle(&three[0], AfterAttempt::Again(Duration::ZERO))
            .await
    );
    shop.deliver(&owned, &["1"]).await;
    shop.deliver(&owned, &["3"]).await;
    shop.deliver(&owned, &["4"]).await;
    let all = Filter::default();
    assert_eq!(shop.0.resend(all).await.unwrap(), 4);
    for event in ["1", "2", "3", "4"] {
        shop.deliver(&owned, &[event]).await;
    }
}

/// Also if the running one is a later one.
async fn one_message_of_a_key_runs<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let enqueued = shop
        .enqueue([
            ordered("1"),
            ordered("2"),
            message("other").in_order("other"),
        ])
        .await;
    let owned = shop.take_one("worker").await;
    shop.deliver(&owned, &["1", "other"]).await;
    let (events, two) = shop.claim_events("worker", &owned).await;
    assert_eq!(events, ["2"]);
    assert_eq!(shop.0.resend(of(&enqueued[0].id)).await.unwrap(), 1);
    assert_eq!(shop.0.resend(of(&enqueued[2].id)).await.unwrap(), 1);
    shop.enqueue([message("free")]).await;
    shop.deliver(&owned, &["other", "free"]).await;
    shop.deliver(&owned, &[]).await;
    assert!(shop.work("worker").await.is_empty(), "1 waits for 2");
    let pending = Filter {
        state: Some(MessageState::Pending),
        ..Filter::default()
    };
    assert_eq!(shop.events(pending).await, ["1"]);
    assert!(
        shop.settle(&two[0], AfterAttempt::Again(Duration::ZERO))
            .await
    );
    assert_eq!(shop.work("worker").await, [owned.id]);
    shop.deliver(&owned, &["1"]).await;
    shop.deliver(&owned, &["2"]).await;
    shop.deliver(&owned, &[]).await;
}

/// For each end of the running message, and each change meanwhile.
async fn the_next_message_is_free_when_the_running_one_ends<S: Store>(make: &impl AsyncFn() -> S) {
    let rule = |on_dead_letter| endpoint("shop").on_dead_letter(on_dead_letter);
    let active = async |shop: &Shop<S>, activity| {
        let set = shop.0.set_activity("", "shop", activity, "by hand");
        assert!(set.await.unwrap());
    };
    let ends = [
        AfterAttempt::Delivered,
        AfterAttempt::Again(LONG),
        AfterAttempt::Unsent,
        AfterAttempt::Dead("of its own accord".to_owned()),
    ];
    for (next, meanwhile) in ends
        .iter()
        .flat_map(|next| (0..6).map(move |meanwhile| (next, meanwhile)))
    {
        let shop = Shop::open(make).await;
        shop.put(rule(OnDeadLetter::Block)).await;
        let enqueued = shop.enqueue(["1", "2", "3"].map(ordered)).await;
        let owned = shop.take_one("worker").await;
        let (_, claimed) = shop.claim_events("worker", &owned).await;
        assert!(shop.settle(&claimed[0], dead()).await);
        shop.put(rule(OnDeadLetter::Skip)).await;
        let (events, two) = shop.claim_events("worker", &owned).await;
        assert_eq!(events, ["2"]);
        let mut first = "1";
        match meanwhile {
            0 => {}
            1 => {
                active(&shop, Activity::Disabled).await;
                shop.deliver(&owned, &[]).await;
                active(&shop, Activity::Active).await;
            }
            2 => {
                shop.put(rule(OnDeadLetter::Block)).await;
                shop.deliver(&owned, &[]).await;
                shop.put(rule(OnDeadLetter::Skip)).await;
            }
            3 => {
                assert_eq!(shop.0.cancel(of(&enqueued[0].id)).await.unwrap(), 1);
                shop.deliver(&owned, &[]).await;
            }
            4 => {
                assert_eq!(shop.0.cancel(of(&enqueued[0].id)).await.unwrap(), 1);
                assert_eq!(shop.0.purge(Duration::ZERO, 10).await.unwrap(), 1);
                first = "";
            }
            _ => {
                shop.0
                    .release("worker", vec![(owned.id, owned.fence)])
                    .await
                    .unwrap();
            }
        }
        if first == "1" {
            assert_eq!(shop.0.resend(of(&enqueued[0].id)).await.unwrap(), 1);
        }
        shop.deliver(&owned, &[]).await;
        shop.deliver(&owned, &[]).await;
        assert!(shop.settle(&two[0], next.clone()).await);
        // The endpoint was released, so another worker must take it.
        let owned = match meanwhile {
            5 => shop.take_one("worker").await,
            _ => owned,
        };
        let mut expected = vec![first];
        expected.retain(|first| !first.is_empty());
        match next {
            AfterAttempt::Unsent => expected.extend(["2", "3"]),
            AfterAttempt::Again(_) => {}
            _ => expected.push("3"),
        }
        for event in expected {
            assert_eq!(
                shop.work("worker").await,
                [owned.id],
                "{event}: {next:?}, {meanwhile}"
            );
            shop.deliver(&owned, &[event]).await;
        }
        shop.deliver(&owned, &[]).await;
        if let AfterAttempt::Again(_) = next {
            assert_eq!(shop.0.cancel(of(&two[0].id)).await.unwrap(), 1);
            shop.deliver(&owned, &["3"]).await;
        }
    }
}

async fn a_lost_running_message_blocks_its_key<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let enqueued = shop.enqueue([ordered("1"), ordered("2")]).await;
    let owned = shop.take_one("worker").await;
    shop.deliver(&owned, &["1"]).await;
    assert_eq!(shop.claim("worker", &owned).await.len(), 1);
    assert_eq!(shop.0.resend(of(&enqueued[0].id)).await.unwrap(), 1);
    shop.die("worker").await;
    let owned = shop.take_one("worker").await;
    // More messages are wanted, but 2 may still be running.
    let (events, lost) = shop.claim_events("worker", &owned).await;
    assert_eq!((&events[..], lost[0].lost), (&["2".to_owned()][..], true));
    shop.deliver(&owned, &[]).await;
    assert!(shop.settle(&lost[0], AfterAttempt::Delivered).await);
    shop.deliver(&owned, &["1"]).await;
    shop.deliver(&owned, &[]).await;
}

/// Several tasks claim and settle while others resend: one message of each key runs at a time, and none is left behind.
async fn one_message_of_a_key_runs_under_concurrency<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let queue = |key: usize| {
        (0..5).map(move |event| message(&format!("{key} {event}")).in_order(key.to_string()))
    };
    let enqueued = shop.enqueue((0..3).flat_map(queue)).await;
    let keys: HashMap<_, _> = enqueued
        .iter()
        .enumerate()
        .map(|(place, one)| (one.id.clone(), place / 5))
        .collect();
    let owned = shop.take_one("worker").await;
    let running = Mutex::new([false; 3]);
    let resent = AtomicBool::new(false);
    let settle = async |claimed: &Claimed| {
        let key = keys[&claimed.id];
        let was = std::mem::replace(&mut running.lock().unwrap()[key], true);
        assert!(!was, "two of the key {key} run");
        tokio::task::yield_now().await;
        running.lock().unwrap()[key] = false;
        assert!(shop.settle(claimed, AfterAttempt::Delivered).await);
    };
    let claimer = async || {
        loop {
            let over = resent.load(Relaxed);
            let claimed = shop.claim("worker", &owned).await;
            for claimed in &claimed {
                settle(claimed).await;
            }
            if over && claimed.is_empty() {
                return;
            }
        }
    };
    let resend = async || {
        for round in 0..60 {
            let again = of(&enqueued[round * 7 % enqueued.len()].id);
            shop.0.resend(again).await.unwrap();
        }
        resent.store(true, Relaxed);
    };
    tokio::join!(claimer(), claimer(), claimer(), resend());
    // A task may have ended while another ran the first message of a key.
    claimer().await;
    assert_eq!(shop.0.summary().await.unwrap(), Summary::default());
}

/// A dead letter stays only while a later message waits for it, not because of earlier ones.
async fn dead_letters_that_block_none_are_purged<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let enqueued = shop.enqueue(["1", "2", "3"].map(ordered)).await;
    let owned = shop.take_one("worker").await;
    shop.deliver(&owned, &["1"]).await;
    shop.deliver(&owned, &["2"]).await;
    let claimed = shop.claim("worker", &owned).await;
    for enqueued in &enqueued[..2] {
        assert_eq!(shop.0.resend(of(&enqueued.id)).await.unwrap(), 1);
    }
    assert!(shop.settle(&claimed[0], dead()).await);
    assert_eq!(shop.0.purge(Duration::ZERO, 10).await.unwrap(), 1);
    shop.deliver(&owned, &["1"]).await;
    shop.deliver(&owned, &["2"]).await;
}

async fn the_order_survives_the_death_of_an_owner<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    shop.enqueue([ordered("1"), ordered("2")]).await;
    let owned = shop.take_one("dies").await;
    assert_eq!(shop.claim("dies", &owned).await.len(), 1);
    shop.die("dies").await;
    let owned = shop.take_one("worker").await;
    let (events, lost) = shop.claim_events("worker", &owned).await;
    assert_eq!((&events[..], lost[0].lost), (&["1".to_owned()][..], true));
    shop.deliver(&owned, &[]).await;
    assert!(
        shop.settle(&lost[0], AfterAttempt::Again(Duration::ZERO))
            .await
    );
    shop.deliver(&owned, &["1"]).await;
    shop.deliver(&owned, &["2"]).await;
}

/// A long queue does not keep other messages from being claimed, even by small claims.
async fn a_long_queue_blocks_no_other_message<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let queue = (0..1000).map(|number| ordered(&format!("{number:03}")));
    shop.enqueue(queue.chain([message("free")])).await;
    let owned = shop.take_one("worker").await;
    let one = vec![wanted(&owned, 1)];
    let first = shop.0.claim("worker", one.clone()).await.unwrap().messages;
    let free = shop.0.claim("worker", one.clone()).await.unwrap().messages;
    assert_eq!((first[0].ordered, free[0].ordered), (true, false));
    assert!(shop.settle(&first[0], AfterAttempt::Delivered).await);
    shop.deliver(&owned, &["001"]).await;
    shop.deliver(&owned, &["002"]).await;
}
