//! Guarantees about lists, contents and sending now.

use std::time::{Duration, SystemTime};

use super::shop::{LONG, Shop, attempt, endpoint, message, settled, wanted};
use crate::endpoint::{Activity, OnDeadLetter};
use crate::health::Health;
use crate::message::{MessageId, NewMessage};
use crate::store::{
    AfterAttempt, Content, Filter, MessageState, MessageStatus, RECENT, Store, millis,
};

pub(super) async fn check<S: Store>(make: &impl AsyncFn() -> S) {
    sending_now_keeps_the_attempts(make).await;
    sending_now_keeps_the_order(make).await;
    many_messages_are_sent_now(make).await;
    messages_are_searched(make).await;
    a_message_behind_a_dead_letter_names_it(make).await;
    messages_are_selected_by_their_end(make).await;
    a_message_names_the_reason_of_its_disabled_endpoint(make).await;
    endpoints_that_need_attention_are_listed(make).await;
    contents_are_kept_as_they_were_sent(make).await;
    recent_attempts_are_summarized(make).await;
}

fn only(id: &MessageId) -> Filter {
    Filter {
        id: Some(id.clone()),
        ..Filter::default()
    }
}

async fn one<S: Store>(shop: &Shop<S>, id: &MessageId) -> MessageStatus {
    shop.0.messages(only(id), 1).await.unwrap().remove(0)
}

async fn sending_now_keeps_the_attempts<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let fails = shop.enqueue([message("fails")]).await.remove(0).id;
    let owned = shop.take_one("worker").await;
    let claimed = shop.claim("worker", &owned).await.remove(0);
    let mut again = settled(&claimed, AfterAttempt::Again(LONG));
    again.session = vec![7];
    again.attempt = Some(attempt(1, "status 500"));
    assert!(shop.write(again).await);
    assert_eq!(shop.claim("worker", &owned).await, []);
    let found = shop.0.find_work("worker", Duration::ZERO, 9).await.unwrap();
    assert_eq!(found, []);

    assert_eq!(shop.0.send_now(only(&fails)).await.unwrap(), 1);
    let due = one(&shop, &fails).await;
    assert_eq!((due.state, due.attempts), (MessageState::Pending, 1));
    assert!(
        due.due_ms
            .is_some_and(|due| due <= millis(SystemTime::now()) + 5_000)
    );
    assert_eq!(shop.work("worker").await, [owned.id], "its worker finds it");
    let second = shop.claim("worker", &owned).await.remove(0);
    assert_eq!((second.attempt, &second.session[..]), (2, &[7][..]));
    assert_eq!(second.began, claimed.began, "it is of the same schedule");

    // Running and ended messages do not wait, and a due one stays unchanged.
    assert_eq!(shop.0.send_now(only(&fails)).await.unwrap(), 0);
    assert!(shop.settle(&second, AfterAttempt::Delivered).await);
    assert_eq!(shop.0.send_now(only(&fails)).await.unwrap(), 0);
    assert_eq!(one(&shop, &fails).await.state, MessageState::Delivered);
    assert_eq!(shop.0.send_now(only(&MessageId::new())).await.unwrap(), 0);
    let [first, second] = &shop.enqueue([message("1"), message("2")]).await[..] else {
        panic!("two messages");
    };
    let before = one(&shop, &first.id).await;
    assert_eq!(shop.0.send_now(only(&first.id)).await.unwrap(), 1);
    assert_eq!(one(&shop, &first.id).await, before);
    let claimed = shop.claim("worker", &owned).await;
    assert_eq!((&claimed[0].id, &claimed[1].id), (&first.id, &second.id));
}

async fn sending_now_keeps_the_order<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let line = ["1", "2"].map(|event| message(event).in_order("key").delay(LONG));
    let line = shop.enqueue(line).await;
    let owned = {
        shop.enqueue([message("other")]).await;
        shop.take_one("worker").await
    };
    assert_eq!(shop.0.send_now(only(&line[1].id)).await.unwrap(), 1);
    let (events, _) = shop.claim_events("worker", &owned).await;
    assert_eq!(events, ["other"], "the first of the line is not due");
    assert_eq!(shop.0.send_now(only(&line[0].id)).await.unwrap(), 1);
    let (events, claimed) = shop.claim_events("worker", &owned).await;
    assert_eq!(events, ["1"]);
    assert_eq!(shop.claim_events("worker", &owned).await.0, [""; 0]);
    assert!(shop.settle(&claimed[0], AfterAttempt::Delivered).await);
    assert_eq!(shop.claim_events("worker", &owned).await.0, ["2"]);
}

