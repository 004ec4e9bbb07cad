//! What order keys promise.

use std::time::Duration;

use super::{LONG, Shop, endpoint, message, soon, wanted};
use crate::endpoint::AfterDead;
use crate::message::NewMessage;
use crate::store::{Filter, Next, Owned, State, Store};

pub(super) async fn check<S: Store>(make: &impl AsyncFn() -> S) {
    one_after_another(make).await;
    keys_and_endpoints_are_apart(make).await;
    the_dead_block_or_not(make).await;
    who_is_resent_goes_first(make).await;
    an_owner_that_dies_keeps_the_order(make).await;
    a_thousand_in_a_line(make).await;
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

fn dead() -> Next {
    Next::Dead("all attempts are used".to_owned())
}

impl<S: Store> Shop<S> {
    /// Exactly these are claimed, and delivered.
    async fn deliver(&self, owned: &Owned, events: &[&str]) {
        let (found, claimed) = self.claim_events("worker", owned).await;
        assert_eq!(found, events);
        for claimed in claimed {
            assert!(self.settle(&claimed, Next::Delivered).await);
        }
    }
}

async fn one_after_another<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    shop.enqueue([ordered("1").delay(LONG)]).await;
    shop.enqueue([ordered("2"), message("free"), ordered("3")])
        .await;
    let owned = shop.take_one("worker").await;
    shop.deliver(&owned, &["free"]).await;
    assert!(shop.work("worker").await.is_empty(), "2 and 3 wait for 1");
    let first = Filter {
        until_ms: None,
        ..Filter::default()
    };
    let all = shop.0.messages(first, 10).await.unwrap();
    assert!(
        all.iter()
            .all(|one| one.event == "free" || one.state == State::Pending)
    );
    let one = all.iter().find(|one| one.event == "1").unwrap();
    assert_eq!(shop.0.cancel(of(&one.id)).await.unwrap(), 1);
    assert_eq!(shop.work("worker").await, [owned.id]);

    let (events, claimed) = shop.claim_events("worker", &owned).await;
    assert_eq!(events, ["2"]);
    shop.enqueue([ordered("4")]).await;
    shop.deliver(&owned, &[]).await;
    assert!(shop.settle(&claimed[0], Next::Again(LONG)).await);
    shop.deliver(&owned, &[]).await;
    assert_eq!(shop.0.cancel(of(&claimed[0].id)).await.unwrap(), 1);
    let (events, claimed) = shop.claim_events("worker", &owned).await;
    assert_eq!(events, ["3"]);
    assert!(shop.settle(&claimed[0], Next::Unsent).await);
    shop.deliver(&owned, &["3"]).await;
    shop.deliver(&owned, &["4"]).await;
    shop.deliver(&owned, &[]).await;
    // The line is empty, and begins anew.
    shop.enqueue([ordered("5")]).await;
    shop.deliver(&owned, &["5"]).await;
}

async fn keys_and_endpoints_are_apart<S: Store>(make: &impl AsyncFn() -> S) {
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

async fn the_dead_block_or_not<S: Store>(make: &impl AsyncFn() -> S) {
    for after_dead in [AfterDead::Block, AfterDead::Skip] {
        let shop = Shop::open(make).await;
        let rule = |after_dead| shop.put(endpoint("shop").after_dead(after_dead));
        rule(after_dead).await;
        shop.enqueue([ordered("1"), ordered("2"), ordered("3")])
            .await;
        let owned = shop.take_one("worker").await;
        let claimed = shop.claim("worker", &owned).await;
        assert!(shop.settle(&claimed[0], dead()).await);
        if after_dead == AfterDead::Block {
            assert!(shop.work("worker").await.is_empty());
            shop.deliver(&owned, &[]).await;
            assert_eq!(shop.0.purge(soon(), 10).await.unwrap(), 0, "2 waits for it");
            // The rule changes, to and fro.
            rule(AfterDead::Skip).await;
            assert_eq!(shop.work("worker").await, [owned.id]);
            rule(AfterDead::Block).await;
            shop.deliver(&owned, &[]).await;
            assert_eq!(shop.0.cancel(of(&claimed[0].id)).await.unwrap(), 1);
        }
        shop.deliver(&owned, &["2"]).await;
        shop.deliver(&owned, &["3"]).await;
        assert_eq!(shop.0.purge(soon(), 10).await.unwrap(), 3);
        shop.enqueue([ordered("1")]).await;
        shop.deliver(&owned, &["1"]).await;
    }
}

async fn who_is_resent_goes_first<S: Store>(make: &impl AsyncFn() -> S) {
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
    // Both go before 3 again, in their order, while 3 may be attempted or is.
    assert_eq!(shop.0.resend(of(&enqueued[1].id)).await.unwrap(), 1);
    assert_eq!(shop.0.resend(of(&enqueued[0].id)).await.unwrap(), 1);
    shop.deliver(&owned, &["1"]).await;
    shop.deliver(&owned, &["2"]).await;
    let (events, three) = shop.claim_events("worker", &owned).await;
    assert_eq!(events, ["3"]);
    assert_eq!(shop.0.resend(of(&enqueued[0].id)).await.unwrap(), 1);
    assert!(shop.settle(&three[0], Next::Again(Duration::ZERO)).await);
    shop.deliver(&owned, &["1"]).await;
    shop.deliver(&owned, &["3"]).await;
    shop.deliver(&owned, &["4"]).await;
    let all = Filter::default();
    assert_eq!(shop.0.resend(all).await.unwrap(), 4);
    for event in ["1", "2", "3", "4"] {
        shop.deliver(&owned, &[event]).await;
    }
}

async fn an_owner_that_dies_keeps_the_order<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    shop.enqueue([ordered("1"), ordered("2")]).await;
    let owned = shop.take_one("dies").await;
    assert_eq!(shop.claim("dies", &owned).await.len(), 1);
    shop.die("dies").await;
    let owned = shop.take_one("worker").await;
    let (events, lost) = shop.claim_events("worker", &owned).await;
    assert_eq!((&events[..], lost[0].lost), (&["1".to_owned()][..], true));
    shop.deliver(&owned, &[]).await;
    assert!(shop.settle(&lost[0], Next::Again(Duration::ZERO)).await);
    shop.deliver(&owned, &["1"]).await;
    shop.deliver(&owned, &["2"]).await;
}

/// They keep nobody else from being claimed, however few are wanted.
async fn a_thousand_in_a_line<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let line = (0..1000).map(|number| ordered(&format!("{number:03}")));
    shop.enqueue(line.chain([message("free")])).await;
    let owned = shop.take_one("worker").await;
    let one = vec![wanted(&owned, 1)];
    let first = shop.0.claim("worker", one.clone()).await.unwrap();
    let free = shop.0.claim("worker", one.clone()).await.unwrap();
    assert_eq!((first[0].ordered, free[0].ordered), (true, false));
    assert!(shop.settle(&first[0], Next::Delivered).await);
    shop.deliver(&owned, &["001"]).await;
    shop.deliver(&owned, &["002"]).await;
}
