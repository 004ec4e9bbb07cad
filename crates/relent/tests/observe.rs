//! Observability: exact events and metrics, and none without a subscriber or recorder.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

mod collector;

use std::time::Duration;

use collector::{Collector, Measured, measure};
use relent::destination::Budget;
use relent::driver::Driver;
use relent::failure::{Cause, HintSource};
use relent::observe::{self, Label};
use relent::policy::{BudgetConfig, HedgeConfig, PolicyBuilder, RateLimitConfig};
use relent::{
    Backoff, Destination, Failure, Hint, Jitter, Policy, PollOutcome, StopReason, Ticker,
    VirtualClock, blocking, poll_until, retry_with,
};
use tracing::Level;

fn policy() -> PolicyBuilder {
    Policy::builder(Backoff::constant(Duration::from_millis(340)))
        .jitter(Jitter::None)
        .max_retries(3)
}

fn unavailable() -> Failure {
    Failure::ambiguous().cause(Cause::Status(503))
}

/// Runs an operation with these failures in order, and then a success.
fn run(
    policy: &Policy,
    failures: &[Failure],
    there: Option<&Destination>,
) -> Result<(), StopReason> {
    let mut coming = failures.iter();
    let operation = || coming.next().map_or(Ok(()), |failure| Err(*failure));
    blocking::retry(policy, operation)
        .classify(|failure: &Failure| *failure)
        .clock(VirtualClock::new())
        .maybe_destination(there)
        .run()
        .map_err(|gave_up| gave_up.reason())
}

fn measures<const N: usize>(values: [(&str, &[f64]); N]) -> Measured {
    let named = values.map(|(name, values)| (name.to_owned(), values.to_vec()));
    named.into()
}

#[test]
fn three_attempts_give_two_events_and_exact_metrics() {
    let policy = policy().build().unwrap();
    let asked = Failure::throttled().cause(Cause::Status(429)).hint(
        Hint::after(Duration::from_secs(2)).from_source(HintSource::header("retry-after-ms")),
    );
    let (collector, _guard) = Collector::start();
    let (result, measured) = measure(|| run(&policy, &[unavailable(), asked], None));
    assert_eq!(result, Ok(()));

    let events = collector.events();
    assert_eq!(events.len(), 2);
    let first = &events[0];
    assert_eq!((first.target, first.level), ("relent", Level::INFO));
    let fields: Vec<_> = first.fields.iter().map(|(k, v)| (*k, v.as_str())).collect();
    assert_eq!(
        fields,
        [
            ("message", "retry in 340ms: status 503"),
            ("relent.attempt", "1"),
            ("relent.cause", "status 503"),
            ("relent.kind", "ambiguous"),
            ("relent.wait", "0.34"),
        ]
    );
    let second = &events[1].fields;
    assert_eq!(second["relent.attempt"], "2");
    assert_eq!(second["relent.hint"], "retry-after-ms");
    assert_eq!(second["relent.hint_delay"], "2.0");
    assert!(second["message"].starts_with("retry in "));
    assert!(second["message"].ends_with(": status 429, retry-after-ms"));

    let hinted = measured["relent_wait_seconds{hint=\"retry-after-ms\"}"].clone();
    assert_eq!(second["relent.wait"], format!("{:?}", hinted[0]));
    assert_eq!(
        measured,
        measures([
            ("relent_attempts_total", &[3.0]),
            ("relent_retries_total", &[2.0]),
            ("relent_failures_total{kind=\"ambiguous\"}", &[1.0]),
            ("relent_failures_total{kind=\"throttled\"}", &[1.0]),
            ("relent_wait_seconds{hint=\"none\"}", &[0.34]),
            ("relent_wait_seconds{hint=\"retry-after-ms\"}", &hinted),
        ])
    );
}

