//! Guarantees for workers.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::shop::{LONG, Shop, attempt, endpoint, message, settled, wanted};
use crate::endpoint::{Activity, Endpoint};
use crate::store::{
    AfterAttempt, ClaimOrder, ClaimRequest, Claims, ConfirmRequest, EndpointStatus, Fence, Filter,
    INLINE, MessageState, Store, Summary,
};

pub(super) async fn check<S: Store>(make: &impl AsyncFn() -> S) {
    heartbeats_keep_the_lease(make).await;
    workers_that_are_able_share_all_endpoints(make).await;
    a_lease_expires_without_heartbeats(make).await;
    a_schedule_without_end_keeps_few_attempts(make).await;
    endpoints_with_due_messages_are_found(make).await;
    an_endpoint_has_one_owner(make).await;
    concurrent_acquisitions_give_one_owner(make).await;
    a_claim_returns_the_enqueued_messages(make).await;
    each_claim_counts_an_attempt(make).await;
    running_messages_are_lost_for_the_next_owner(make).await;
    attempts_of_released_endpoints_may_be_settled(make).await;
    concurrent_claims_return_each_message_once(make).await;
    settled_results_are_stored(make).await;
    messages_of_a_disabled_endpoint_wait(make).await;
    delayed_messages_become_due(make).await;
    claims_follow_the_current_revision(make).await;
    results_of_an_old_revision_leave_the_endpoint_unchanged(make).await;
    a_changed_url_resets_the_health_of_an_endpoint(make).await;
    a_large_payload_is_loaded_on_confirmation(make).await;
    fresh_messages_are_claimed_first(make).await;
}

/// A worker that knows an older revision gets the endpoint but no message, and earlier attempts are not confirmed.
async fn claims_follow_the_current_revision<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    shop.enqueue(["1", "2", "3", "4"].map(message)).await;
    let old = shop.take_one("worker").await;
    let claim = async |owned, most| shop.0.claim("worker", vec![wanted(owned, most)]).await;
    let first = claim(&old, 1).await.unwrap().messages.remove(0);
    assert_eq!(first.revision, old.revision);
    let confirm = async |claimed: &crate::store::Claimed| {
        let attempt = ConfirmRequest {
            row: claimed.row,
            endpoint: claimed.endpoint,
            fence: claimed.fence,
            revision: claimed.revision,
            payload: true,
        };
        let confirmed = shop.0.confirm("worker", vec![attempt, attempt]).await;
        confirmed.unwrap().remove(1)
    };
    assert_eq!(confirm(&first).await, Some(first.payload.clone()));

    let began = Instant::now();
    let replaced = endpoint("shop").policy("wechat-pay");
    shop.put(replaced.clone()).await;
    assert!(
        began.elapsed() >= crate::store::GRANT,
        "what was claimed before may still begin"
    );
    assert_eq!(confirm(&first).await, None);
    for most in [0, 10] {
        let claims = claim(&old, most).await.unwrap();
        let [changed] = &claims.changed[..] else {
            panic!("it has changed")
        };
        assert_eq!(claims.messages, []);
        assert_eq!((changed.id, changed.fence), (old.id, old.fence));
        assert_eq!(changed.endpoint, replaced);
        assert!(changed.revision > old.revision);
    }
    let now = claim(&old, 0).await.unwrap().changed.remove(0);
    let claims = claim(&now, 1).await.unwrap();
    assert_eq!((claims.messages.len(), claims.changed.len()), (1, 0));
    let second = &claims.messages[0];
    assert_eq!(confirm(second).await, Some(second.payload.clone()));

    // The earlier attempt is recorded nevertheless.
    assert!(shop.settle(&first, AfterAttempt::Delivered).await);
    assert_eq!(confirm(&first).await, None, "it has ended");
    let disabled = shop.0.set_activity("", "shop", Activity::Disabled, "no");
    assert!(disabled.await.unwrap());
    assert_eq!(confirm(second).await, None);
    assert_eq!(claim(&now, 1).await.unwrap(), Claims::default());
    let enabled = shop.0.set_activity("", "shop", Activity::Active, "");
    assert!(enabled.await.unwrap());
    assert_eq!(confirm(second).await, None, "it is another one since");
    let claims = claim(&now, 1).await.unwrap();
    assert_eq!((claims.messages.len(), claims.changed.len()), (0, 1));
    // After a change of the owner, nothing of the old one is confirmed.
    let third = claim(&claims.changed[0], 1)
        .await
        .unwrap()
        .messages
        .remove(0);
    shop.die("worker").await;
    assert_eq!(confirm(&third).await, None);
}

