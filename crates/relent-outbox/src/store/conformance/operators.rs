//! Guarantees for operators.

use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::shop::{LONG, Shop, attempt, endpoint, message, settled, wanted};
use crate::endpoint::Endpoint;
use crate::message::MessageId;
use crate::store::{AfterAttempt, Deletion, Filter, MessageState, Store, Summary};

pub(super) async fn check<S: Store>(make: &impl AsyncFn() -> S) {
    endpoints_are_listed(make).await;
    an_unchanged_endpoint_can_be_replaced(make).await;
    an_endpoint_is_deleted_with_its_messages(make).await;
    an_unchanged_key_check_can_be_replaced(make).await;
    messages_are_filtered(make).await;
    pages_follow_each_other(make).await;
    each_state_allows_its_operations(make).await;
    a_message_is_resent_from_the_beginning(make).await;
    ended_messages_are_purged(make).await;
    many_messages_are_resent_and_cancelled(make).await;
}

async fn endpoints_are_listed<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    for (tenant, name) in [
        ("", "a"),
        ("b", "a"),
        ("a", "b"),
        ("b", "\u{e9}t\u{e9} 'quoted'"),
    ] {
        shop.put(endpoint(name).tenant(tenant)).await;
    }
    let after = |tenant: &str, name: &str| Some((tenant.to_owned(), name.to_owned()));
    let list = async |after, most| {
        let found = shop.0.endpoints(after, most).await.unwrap();
        let names = found
            .into_iter()
            .map(|one| (one.endpoint.tenant, one.endpoint.name));
        names.collect::<Vec<_>>()
    };
    let all = list(None, 10).await;
    let names: Vec<_> = all
        .iter()
        .map(|(tenant, name)| (&tenant[..], &name[..]))
        .collect();
    assert_eq!(
        names,
        [
            ("", "a"),
            ("", "shop"),
            ("a", "b"),
            ("b", "a"),
            ("b", "\u{e9}t\u{e9} 'quoted'")
        ]
    );
    assert_eq!(list(None, 2).await, all[..2]);
    assert_eq!(list(after("", "shop"), 2).await, all[2..4]);
    assert_eq!(list(after("a", ""), 1).await, all[2..3]);
    assert_eq!(list(after("b", "\u{ff}"), 9).await, []);
    assert!(shop.0.endpoint("a", "a").await.unwrap().is_none());
    for (tenant, name) in [("", ""), ("", "\0"), ("\0", "a")] {
        shop.0
            .put_endpoint(endpoint(name).tenant(tenant))
            .await
            .unwrap_err();
    }
    shop.0
        .put_endpoint(endpoint(&"a".repeat(257)))
        .await
        .unwrap_err();
    shop.put(endpoint(&"a".repeat(256))).await;

    let before = shop.0.endpoint("", "shop").await.unwrap().unwrap();
    assert_eq!(
        (
            before.lag_ms,
            before.pending,
            before.dead,
            &before.worker[..]
        ),
        (None, 0, 0, "")
    );
    shop.enqueue([message("later").delay(LONG)]).await;
    assert_eq!(
        shop.0.endpoint("", "shop").await.unwrap().unwrap().lag_ms,
        None
    );
    shop.enqueue([
        message("1"),
        message("2").in_order("key"),
        message("3").in_order("key"),
    ])
    .await;
    let owned = shop.take_one("worker").await;
    shop.0
        .claim("worker", vec![wanted(&owned, 1)])
        .await
        .unwrap();
    let after = shop.0.endpoint("", "shop").await.unwrap().unwrap();
    assert_eq!(
        (after.pending, after.dead, &after.worker[..]),
        (4, 0, "worker")
    );
    assert!(after.lag_ms.is_some_and(|lag| lag < 3_600_000));
}

