use alloc::vec::Vec;
use core::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::hint::Hint;

const MILLI: u64 = 1_000_000;

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * MILLI)
}

fn fixed(limit: f64, burst: u32) -> RequestRate {
    RequestRate::new(&RequestRateConfig {
        burst: Some(burst),
        ..RequestRateConfig::new(limit)
    })
    .unwrap()
}

fn adaptive() -> RequestRate {
    RequestRate::new(&RequestRateConfig::ADAPTIVE).unwrap()
}

fn ask(rate: &mut RequestRate, now: Instant) -> Slot {
    rate.ask(now, Instant::MAX, false)
}

fn place(slot: Slot) -> Place {
    match slot {
        Slot::At(place, _) => place,
        other => panic!("{other:?}"),
    }
}

/// Makes attempts at this pace for so long, as long as the rate lets it; how many went.
fn attempts(rate: &mut RequestRate, from: u64, to: u64, every: u64) -> usize {
    let times = (from..to).step_by(every as usize);
    times.filter(|millis| rate.try_now(at(*millis))).count()
}

#[test]
fn callers_are_served_in_the_order_in_which_they_asked() {
    let mut rate = fixed(10.0, 2);
    assert_eq!(ask(&mut rate, at(0)), Slot::Now);
    assert_eq!(ask(&mut rate, at(0)), Slot::Now);
    let slots: Vec<_> = (0..3).map(|_| ask(&mut rate, at(0))).collect();
    let instants = slots.iter().map(|slot| match slot {
        Slot::At(_, at) => *at,
        other => panic!("{other:?}"),
    });
    assert_eq!(instants.collect::<Vec<_>>(), [at(100), at(200), at(300)]);
    // A slot is free, and who comes now does not get it.
    assert_eq!(rate.next_release(at(50)), Some(at(100)));
    let late = place(ask(&mut rate, at(100)));
    assert!(!rate.try_now(at(100)));
    let mut served = Vec::new();
    for millis in (100..500).step_by(100) {
        served.push(rate.release(at(millis)).unwrap());
        assert_eq!(rate.release(at(millis)), None);
    }
    let asked: Vec<_> = slots.into_iter().map(place).chain([late]).collect();
    assert_eq!(served, asked);
}

#[test]
fn who_has_waited_elsewhere_goes_before_the_others() {
    let mut rate = fixed(10.0, 1);
    assert_eq!(ask(&mut rate, at(0)), Slot::Now);
    let ordinary = place(ask(&mut rate, at(0)));
    let before = rate.ask(at(0), Instant::MAX, true);
    assert_eq!(before, Slot::At(place(before), at(100)));
    assert_eq!(rate.slot_of(at(0), ordinary), at(200));
    assert_eq!(rate.release(at(100)), Some(place(before)));
    assert_eq!(rate.release(at(200)), Some(ordinary));
}

#[test]
fn who_could_not_be_served_in_time_is_told_at_once_and_takes_no_place() {
    let mut rate = fixed(10.0, 1);
    assert_eq!(ask(&mut rate, at(0)), Slot::Now);
    assert!(matches!(rate.ask(at(0), at(100), false), Slot::At(..)));
    assert_eq!(rate.ask(at(0), at(199), false), Slot::TooLate(at(200)));
    assert!(matches!(rate.ask(at(0), at(200), false), Slot::At(..)));
    assert_eq!(rate.waiting(), 2);
}

#[test]
fn rule_12_the_slot_of_a_caller_that_goes_away_is_the_next_ones() {
    let mut rate = fixed(10.0, 1);
    assert_eq!(ask(&mut rate, at(0)), Slot::Now);
    let first = place(ask(&mut rate, at(0)));
    let second = place(ask(&mut rate, at(0)));
    rate.forget(first);
    assert_eq!(rate.slot_of(at(50), second), at(100));
    assert_eq!(rate.release(at(100)), Some(second));
    // It was served, and went away before its attempt.
    rate.give_back(at(100));
    assert_eq!(ask(&mut rate, at(120)), Slot::Now);
    // Another slot has been taken since: a third attempt would be 10 ms after the second.
    rate.give_back(at(100));
    assert!(matches!(ask(&mut rate, at(130)), Slot::At(_, slot) if slot == at(220)));
}

#[test]
fn without_a_limit_everything_goes_until_the_destination_throttles() {
    let mut rate = adaptive();
    assert_eq!(attempts(&mut rate, 0, 2000, 10), 200);
    assert_eq!(rate.limit(at(2000)), None);
    rate.on_failure(at(2000), at(1990), &Failure::ambiguous());
    assert_eq!(rate.limit(at(2000)), None);
    rate.on_failure(at(2000), at(1990), &Failure::throttled());
    let limit = rate.limit(at(2000)).unwrap();
    assert!((60.0..=70.0).contains(&limit), "0.7 of about 100: {limit}");
}

#[test]
fn what_was_sent_before_a_cut_does_not_cut_again() {
    let mut rate = adaptive();
    attempts(&mut rate, 0, 1000, 10);
    for millis in 0..100 {
        rate.on_failure(at(1000 + millis), at(900 + millis), &Failure::throttled());
    }
    let limit = rate.limit(at(1100)).unwrap();
    assert!(limit > 60.0, "{limit}");
    rate.on_failure(at(1100), at(1000), &Failure::throttled());
    assert!(rate.limit(at(1100)).unwrap() < 0.75 * limit);
}