/// A failure at the old URL neither disables the endpoint nor changes its health.
async fn results_of_an_old_revision_leave_the_endpoint_unchanged<S: Store>(
    make: &impl AsyncFn() -> S,
) {
    let shop = Shop::open(make).await;
    shop.enqueue(["1", "2"].map(message)).await;
    let owned = shop.take_one("worker").await;
    let claimed = shop.claim("worker", &owned).await;
    shop.put(endpoint("shop").policy("wechat-pay")).await;
    let of = async || shop.0.endpoint("", "shop").await.unwrap().unwrap();
    for (claimed, revision) in claimed.iter().zip([owned.revision, of().await.revision]) {
        let mut gone = settled(claimed, AfterAttempt::Dead("it is gone".to_owned()));
        gone.revision = revision;
        gone.health = Some(vec![7]);
        gone.disable = Some("410".to_owned());
        assert!(shop.write(gone).await);
        let is_old = revision == owned.revision;
        let after = of().await;
        assert_eq!(after.activity == Activity::Active, is_old);
        assert_eq!(after.health.is_empty(), is_old);
    }
}

/// Failures at the old URL are no evidence about the new one.
async fn a_changed_url_resets_the_health_of_an_endpoint<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    shop.enqueue([message("1")]).await;
    let owned = shop.take_one("worker").await;
    let claimed = shop.claim("worker", &owned).await;
    let mut failed = settled(&claimed[0], AfterAttempt::Again(LONG));
    failed.health = Some(vec![7]);
    assert!(shop.write(failed).await);
    let of = async || shop.0.endpoint("", "shop").await.unwrap().unwrap();
    shop.put(endpoint("shop").policy("wechat-pay")).await;
    let EndpointStatus {
        health, revision, ..
    } = of().await;
    assert_eq!(health, [7]);
    let moved = Endpoint::new("shop", "https://new.example/notify");
    let replaced = shop.0.replace_endpoint(moved, Some(revision)).await;
    assert!(replaced.unwrap());
    assert!(of().await.health.is_empty());
}

async fn a_large_payload_is_loaded_on_confirmation<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let sizes = [0, 1, INLINE, INLINE + 1, 1 << 20];
    let messages = sizes.map(|size| {
        let mut message = message(&size.to_string());
        message.payload = vec![b'x'; size].into();
        message
    });
    shop.enqueue(messages.clone()).await;
    let owned = shop.take_one("worker").await;
    let claimed = shop.claim("worker", &owned).await;
    let sized: Vec<_> = claimed.iter().map(|one| one.size).collect();
    assert_eq!(sized, sizes);
    let confirm = claimed.iter().map(|one| ConfirmRequest {
        row: one.row,
        endpoint: one.endpoint,
        fence: one.fence,
        revision: one.revision,
        payload: one.size != 1,
    });
    let loaded = shop.0.confirm("worker", confirm.collect()).await.unwrap();
    for ((claimed, message), loaded) in claimed.iter().zip(messages).zip(loaded) {
        match claimed.size {
            0..=INLINE => assert_eq!(claimed.payload, message.payload),
            _ => assert_eq!(claimed.payload, ""),
        }
        match claimed.size {
            1 => assert_eq!(loaded.unwrap(), ""),
            _ => assert!(loaded.unwrap() == message.payload),
        }
    }
}

/// On request, failed and resent messages come after fresh ones, and fill the rest of the claim.
async fn fresh_messages_are_claimed_first<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let enqueued = shop.enqueue(["fails", "resent"].map(message)).await;
    let owned = shop.take_one("worker").await;
    let claimed = shop.claim("worker", &owned).await;
    assert!(claimed.iter().all(crate::store::Claimed::is_fresh));
    assert!(
        shop.settle(&claimed[0], AfterAttempt::Again(Duration::ZERO))
            .await
    );
    assert!(
        shop.settle(&claimed[1], AfterAttempt::Dead("no".to_owned()))
            .await
    );
    let resend = Filter {
        id: Some(enqueued[1].id.clone()),
        ..Filter::default()
    };
    assert_eq!(shop.0.resend(resend).await.unwrap(), 1);
    shop.enqueue(["1", "2", "3"].map(message)).await;
    shop.enqueue([message("4").in_order("key"), message("5").in_order("key")])
        .await;
    let all = async |first, most| {
        let wanted = ClaimRequest::of(&owned, most).first(first);
        let claimed = shop.0.claim("worker", vec![wanted]).await.unwrap().messages;
        let mut events = Vec::new();
        for claimed in &claimed {
            let filter = Filter {
                id: Some(claimed.id.clone()),
                ..Filter::default()
            };
            events.push(shop.0.messages(filter, 1).await.unwrap().remove(0).event);
            let is_fresh = !["fails", "resent"].contains(&&events[events.len() - 1][..]);
            assert_eq!(claimed.is_fresh(), is_fresh, "{events:?}");
            assert!(shop.settle(claimed, AfterAttempt::Unsent).await);
        }
        events.sort_unstable();
        events
    };
    assert_eq!(all(ClaimOrder::Due, 2).await, ["fails", "resent"]);
    assert_eq!(all(ClaimOrder::Fresh, 1).await, ["1"]);
    assert_eq!(all(ClaimOrder::Fresh, 2).await, ["1", "2"]);
    assert_eq!(
        all(ClaimOrder::Newest, 1).await,
        ["4"],
        "of a line the first"
    );
    assert_eq!(all(ClaimOrder::Newest, 2).await, ["3", "4"]);
    for first in [ClaimOrder::Fresh, ClaimOrder::Newest] {
        assert_eq!(all(first, 5).await, ["1", "2", "3", "4", "fails"]);
        assert_eq!(
            all(first, 10).await,
            ["1", "2", "3", "4", "fails", "resent"]
        );
    }
}

