//! What becomes of a message after an attempt: another one by its policy, or none.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use relent::policy::{PolicyFile, PolicyFileError};
use relent::presets;
use relent_core::{Cause, Decision, Failure, Instant, Policy, Random, Session, StopReason};

use crate::store::Next;

/// The policy of an endpoint: the preset of this name, or what is written in TOML. It never reads a file, since
/// whoever registers an endpoint writes the text.
///
/// ```
/// use relent_outbox::schedule;
///
/// assert_eq!(schedule::policy("wechat-pay")?.max_retries(), Some(15));
/// assert_eq!(schedule::policy("backoff.constant = { delay = \"1m\" }")?.max_retries(), Some(3));
/// assert!(schedule::policy("/etc/passwd").is_err());
/// # Ok::<(), relent::policy::PolicyFileError>(())
/// ```
///
/// # Errors
/// [`PolicyFileError`] says what is wrong, and where.
pub fn policy(text: &str) -> Result<Policy, PolicyFileError> {
    match presets::get(text) {
        Some(preset) => preset.load().map(|named| named.policy),
        None => PolicyFile::parse(text)?
            .get(None)
            .map(|named| named.policy.clone()),
    }
}

/// Where a message stands in its schedule.
///
/// Its clock is that of the store, in nanoseconds since 1970, so that it goes on in another process.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    session: Session,
    /// Its last attempt was lost with its worker.
    lost: bool,
}

/// Behind the session where the last attempt was lost.
const LOST: u8 = 1;

impl Schedule {
    /// Where a message stands whose attempt of this number begins: by the session that was
    /// [saved](Self::save), or from the beginning if there is none, or none that can be read. What the store has
    /// counted prevails: an attempt that was never settled is one.
    #[must_use]
    pub fn at_attempt(saved: &[u8], number: u32, began: SystemTime) -> Self {
        let saved = match saved.split_last() {
            Some((_, session)) if Self::was_lost(saved) => session,
            _ => saved,
        };
        let mut session =
            Session::restore(saved).unwrap_or_else(|_| Session::new(instant(began), true));
        // The number may come out of a store that somebody has written into: it is no loop of its own.
        let missing = number.saturating_sub(session.attempts()).min(MOST_MISSING);
        for _ in 0..missing {
            session.on_attempt();
        }
        Self {
            session,
            lost: false,
        }
    }

    /// Whether the attempt before was [lost](Self::lose) with its worker, by what was [saved](Self::save).
    #[must_use]
    pub fn was_lost(saved: &[u8]) -> bool {
        saved.len() == Session::SAVED + 1 && saved.ends_with(&[LOST])
    }

    /// The attempt was lost with its worker.
    pub const fn lose(&mut self) {
        self.lost = true;
    }

    /// Whether none would follow on the attempt that begins now, were it lost.
    #[must_use]
    pub fn is_last(mut self, policy: &Policy, now: SystemTime, random: &mut impl Random) -> bool {
        let next = self.failed(policy, now, &lost(), "", random);
        matches!(next, Next::Dead(_))
    }

    /// How long an attempt that starts now may run by the policy, if it says so.
    #[must_use]
    pub fn attempt_limit(&self, policy: &Policy, now: SystemTime) -> Option<Duration> {
        self.session.attempt_limit(policy, instant(now))
    }

    /// What follows on an attempt that failed, or was lost, at `now`. The delay counts from then.
    pub fn failed(
        &mut self,
        policy: &Policy,
        now: SystemTime,
        failure: &Failure,
        error: &str,
        random: &mut impl Random,
    ) -> Next {
        match self
            .session
            .on_failure(policy, instant(now), failure, random, None)
        {
            Decision::Retry { after } => Next::Again(after),
            Decision::Stop(stop) => Next::Dead(reason(stop.reason, error)),
        }
    }

    /// As bytes, for [`Settled::session`](crate::store::Settled::session).
    #[must_use]
    pub fn save(&self) -> Vec<u8> {
        let mut saved = self.session.save().to_vec();
        if self.lost {
            saved.push(LOST);
        }
        saved
    }
}

/// An attempt of which nothing is known. No list of failures has to name it.
pub(crate) fn lost() -> Failure {
    Failure::ambiguous().cause(Cause::Pending)
}

/// A message with more attempts than this has no schedule that counts them.
const MOST_MISSING: u32 = 100_000;

fn reason(stop: StopReason, error: &str) -> String {
    match stop {
        StopReason::DoNotRetry => format!("the receiver asked for no further attempt: {error}"),
        StopReason::Permanent => format!("by its policy nothing follows on this: {error}"),
        stop => format!("{stop}; the last attempt: {error}"),
    }
}