#[test]
fn a_give_up_event_has_the_reason() {
    let policy = policy().max_retries(1).build().unwrap();
    let (collector, _guard) = Collector::start();
    let (result, measured) = measure(|| run(&policy, &[unavailable(); 2], None));
    assert_eq!(result, Err(StopReason::RetriesExhausted));
    let (level, line) = collector.lines().remove(1);
    let expected = "gave up after 2 attempts: the retries are used up (status 503)";
    assert_eq!((level, line.as_str()), (Level::WARN, expected));
    let fields = &collector.events()[1].fields;
    assert_eq!(fields["relent.reason"], "retries_exhausted");
    assert_eq!(fields["relent.attempt"], "2");
    let stops = &measured["relent_stops_total{reason=\"retries_exhausted\"}"];
    assert_eq!(stops, &[1.0]);
}

#[test]
fn a_permanent_failure_is_logged_at_debug_level() {
    let policy = policy().build().unwrap();
    let (collector, _guard) = Collector::start();
    let missing = Failure::permanent().cause(Cause::Status(404));
    assert_eq!(run(&policy, &[missing], None), Err(StopReason::Permanent));
    let line = "gave up after 1 attempt: repeating cannot help (status 404)";
    assert_eq!(collector.lines(), [(Level::DEBUG, line.to_owned())]);
}

/// The text of an error may contain a password or an address; only its cause is reported.
#[test]
fn the_text_of_an_error_is_not_reported() {
    let policy = policy().max_retries(1).build().unwrap();
    let (collector, _guard) = Collector::start();
    let (_, measured) = measure(|| {
        let failing = || Err::<(), _>("https://user:hunter2@host/?token=hunter2");
        let retry = blocking::retry(&policy, failing);
        retry.clock(VirtualClock::new()).run().unwrap_err()
    });
    assert_eq!(collector.lines()[0].1, "retry in 340ms");
    assert!(!collector.text().contains("hunter2"));
    assert!(!format!("{measured:?}").contains("hunter2"));
}

#[test]
fn the_budget_gauge_is_set_at_a_request_and_at_a_retry() {
    let policy = policy().build().unwrap();
    let config = BudgetConfig {
        per_second: 0.0,
        ..BudgetConfig::DEFAULT
    };
    let there = Destination::new(&policy).with_budget(Budget::new(&config).unwrap());
    let left = |failures: &[Failure]| {
        let (_, measured) = measure(|| run(&policy, failures, Some(&there)));
        measured["relent_budget_left"][0]
    };
    assert_eq!(left(&[]), 10.1);
    assert_eq!(left(&[unavailable()]), 9.2);
}

#[test]
fn a_destination_is_a_label_only_if_it_was_given_a_name() {
    let policy = policy().max_retries(0).build().unwrap();
    let (_, measured) = measure(|| {
        let mut driver = Driver::builder(&policy, VirtualClock::new())
            .label(Label::new("payments"))
            .start();
        let permit = driver.enter(None).permit().unwrap();
        driver.on_attempt(permit);
        driver.on_failure(&unavailable());
    });
    let label = "destination=\"payments\"";
    assert_eq!(
        measured,
        measures([
            (&format!("relent_attempts_total{{{label}}}"), &[1.0]),
            (
                &format!("relent_failures_total{{kind=\"ambiguous\",{label}}}"),
                &[1.0]
            ),
            (
                &format!("relent_stops_total{{reason=\"retries_exhausted\",{label}}}"),
                &[1.0]
            ),
        ])
    );
}