async fn heartbeats_keep_the_lease<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    for name in ["b", "c", "d"] {
        shop.put(endpoint(name)).await;
    }
    shop.put(endpoint("disabled")).await;
    let disable = shop.0.set_activity("", "disabled", Activity::Disabled, "");
    assert!(disable.await.unwrap());
    let heartbeat = async |worker, lease| {
        let heartbeat = shop.0.heartbeat(worker, lease, true).await.unwrap();
        (heartbeat.kept, heartbeat.share)
    };
    assert_eq!(heartbeat("one", LONG).await, (false, 4));
    assert_eq!(heartbeat("one", LONG).await, (true, 4));
    assert_eq!(heartbeat("two", LONG).await, (false, 2));
    assert_eq!(
        heartbeat("three", LONG).await,
        (false, 2),
        "4/3, rounded up"
    );
    assert!(heartbeat("three", Duration::ZERO).await.0);
    assert!(!heartbeat("three", Duration::ZERO).await.0);
    assert!(heartbeat("two", Duration::ZERO).await.0);
    assert_eq!(heartbeat("one", LONG).await, (true, 4));
    shop.0.heartbeat("", LONG, true).await.unwrap_err();

    // No other worker has noticed that the lease is over.
    shop.enqueue([message("paid")]).await;
    let owned = shop.take_one("one").await;
    shop.0
        .heartbeat("one", Duration::from_nanos(1), true)
        .await
        .unwrap();
    assert_eq!(shop.claim("one", &owned).await, []);
    let acquired = shop.0.acquire("one", vec![owned.id]).await.unwrap();
    assert_eq!(acquired, []);
    assert!(!heartbeat("one", LONG).await.0);
}

async fn workers_that_are_able_share_all_endpoints<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    for name in ["b", "c", "d"] {
        shop.put(endpoint(name)).await;
    }
    let share = async |worker, able| {
        let heartbeat = shop.0.heartbeat(worker, LONG, able).await.unwrap();
        heartbeat.share
    };
    assert_eq!(share("one", true).await, 4);
    assert_eq!(share("two", true).await, 2);
    assert_eq!(share("two", false).await, 0);
    assert_eq!(share("one", true).await, 4);
    // If none is able, each keeps its share, and tries.
    assert_eq!(share("one", false).await, 2);
    assert_eq!(share("two", false).await, 2);
    assert_eq!(share("two", true).await, 4);
    assert_eq!(share("one", false).await, 0);
    assert_eq!(share("one", true).await, 2);
}

async fn a_lease_expires_without_heartbeats<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    shop.enqueue([message("paid")]).await;
    shop.heartbeat("second").await;
    let endpoints = shop.work("second").await;
    shop.heartbeat("first").await;
    let owned = shop.0.acquire("first", endpoints.clone()).await.unwrap();
    let claimed = shop.claim("first", &owned[0]).await;
    assert_eq!(claimed.len(), 1);
    let lease = Duration::from_millis(300);
    let began = Instant::now();
    assert!(shop.0.heartbeat("first", lease, true).await.unwrap().kept);
    loop {
        let taken = shop.0.acquire("second", endpoints.clone()).await.unwrap();
        if let Some(second) = taken.first() {
            assert!(began.elapsed() > lease.mul_f64(0.9), "it was too early");
            assert!(second.fence > owned[0].fence);
            break;
        }
        assert!(began.elapsed() < lease * 100, "the lease does not expire");
    }
    assert!(!shop.0.heartbeat("first", LONG, true).await.unwrap().kept);
    assert!(shop.claim("first", &owned[0]).await.is_empty());
    for claimed in claimed {
        assert!(!shop.settle(&claimed, AfterAttempt::Delivered).await);
    }
}

