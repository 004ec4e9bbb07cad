//! Retry schedule of a message: the delay until the next attempt, or the end of delivery.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, StatusCode};
use relent::policy::{PolicyFile, PolicyFileError};
use relent::presets;
use relent_core::policy::Finding;
use relent_core::{
    Audience, Backoff, Cause, Decision, Failure, FixedRandom, Hint, HintMode, Instant, Jitter,
    Network, Pattern, Policy, Random, Session, StopReason,
};

use crate::acknowledgement::{BodyEnd, NotAcknowledged, ReceiverResponse, judge};
use crate::endpoint::Acknowledgement;
use crate::store::AfterAttempt;

/// The least number of concurrent attempts that an endpoint allows if its schedule is [a contract](is_contract).
pub const CONTRACT_CONCURRENCY: usize = 256;

/// Largest jitter after a `Retry-After`, as a share of its delay. A single sender causes no thundering herd.
const MAX_RETRY_AFTER_JITTER: f64 = 0.1;

/// The largest jitter that a session adds to a `Retry-After` with a reserved slot.
const RESERVED_SLOT_JITTER: Duration = Duration::from_secs(1);

/// Failures that are retried if the policy has no `retry_on`, as in the presets for webhooks. A receiver under repair
/// may respond with any status. 410 is excluded: the endpoint is gone for good.
const DEFAULT_RETRY_ON: [Pattern; 6] = [
    Pattern::Status(300, 399),
    Pattern::Status(400, 409),
    Pattern::Status(411, 499),
    Pattern::Status(500, 599),
    Pattern::Timeout,
    Pattern::Network,
];

/// Returns the policy of an endpoint: the preset of this name, or the policy written in TOML, [for
/// messages](for_messages). It never reads a file, because the text may come from an untrusted person.
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
/// [`PolicyFileError`] states the error and its position.
pub fn policy(text: &str) -> Result<Policy, PolicyFileError> {
    let policy = match presets::get(text) {
        Some(preset) => preset.load().map(|named| named.policy),
        None => PolicyFile::parse(text)?
            .get(None)
            .map(|named| named.policy.clone()),
    };
    policy.map(for_messages)
}

/// Adapts a policy to messages. Without a `retry_on` it retries the same failures as the presets for webhooks: every
/// status from 300 to 599 except 410, timeouts, and network failures.
#[must_use]
pub fn for_messages(policy: Policy) -> Policy {
    match policy.retry_on() {
        Some(_) => policy,
        None => policy.retrying(DEFAULT_RETRY_ON),
    }
}

/// Whether the schedule is a contract, as in `wechat-pay` and `alipay`: a list of delays without jitter, kept to the
/// second. Failures of other messages hold nothing back, unless the policy has its own `[circuit_breaker]` or `[rate_limit]`. A
/// `Retry-After` changes nothing if the policy has `hint = "ignore"`, as those presets do.
#[must_use]
pub fn is_contract(policy: &Policy) -> bool {
    matches!(policy.backoff(), Backoff::Schedule { .. })
        && policy.jitter() == Jitter::None
        && policy.circuit_breaker().is_none()
}

/// The jitter after a delay that the receiver requests, as a share of the delay. The sum never exceeds the policy's
/// `max_hint`.
pub(crate) fn retry_after_jitter(policy: &Policy, delay: Duration) -> f64 {
    let room = policy.max_hint().saturating_sub(delay);
    let share = policy.retry_after_jitter().min(MAX_RETRY_AFTER_JITTER);
    match delay.is_zero() {
        true => 0.0,
        false => share.min(room.as_secs_f64() / delay.as_secs_f64()),
    }
}