/// More than one batch, of one endpoint and not of another.
async fn many_messages_are_sent_now<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    shop.put(endpoint("bank")).await;
    let many = (0..1100).map(|event| message(&event.to_string()).delay(LONG));
    shop.enqueue(many).await;
    let other = NewMessage::new("bank", "other", "").delay(LONG);
    shop.enqueue([other]).await;
    assert_eq!(shop.take("worker").await, []);
    let filter = Filter {
        tenant: Some(String::new()),
        endpoint: Some("shop".to_owned()),
        ..Filter::default()
    };
    assert_eq!(shop.0.send_now(filter).await.unwrap(), 1100);
    let owned = shop.take_one("worker").await;
    let claimed = shop.0.claim("worker", vec![wanted(&owned, 2000)]).await;
    assert_eq!(claimed.unwrap().messages.len(), 1100);
}

async fn messages_are_searched<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    shop.put(endpoint("bank").tenant("acme")).await;
    let enqueued = shop
        .enqueue([
            message("order-17-paid").topic("order.paid"),
            message("order-17").topic("order.paid.eu"),
            message("order-2").topic("orders"),
            message("ORDER-17").topic("order"),
            message("100%_\u{fc}").topic("order.\u{fc}"),
            NewMessage::new("bank", "order-17", "").tenant("acme"),
        ])
        .await;
    let search = async |text: &str| {
        let filter = Filter {
            search: Some(text.to_owned()),
            ..Filter::default()
        };
        shop.events(filter).await
    };
    assert_eq!(
        search("order-17").await,
        ["order-17-paid", "order-17", "order-17"]
    );
    assert_eq!(search("order-17-paid").await, ["order-17-paid"]);
    assert_eq!(search("ORDER").await, ["ORDER-17"]);
    assert_eq!(search("100%_\u{fc}").await, ["100%_\u{fc}"]);
    assert_eq!(search("100%").await.len(), 1);
    for none in ["%", "_", "rder-17", "order-17-paid-", "' OR true --"] {
        assert_eq!(search(none).await, [""; 0], "{none}");
    }
    let id = enqueued[2].id.as_str();
    assert_eq!(search(id).await, ["order-2"]);
    assert!(
        search(&id[..id.len() - 1])
            .await
            .contains(&"order-2".to_owned())
    );
    assert_eq!(search("msg_").await.len(), 6);
    assert_eq!(search("").await.len(), 6, "an empty search narrows nothing");
    let event = async |event: &str, tenant: Option<&str>| {
        let filter = Filter {
            event: Some(event.to_owned()),
            tenant: tenant.map(str::to_owned),
            ..Filter::default()
        };
        shop.events(filter).await.len()
    };
    assert_eq!(event("order-17", None).await, 2);
    assert_eq!(event("order-17", Some("acme")).await, 1);
    assert_eq!(event("order-1", None).await, 0);
    let topic = async |topic: &str| {
        let filter = Filter {
            topic: Some(topic.to_owned()),
            ..Filter::default()
        };
        shop.events(filter).await.len()
    };
    assert_eq!(topic("order.*").await, 3);
    assert_eq!(topic("order.paid.*").await, 1);
    assert_eq!(topic("order.paid").await, 1);
    assert_eq!(topic("*").await, 6);
    assert_eq!(topic("order*").await, 0, "no topic has a star in it");
    let both = Filter {
        search: Some("order-17".to_owned()),
        topic: Some("order.*".to_owned()),
        state: Some(MessageState::Pending),
        ..Filter::default()
    };
    assert_eq!(
        shop.events(both.clone()).await,
        ["order-17-paid", "order-17"]
    );
    // Changes use the same filter.
    assert_eq!(shop.0.cancel(both.clone()).await.unwrap(), 2);
    assert_eq!(shop.events(both).await, [""; 0]);
    shop.0
        .enqueue(vec![message("star").topic("order.*")])
        .await
        .unwrap_err();
}