async fn an_unchanged_endpoint_can_be_replaced<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let of = async || shop.0.endpoint("", "shop").await.unwrap().unwrap();
    let replace = async |url: &str, revision| {
        let endpoint = Endpoint::new("shop", url);
        shop.0.replace_endpoint(endpoint, revision).await.unwrap()
    };
    let first = of().await;
    assert!(!replace("https://none.example/", None).await, "it is there");
    assert!(!replace("https://none.example/", Some(first.revision + 1)).await);
    assert_eq!(of().await, first);
    assert!(replace("https://second.example/", Some(first.revision)).await);
    let second = of().await;
    assert!(second.revision > first.revision);
    assert_eq!(second.endpoint.url, "https://second.example/");
    assert!(!replace("https://none.example/", Some(first.revision)).await);
    shop.put(endpoint("shop")).await;
    assert!(of().await.revision > second.revision);
    assert!(!replace("https://none.example/", Some(second.revision)).await);

    // An endpoint that does not exist, and two callers that add it concurrently.
    let bank = endpoint("bank");
    for revision in [0, 1, first.revision] {
        let replaced = shop.0.replace_endpoint(bank.clone(), Some(revision)).await;
        assert!(!replaced.unwrap());
    }
    assert!(shop.0.endpoint("", "bank").await.unwrap().is_none());
    let add = || shop.0.replace_endpoint(bank.clone(), None);
    let (one, other) = tokio::join!(add(), add());
    assert!(one.unwrap() != other.unwrap());
    let added = shop.0.endpoint("", "bank").await.unwrap().unwrap();
    assert_eq!(added.endpoint, bank);
    shop.0
        .replace_endpoint(endpoint("\0"), None)
        .await
        .unwrap_err();
}

async fn an_endpoint_is_deleted_with_its_messages<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let delete = async |name, discard| shop.0.delete_endpoint("", name, discard).await.unwrap();
    assert_eq!(delete("no", true).await, Deletion::Unknown);
    let refused = |pending, dead| Deletion::Refused { pending, dead };
    let before = shop.0.endpoint("", "shop").await.unwrap().unwrap();
    // More than one batch; messages of another endpoint stay.
    let many = (0..1100).map(|event| message(&event.to_string()));
    shop.enqueue(many).await;
    assert_eq!(delete("shop", false).await, refused(1100, 0));
    let mut filter = Filter {
        state: Some(MessageState::Pending),
        ..Filter::default()
    };
    assert_eq!(shop.0.cancel(filter.clone()).await.unwrap(), 1100);
    shop.put(endpoint("bank")).await;
    let mut other = message("other");
    other.endpoint = "bank".to_owned();
    shop.enqueue([other]).await;
    let enqueued = shop.enqueue(["dies", "runs", "waits"].map(message)).await;
    shop.enqueue([message("first"), message("behind")].map(|one| one.in_order("key")))
        .await;
    shop.heartbeat("worker").await;
    let endpoints = shop.work("worker").await;
    let owned = shop.0.acquire("worker", endpoints).await.unwrap();
    let owned = owned
        .iter()
        .find(|one| one.endpoint.name == "shop")
        .unwrap();
    let [dies, runs] = <[_; 2]>::try_from(
        shop.0
            .claim("worker", vec![wanted(owned, 2)])
            .await
            .unwrap()
            .messages,
    )
    .unwrap();
    let mut dead = settled(&dies, AfterAttempt::Dead("no".to_owned()));
    dead.attempt = Some(attempt(1, "no"));
    assert!(shop.write(dead).await);
    assert_eq!(delete("shop", false).await, refused(4, 1));
    assert_eq!(
        delete("shop", true).await,
        Deletion::Deleted { messages: 1105 }
    );
    assert_eq!(delete("shop", true).await, Deletion::Unknown);

    // Nothing of it is left, and the running attempt is not written.
    assert!(shop.0.endpoint("", "shop").await.unwrap().is_none());
    assert!(!shop.settle(&runs, AfterAttempt::Delivered).await);
    assert_eq!(shop.claim("worker", owned).await, []);
    filter.state = None;
    assert_eq!(shop.events(filter).await, ["other"]);
    assert_eq!(shop.0.attempts(&enqueued[0].id).await.unwrap(), []);
    let summary = shop.0.summary().await.unwrap();
    assert_eq!((summary.pending, summary.running, summary.dead), (1, 0, 0));
    shop.0.enqueue(vec![message("late")]).await.unwrap_err();

    // A new endpoint with the same name is a different one.
    shop.put(endpoint("shop")).await;
    let after = shop.0.endpoint("", "shop").await.unwrap().unwrap();
    assert!(after.revision > before.revision);
    let again = shop.enqueue([message("dies")]).await.remove(0);
    assert!(!again.duplicate && again.id != enqueued[0].id);
    let taken = shop.take("worker").await;
    assert!(taken.iter().all(|one| one.id != owned.id));
    assert!(!shop.settle(&runs, AfterAttempt::Delivered).await);
    let cancelled = shop.0.cancel(Filter {
        endpoint: Some("shop".to_owned()),
        ..Filter::default()
    });
    assert_eq!(cancelled.await.unwrap(), 1);
    // Ended messages do not prevent the deletion.
    assert_eq!(
        delete("shop", false).await,
        Deletion::Deleted { messages: 1 }
    );
}