/// On the clock of sessions.
fn instant(time: SystemTime) -> Instant {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Instant::ORIGIN.saturating_add(since)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use relent_core::{Draw, Hint, Kind};

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_795_000_000 + seconds)
    }

    fn refused() -> Failure {
        Failure::ambiguous().cause(Cause::Status(500))
    }

    /// The delays of a message that always fails, each attempt taking so long, in a new process each.
    fn delays(policy: &str, took: u64) -> Vec<u64> {
        let policy = super::policy(policy).unwrap();
        let (mut saved, mut now, mut delays) = (Vec::new(), 0, Vec::new());
        for number in 1.. {
            let mut schedule = Schedule::at_attempt(&saved, number, at(0));
            now += took;
            match schedule.failed(
                &policy,
                at(now),
                &refused(),
                "status 500",
                &mut Draw::at(0.5),
            ) {
                Next::Again(after) => delays.push(after.as_secs()),
                Next::Dead(reason) => {
                    assert!(reason.ends_with("status 500"), "{reason}");
                    return delays;
                }
                _ => unreachable!(),
            }
            now += delays.last().unwrap();
            saved = schedule.save();
        }
        unreachable!()
    }

    #[test]
    fn a_schedule_goes_on_in_another_process_and_counts_from_the_end_of_each_attempt() {
        let published = [
            15, 15, 30, 180, 600, 1200, 1800, 1800, 1800, 3600, 10_800, 10_800, 10_800, 21_600,
            21_600,
        ];
        assert_eq!(delays("wechat-pay", 0), published);
        assert_eq!(delays("wechat-pay", 20), published);
        assert_eq!(
            delays("alipay", 3),
            [240, 600, 600, 3600, 7200, 21_600, 54_000]
        );
    }

    #[test]
    fn what_kills_its_worker_each_time_is_dead_after_exactly_its_limit() {
        let policy = super::policy("alipay").unwrap();
        let mut saved = Vec::new();
        for number in 1..=8 {
            let mut schedule = Schedule::at_attempt(&saved, number, at(0));
            let now = at(u64::from(number));
            assert_eq!(Schedule::was_lost(&saved), number > 1);
            let is_last = schedule.is_last(&policy, now, &mut Draw::at(0.5));
            schedule.lose();
            let next = schedule.failed(&policy, now, &lost(), "lost", &mut Draw::at(0.5));
            assert_eq!(matches!(next, Next::Dead(_)), number == 8, "{number}");
            assert_eq!(is_last, number == 8);
            saved = schedule.save();
        }
        // One whose worker could not write down anything for long.
        let mut schedule = Schedule::at_attempt(&[], 8, at(0));
        let next = schedule.failed(&policy, at(9), &refused(), "lost", &mut Draw::at(0.5));
        assert!(matches!(next, Next::Dead(_)));
    }

    #[test]
    fn a_retry_after_is_a_floor() {
        let policy = super::policy("wechat-pay").unwrap();
        let next = |hint| {
            let failure = Failure::throttled()
                .cause(Cause::Status(429))
                .hint(Hint::after(Duration::from_secs(hint)));
            let mut schedule = Schedule::at_attempt(&[], 1, at(0));
            match schedule.failed(&policy, at(0), &failure, "", &mut Draw::at(0.0)) {
                Next::Again(after) => after.as_secs(),
                next => unreachable!("{next:?}"),
            }
        };
        assert_eq!((next(1), next(3600), next(86_400)), (15, 3600, 86_400));
    }

    #[test]
    fn what_ends_it_says_why() {
        let policy = super::policy("standard-webhooks").unwrap();
        let reason = |failure: Failure| {
            let mut schedule = Schedule::at_attempt(&[], 1, at(0));
            match schedule.failed(&policy, at(0), &failure, "status 4", &mut Draw::at(0.5)) {
                Next::Dead(reason) => reason,
                next => unreachable!("{next:?}"),
            }
        };
        let gone = reason(Failure::permanent().cause(Cause::Status(410)));
        assert_eq!(gone, "by its policy nothing follows on this: status 4");
        let aborted = reason(refused().hint(Hint::do_not_retry()));
        assert_eq!(
            aborted,
            "the receiver asked for no further attempt: status 4"
        );
    }

    #[test]
    fn a_policy_is_a_preset_or_a_text_and_never_a_file() {
        assert!(super::policy("svix").is_ok());
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        for text in ["", "no-such", "/etc/passwd", file, "max_retries = -1"] {
            assert!(super::policy(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_schedule_that_ends(
            saved in prop::collection::vec(any::<u8>(), 0..100),
            number in 0_u32..u32::MAX,
            began in 0_u64..1 << 40,
            now in 0_u64..1 << 40,
            draw in 0.0..=1.0_f64,
        ) {
            let policy = super::policy("wechat-pay").unwrap();
            let began = UNIX_EPOCH + Duration::from_secs(began);
            let now = UNIX_EPOCH + Duration::from_secs(now);
            let mut schedule = Schedule::at_attempt(&saved, number, began);
            let mut retries = 0;
            loop {
                let next = schedule.failed(&policy, now, &Failure::new(Kind::NotProcessed).cause(Cause::Status(503)), "", &mut Draw::at(draw));
                let Next::Again(_) = next else { break };
                retries += 1;
                prop_assert!(retries <= 15);
                schedule = Schedule::at_attempt(&schedule.save(), number.max(1).saturating_add(retries), began);
            }
        }
    }
}