async fn endpoints_with_due_messages_are_found<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    for name in ["soon", "idle", "disabled", "taken"] {
        shop.put(endpoint(name)).await;
    }
    let to = |name: &str| {
        let mut message = message(name);
        message.endpoint = name.to_owned();
        message
    };
    shop.enqueue([to("taken")]).await;
    let taken = shop.take_one("other").await;
    shop.enqueue([to("disabled")]).await;
    let disable = shop.0.set_activity("", "disabled", Activity::Disabled, "");
    disable.await.unwrap();
    shop.enqueue([to("soon").delay(LONG)]).await;
    shop.enqueue([to("shop")]).await;

    shop.heartbeat("worker").await;
    let find = async |within, most| shop.0.find_work("worker", within, most).await.unwrap();
    let due = find(Duration::ZERO, 10).await;
    assert_eq!((due.len(), due[0].due), (1, Duration::ZERO));
    assert_eq!(find(LONG / 2, 10).await, due);
    let later = find(LONG * 2, 10).await;
    assert_eq!(later.len(), 2);
    assert_eq!(later[0], due[0], "what is due first is first");
    assert!(later[1].due <= LONG && later[1].due > LONG / 2);
    assert_eq!(find(LONG * 2, 1).await, due);
    assert_eq!(find(LONG * 2, 0).await, []);
    assert!(due[0].endpoint != taken.id && due[0].owned.is_none());

    let owned = shop
        .0
        .acquire("worker", vec![due[0].endpoint])
        .await
        .unwrap();
    let mine = find(Duration::ZERO, 10).await;
    assert_eq!((mine.len(), mine[0].owned), (1, Some(owned[0].fence)));
    assert_eq!(
        (mine[0].revision, owned[0].revision),
        (due[0].revision, due[0].revision)
    );
    let replaced = endpoint("shop").policy("wechat-pay");
    shop.put(replaced.clone()).await;
    let revised = find(Duration::ZERO, 10).await;
    assert!(revised[0].revision > mine[0].revision);
    assert_eq!(revised[0].owned, mine[0].owned, "it stays the worker's");
    let status = shop.0.endpoint("", "shop").await.unwrap().unwrap();
    assert_eq!((status.endpoint, &status.worker[..]), (replaced, "worker"));

    // A running message is no work.
    let claimed = shop.claim("worker", &owned[0]).await;
    assert_eq!((claimed.len(), find(Duration::ZERO, 10).await), (1, vec![]));
    // The other worker's endpoint has no owner now, and its message is due first.
    shop.die("other").await;
    let freed = find(LONG * 2, 10).await;
    let endpoints: Vec<_> = freed.iter().map(|work| work.endpoint).collect();
    assert_eq!(freed.len(), 2);
    assert_eq!(endpoints[0], taken.id);
}

async fn an_endpoint_has_one_owner<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    shop.enqueue([message("paid")]).await;
    let id = shop.work("anybody").await;
    let acquire = async |worker| shop.0.acquire(worker, id.clone()).await.unwrap();
    assert_eq!(acquire("first").await, [], "it has no lease");
    shop.heartbeat("first").await;
    shop.heartbeat("second").await;
    let first = acquire("first").await.remove(0);
    assert_eq!(
        (&first.endpoint, &first.health[..]),
        (&endpoint("shop"), &[][..])
    );
    assert_eq!(acquire("second").await, []);
    let again = acquire("first").await.remove(0);
    assert!(
        again.fence > first.fence,
        "it lost the answer, and asks again"
    );
    assert_eq!(shop.claim("first", &first).await, []);

    let release = async |worker, fence| shop.0.release(worker, vec![(id[0], fence)]).await.unwrap();
    release("first", first.fence).await;
    release("second", again.fence).await;
    assert_eq!(acquire("second").await, [], "the first still has it");
    release("first", again.fence).await;
    assert_eq!(shop.claim("first", &again).await, []);
    let second = acquire("second").await.remove(0);
    assert!(second.fence > again.fence);

    let active = async |activity| shop.0.set_activity("", "shop", activity, "").await.unwrap();
    release("second", second.fence).await;
    active(Activity::Disabled).await;
    assert_eq!(acquire("second").await, []);
    active(Activity::Active).await;
    let unknown = shop
        .0
        .acquire("second", vec![id[0] + 1000, id[0]])
        .await
        .unwrap();
    assert_eq!(unknown.len(), 1);
    assert!(unknown[0].fence > second.fence);
}