/// Returns warnings about a policy for messages: statuses after which a message has no further attempt, and settings
/// without effect.
#[must_use]
pub fn warnings(policy: &Policy) -> Vec<Finding> {
    let mut warnings = policy.lint();
    let ends = |status: u16| {
        let Ok(status) = StatusCode::from_u16(status) else {
            return false;
        };
        let answer = ReceiverResponse {
            status,
            headers: &HeaderMap::new(),
            body: &[],
            end: BodyEnd::Whole,
        };
        let Err(NotAcknowledged { failure, .. }) =
            judge(answer, Acknowledgement::Success, policy, UNIX_EPOCH)
        else {
            return false;
        };
        let mut session = Session::new(Instant::ORIGIN, true);
        session.on_attempt();
        let mut random = FixedRandom::at(0.5);
        let decision = session.on_failure(policy, Instant::ORIGIN, &failure, &mut random, None);
        matches!(decision, Decision::Stop(stop) if stop.reason == StopReason::Permanent)
    };
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for status in (300..600).filter(|status| *status != 410 && ends(*status)) {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == status => *last = status,
            _ => ranges.push((status, status)),
        }
    }
    let ranges: Vec<_> = ranges
        .into_iter()
        .map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        })
        .collect();
    if !ranges.is_empty() {
        let why = format!(
            "a message becomes a dead letter after one response with a status of {}: list in retry_on the responses of a \
             receiver that is being repaired, such as [\"5xx\", \"4xx\", \"3xx\", \"timeout\", \"network\"]",
            ranges.join(", ")
        );
        warnings.push(Finding::warning("retry_on", why));
    }
    if is_contract(policy) && policy.hint() != HintMode::Ignore {
        warnings.push(Finding::warning(
            "hint",
            "a Retry-After of the receiver moves this schedule, which has no jitter: say hint = \"ignore\" if it is a contract",
        ));
    }
    for (key, set) in [
        ("budget", policy.budget().is_some()),
        ("hedge", policy.hedge().is_some()),
        ("throttle", policy.throttle().is_some()),
    ] {
        if set {
            let why = "it has no effect on messages, each of which has its own schedule";
            warnings.push(Finding::warning(key, why));
        }
    }
    warnings
}

/// The position of a message in its schedule.
///
/// Its clock is that of the store, in nanoseconds since 1970, so that another process can continue it.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    session: Session,
    /// The last attempt was lost with its worker.
    lost: bool,
}

/// Appended to the saved session if the last attempt was lost.
const LOST: u8 = 1;

impl Schedule {
    /// Restores the schedule at the start of the attempt `number`, from the [saved](Self::save) session. Without a
    /// readable session it starts from the beginning. The attempt count of the store takes precedence: an attempt that
    /// was never settled counts.
    #[must_use]
    pub fn at_attempt(saved: &[u8], number: u32, began: SystemTime) -> Self {
        let saved = match saved.split_last() {
            Some((_, session)) if Self::was_lost(saved) => session,
            _ => saved,
        };
        let mut session =
            Session::restore(saved).unwrap_or_else(|_| Session::new(instant(began), true));
        // The number may come from a corrupted store, so the loop needs a limit of its own.
        let missing = number
            .saturating_sub(session.attempts())
            .min(MAX_MISSING_ATTEMPTS);
        for _ in 0..missing {
            session.on_attempt();
        }
        Self {
            session,
            lost: false,
        }
    }

    /// Whether the previous attempt was [lost](Self::lose) with its worker, according to the [saved](Self::save)
    /// session.
    #[must_use]
    pub fn was_lost(saved: &[u8]) -> bool {
        saved.len() == Session::SAVED + 1 && saved.ends_with(&[LOST])
    }

    /// Marks the attempt as lost with its worker.
    pub const fn lose(&mut self) {
        self.lost = true;
    }

    /// Whether the attempt that starts now is the last one, should it be lost.
    #[must_use]
    pub fn is_last(mut self, policy: &Policy, now: SystemTime, random: &mut impl Random) -> bool {
        let next = self.failed(policy, now, &lost(), "", random);
        matches!(next, AfterAttempt::Dead(_))
    }

    /// Returns the time limit of an attempt that starts now: the `attempt_timeout` of the policy, or else `default`. It
    /// never exceeds the time until the `deadline`.
    #[must_use]
    pub fn attempt_limit(&self, policy: &Policy, default: Duration, now: SystemTime) -> Duration {
        let timeout = self.session.attempt_timeout(policy).unwrap_or(default);
        let remaining = self.session.remaining(policy, instant(now));
        remaining.map_or(timeout, |remaining| remaining.min(timeout))
    }

