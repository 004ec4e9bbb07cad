#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

use super::*;
use crate::admission::{LimiterConfig, ShedderConfig};
use proptest::prelude::*;

const TICKET: Result<Admitted, Rejected> = Ok(Admitted {
    reserved_slot: true,
});
const FREE: Result<Admitted, Rejected> = Ok(Admitted {
    reserved_slot: false,
});

/// A limiter with slots this many milliseconds apart.
fn limiter(millis: u64, burst: u32) -> Limiter {
    let config = LimiterConfig {
        burst,
        ..LimiterConfig::new(1, Duration::from_millis(millis))
    };
    Limiter::new(&config).unwrap()
}

/// A shedder that sheds everything beside one request.
fn one_at_a_time() -> Shedder {
    Shedder::new(&ShedderConfig {
        in_flight: 1,
        retry_in_flight_share: 1.0,
        ..ShedderConfig::DEFAULT
    })
    .unwrap()
}

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn by(caller: u64) -> Arrival {
    Arrival {
        caller: Some(caller),
        ..Arrival::FIRST
    }
}

fn busy(arrival: Arrival) -> Arrival {
    Arrival {
        in_flight: 1,
        ..arrival
    }
}

fn ticket(millis: u64, limiter: usize) -> Result<Admitted, Rejected> {
    let refusal = Refusal::Ticket(Duration::from_millis(millis));
    Err(Rejected::Limited { refusal, limiter })
}

fn is_shed(judged: Result<Admitted, Rejected>) -> bool {
    matches!(judged, Err(Rejected::Shed(_)))
}

#[test]
fn without_limits_only_expired_requests_are_rejected() {
    let mut intake = AdmissionController::new();
    for _ in 0..1000 {
        assert_eq!(intake.admit(at(0), &busy(by(1))), FREE);
    }
    for (remaining, expected) in [(0, Err(Rejected::Expired)), (1, FREE)] {
        let arrival = Arrival {
            remaining: Some(Duration::from_nanos(remaining)),
            ..by(1)
        };
        assert_eq!(intake.admit(at(0), &arrival), expected);
    }
}

#[test]
fn a_shed_request_keeps_its_quota() {
    let mut intake = AdmissionController::new()
        .limiter(limiter(10, 2))
        .shedder(one_at_a_time());
    for caller in 0..1000 {
        assert!(is_shed(intake.admit(at(0), &busy(by(caller)))));
    }
    assert_eq!(intake.admit(at(0), &by(0)), FREE);
    assert_eq!(intake.admit(at(0), &by(1)), FREE);
    assert_eq!(intake.admit(at(0), &by(2)), ticket(10, 0));
}

#[test]
fn a_shed_request_keeps_its_ticket() {
    let mut intake = AdmissionController::new()
        .limiter(limiter(10, 1))
        .shedder(one_at_a_time());
    assert_eq!(intake.admit(at(0), &by(1)), FREE);
    assert_eq!(intake.admit(at(0), &by(2)), ticket(10, 0));
    assert!(is_shed(intake.admit(at(10), &busy(by(2)))));
    assert_eq!(intake.admit(at(20), &by(2)), TICKET);
}

#[test]
fn an_expired_request_consumes_and_counts_nothing() {
    let mut intake = AdmissionController::new()
        .limiter(limiter(10, 1))
        .shedder(one_at_a_time());
    let late = Arrival {
        attempt: 9,
        remaining: Some(Duration::ZERO),
        ..by(1)
    };
    assert_eq!(intake.admit(at(0), &late), Err(Rejected::Expired));
    assert_eq!(intake.retry_share(at(0)), 0.0);
    assert_eq!(intake.admit(at(0), &by(1)), FREE);
}

#[test]
fn a_cost_above_a_burst_is_impossible_and_consumes_nothing() {
    let mut intake = AdmissionController::new()
        .limiter(limiter(10, 3))
        .limiter(limiter(10, 2));
    let costly = |cost| Arrival { cost, ..by(1) };
    let impossible = Err(Rejected::TooCostly { limiter: 1 });
    assert_eq!(intake.admit(at(0), &costly(3)), impossible);
    assert_eq!(
        intake.admit(at(0), &costly(u32::MAX)),
        Err(Rejected::TooCostly { limiter: 0 })
    );
    assert_eq!(intake.admit(at(0), &costly(2)), FREE);
    assert_eq!(
        intake.admit(at(0), &costly(2)),
        ticket(20, 1),
        "a slot for both"
    );
}