async fn an_unchanged_key_check_can_be_replaced<S: Store>(make: &impl AsyncFn() -> S) {
    let store = make().await;
    let text = |text: &str| Some(text.to_owned());
    let replace = async |new: &str, before| {
        let replaced = store.replace_key_check(new.to_owned(), before).await;
        replaced.unwrap()
    };
    assert_eq!(store.key_check().await.unwrap(), None);
    assert!(!replace("a", text("b")).await);
    assert!(replace("a", None).await);
    assert!(!replace("b", None).await);
    assert_eq!(store.key_check().await.unwrap(), text("a"));
    assert!(!replace("b", text("c")).await);
    assert!(replace("b", text("a")).await);
    assert_eq!(store.key_check().await.unwrap(), text("b"));
}

async fn messages_are_filtered<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    shop.put(endpoint("shop").tenant("acme")).await;
    shop.put(endpoint("bank")).await;
    let mut bank = message("4");
    bank.endpoint = "bank".to_owned();
    let enqueued = shop
        .enqueue([
            message("1").topic("payment"),
            message("2").topic("payment").tenant("acme").in_order("key"),
            message("3").delay(LONG),
            bank,
        ])
        .await;
    let none = Filter::default;
    let find = async |filter| shop.events(filter).await;
    assert_eq!(find(none()).await, ["1", "2", "3", "4"]);
    let some = |text: &str| Some(text.to_owned());
    let id = Some(enqueued[2].id.clone());
    assert_eq!(
        find(Filter {
            id: id.clone(),
            ..none()
        })
        .await,
        ["3"]
    );
    assert_eq!(
        find(Filter {
            id: Some(MessageId::new()),
            ..none()
        })
        .await,
        [""; 0]
    );
    assert_eq!(
        find(Filter {
            tenant: some("acme"),
            ..none()
        })
        .await,
        ["2"]
    );
    assert_eq!(
        find(Filter {
            tenant: some(""),
            ..none()
        })
        .await,
        ["1", "3", "4"]
    );
    assert_eq!(
        find(Filter {
            endpoint: some("shop"),
            ..none()
        })
        .await,
        ["1", "2", "3"]
    );
    assert_eq!(
        find(Filter {
            topic: some("payment"),
            ..none()
        })
        .await,
        ["1", "2"]
    );
    assert_eq!(
        find(Filter {
            topic: some(""),
            ..none()
        })
        .await,
        ["3", "4"]
    );
    assert_eq!(
        find(Filter {
            topic: some("'; --"),
            ..none()
        })
        .await,
        [""; 0]
    );
    let both = Filter {
        tenant: some(""),
        endpoint: some("shop"),
        topic: some("payment"),
        state: Some(MessageState::Pending),
        ..none()
    };
    assert_eq!(find(both).await, ["1"]);
    assert_eq!(
        find(Filter {
            state: Some(MessageState::Delivered),
            ..none()
        })
        .await,
        [""; 0]
    );

    let all = shop.0.messages(none(), 10).await.unwrap();
    let second = &all[2];
    assert_eq!((&second.tenant[..], &second.endpoint[..]), ("acme", "shop"));
    assert_eq!(
        (second.order.as_deref(), &second.topic[..]),
        (Some("key"), "payment")
    );
    assert_eq!(
        (second.attempts, &second.reason[..], &second.last_error[..]),
        (0, "", "")
    );
    assert_eq!(
        (second.ended_ms, second.state),
        (None, MessageState::Pending)
    );
    assert_eq!(all[1].due_ms, Some(all[1].created_ms + 3_600_000));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    assert!((second.created_ms - i64::try_from(now.as_millis()).unwrap()).abs() < 3_600_000);
    let (first, after) = (all[3].created_ms, all[0].created_ms + 1);
    let between = async |enqueued_from_ms, enqueued_until_ms| {
        let between = Filter {
            enqueued_from_ms,
            enqueued_until_ms,
            ..none()
        };
        find(between).await.len()
    };
    assert_eq!(between(Some(first), Some(after)).await, 4);
    assert_eq!(between(Some(after), None).await, 0);
    assert_eq!(between(None, Some(first)).await, 0);
    assert_eq!(between(Some(i64::MIN), Some(i64::MAX)).await, 4);
}