/// Eight workers concurrently take forty endpoints: each gets one owner.
async fn concurrent_acquisitions_give_one_owner<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    for number in 0..40 {
        let name = format!("shop {number}");
        shop.put(endpoint(&name)).await;
        let mut message = message("paid");
        message.endpoint = name;
        shop.enqueue([message]).await;
    }
    let workers: Vec<_> = (0..8)
        .map(|worker| {
            let shop = Shop(shop.0.clone());
            tokio::spawn(async move {
                let worker = format!("worker {worker}");
                let owned = shop.take(&worker).await;
                let mut claimed = Vec::new();
                for owned in &owned {
                    claimed.extend(shop.claim(&worker, owned).await);
                }
                (owned, claimed)
            })
        })
        .collect();
    let (mut owned, mut claimed) = (Vec::new(), Vec::new());
    for worker in workers {
        let (ours, sent) = worker.await.unwrap();
        owned.extend(ours.into_iter().map(|owned| owned.id));
        claimed.extend(sent.into_iter().map(|claimed| claimed.row));
    }
    let once = (owned.iter().collect::<HashSet<_>>().len(), owned.len());
    assert_eq!(once, (40, 40));
    let once = (claimed.iter().collect::<HashSet<_>>().len(), claimed.len());
    assert_eq!(once, (40, 40));
}

async fn a_claim_returns_the_enqueued_messages<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let messages = [
        message("1").content_type("text/plain"),
        message("2").in_order("key"),
        message("3"),
    ];
    let enqueued = shop.enqueue(messages.clone()).await;
    let owned = shop.take_one("worker").await;
    let other = shop.0.claim("other", vec![wanted(&owned, 10)]);
    assert_eq!(other.await.unwrap(), Claims::default());
    let none = shop.0.claim("worker", vec![wanted(&owned, 0)]);
    assert_eq!(none.await.unwrap(), Claims::default());
    let mut stale = wanted(&owned, 10);
    stale.fence = Fence(owned.fence.0 - 1);
    assert_eq!(
        shop.0.claim("worker", vec![stale]).await.unwrap().messages,
        []
    );

    let two = shop
        .0
        .claim("worker", vec![wanted(&owned, 2)])
        .await
        .unwrap();
    let third = shop
        .0
        .claim("worker", vec![wanted(&owned, 2)])
        .await
        .unwrap();
    assert_eq!((two.messages.len(), third.messages.len()), (2, 1));
    let two = two.messages;
    let third = third.messages;
    let all = two.iter().chain(&third);
    for (claimed, (message, enqueued)) in all.zip(messages.iter().zip(enqueued)) {
        assert_eq!(claimed.id, enqueued.id);
        assert_eq!(claimed.payload, message.payload);
        assert_eq!(claimed.content_type, message.content_type);
        assert_eq!(claimed.ordered, message.order.is_some());
        assert_eq!((claimed.endpoint, claimed.fence), (owned.id, owned.fence));
        assert_eq!(
            (claimed.attempt, claimed.lost, &claimed.session[..]),
            (1, false, &[][..])
        );
        assert!(claimed.began <= claimed.now);
        assert!(claimed.began.elapsed().is_ok_and(|since| since < LONG));
    }
}

/// The first and the last attempts are kept, in their order.
async fn a_schedule_without_end_keeps_few_attempts<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let id = shop.enqueue([message("paid")]).await.remove(0).id;
    let owned = shop.take_one("worker").await;
    for number in 1..=120_u32 {
        let claimed = shop.claim("worker", &owned).await.remove(0);
        let mut again = settled(&claimed, AfterAttempt::Again(Duration::ZERO));
        again.attempt = Some(attempt(claimed.attempt, "again"));
        assert!(shop.write(again).await);
        if number % 10 == 0 || number == 119 {
            let kept = shop.0.attempts(&id).await.unwrap();
            let kept: Vec<_> = kept.iter().map(|kept| kept.number).collect();
            let last: Vec<_> = (number.saturating_sub(39).max(1)..=number).collect();
            let first: Vec<_> = (1..=number.min(10)).collect();
            assert!(
                kept.starts_with(&first) && kept.ends_with(&last),
                "{kept:?}"
            );
            assert!(kept.len() < 60 && kept.is_sorted(), "{kept:?}");
        }
    }
}