#[test]
fn a_limiter_with_quota_loses_nothing_when_another_rejects() {
    let mut intake = AdmissionController::new().limiter(limiter(10, 1));
    let mut own = limiter(100, 1);
    assert_eq!(intake.admit_with(at(0), &by(1), &mut [&mut own]), FREE);
    for millis in 0..10 {
        let judged = intake.admit_with(at(50 + millis), &by(1), &mut [&mut own]);
        assert_eq!(judged, ticket(50 - millis, 1));
    }
    assert_eq!(intake.limiters()[0].tickets(), 0);
    assert_eq!(intake.admit(at(60), &by(2)), FREE);
    assert_eq!(intake.admit_with(at(100), &by(1), &mut [&mut own]), TICKET);
}

#[test]
fn of_several_rejections_the_latest_time_counts_and_no_slot_lapses() {
    // 1 s and 2 s apart: both slots remain valid until the later time, within the grace of three
    // seconds.
    let mut intake = AdmissionController::new()
        .limiter(limiter(1000, 1))
        .limiter(limiter(2000, 1));
    assert_eq!(intake.admit(at(0), &by(1)), FREE);
    assert_eq!(intake.admit(at(0), &by(2)), ticket(2000, 1));
    assert!(
        intake
            .limiters()
            .iter()
            .all(|limiter| limiter.tickets() == 1)
    );
    assert_eq!(intake.admit(at(2000), &by(2)), TICKET);
    // 1 s and 60 s apart.
    let mut intake = AdmissionController::new()
        .limiter(limiter(1000, 1))
        .limiter(limiter(60_000, 1));
    assert_eq!(intake.admit(at(0), &by(1)), FREE);
    assert_eq!(intake.admit(at(0), &by(2)), ticket(60_000, 1));
    assert_eq!(intake.limiters()[0].tickets(), 0);
    assert_eq!(intake.admit(at(60_000), &by(2)), TICKET);
}

#[test]
fn a_retry_with_a_reserved_slot_is_admitted_as_a_first_attempt() {
    let shedder = Shedder::new(&ShedderConfig {
        in_flight: 4,
        retry_in_flight_share: 0.5,
        ..ShedderConfig::DEFAULT
    });
    let mut intake = AdmissionController::new()
        .limiter(limiter(10, 1))
        .shedder(shedder.unwrap());
    assert_eq!(intake.admit(at(0), &by(1)), FREE);
    assert_eq!(intake.admit(at(0), &by(2)), ticket(10, 0));
    let retry = |caller| Arrival {
        attempt: 2,
        in_flight: 3,
        ..by(caller)
    };
    assert_eq!(intake.admit(at(10), &retry(2)), TICKET);
    assert!(is_shed(intake.admit(at(30), &retry(3))));
    assert_eq!(intake.retry_share(at(30)), 1.0 / 3.0);
}

#[test]
fn every_rejection_has_the_hint_for_its_caller() {
    let after = Duration::from_millis(5);
    let shed = |advice| Rejected::Shed(Shed { advice, after });
    let limited = |refusal| Rejected::Limited {
        refusal,
        limiter: 0,
    };
    for (rejected, hint) in [
        (
            limited(Refusal::Ticket(after)),
            Hint::after(after).for_audience(Audience::TicketMillis),
        ),
        (limited(Refusal::Shared(after)), Hint::after(after)),
        (shed(Advice::None), Hint::after(after)),
        (shed(Advice::DoNotRetry), Hint::do_not_retry()),
        (Rejected::TooCostly { limiter: 0 }, Hint::do_not_retry()),
        (Rejected::Expired, Hint::NONE),
    ] {
        assert_eq!(rejected.hint(), hint, "{rejected:?}");
    }
}

/// A request of the model: the pause before it in milliseconds (mostly none), its caller, cost,
/// attempt number, whether its deadline has passed, and the load of the server.
type Step = (u64, Option<u64>, u32, u32, bool, u32, u32);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pause = prop_oneof![3 => Just(0), 1 => 0..60_u64];
    let caller = prop::option::weighted(0.8, 0..6_u64);
    let step = (
        pause,
        caller,
        0..5_u32,
        1..4_u32,
        prop::bool::weighted(0.1),
        0..60_u32,
        0..4_u32,
    );
    prop::collection::vec(step, 1..200)
}

fn arrival(step: &Step) -> Arrival {
    let (_, caller, cost, attempt, late, queued, in_flight) = *step;
    Arrival {
        attempt,
        caller,
        cost,
        remaining: late.then_some(Duration::ZERO),
        queued,
        in_flight,
        histogram: None,
    }
}

