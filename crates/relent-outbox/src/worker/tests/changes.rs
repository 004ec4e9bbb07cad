//! A change of an endpoint applies to every attempt that starts after the change has returned.

use super::*;
use crate::store::GRANT;

/// The start and the URL of each attempt.
type Begun = Arc<Mutex<Vec<(Instant, String)>>>;

fn noting(
    takes: impl Fn(&Job) -> (Duration, Option<Failure>) + Send + Sync + 'static,
) -> (Receivers, Begun) {
    let begun: Begun = Arc::default();
    let noted = Arc::clone(&begun);
    let receivers = Receivers::new(move |job| {
        let url = job.rules.endpoint.url.clone();
        noted.lock().unwrap().push((Instant::now(), url));
        takes(job)
    });
    (receivers, begun)
}

/// Changes the URL as a store does: earlier permissions have expired when this returns.
async fn put(store: &Memory, url: &str) -> Instant {
    store.change(1, |endpoint| endpoint.url = url.to_owned());
    sleep(GRANT).await;
    Instant::now()
}

#[tokio::test(start_paused = true)]
async fn no_attempt_starts_by_old_rules_after_a_change_has_returned() {
    for seed in 0..6 {
        let store = Memory::new([endpoint(0), endpoint(1)]);
        store.set_call_faults(memory::CallFaults {
            random: relent::random::SessionRandom::with_seed(seed),
            latency_factor: 400,
            ..memory::CallFaults::default()
        });
        // Some attempts hang, so a change must not wait for their end.
        let (receivers, begun) = noting(|job| match job.payload.first() {
            Some(b'h') => (3600 * SECOND, None),
            _ => (Duration::from_millis(20), None),
        });
        let running = start(&store, &receivers, config("one"));
        let mut changes = vec![(Instant::now(), "https://shop.example/".to_owned())];
        for change in 0..12 {
            for message in 0..100 {
                store.add(1, if message == 7 { "hangs" } else { "x" });
                sleep(Duration::from_millis(10)).await;
            }
            let url = format!("https://shop.example/{change}");
            if change % 4 == 3 {
                store.fail("claim", &[Fault::Late]);
            }
            changes.push((put(&store, &url).await, url));
        }
        store.add(1, "x");
        sleep(60 * SECOND).await;
        let begun = begun.lock().unwrap().clone();
        for (at, url) in &begun {
            let in_force = changes.iter().rev().find(|(since, _)| since <= at).unwrap();
            let next = changes.iter().find(|(since, _)| since > at);
            let may = [Some(in_force), next].into_iter().flatten();
            assert!(
                may.map(|(_, url)| url).any(|may| may == url),
                "seed {seed}: {url} although {in_force:?}"
            );
        }
        assert_eq!(begun.last().unwrap().1, changes.last().unwrap().1);
        running.worker.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_applies_soon_although_earlier_attempts_hang() {
    let one = NonZeroU32::MIN;
    let store = Memory::new([endpoint(0).concurrency(one)]);
    let (receivers, begun) = noting(|job| match job.rules.endpoint.url.ends_with("/new") {
        true => (Duration::from_millis(20), None),
        false => (3600 * SECOND, None),
    });
    let running = start(&store, &receivers, config("one"));
    store.add(1, "x");
    store.add(1, "x");
    sleep(SECOND).await;
    store.change(1, |endpoint| {
        endpoint.url = "https://shop.example/new".to_owned();
        endpoint.concurrency = NonZeroU32::new(2).unwrap();
    });
    store.hint(crate::store::Hinted::Anything);
    sleep(2 * SECOND).await;
    assert_eq!(receivers.hits(), 2);
    assert!(begun.lock().unwrap()[1].1.ends_with("/new"));
    running.worker.abort();
}

/// The search reads the registration, and returns after a claim has reported the change.
#[tokio::test(start_paused = true)]
async fn a_search_from_before_a_change_holds_no_message_and_causes_few_claims() {
    let store = Memory::new([endpoint(0)]);
    let receivers = quick();
    let running = start(&store, &receivers, config("one"));
    let deliver = async || {
        store.add(1, "x");
        store.hint(crate::store::Hinted::Endpoints([1].into()));
        sleep(SECOND).await;
        assert_eq!(store.unended(), 0);
    };
    deliver().await;
    store.fail("find", &[memory::Fault::Late]);
    store.add_later(1, "x", SECOND / 2);
    store.hint(crate::store::Hinted::Anything);
    sleep(SECOND / 4).await;
    put(&store, "https://shop.example/new").await;
    deliver().await;
    let claims = store.calls("claim");
    sleep(30 * SECOND).await;
    assert!(store.calls("claim") <= claims + 2);
    deliver().await;
    let _ = running.stop().await;
}

/// Repeated changes of a rate allow no extra requests, and a lower rate applies from the next attempt on.
#[tokio::test(start_paused = true)]
async fn a_changed_rate_limit_applies_and_allows_no_extra_requests() {
    let paced = |limit: &str| format!("{TEN}\nrate_limit.limit = {limit}\n");
    let store = Memory::new([endpoint(0).policy(paced("20"))]);
    for _ in 0..2000 {
        store.add(1, "x");
    }
    let receivers = quick();
    let running = start(&store, &receivers, config("one"));
    sleep(5 * SECOND).await;
    let first = receivers.hits();
    assert!((60..=140).contains(&first), "{first} in 5 s of 20 each");
    for change in 0..50 {
        let limit = if change % 2 == 0 { "2" } else { "2.5" };
        store.change(1, |endpoint| endpoint.policy = paced(limit));
        sleep(SECOND / 5).await;
    }
    let second = receivers.hits() - first;
    assert!(second <= 45, "{second} in 10 s of 2 to 2.5 each");
    let _ = running.stop().await;
}

/// A response of the old URL neither disables the endpoint nor counts as its failure.
#[tokio::test(start_paused = true)]
async fn responses_of_the_old_url_do_not_count_for_the_new_one() {
    let store = Memory::new([endpoint(0)]);
    let (receivers, _) = noting(|job| match job.rules.endpoint.url.ends_with("/new") {
        true => (Duration::from_millis(20), None),
        false => (5 * SECOND, Some(refused())),
    });
    let running = start(&store, &receivers, config("one"));
    store.add(1, "x");
    sleep(SECOND).await;
    put(&store, "https://shop.example/new").await;
    for _ in 0..20 {
        store.add(1, "x");
    }
    until_ended(&store).await;
    assert_eq!(store.health(1).failing_since(), None);
    assert_eq!(receivers.hits(), 22);
    let _ = running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn no_attempt_starts_after_an_endpoint_is_disabled_or_deleted() {
    for deleted in [false, true] {
        let store = Memory::new([endpoint(0)]);
        store.set_call_faults(memory::CallFaults {
            latency_factor: 400,
            ..memory::CallFaults::default()
        });
        let (receivers, begun) = noting(|_| (Duration::from_millis(20), None));
        let running = start(&store, &receivers, config("one"));
        for _ in 0..3000 {
            store.add(1, "x");
        }
        sleep(2 * SECOND).await;
        match deleted {
            true => drop(store.delete_and_put(1)),
            false => store.set_disabled(1, true),
        }
        sleep(GRANT).await;
        let (since, before) = (Instant::now(), receivers.hits());
        assert!(before > 20, "{before}");
        sleep(60 * SECOND).await;
        let is_over = begun.lock().unwrap().iter().all(|(at, _)| *at <= since);
        assert!(is_over, "{deleted}");
        let _ = running.stop().await;
    }
}

/// A response to an attempt by old rules does not disable the changed endpoint.
#[tokio::test(start_paused = true)]
async fn an_endpoint_that_changed_is_not_given_up_by_a_response_to_its_old_url() {
    let store = Memory::new([endpoint(0)]);
    let transport = Transport::new(watch::channel(true).1, async |mut job: Job| {
        job.ready().await?;
        let is_new = job.rules.endpoint.url.ends_with("/new");
        let takes = if is_new { 14 * SECOND } else { 2 * SECOND };
        sleep(takes).await;
        let mut sent = AttemptResult::failed(refused(), String::new(), takes);
        (sent.outcome, sent.disable) = (Ok(()), Some("it answered webhook-delivery: disable"));
        Ok(sent)
    });
    let running = run(worker(&store, transport, config("one")));
    store.add(1, "x");
    sleep(SECOND).await;
    store.change(1, |endpoint| {
        endpoint.url = "https://shop.example/new".to_owned();
    });
    store.add(1, "x");
    until(|| store.unended() == 1).await;
    sleep(SECOND).await;
    assert_eq!((store.disabled(1), store.calls("release")), (None, 0));
    until_ended(&store).await;
    sleep(SECOND).await;
    assert!(store.disabled(1).is_some(), "by the new URL");
    let _ = running.stop().await;
}