/// A delay that will not be waited for is not announced.
#[test]
fn an_unusable_retry_is_reported_only_as_a_give_up() {
    let policy = policy().build().unwrap();
    let there = policy_budget();
    let budget = there.budget().unwrap();
    let before = budget.balance();
    let (collector, _guard) = Collector::start();
    let (_, measured) = measure(|| {
        let mut driver = Driver::builder(&policy, VirtualClock::new())
            .destination(&there)
            .traced()
            .start();
        let permit = driver.enter(None).permit().unwrap();
        driver.on_attempt(permit);
        let decision = driver.on_failure_unless(&unavailable(), || Some(StopReason::NotReplayable));
        let stop = decision.stop().unwrap();
        assert_eq!(stop.reason, StopReason::NotReplayable);
        let summary = driver.summary(Some(stop));
        let trace = summary.trace.unwrap();
        let decisions: Vec<_> = trace.entries().map(|entry| entry.decision).collect();
        assert_eq!(decisions, [Some(decision)]);
    });
    assert_eq!(budget.balance(), before, "and the retry is given back");
    assert_eq!(collector.lines().len(), 1);
    assert!(
        !measured
            .keys()
            .any(|name| name.starts_with(observe::WAIT.name))
    );
    let stops = &measured["relent_stops_total{reason=\"not_replayable\"}"];
    assert_eq!(stops, &[1.0]);
}

/// A call that is held back beyond its limit gives up like any other.
#[test]
fn a_give_up_before_an_attempt_is_reported_once() {
    let one_an_hour = RateLimitConfig {
        burst: Some(1),
        ..RateLimitConfig::new(1.0 / 3600.0)
    };
    let policy = policy().rate_limit(one_an_hour).build().unwrap();
    let there = Destination::new(&policy);
    let (collector, _guard) = Collector::start();
    let (_, measured) = measure(|| {
        let clock = VirtualClock::new();
        let call = || blocking::retry(&policy, || Ok::<_, ()>(1)).clock(&clock);
        assert!(call().destination(&there).run().is_ok());
        let gave_up = call().destination(&there).traced().run().unwrap_err();
        assert_eq!(gave_up.reason(), StopReason::RetryLater);
        assert_eq!(gave_up.trace().unwrap().entries().len(), 0);
    });
    assert_eq!(collector.lines().len(), 1);
    let stops = &measured["relent_stops_total{reason=\"retry_later\"}"];
    assert_eq!(stops, &[1.0]);
}

fn policy_budget() -> Destination {
    let still = BudgetConfig {
        ratio: 0.0,
        per_second: 0.0,
        ..BudgetConfig::DEFAULT
    };
    let policy = Policy::builder(Backoff::None).build().unwrap();
    Destination::new(&policy).with_budget(Budget::new(&still).unwrap())
}

#[test]
fn the_policys_stop_reason_takes_precedence_over_the_drivers() {
    let policy = policy().build().unwrap();
    let mut driver = Driver::builder(&policy, VirtualClock::new()).start();
    let permit = driver.enter(None).permit().unwrap();
    driver.on_attempt(permit);
    let asked = || panic!("there is no retry to decline");
    let decision = driver.on_failure_unless(&Failure::permanent(), asked);
    assert_eq!(decision.stop().unwrap().reason, StopReason::Permanent);
}

#[tokio::test(start_paused = true)]
async fn a_pending_poll_is_reported_but_is_no_failure() {
    let recorder = metrics_util::debugging::DebuggingRecorder::new();
    let (collector, _guard) = Collector::start();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let (policy, mut looks) = (policy().build().unwrap(), 0);
    let done = poll_until(&policy, || {
        looks += 1;
        std::future::ready(Ok::<_, &str>(match looks {
            1 => PollOutcome::Pending,
            _ => PollOutcome::Done(()),
        }))
    });
    done.await.unwrap();
    let line = "retry in 340ms: pending".to_owned();
    assert_eq!(collector.lines(), [(Level::INFO, line)]);
    assert_eq!(
        collector::measured(&recorder.snapshotter()),
        measures([
            ("relent_attempts_total", &[2.0]),
            ("relent_retries_total", &[1.0]),
            ("relent_wait_seconds{hint=\"none\"}", &[0.34]),
        ])
    );
}

#[tokio::test(start_paused = true)]
async fn the_ticks_of_a_ticker_are_not_reported() {
    let recorder = metrics_util::debugging::DebuggingRecorder::new();
    let (collector, _guard) = Collector::start();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let mut ticker = Ticker::new(Policy::STANDARD);
    while ticker.tick().await.is_some() {}
    assert!(collector.events().is_empty());
    assert!(collector::measured(&recorder.snapshotter()).is_empty());
}