async fn each_claim_counts_an_attempt<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    shop.enqueue([message("paid")]).await;
    let owned = shop.take_one("worker").await;
    let again = AfterAttempt::Again(Duration::ZERO);
    for number in 1..4 {
        let claimed = shop.claim("worker", &owned).await.remove(0);
        assert_eq!((claimed.attempt, claimed.lost), (number, false));
        assert_eq!(shop.claim("worker", &owned).await, [], "it runs");
        assert!(shop.settle(&claimed, again.clone()).await);
        assert!(
            !shop.settle(&claimed, again.clone()).await,
            "it was written before"
        );
    }
    let unsent = shop.claim("worker", &owned).await.remove(0);
    assert_eq!(unsent.attempt, 4);
    assert!(shop.settle(&unsent, AfterAttempt::Unsent).await);
    let claimed = shop.claim("worker", &owned).await.remove(0);
    assert_eq!(claimed.attempt, 4, "what was not sent does not count");
    // A held attempt does not count, either; it has a reason and is due later.
    let held = |wait| AfterAttempt::Held(wait, "too large".to_owned());
    assert!(shop.settle(&claimed, held(Duration::ZERO)).await);
    let status = shop
        .0
        .messages(Filter::default(), 1)
        .await
        .unwrap()
        .remove(0);
    assert_eq!(
        (status.state, status.attempts, &status.reason[..]),
        (MessageState::Pending, 3, "too large")
    );
    let later = shop.claim("worker", &owned).await.remove(0);
    assert_eq!(later.attempt, 4, "what is held does not count");
    assert!(!shop.settle(&claimed, held(Duration::ZERO)).await);
    assert!(shop.settle(&later, held(Duration::from_secs(3600))).await);
    assert_eq!(shop.claim("worker", &owned).await, [], "it is held");
    assert_eq!(shop.0.send_now(Filter::default()).await.unwrap(), 1);
    let unsent = shop.claim("worker", &owned).await.remove(0);
    assert!(shop.settle(&unsent, AfterAttempt::Unsent).await);
    let status = shop
        .0
        .messages(Filter::default(), 1)
        .await
        .unwrap()
        .remove(0);
    assert_eq!(status.reason, "", "it is held no more");
    let claimed = shop.claim("worker", &owned).await.remove(0);
    // Repeated after a lost response: the attempt that runs now is another one.
    assert!(!shop.settle(&unsent, AfterAttempt::Unsent).await);
    assert!(!shop.settle(&unsent, AfterAttempt::Delivered).await);
    assert_eq!(shop.claim("worker", &owned).await, [], "it runs");
    for number in [3, 5] {
        let mut other = settled(&claimed, AfterAttempt::Delivered);
        other.number = number;
        assert!(!shop.write(other).await, "it is not about this attempt");
    }
    for (row, endpoint, fence) in [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, -1)] {
        let mut other = settled(&claimed, AfterAttempt::Delivered);
        other.row += 1000 * row;
        other.endpoint += 1000 * endpoint;
        other.fence.0 += fence;
        assert!(!shop.write(other).await);
    }
    let both = [
        AfterAttempt::Delivered,
        AfterAttempt::Dead("twice".to_owned()),
    ];
    let both = both.map(|next| settled(&claimed, next)).to_vec();
    assert_eq!(shop.0.settle(both).await.unwrap(), [true, false]);
    assert_eq!(shop.0.summary().await.unwrap(), Summary::default());
}

/// A message that kills its worker: each owner is notified that it was lost, with the number of attempts.
async fn running_messages_are_lost_for_the_next_owner<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let id = shop.enqueue([message("poison")]).await.remove(0).id;
    let mut fence = Fence(i64::MIN);
    for number in 1..4 {
        let owned = shop.take_one("dies").await;
        assert!(owned.fence > fence);
        fence = owned.fence;
        let sent = shop.claim("dies", &owned).await;
        assert_eq!(
            (sent.len(), sent[0].attempt, sent[0].lost),
            (1, number, false)
        );
        let expected = settled(&sent[0], AfterAttempt::Delivered);
        shop.die("dies").await;
        let mut lost = Vec::new();
        // Also kill the worker that settles the message, once.
        for worker in ["dies, too", "lives"] {
            let owned = shop.take_one(worker).await;
            assert!(owned.fence > fence);
            fence = owned.fence;
            assert!(
                !shop.write(expected.clone()).await,
                "the endpoint has another owner"
            );
            assert_eq!(
                shop.0
                    .claim(worker, vec![wanted(&owned, 0)])
                    .await
                    .unwrap()
                    .messages,
                []
            );
            lost = shop.claim(worker, &owned).await;
            assert_eq!(
                (lost.len(), lost[0].attempt, lost[0].lost),
                (1, number, true)
            );
            assert_eq!(
                (&lost[0].id, lost[0].fence, lost[0].payload.len()),
                (&id, fence, 0)
            );
            assert_eq!(sent[0].started, sent[0].now);
            assert_eq!(lost[0].started, sent[0].started);
            assert_eq!(
                shop.claim(worker, &owned).await,
                [],
                "it is handed out once"
            );
            assert!(shop.work(worker).await.is_empty());
            if worker != "lives" {
                shop.die(worker).await;
            }
        }
        assert!(!shop.write(expected).await);
        assert!(
            shop.settle(&lost[0], AfterAttempt::Again(Duration::ZERO))
                .await
        );
        shop.die("lives").await;
    }
}