    /// Returns the next step after an attempt that failed, or was lost, at `now`. The delay counts from `now`.
    ///
    /// A delay that the receiver requests never ends a schedule: if the time left is too short for it, it is ignored.
    pub fn failed(
        &mut self,
        policy: &Policy,
        now: SystemTime,
        failure: &Failure,
        error: &str,
        random: &mut impl Random,
    ) -> AfterAttempt {
        let mut failure = *failure;
        let with_jitter;
        let policy = match failure.hint.delay() {
            None => policy,
            Some(delay) => {
                if policy.max_hint().saturating_sub(delay) < RESERVED_SLOT_JITTER {
                    // The jitter of a reserved slot would exceed `max_hint`.
                    failure.hint.audience = Audience::Shared;
                }
                with_jitter = policy
                    .clone()
                    .with_retry_after_jitter(retry_after_jitter(policy, delay));
                &with_jitter
            }
        };
        if self.session.started() > instant(now) {
            // The clock was ahead when the delivery began, and was set back. Otherwise the time limits would not end.
            self.session.begin(instant(now));
        }
        let before = self.session;
        let mut decide = |session: &mut Session, failure: &Failure| {
            session.on_failure(policy, instant(now), failure, random, None)
        };
        let mut decision = decide(&mut self.session, &failure);
        if let Decision::Stop(stop) = decision {
            let mut other = failure;
            match stop.reason {
                StopReason::RetryLater => {
                    other.hint = Hint::NONE.with_advice(failure.hint.advice);
                }
                // Other callers retry this failure once. Here the schedule sets the number of attempts.
                StopReason::RetriesExhausted => other.cause = without_own_limit(failure.cause),
                _ => {}
            }
            if other != failure {
                self.session = before;
                decision = decide(&mut self.session, &other);
            }
        }
        match decision {
            Decision::Retry { after } => AfterAttempt::Again(after),
            Decision::Stop(stop) => AfterAttempt::Dead(reason(stop.reason, error)),
        }
    }

    /// Serializes the schedule, for [`Settled::session`](crate::store::Settled::session).
    #[must_use]
    pub fn save(&self) -> Vec<u8> {
        let mut saved = self.session.save().to_vec();
        if self.lost {
            saved.push(LOST);
        }
        saved
    }
}

/// Replaces a cause that a session retries only once by one that lists treat alike and that has no such limit.
const fn without_own_limit(cause: Cause) -> Cause {
    match cause {
        Cause::Status(421 | 425) => Cause::Status(400),
        Cause::Network(Network::NameNotFound) => Cause::Network(Network::Dns),
        Cause::Network(Network::Malformed) => Cause::Network(Network::Other),
        cause => cause,
    }
}

/// The failure of an attempt with unknown outcome. It is retried without being listed in the policy.
pub(crate) fn lost() -> Failure {
    Failure::ambiguous().cause(Cause::Pending)
}

/// Bound on missing attempts. No schedule counts more attempts than this.
const MAX_MISSING_ATTEMPTS: u32 = 100_000;

fn reason(stop: StopReason, error: &str) -> String {
    match stop {
        StopReason::DoNotRetry => format!("the receiver asked for no further attempt: {error}"),
        StopReason::Permanent => format!("by its policy nothing follows on this: {error}"),
        stop => format!("{stop}; the last attempt: {error}"),
    }
}