/// Reports go to the subscriber installed at the moment, so installing a recorder late works.
#[test]
fn without_a_subscriber_or_recorder_nothing_is_reported() {
    let policy = policy().build().unwrap();
    let (collector, guard) = Collector::start();
    drop(guard);
    run(&policy, &[unavailable()], None).unwrap();
    assert!(collector.events().is_empty() && collector.spans().is_empty());
    let ((), measured) = measure(|| ());
    assert!(measured.is_empty());
}

/// A hedge that fails while the first attempt runs is a failure without a delay.
#[tokio::test(start_paused = true)]
async fn metrics_count_a_hedge_as_an_attempt_but_no_retry() {
    let recorder = metrics_util::debugging::DebuggingRecorder::new();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let hedge = HedgeConfig::after(Duration::from_millis(10));
    let policy = policy().hedge(hedge).build().unwrap();
    let asked = retry_with(&policy, |attempt| async move {
        if attempt.number == 2 {
            return Err("down");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(())
    });
    asked.await.unwrap();
    assert_eq!(
        collector::measured(&recorder.snapshotter()),
        measures([
            ("relent_attempts_total", &[2.0]),
            ("relent_hedges_total", &[1.0]),
            ("relent_failures_total{kind=\"ambiguous\"}", &[1.0]),
        ])
    );
}

#[test]
fn metrics_count_what_a_transport_sends_again_apart_from_attempts() {
    let recorder = metrics_util::debugging::DebuggingRecorder::new();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let policy = policy().build().unwrap();
    let driver = Driver::builder(&policy, VirtualClock::new()).start();
    driver.on_resends(2);
    assert_eq!(
        collector::measured(&recorder.snapshotter()),
        measures([("relent_resends_total", &[2.0])])
    );
}

/// A queued request counts as held back by the circuit breaker until it is released, and each state
/// change of the breaker is reported.
#[tokio::test(start_paused = true)]
async fn held_back_requests_are_counted_and_timed_by_control() {
    let policy = policy()
        .max_retries(0)
        .circuit_breaker(relent::policy::CircuitBreakerConfig::DEFAULT)
        .rate_limit(relent::policy::RateLimitConfig::new(100.0))
        .build()
        .unwrap();
    let there = Destination::new(&policy);
    let (collector, _guard) = Collector::start();
    let recorder = metrics_util::debugging::DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let once = |outcome: Result<(), Failure>| {
        relent::retry(&policy, move || async move { outcome })
            .classify(|failure: &Failure| *failure)
            .destination(&there)
    };
    let mut attempts = 0;
    while !there.is_down() {
        once(Err(unavailable())).await.unwrap_err();
        attempts += 1;
    }
    let mut parked = Box::pin(once(Ok(())));
    let waiting = tokio::time::timeout(Duration::from_millis(50), &mut parked);
    waiting.await.unwrap_err();
    let measured = collector::measured(&snapshotter);
    assert_eq!(measured[r#"relent_held_back{by="circuit_breaker"}"#], [1.0]);
    assert_eq!(
        measured[r#"relent_circuit_breaker_changes_total{state="down"}"#],
        [1.0]
    );
    assert_eq!(measured["relent_rate_limit"], [100.0]);
    // Ten immediately; each other one, and the queued one, waited for 10 ms.
    assert_eq!(
        measured[r#"relent_held_seconds{by="rate_limit"}"#].len(),
        attempts + 1 - 10
    );

    parked.await.unwrap();
    // A shared hint starts no cooldown while other requests succeed.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let hint = Hint::after(Duration::from_secs(2));
    once(Err(Failure::throttled().hint(hint)))
        .await
        .unwrap_err();
    drop(once(Ok(())));
    let measured = collector::measured(&snapshotter);
    // This recorder resets with each snapshot.
    assert_eq!(
        measured[r#"relent_held_back{by="circuit_breaker"}"#],
        [-1.0]
    );
    let held = measured[r#"relent_held_seconds{by="circuit_breaker"}"#][0];
    assert!((0.3..=0.7).contains(&held), "{held}");
    assert_eq!(measured["relent_cooldowns_total"], [1.0]);
    let circuit_breakers: Vec<_> = collector
        .events()
        .iter()
        .filter_map(|event| event.fields.get("relent.circuit_breaker").cloned())
        .collect();
    assert_eq!(circuit_breakers[..2], ["down", "limited"]);
}

/// A queued wait has its own event, and each event names the destination.
#[tokio::test(start_paused = true)]
async fn a_queued_attempt_is_an_event_and_events_name_the_destination() {
    let (collector, _guard) = Collector::start();
    let there = Destination::new(Policy::STANDARD).named("orders");
    let call = there.retry(|| async { Err::<(), _>(unavailable()) });
    call.classify(|failure: &Failure| *failure)
        .await
        .unwrap_err();
    let events = collector.events();
    let named = |event: &collector::Reported| {
        event.fields.get("relent.destination").map(String::as_str) == Some("orders")
    };
    assert!(events.len() > 3 && events.iter().all(named));
    let queued = events
        .iter()
        .find(|event| event.fields.contains_key("relent.at_most"));
    let queued = queued.unwrap();
    assert_eq!((queued.target, queued.level), ("relent", Level::INFO));
    assert_eq!(queued.fields["relent.by"], "circuit_breaker");
    let at_most: f64 = queued.fields["relent.at_most"].parse().unwrap();
    assert!((1.0..=30.0).contains(&at_most), "{at_most}");
    let line = &queued.fields["message"];
    let says = " is held by the circuit breaker for at most ";
    assert!(
        line.starts_with("attempt ") && line.contains(says),
        "{line}"
    );
}

/// The deciding failure is the more definite one, which came first; each is counted by its own
/// kind.
#[tokio::test(start_paused = true)]
async fn each_failed_attempt_of_a_race_is_counted_once() {
    let hedge = HedgeConfig::after(Duration::from_millis(10));
    let policy = policy().max_retries(1).hedge(hedge).build().unwrap();
    let there = Destination::new(&policy);
    let recorder = metrics_util::debugging::DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let hint = Hint::after(Duration::from_secs(2));
    let call = |attempt: relent::Attempt| async move {
        let (millis, failure) = match attempt.number {
            1 => (20, Failure::throttled().hint(hint)),
            _ => (30, unavailable()),
        };
        tokio::time::sleep(Duration::from_millis(millis)).await;
        Err::<(), _>(failure)
    };
    retry_with(&policy, call)
        .classify(|failure: &Failure| *failure)
        .destination(&there)
        .await
        .unwrap_err();
    let measured = collector::measured(&snapshotter);
    for kind in ["throttled", "ambiguous"] {
        let name = format!("relent_failures_total{{kind={kind:?}}}");
        assert_eq!(measured[&name], [1.0], "{measured:?}");
    }
    assert_eq!(measured["relent_cooldowns_total"], [1.0]);
}

/// A race that one attempt wins also reports the outcome of the other.
#[tokio::test(start_paused = true)]
async fn a_hint_to_a_losing_attempt_of_a_race_starts_the_cooldown() {
    let hedge = HedgeConfig::after(Duration::from_millis(10));
    let policy = policy().hedge(hedge).build().unwrap();
    let there = Destination::new(&policy);
    let call = |attempt: relent::Attempt| async move {
        let millis = 10 * u64::from(attempt.number) + 10;
        tokio::time::sleep(Duration::from_millis(millis)).await;
        match attempt.number {
            1 => Err(Failure::throttled().hint(Hint::after(Duration::from_secs(2)))),
            _ => Ok(()),
        }
    };
    retry_with(&policy, call)
        .classify(|failure: &Failure| *failure)
        .destination(&there)
        .await
        .unwrap();
    assert!(there.cooldown().has_begun());
}