/// An orderly release while an attempt runs.
async fn attempts_of_released_endpoints_may_be_settled<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    shop.enqueue([message("1"), message("2")]).await;
    let owned = shop.take_one("first").await;
    let sent = shop.claim("first", &owned).await;
    shop.0
        .release("first", vec![(owned.id, owned.fence)])
        .await
        .unwrap();
    assert_eq!(shop.work("second").await, [owned.id]);
    assert!(
        shop.settle(&sent[0], AfterAttempt::Delivered).await,
        "nobody else has it"
    );
    let found = shop.0.find_work("second", Duration::ZERO, 1).await.unwrap();
    assert_eq!(
        (found[0].endpoint, found[0].owned, found[0].due),
        (owned.id, None, Duration::ZERO)
    );
    let next = shop.take_one("second").await;
    assert!(!shop.settle(&sent[1], AfterAttempt::Delivered).await);
    let lost = shop.claim("second", &next).await;
    assert_eq!(
        (lost.len(), lost[0].row, lost[0].lost),
        (1, sent[1].row, true)
    );
    assert!(shop.settle(&lost[0], AfterAttempt::Delivered).await);
    // All is settled: no work is left.
    shop.0
        .release("second", vec![(next.id, next.fence)])
        .await
        .unwrap();
    assert!(shop.work("first").await.is_empty());
}

/// A worker claims and settles for one endpoint in several tasks: each message is claimed once.
async fn concurrent_claims_return_each_message_once<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    shop.enqueue((0..60).map(|event| message(&event.to_string())))
        .await;
    let owned = shop.take_one("worker").await;
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let (shop, wanted) = (Shop(shop.0.clone()), wanted(&owned, 5));
            tokio::spawn(async move {
                let mut rows = Vec::new();
                loop {
                    let claimed = shop.0.claim("worker", vec![wanted]).await.unwrap().messages;
                    if claimed.is_empty() {
                        return rows;
                    }
                    let written = claimed
                        .iter()
                        .map(|one| settled(one, AfterAttempt::Delivered));
                    let written = shop.0.settle(written.collect()).await.unwrap();
                    assert!(written.iter().all(|written| *written));
                    rows.extend(claimed.iter().map(|one| one.row));
                }
            })
        })
        .collect();
    let mut rows = Vec::new();
    for task in tasks {
        rows.extend(task.await.unwrap());
    }
    let once = (rows.iter().collect::<HashSet<_>>().len(), rows.len());
    assert_eq!(once, (60, 60));
}

async fn settled_results_are_stored<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let enqueued = shop.enqueue([message("1"), message("2").delay(LONG)]).await;
    let owned = shop.take_one("worker").await;
    let claimed = shop.claim("worker", &owned).await.remove(0);
    let mut first = settled(&claimed, AfterAttempt::Again(Duration::ZERO));
    first.session = vec![0, 1, 255];
    first.attempt = Some(attempt(1, "no answer\0"));
    first.health = Some(b"\0ill".to_vec());
    assert!(shop.write(first.clone()).await);
    assert!(!shop.write(first).await);
    let claimed = shop.claim("worker", &owned).await.remove(0);
    assert_eq!(claimed.session, [0, 1, 255]);
    let mut last = settled(
        &claimed,
        AfterAttempt::Dead("all attempts are used".to_owned()),
    );
    last.attempt = Some(attempt(2, "503"));
    last.disable = Some("it has answered 410".to_owned());
    let mut late = last.clone();
    late.fence = Fence(late.fence.0 - 1);
    late.health = Some(b"from before".to_vec());
    assert_eq!(
        shop.0.settle(vec![late, last]).await.unwrap(),
        [false, true]
    );

    let attempts = shop.0.attempts(&enqueued[0].id).await.unwrap();
    assert_eq!(
        attempts,
        [attempt(1, "no answer\u{fffd}"), attempt(2, "503")]
    );
    assert_eq!(shop.0.attempts(&enqueued[1].id).await.unwrap(), []);
    let status = shop.0.endpoint("", "shop").await.unwrap().unwrap();
    assert_eq!(status.activity, Activity::Disabled);
    assert_eq!(status.reason, "it has answered 410");
    assert_eq!(status.health, b"\0ill");
    assert_eq!((status.pending, status.dead), (1, 1));
    let filter = Filter {
        state: Some(MessageState::Dead),
        ..Filter::default()
    };
    let dead = shop.0.messages(filter, 10).await.unwrap().remove(0);
    assert_eq!(
        (dead.attempts, &dead.reason[..], &dead.last_error[..]),
        (2, "all attempts are used", "503")
    );
    assert!(dead.due_ms.is_none() && dead.ended_ms >= Some(dead.created_ms));
    // The old failures do not disable it again.
    let enable = shop.0.set_activity("", "shop", Activity::Active, "");
    enable.await.unwrap();
    let again = shop.0.acquire("worker", vec![owned.id]).await.unwrap();
    assert_eq!(again[0].health, b"");
    assert!(
        again[0].revision > owned.revision,
        "whoever has it learns of it"
    );
    assert_eq!(
        shop.0.endpoint("", "shop").await.unwrap().unwrap().reason,
        ""
    );
}