async fn pages_follow_each_other<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let events: Vec<_> = (0..25).map(|number| format!("{number:02}")).collect();
    for events in events.chunks(10) {
        shop.enqueue(events.iter().map(|event| message(event)))
            .await;
    }
    let page = async |before: Option<i64>| {
        let filter = Filter {
            before,
            state: Some(MessageState::Pending),
            ..Filter::default()
        };
        shop.0.messages(filter, 10).await.unwrap()
    };
    let (mut found, mut before) = (Vec::new(), None);
    loop {
        let page = page(before).await;
        let Some(last) = page.last() else { break };
        before = Some(last.place);
        found.extend(page.into_iter().map(|one| one.event));
        // Messages enqueued meanwhile are on no later page.
        shop.enqueue([message(&format!("new {}", found.len()))])
            .await;
    }
    found.reverse();
    assert_eq!(found, events);
    // The next page continues correctly even if the last messages of the previous page, and others, are deleted.
    let first = shop.0.messages(Filter::default(), 28).await.unwrap();
    let nth = |event: &str| first.iter().find(|one| one.event == event).unwrap();
    let last = nth("15").place;
    for gone in ["15", "16", "17"] {
        let one = Filter {
            id: Some(nth(gone).id.clone()),
            ..Filter::default()
        };
        assert_eq!(shop.0.cancel(one).await.unwrap(), 1);
    }
    assert_eq!(shop.0.purge(Duration::ZERO, 10).await.unwrap(), 3);
    assert_eq!(page(Some(last)).await[0].event, "14");
    let all = Filter {
        before: Some(last),
        ..Filter::default()
    };
    assert_eq!(shop.0.cancel(all).await.unwrap(), 15);
    assert_eq!(shop.0.purge(Duration::ZERO, 100).await.unwrap(), 15);
    assert_eq!(page(Some(last)).await, []);
}

/// The effect of resend, cancel and purge on each state.
async fn each_state_allows_its_operations<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let of = async |event: &'static str| {
        let all = shop.0.messages(Filter::default(), 10).await.unwrap();
        all.into_iter().find(|one| one.event == event).unwrap()
    };
    let only = |id: &MessageId| Filter {
        id: Some(id.clone()),
        ..Filter::default()
    };
    let states = ["pending", "running", "delivered", "dead", "cancelled"];
    shop.enqueue(states[1..4].iter().map(|event| message(event)))
        .await;
    let owned = shop.take_one("worker").await;
    let claimed = shop.claim("worker", &owned).await;
    assert!(shop.settle(&claimed[1], AfterAttempt::Delivered).await);
    let dead = AfterAttempt::Dead("it was poison".to_owned());
    assert!(shop.settle(&claimed[2], dead).await);
    let enqueued = shop
        .enqueue([message("pending").delay(LONG), message("cancelled")])
        .await;
    assert_eq!(shop.0.cancel(only(&enqueued[1].id)).await.unwrap(), 1);
    let is = [
        MessageState::Pending,
        MessageState::Running,
        MessageState::Delivered,
        MessageState::Dead,
        MessageState::Cancelled,
    ];
    for (event, state) in states.into_iter().zip(is) {
        let one = of(event).await;
        assert_eq!(one.state, state);
        let ended = matches!(
            state,
            MessageState::Delivered | MessageState::Dead | MessageState::Cancelled
        );
        assert_eq!(
            (one.ended_ms.is_some(), one.due_ms.is_some()),
            (ended, state == MessageState::Pending)
        );
        assert_eq!(
            one.reason.is_empty(),
            !matches!(state, MessageState::Dead | MessageState::Cancelled)
        );
        let filter = Filter {
            state: Some(state),
            ..Filter::default()
        };
        assert_eq!(shop.events(filter).await, [event]);
    }
    let summary = shop.0.summary().await.unwrap();
    let expected = Summary {
        pending: 1,
        running: 1,
        dead: 1,
        ..Summary::default()
    };
    assert_eq!(summary, expected);
    assert_eq!(shop.0.purge(LONG, 10).await.unwrap(), 0);

    for event in ["pending", "running"] {
        let one = of(event).await;
        assert_eq!(shop.0.resend(only(&one.id)).await.unwrap(), 0);
        assert_eq!(of(event).await, one);
    }
    for event in ["running", "delivered", "cancelled"] {
        let one = of(event).await;
        assert_eq!(shop.0.cancel(only(&one.id)).await.unwrap(), 0);
        assert_eq!(of(event).await, one);
    }
    for event in ["pending", "dead"] {
        assert_eq!(shop.0.cancel(only(&of(event).await.id)).await.unwrap(), 1);
        assert_eq!(of(event).await.state, MessageState::Cancelled);
    }
    assert!(
        shop.settle(&claimed[0], AfterAttempt::Again(Duration::ZERO))
            .await,
        "it runs on"
    );
    assert_eq!(shop.0.resend(Filter::default()).await.unwrap(), 4);
    assert_eq!(shop.0.summary().await.unwrap().pending, 5);
    assert_eq!(shop.0.purge(Duration::ZERO, 10).await.unwrap(), 0);
}