#[test]
fn a_cut_is_made_good_and_then_exceeded_along_the_cubic_of_rfc_9438() {
    let mut rate = adaptive();
    attempts(&mut rate, 0, 1000, 10);
    rate.on_failure(at(1000), at(990), &Failure::throttled());
    let top = rate.limit(at(1000)).unwrap() / 0.7;
    // ∛(top · 0.3 / 0.4) seconds.
    let regain = (libm::cbrt(top * 0.75) * 1000.0) as u64;
    let limits: Vec<_> = (0..=20)
        .map(|tenth| rate.limit(at(1000 + regain * tenth / 10)).unwrap())
        .collect();
    assert!(limits.is_sorted());
    assert!((limits[10] / top - 1.0).abs() < 0.01, "{limits:?}");
    let near = limits[11] - limits[9];
    assert!(near < 0.01 * top, "slow where it was too much: {near}");
    assert!((limits[20] / top - 1.3).abs() < 0.01, "{limits:?}");
}

#[test]
fn adapting_never_goes_above_the_limit_nor_to_nothing() {
    let config = RequestRateConfig {
        adapt: true,
        ..RequestRateConfig::new(50.0)
    };
    let mut rate = RequestRate::new(&config).unwrap();
    for second in 0..60 {
        attempts(&mut rate, second * 1000, second * 1000 + 1000, 1);
        let now = at(second * 1000 + 1000);
        rate.on_failure(now, now, &Failure::throttled());
    }
    let least = rate.limit(at(60_000)).unwrap();
    assert!((0.49..=0.51).contains(&least), "{least}");
    assert!(rate.limit(at(600_000)).unwrap() <= 50.0);
    let sent = attempts(&mut rate, 600_000, 610_000, 1);
    assert!((500..=505).contains(&sent), "{sent}");
}

#[test]
fn a_ticket_is_a_schedule_already_and_a_shared_hint_is_not() {
    let mut rate = adaptive();
    attempts(&mut rate, 0, 1000, 10);
    let hint = Hint::after(Duration::from_secs(1));
    let ticket = hint.for_audience(Audience::TicketMillis);
    rate.on_failure(at(1000), at(990), &Failure::throttled().hint(ticket));
    assert_eq!(rate.limit(at(1000)), None);
    rate.on_failure(at(1000), at(990), &Failure::throttled().hint(hint));
    assert!(rate.limit(at(1000)).is_some());
}

#[test]
fn nobody_is_turned_away_for_a_cut_that_may_be_over_in_time() {
    let mut rate = adaptive();
    attempts(&mut rate, 0, 1000, 10);
    let mut now = 1000;
    for _ in 0..8 {
        rate.on_failure(at(now), at(now), &Failure::throttled());
        now += 1;
    }
    let limit = rate.limit(at(now)).unwrap();
    let regained = limit / 0.7;
    let until = now + (1500.0 / regained) as u64;
    assert!(!rate.try_now(at(now)), "a cut empties the bucket");
    assert!(matches!(rate.ask(at(now), at(until), false), Slot::At(..)));
}

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Ask { patience: u64, before: bool },
    Leave(usize),
    GiveBack(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..40u64).prop_map(Step::Pass),
        4 => (0..300u64, prop::bool::weighted(0.1))
            .prop_map(|(patience, before)| Step::Ask { patience, before }),
        1 => any::<usize>().prop_map(Step::Leave),
        1 => any::<usize>().prop_map(Step::GiveBack),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// Who waits is served in order and within its time; what is used is never above the rate and a
    /// burst in any window.
    #[test]
    fn in_any_window_there_are_no_more_slots_than_the_rate_allows_and_a_burst(
        steps in steps(),
        limit in 20.0..200.0f64,
        burst in 1..5u32,
    ) {
        let mut rate = fixed(limit, burst);
        let interval = interval(limit);
        let mut now = 0;
        let mut used: Vec<u64> = Vec::new();
        let mut waiting: Vec<(Place, u64)> = Vec::new();
        for step in steps {
            match step {
                Step::Pass(millis) => now += millis,
                Step::Ask { patience, before } => {
                    match rate.ask(at(now), at(now + patience), before) {
                        Slot::Now => used.push(now),
                        Slot::At(place, slot) => {
                            prop_assert!(slot <= at(now + patience));
                            waiting.push((place, now + patience));
                            waiting.sort();
                        }
                        Slot::TooLate(slot) => prop_assert!(slot > at(now + patience)),
                    }
                }
                Step::Leave(index) if !waiting.is_empty() => {
                    let (place, _) = waiting.remove(index % waiting.len());
                    rate.forget(place);
                }
                Step::GiveBack(index) if !used.is_empty() => {
                    let taken = used.remove(index % used.len());
                    rate.give_back(at(taken));
                }
                Step::Leave(_) | Step::GiveBack(_) => {}
            }
            while let Some(place) = rate.release(at(now)) {
                used.push(now);
                waiting.retain(|(_, until)| *until >= now);
                prop_assert_eq!(waiting.remove(0).0, place);
            }
        }
        for (index, from) in used.iter().enumerate() {
            for (count, to) in (1..).zip(&used[index..]) {
                let span = (to - from) * MILLI;
                prop_assert!(span + u64::from(burst) * interval >= count * interval);
            }
        }
    }

    /// Who waits and looks when it is told to has its slot then, if nobody leaves: so none is
    /// starved, and no slot is left unused.
    #[test]
    fn everybody_is_served_when_it_was_told(count in 1..100usize, limit in 1.0..1000.0f64, burst in 1..5u32) {
        let mut rate = fixed(limit, burst);
        for _ in 0..burst {
            prop_assert_eq!(ask(&mut rate, at(0)), Slot::Now);
        }
        let told: Vec<_> = (0..count).map(|_| ask(&mut rate, at(0))).collect();
        for slot in told {
            let Slot::At(place, slot) = slot else { panic!("{slot:?}") };
            prop_assert_eq!(rate.next_release(at(0)), Some(slot));
            prop_assert_eq!(rate.release(slot), Some(place));
        }
    }
}