async fn messages_of_a_disabled_endpoint_wait<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    shop.enqueue([message("1"), message("2")]).await;
    let owned = shop.take_one("worker").await;
    let claimed = shop
        .0
        .claim("worker", vec![wanted(&owned, 1)])
        .await
        .unwrap()
        .messages;
    let set = async |activity| {
        shop.0
            .set_activity("", "shop", activity, "by hand")
            .await
            .unwrap()
    };
    assert!(set(Activity::Disabled).await);
    assert_eq!(shop.claim("worker", &owned).await, []);
    assert!(shop.work("worker").await.is_empty());
    assert!(!shop.enqueue([message("3")]).await[0].duplicate);
    // A running attempt is settled; its request to disable keeps the earlier reason.
    let mut last = settled(&claimed[0], AfterAttempt::Delivered);
    last.disable = Some("410".to_owned());
    assert!(shop.write(last).await);
    let status = shop.0.endpoint("", "shop").await.unwrap().unwrap();
    assert_eq!((&status.reason[..], status.pending), ("by hand", 2));
    assert_eq!(shop.0.summary().await.unwrap().lag_ms, None);
    assert!(set(Activity::Active).await);
    assert_eq!(shop.work("worker").await, [owned.id]);
    let (events, _) = shop.claim_events("worker", &owned).await;
    assert_eq!(events, ["2", "3"]);
    let unknown = shop.0.set_activity("", "nobody", Activity::Disabled, "");
    assert!(!unknown.await.unwrap());
}

async fn delayed_messages_become_due<S: Store>(make: &impl AsyncFn() -> S) {
    let shop = Shop::open(make).await;
    let delay = Duration::from_millis(100);
    shop.enqueue([message("never").delay(LONG), message("soon").delay(delay)])
        .await;
    let never = message("not in a million years").delay(Duration::MAX);
    shop.enqueue([never]).await;
    shop.heartbeat("worker").await;
    let found = shop.0.find_work("worker", delay, 1).await.unwrap();
    assert!(found[0].due <= delay);
    let owned = shop
        .0
        .acquire("worker", vec![found[0].endpoint])
        .await
        .unwrap();
    let wait = async || {
        let began = Instant::now();
        loop {
            let claimed = shop.claim("worker", &owned[0]).await;
            if let [claimed] = &claimed[..] {
                return claimed.clone();
            }
            assert!(
                claimed.is_empty() && began.elapsed() < delay * 100,
                "{claimed:?}"
            );
        }
    };
    let first = wait().await;
    assert!(first.now >= first.began);
    assert!(shop.settle(&first, AfterAttempt::Again(delay)).await);
    let second = wait().await;
    assert!(second.now >= first.now + delay);
    assert_eq!((second.attempt, second.began), (2, first.began));
    // The limits of a policy count from the first due time.
    let two = [delay, delay * 2].map(|delay| message(&format!("{delay:?}")).delay(delay));
    shop.enqueue(two).await;
    let (began, mut starts) = (Instant::now(), Vec::new());
    while starts.len() < 2 {
        assert!(began.elapsed() < delay * 100);
        let claimed = shop.claim("worker", &owned[0]).await;
        starts.extend(claimed.iter().map(|claimed| claimed.began));
    }
    assert_eq!(starts[1], starts[0] + delay);
}