async fn a_message_is_resent_from_the_beginning<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let id = shop.enqueue([message("paid")]).await.remove(0).id;
    let owned = shop.take_one("worker").await;
    let mut before = None;
    for number in 1..3 {
        let claimed = shop.claim("worker", &owned).await.remove(0);
        assert_eq!(
            (&claimed.id, claimed.attempt, &claimed.session[..]),
            (&id, 1, if number == 1 { &[][..] } else { b"r" })
        );
        assert_eq!(claimed.is_fresh(), number == 1);
        let mut delivered = settled(&claimed, AfterAttempt::Delivered);
        delivered.session = vec![7];
        delivered.attempt = Some(attempt(1, ""));
        if let Some(before) = before.replace(delivered.clone()) {
            assert!(claimed.began > before.began);
            assert!(!shop.write(before).await, "it is of the schedule before");
        }
        assert!(shop.write(delivered).await);
        let attempts = shop.0.attempts(&id).await.unwrap();
        assert_eq!(attempts.len(), number, "those of before are kept");
        assert_eq!(shop.0.resend(Filter::default()).await.unwrap(), 1);
        let one = shop
            .0
            .messages(Filter::default(), 1)
            .await
            .unwrap()
            .remove(0);
        assert_eq!(
            (one.attempts, one.state, one.ended_ms),
            (0, MessageState::Pending, None)
        );
    }
}

async fn ended_messages_are_purged<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let enqueued = shop.enqueue(["1", "2", "3"].map(message)).await;
    let owned = shop.take_one("worker").await;
    for claimed in shop.claim("worker", &owned).await {
        let mut delivered = settled(&claimed, AfterAttempt::Delivered);
        delivered.attempt = Some(attempt(1, ""));
        assert!(shop.write(delivered).await);
    }
    assert_eq!(shop.0.purge(Duration::ZERO, 2).await.unwrap(), 2);
    assert_eq!(shop.events(Filter::default()).await, ["3"]);
    assert_eq!(shop.0.attempts(&enqueued[0].id).await.unwrap(), []);
    assert_eq!(shop.0.attempts(&enqueued[2].id).await.unwrap().len(), 1);
    let again = shop.enqueue([message("1"), message("3")]).await;
    assert!(!again[0].duplicate && again[1].duplicate);
    assert!(again[0].id != enqueued[0].id);
    assert_eq!(shop.0.purge(Duration::ZERO, 10).await.unwrap(), 1);
}

/// More than one batch; each message once, even if it is delivered meanwhile.
async fn many_messages_are_resent_and_cancelled<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let many = 1234;
    shop.enqueue((0..many).map(|event| message(&event.to_string())))
        .await;
    let one = |event: i32| message(&event.to_string()).topic("other");
    shop.enqueue((many..many + 10).map(one)).await;
    let filter = Filter {
        topic: Some(String::new()),
        ..Filter::default()
    };
    assert_eq!(shop.0.cancel(filter.clone()).await.unwrap(), 1234);
    assert_eq!(shop.0.resend(filter.clone()).await.unwrap(), 1234);
    assert_eq!(shop.0.resend(filter.clone()).await.unwrap(), 0);
    assert_eq!(shop.0.cancel(filter).await.unwrap(), 1234);
    let left = shop.0.messages(
        Filter {
            state: Some(MessageState::Pending),
            ..Filter::default()
        },
        100,
    );
    let left: HashSet<_> = left
        .await
        .unwrap()
        .into_iter()
        .map(|one| one.topic)
        .collect();
    assert_eq!(left, HashSet::from(["other".to_owned()]));
    assert_eq!(shop.0.purge(Duration::ZERO, 2000).await.unwrap(), 1234);
}