fn config() -> impl Strategy<Value = LimiterConfig> {
    (1..40_u64, 1..5_u32, 0..500_u64, 1..100_u64).prop_map(|(interval, burst, horizon, grace)| {
        LimiterConfig {
            burst,
            horizon: Duration::from_millis(horizon),
            grace: Duration::from_millis(grace),
            ..LimiterConfig::new(1, Duration::from_millis(interval))
        }
    })
}

fn shedder() -> Shedder {
    let config = ShedderConfig {
        in_flight: 3,
        ..ShedderConfig::DEFAULT
    };
    let mut shedder = Shedder::new(&config).unwrap();
    // A service ends each millisecond while others wait.
    for millis in 0..64 {
        shedder.on_service_end(at(millis), 1);
    }
    shedder
}

proptest! {
    /// The model: a limiter that handles only requests that are neither late nor shed, and a
    /// shedder that handles only requests that the limiter admits. The intake returns the same
    /// results: it admits nothing that one of them rejects, and a rejected request consumes
    /// nothing.
    #[test]
    fn admission_equals_limiter_then_shedder_and_rejections_consume_nothing(
        config in config(), steps in steps(),
    ) {
        let mut intake = AdmissionController::new().limiter(Limiter::new(&config).unwrap()).shedder(shedder());
        let (mut limiter, mut shedder) = (Limiter::new(&config).unwrap(), shedder());
        let mut now = 64;
        for step in &steps {
            now += step.0;
            let (now, arrival) = (at(now), arrival(step));
            let judged = intake.admit(now, &arrival);
            if arrival.remaining.is_some() {
                prop_assert_eq!(judged, Err(Rejected::Expired));
                continue;
            }
            let untouched = limiter.clone();
            match limiter.admit(now, arrival.caller, arrival.cost) {
                Verdict::Refused(refusal) => {
                    prop_assert_eq!(judged, Err(Rejected::Limited { refusal, limiter: 0 }));
                }
                Verdict::Impossible => prop_assert_eq!(judged, Err(Rejected::TooCostly { limiter: 0 })),
                Verdict::Admitted { ticket } => {
                    let attempt = if ticket { 1 } else { arrival.attempt };
                    match shedder.admit(now, &Arrival { attempt, ..arrival }) {
                        Ok(()) => prop_assert_eq!(judged, Ok(Admitted { reserved_slot: ticket })),
                        Err(shed) => {
                            prop_assert_eq!(judged, Err(Rejected::Shed(shed)));
                            limiter = untouched;
                        }
                    }
                }
            }
        }
    }

    /// Each limiter admits at most its own burst and rate, where the slots of one request lapse
    /// together. A request is admitted only if all limiters admit it, and a rejection by one
    /// consumes no quota of another.
    #[test]
    fn each_of_several_limits_holds_and_a_rejection_costs_the_others_nothing(
        configs in prop::collection::vec(config(), 1..4), steps in steps(),
    ) {
        let mut intake = AdmissionController::new();
        for config in &configs {
            intake = intake.limiter(Limiter::new(config).unwrap());
        }
        let mut now = 0;
        let mut admitted: Vec<(u64, u64)> = Vec::new();
        for step in &steps {
            now += step.0;
            let arrival = Arrival { remaining: None, ..arrival(step) };
            let ask = |limiter: &mut Limiter| limiter.peek(at(now), arrival.caller, arrival.cost);
            let alone: Vec<_> = intake.limiters().iter_mut().map(ask).collect();
            let left = |intake: &mut AdmissionController| -> Vec<u32> {
                let limiters = intake.limiters().iter_mut();
                limiters.map(|limiter| limiter.available(at(now), Duration::ZERO)).collect()
            };
            let before = left(&mut intake);
            let judged = intake.admit(at(now), &arrival);
            let all = alone.iter().all(|verdict| matches!(verdict, Verdict::Admitted { .. }));
            prop_assert_eq!(judged.is_ok(), all);
            if all {
                admitted.push((now, arrival.cost.max(1).into()));
            } else {
                for ((before, after), verdict) in before.iter().zip(left(&mut intake)).zip(&alone) {
                    if matches!(verdict, Verdict::Admitted { .. } | Verdict::Impossible) {
                        prop_assert_eq!(*before, after);
                    }
                }
            }
        }
        for config in &configs {
            let interval = config.per.as_millis() as u64;
            for from in 0..admitted.len() {
                let mut sum = 0;
                for (time, cost) in &admitted[from..] {
                    sum += cost;
                    let window = time - admitted[from].0 + config.grace.as_millis() as u64;
                    prop_assert!(sum <= 2 * u64::from(config.burst) + window / interval);
                }
            }
        }
    }
}