async fn a_message_behind_a_dead_letter_names_it<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let line = ["1", "2", "3"].map(|event| message(event).in_order("key"));
    let line = shop.enqueue(line).await;
    let others = [message("4"), message("5").in_order("other")];
    let others = shop.enqueue(others).await;
    let owned = shop.take_one("worker").await;
    let claimed = shop.claim("worker", &owned).await;
    let behind = async |id: &MessageId| one(&shop, id).await.blocked_by;
    let waits = async |id: &MessageId| one(&shop, id).await.is_behind;
    assert!(waits(&line[1].id).await, "the first one runs");
    assert!(!waits(&others[0].id).await, "it has no order key");
    assert_eq!(
        behind(&line[1].id).await,
        None,
        "what runs is no dead letter"
    );
    for claimed in &claimed {
        let next = match claimed.id == line[0].id {
            true => AfterAttempt::Dead("no".to_owned()),
            false => AfterAttempt::Again(LONG),
        };
        assert!(shop.settle(claimed, next).await);
    }
    let dead = &line[0].id;
    assert_eq!(behind(&line[1].id).await.as_ref(), Some(dead));
    assert_eq!(behind(&line[2].id).await.as_ref(), Some(dead));
    for id in [dead, &others[0].id, &others[1].id] {
        assert_eq!(behind(id).await, None);
    }
    let skipping = endpoint("shop").on_dead_letter(OnDeadLetter::Skip);
    shop.put(skipping).await;
    assert_eq!(behind(&line[1].id).await, None, "it waits for none");
    assert!(!waits(&line[1].id).await && waits(&line[2].id).await);
    shop.put(endpoint("shop")).await;
    assert_eq!(shop.0.cancel(only(dead)).await.unwrap(), 1);
    assert_eq!(behind(&line[1].id).await, None);
}

/// A message counts from its end, however long before it was enqueued.
async fn messages_are_selected_by_their_end<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    shop.enqueue(["dead", "delivered", "pending"].map(message))
        .await;
    let owned = shop.take_one("worker").await;
    for (claimed, next) in shop.claim("worker", &owned).await.iter().zip([
        AfterAttempt::Dead("no".to_owned()),
        AfterAttempt::Delivered,
        AfterAttempt::Again(LONG),
    ]) {
        assert!(shop.settle(claimed, next).await);
    }
    let all = shop.0.messages(Filter::default(), 9).await.unwrap();
    let ended = |place: usize| all[place].ended_ms.unwrap();
    let (delivered, dead) = (ended(1), ended(2));
    assert_eq!(all[0].ended_ms, None, "it is pending");
    let between = |ended_from_ms, ended_until_ms| Filter {
        ended_from_ms,
        ended_until_ms,
        ..Filter::default()
    };
    let last = delivered.max(dead);
    let both = between(Some(delivered.min(dead)), Some(last + 1));
    assert_eq!(shop.events(both.clone()).await, ["dead", "delivered"]);
    let after = between(Some(last + 1), None);
    assert_eq!(shop.events(after.clone()).await, [""; 0]);
    let before = between(None, Some(delivered.min(dead)));
    assert_eq!(shop.events(before).await, [""; 0]);
    // Changes use the same filter.
    assert_eq!(shop.0.resend(after).await.unwrap(), 0);
    assert_eq!(shop.0.resend(both).await.unwrap(), 2);
}

async fn a_message_names_the_reason_of_its_disabled_endpoint<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let id = shop.enqueue([message("1")]).await.remove(0).id;
    assert_eq!(one(&shop, &id).await.disabled, None);
    for (activity, reason) in [
        (Activity::Disabled, Some("moves")),
        (Activity::Active, None),
    ] {
        let set = shop.0.set_activity("", "shop", activity, "moves").await;
        assert!(set.unwrap());
        assert_eq!(one(&shop, &id).await.disabled.as_deref(), reason);
    }
}