/// Converts a time to the clock of sessions.
fn instant(time: SystemTime) -> Instant {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Instant::ORIGIN.saturating_add(since)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use relent_core::FailureKind;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_795_000_000 + seconds)
    }

    fn refused() -> Failure {
        Failure::ambiguous().cause(Cause::Status(500))
    }

    /// The delays of a message that always fails after `took` seconds. Each attempt runs in a new process.
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
                &mut FixedRandom::at(0.5),
            ) {
                AfterAttempt::Again(after) => delays.push(after.as_secs()),
                AfterAttempt::Dead(reason) => {
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
    fn a_schedule_continues_in_another_process_from_the_end_of_an_attempt() {
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
    fn time_limits_end_a_schedule_that_began_while_the_clock_was_ahead() {
        let hours = 3600;
        for limit in ["max_elapsed", "deadline"] {
            let text = format!(
                "max_retries = \"unlimited\"\n{limit} = \"2h\"\nbackoff.constant = {{ delay = \"1h\" }}"
            );
            let policy = super::policy(&text).unwrap();
            let fails = |schedule: &mut Schedule, now| {
                schedule.failed(&policy, at(now), &refused(), "", &mut FixedRandom::at(0.5))
            };
            let ahead = 50 * 365 * 24 * hours;
            let mut schedule = Schedule::at_attempt(&[], 1, at(ahead));
            assert!(matches!(
                fails(&mut schedule, ahead),
                AfterAttempt::Again(_)
            ));
            // The clock is set back. The time before it is not known.
            let ends = (0..4).find(|hour| {
                schedule = Schedule::at_attempt(&schedule.save(), 2 + hour, at(0));
                matches!(
                    fails(&mut schedule, u64::from(*hour) * hours),
                    AfterAttempt::Dead(_)
                )
            });
            assert!(matches!(ends, Some(1 | 2)), "{limit}: {ends:?}");
        }
    }

    #[test]
    fn a_message_lost_with_each_worker_is_dead_after_exactly_its_limit() {
        let policy = super::policy("alipay").unwrap();
        let mut saved = Vec::new();
        for number in 1..=8 {
            let mut schedule = Schedule::at_attempt(&saved, number, at(0));
            let now = at(u64::from(number));
            assert_eq!(Schedule::was_lost(&saved), number > 1);
            let is_last = schedule.is_last(&policy, now, &mut FixedRandom::at(0.5));
            schedule.lose();
            let next = schedule.failed(&policy, now, &lost(), "lost", &mut FixedRandom::at(0.5));
            assert_eq!(
                matches!(next, AfterAttempt::Dead(_)),
                number == 8,
                "{number}"
            );
            assert_eq!(is_last, number == 8);
            saved = schedule.save();
        }
        // A message whose worker has not been able to record anything for long.
        let mut schedule = Schedule::at_attempt(&[], 8, at(0));
        let next = schedule.failed(
            &policy,
            at(9),
            &refused(),
            "lost",
            &mut FixedRandom::at(0.5),
        );
        assert!(matches!(next, AfterAttempt::Dead(_)));
    }

    /// The next delay after a 429 with this `Retry-After` and random value.
    fn after_hint(policy: &Policy, hint: u64, draw: f64) -> Duration {
        let failure = Failure::throttled()
            .cause(Cause::Status(429))
            .hint(Hint::after(Duration::from_secs(hint)));
        let mut schedule = Schedule::at_attempt(&[], 1, at(0));
        match schedule.failed(policy, at(0), &failure, "", &mut FixedRandom::at(draw)) {
            AfterAttempt::Again(after) => after,
            next => unreachable!("{next:?}"),
        }
    }

    #[test]
    fn retry_after_is_a_minimum_with_small_jitter_up_to_max_hint() {
        for policy in ["standard-webhooks", "svix", "stripe-like", "standard"] {
            let policy = super::policy(policy).unwrap();
            let most = policy.max_hint();
            for hint in [100, 290, 3600, 80_000, 86_399, 86_400] {
                let asked = Duration::from_secs(hint).min(most);
                for draw in [0.0, 0.5, 1.0] {
                    // The delay is limited to `max_hint`, as in `judge`.
                    let after = after_hint(&policy, asked.as_secs(), draw);
                    let longest = asked.mul_f64(1.1).min(most);
                    assert!(
                        after >= asked && after <= longest,
                        "{hint} {draw} {after:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn retry_after_moves_a_contract_schedule_only_if_its_policy_allows() {
        for name in [
            "wechat-pay",
            "wechat-pay-v2",
            "alipay",
            "circle-cpn",
            "juspay-upi",
            "nmi",
        ] {
            let policy = super::policy(name).unwrap();
            assert!(is_contract(&policy), "{name}");
            assert_eq!(warnings(&policy), [], "{name}");
            let Backoff::Schedule { delays } = policy.backoff() else {
                unreachable!("{name} is a list of delays");
            };
            let own = delays.as_slice()[0];
            for hint in [0, 1, 3600, 86_400, 1_000_000] {
                assert_eq!(after_hint(&policy, hint, 1.0), own, "{name}");
            }
        }
        let says_so = "jitter = \"none\"\nhint = \"floor\"\nmax_hint = \"24h\"\n[backoff.schedule]\ndelays = [\"15s\"]";
        let policy = super::policy(says_so).unwrap();
        assert!(is_contract(&policy));
        assert_eq!(after_hint(&policy, 3600, 0.0).as_secs(), 3600);
        for other in ["standard-webhooks", "svix", "stripe-like", "sns", "patient"] {
            assert!(!is_contract(&super::policy(other).unwrap()), "{other}");
        }
    }

    #[test]
    fn a_retry_after_beyond_the_time_left_is_ignored() {
        let policy = super::policy("max_retries = 9\nmax_elapsed = \"1h\"\nmax_hint = \"24h\"\nbackoff.constant = { delay = \"10m\" }").unwrap();
        let after = after_hint(&policy, 86_400, 0.5);
        assert!(after <= Duration::from_secs(600), "{after:?}");
    }

    #[test]
    fn a_policy_without_lists_retries_the_same_failures_as_the_presets() {
        let policy =
            super::policy("max_retries = 5\nbackoff.constant = { delay = \"1m\" }").unwrap();
        assert_eq!(warnings(&policy), []);
        for status in 300..600 {
            let mut failure = Failure::permanent().cause(Cause::Status(status));
            if status >= 500 {
                failure = Failure::ambiguous().cause(Cause::Status(status));
            }
            let mut saved = Vec::new();
            for number in 1..=6 {
                let mut schedule = Schedule::at_attempt(&saved, number, at(0));
                let next = schedule.failed(&policy, at(0), &failure, "", &mut FixedRandom::at(0.5));
                let ends = number == 6 || status == 410;
                assert_eq!(
                    matches!(next, AfterAttempt::Dead(_)),
                    ends,
                    "{status} {number}"
                );
                if ends {
                    break;
                }
                saved = schedule.save();
            }
        }
    }

    #[test]
    fn failures_with_a_single_retry_elsewhere_get_all_scheduled_attempts() {
        for failure in [
            Failure::not_processed().cause(Cause::Status(421)),
            Failure::not_processed().cause(Cause::Status(425)),
            Failure::network(Network::NameNotFound),
            Failure::network(Network::Malformed),
        ] {
            let policy = super::policy("standard-webhooks").unwrap();
            let (mut saved, mut attempts) = (Vec::new(), 0);
            loop {
                attempts += 1;
                let mut schedule = Schedule::at_attempt(&saved, attempts, at(0));
                let next = schedule.failed(&policy, at(0), &failure, "", &mut FixedRandom::at(0.5));
                if let AfterAttempt::Dead(_) = next {
                    break;
                }
                saved = schedule.save();
            }
            assert_eq!(attempts, 10, "{failure:?}");
        }
        // An explicit rule of the policy takes precedence.
        let stops = super::policy(
            "retry_on = [\"4xx\"]\nstop_on = [425]\nbackoff.constant = { delay = \"1m\" }",
        )
        .unwrap();
        let failure = Failure::not_processed().cause(Cause::Status(425));
        let mut schedule = Schedule::at_attempt(&[], 1, at(0));
        let next = schedule.failed(&stops, at(0), &failure, "", &mut FixedRandom::at(0.5));
        assert!(matches!(next, AfterAttempt::Dead(_)), "{next:?}");
    }

    #[test]
    fn a_policy_that_ends_messages_early_has_a_warning() {
        let warned = |text: &str| {
            let warnings = warnings(&super::policy(text).unwrap());
            let lines: Vec<String> = warnings.iter().map(ToString::to_string).collect();
            lines.join("\n")
        };
        let sns = warned("sns");
        assert!(sns.contains("300-409, 411-428, 430-499"), "{sns}");
        let listed = warned(
            "retry_on = [\"5xx\", \"4xx\"]\nstop_on = [404]\nbackoff.constant = { delay = \"1m\" }",
        );
        assert!(listed.contains("300-399, 404:"), "{listed}");
        let contract = warned("jitter = \"none\"\n[backoff.schedule]\ndelays = [\"15s\"]");
        assert!(contract.contains("hint = \"ignore\""), "{contract}");
        for preset in ["standard-webhooks", "svix", "stripe-like"] {
            assert_eq!(warned(preset), "");
        }
    }

    #[test]
    fn a_setting_without_effect_on_messages_has_a_warning() {
        for table in ["budget", "hedge", "throttle"] {
            let setting = match table {
                "hedge" => "delay = \"1s\"",
                _ => "",
            };
            let text = format!("backoff.constant = {{ delay = \"1m\" }}\n[{table}]\n{setting}");
            let warnings = warnings(&super::policy(&text).unwrap());
            assert_eq!(warnings.len(), 1, "{warnings:?}");
            let warning = warnings[0].to_string();
            assert!(
                warning.starts_with(&format!("{table}: it has no effect")),
                "{warning}"
            );
        }
    }

    #[test]
    fn a_dead_message_names_the_reason() {
        let policy = super::policy("standard-webhooks").unwrap();
        let reason = |failure: Failure| {
            let mut schedule = Schedule::at_attempt(&[], 1, at(0));
            match schedule.failed(
                &policy,
                at(0),
                &failure,
                "status 4",
                &mut FixedRandom::at(0.5),
            ) {
                AfterAttempt::Dead(reason) => reason,
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
        fn a_schedule_restored_from_any_bytes_ends(
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
                let next = schedule.failed(&policy, now, &Failure::new(FailureKind::NotProcessed).cause(Cause::Status(503)), "", &mut FixedRandom::at(draw));
                let AfterAttempt::Again(_) = next else { break };
                retries += 1;
                prop_assert!(retries <= 15);
                schedule = Schedule::at_attempt(&schedule.save(), number.max(1).saturating_add(retries), began);
            }
        }
    }
}
