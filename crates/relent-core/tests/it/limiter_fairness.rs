//! Fairness of the limiter between callers with tickets and callers that cannot hold one.

use std::time::Duration;

use relent_core::Instant;
use relent_core::admission::{Limiter, LimiterConfig, Verdict};

/// The behaviour of a caller.
#[derive(Clone, Copy, PartialEq)]
enum Caller {
    /// Has a key, and comes at the given time.
    Ticket,
    /// Has no key, and comes each 40 to 60 ms.
    Poll,
    /// Has no key, and comes after between one and two times the given delay.
    Wait,
    /// Has a new key each time, and comes each 800 to 1200 ms.
    NewKey,
}

/// Runs callers that start again as soon as they are admitted. Returns admissions in 100 s by kind.
fn admissions_by_kind(callers: &[Caller]) -> [u32; 4] {
    let mut limiter = Limiter::new(&LimiterConfig {
        burst: 2,
        horizon: Duration::from_secs(20),
        ..LimiterConfig::new(100, Duration::from_secs(1))
    })
    .unwrap();
    let mut stream: u64 = 1;
    let mut random = |from, to| {
        stream = stream.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        from + (stream >> 33) % (to - from)
    };
    let mut due: Vec<u64> = callers.iter().map(|_| random(0, 100)).collect();
    let mut admitted = [0; 4];
    for millis in 0..100_000 {
        let now = Instant::from_nanos(millis * 1_000_000);
        for index in 0..callers.len() {
            if due[index] > millis {
                continue;
            }
            let caller = callers[index];
            let key = match caller {
                Caller::Ticket => Some(index as u64),
                Caller::Poll | Caller::Wait => None,
                Caller::NewKey => Some(random(1000, u64::from(u32::MAX))),
            };
            due[index] = millis
                + match (limiter.admit(now, key, 1), caller) {
                    (Verdict::Admitted { .. }, _) => {
                        admitted[caller as usize] += 1;
                        random(1, 10)
                    }
                    (Verdict::Impossible, _) => unreachable!("no burst is below 1"),
                    (Verdict::Refused(refusal), Caller::Ticket) => refusal.whole_millis(),
                    (Verdict::Refused(refusal), Caller::Wait) => {
                        let delay = refusal.whole_millis();
                        random(delay, 2 * delay + 1)
                    }
                    (_, Caller::Poll) => random(40, 60),
                    (_, Caller::NewKey) => random(800, 1200),
                };
        }
    }
    admitted
}

#[test]
fn ticket_callers_and_polling_callers_share_the_rate() {
    let mut callers = [Caller::Ticket; 100];
    callers[50..].fill(Caller::Poll);
    let [tickets, polls, ..] = admissions_by_kind(&callers);
    assert!(
        tickets + polls >= 9990,
        "{tickets} + {polls} of 10000 slots"
    );
    let share = f64::from(tickets) / f64::from(tickets + polls);
    assert!((0.45..=0.55).contains(&share), "{share}");
    // Whatever the number of polling callers, at least every second slot is a ticket's.
    for polling in [10, 90] {
        callers.fill(Caller::Ticket);
        callers[..polling].fill(Caller::Poll);
        let [tickets, polls, ..] = admissions_by_kind(&callers);
        assert!(
            tickets >= 4900 && polls >= 1000,
            "{polling}: {tickets} {polls}"
        );
    }
}

#[test]
fn patient_callers_without_a_key_are_served_beside_tickets() {
    // Every second slot is available to them; callers that wait up to twice as long miss some.
    for (waiting, least) in [(10, 600), (50, 3500), (90, 4900)] {
        let mut callers = [Caller::Ticket; 100];
        callers[..waiting].fill(Caller::Wait);
        let [tickets, _, waits, _] = admissions_by_kind(&callers);
        assert!(
            tickets >= 4900 && waits >= least,
            "{waiting}: {tickets} {waits}"
        );
        assert!(tickets + waits >= 9990, "{waiting}: {tickets} {waits}");
    }
}

#[test]
fn a_caller_with_a_new_key_each_time_is_still_served() {
    let mut callers = [Caller::Ticket; 100];
    callers[80..90].fill(Caller::Poll);
    callers[90..].fill(Caller::NewKey);
    let [tickets, polls, _, new] = admissions_by_kind(&callers);
    // New callers with a key get part of the about 1000 lapsed slots as well: the 80 come four
    // times as often.
    assert!(tickets >= 4000 && polls >= 4000, "{tickets} {polls} {new}");
    assert!(
        new >= 50,
        "{tickets} {polls} {new}: each about once in ten seconds"
    );
}