async fn endpoints_that_need_attention_are_listed<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    for name in ["dead", "disabled", "failing", "fine", "new"] {
        shop.put(endpoint(name)).await;
    }
    let names = async |most| {
        let found = shop.0.endpoints_needing_attention(most).await.unwrap();
        found
            .into_iter()
            .map(|one| one.endpoint.name)
            .collect::<Vec<_>>()
    };
    assert_eq!(names(9).await, [""; 0]);
    for name in ["dead", "failing", "fine"] {
        shop.enqueue([NewMessage::new(name, "1", "")]).await;
    }
    let disabled = shop
        .0
        .set_activity("", "disabled", Activity::Disabled, "moves");
    assert!(disabled.await.unwrap());
    for owned in shop.take("worker").await {
        for claimed in shop.claim("worker", &owned).await {
            let mut health = Health::default();
            health.failed(SystemTime::now(), "status 500");
            let next = match &owned.endpoint.name[..] {
                "dead" => AfterAttempt::Dead("no".to_owned()),
                "failing" => AfterAttempt::Again(LONG),
                _ => AfterAttempt::Delivered,
            };
            if owned.endpoint.name != "failing" {
                health.succeeded();
            }
            let mut settled = settled(&claimed, next);
            settled.health = Some(health.write());
            assert!(shop.write(settled).await);
        }
    }
    assert_eq!(names(9).await, ["disabled", "dead", "failing"]);
    assert_eq!(names(2).await, ["disabled", "dead"]);
    assert!(
        shop.0
            .set_activity("", "disabled", Activity::Active, "")
            .await
            .unwrap()
    );
    assert_eq!(shop.0.resend(Filter::default()).await.unwrap(), 2);
    assert_eq!(names(9).await, ["failing"]);
}

async fn contents_are_kept_as_they_were_sent<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let payload: Vec<u8> = (0..=255).collect();
    let sent = NewMessage::new("shop", "1", payload.clone()).content_type("text/plain");
    let id = shop.enqueue([sent]).await.remove(0).id;
    let content = Content {
        content_type: "text/plain".to_owned(),
        payload: payload.into(),
    };
    assert_eq!(shop.0.content(&id).await.unwrap(), Some(content));
    assert_eq!(shop.0.content(&MessageId::new()).await.unwrap(), None);
    let owned = shop.take_one("worker").await;
    let claimed = shop.claim("worker", &owned).await.remove(0);
    let mut settled = settled(&claimed, AfterAttempt::Delivered);
    let mut kept = attempt(1, "");
    kept.response.push_str("x: \0\n");
    settled.attempt = Some(kept.clone());
    assert!(shop.write(settled).await);
    kept.response = kept.response.replace('\0', "\u{fffd}");
    assert_eq!(shop.0.attempts(&id).await.unwrap(), [kept]);
}

async fn recent_attempts_are_summarized<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    shop.put(endpoint("bank")).await;
    let recent = async |name: &str| shop.0.recent("", name).await.unwrap();
    assert_eq!(recent("no").await, None);
    let none = recent("shop").await.unwrap();
    assert_eq!((none.attempts, none.p50_ms), (0, None));
    shop.enqueue((1..=100).map(|event| message(&event.to_string())))
        .await;
    shop.enqueue([NewMessage::new("bank", "1", "")]).await;
    for owned in shop.take("worker").await {
        for (number, claimed) in (1..).zip(shop.claim("worker", &owned).await) {
            let mut settled = settled(&claimed, AfterAttempt::Delivered);
            let mut kept = attempt(1, if number > 90 { "status 500" } else { "" });
            kept.started_ms = millis(SystemTime::now());
            kept.duration_ms = number;
            if number == 100 {
                // Before the window.
                kept.started_ms -= 2 * i64::try_from(RECENT.as_millis()).unwrap();
            }
            settled.attempt = Some(kept);
            assert!(shop.write(settled).await);
        }
    }
    let recent = recent("shop").await.unwrap();
    assert_eq!(
        (
            recent.attempts,
            recent.acknowledged,
            recent.p50_ms,
            recent.p99_ms
        ),
        (99, 90, Some(50), Some(99))
    );
    assert!(u128::from(recent.window_ms) == RECENT.as_millis() && recent.per_minute > 6.5);
}
