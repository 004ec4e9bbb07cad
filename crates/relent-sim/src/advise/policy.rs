//! The policy file: each value by a rule, with the reason beside it.

use std::fmt::Write;

use super::description::{Description, Size};
use super::latency::Latency;
use crate::scenario::SECOND;

/// The first delay of `standard`, its cap (`max_delay`), its retries and its budget ratio.
const INITIAL_DELAY_NANOS: f64 = 100e6;
const MAX_DELAY_NANOS: f64 = 20e9;
const MAX_RETRIES: u32 = 7;
const BUDGET_RATIO: f64 = 0.1;

/// A number with three digits.
pub(super) fn figure(value: f64) -> String {
    let text = match value {
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// A time with two digits, in its most readable unit, as written in a policy file.
pub(super) fn time(nanos: f64) -> String {
    let digits = libm::floor(libm::log10(nanos.max(1.0))) - 1.0;
    let step = libm::pow(10.0, digits.max(0.0));
    let nanos = libm::round(nanos / step) * step;
    exact(nanos as u64)
}

/// A time as it was given.
pub(super) fn exact(nanos: u64) -> String {
    let units = [(SECOND, "s", 9), (1_000_000, "ms", 6), (1000, "us", 3)];
    let Some((unit, name, digits)) = units.into_iter().find(|(unit, ..)| nanos >= *unit) else {
        return format!("{nanos}ns");
    };
    let (whole, rest) = (nanos / unit, format!("{:0digits$}", nanos % unit));
    match rest.trim_end_matches('0') {
        "" => format!("{whole}{name}"),
        rest => format!("{whole}.{rest}{name}"),
    }
}

/// Writes a comment, in lines.
pub(super) fn comment(text: &mut String, words: &str) {
    const WIDTH: usize = 98;
    let mut line = "#".to_owned();
    for word in words.split_whitespace() {
        if line.chars().count() + word.chars().count() >= WIDTH {
            let _ = writeln!(text, "{line}");
            line = "#".to_owned();
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(text, "{line}");
}

/// The text, and the attempt timeout in nanoseconds.
pub(super) fn write(
    service: &Description,
    latency: &Latency,
    size: Size,
    hedges: &Hedges,
) -> (String, u64) {
    let mut text = String::new();
    let say = |text: &mut String, words: &str| {
        text.push('\n');
        comment(text, words);
    };
    let given: Vec<String> = latency
        .given()
        .map(|(name, nanos)| format!("{name} {}", time(nanos)))
        .collect();
    comment(
        &mut text,
        &format!(
            "For {}: {} requests per second with a capacity of {}, {}. Latency in normal \
             operation, from {}: {}. Each value has its reason beside it; values that are not here have their \
             default (relent policy show standard).",
            service.name,
            figure(service.rate),
            figure(size.capacity),
            counted_processes("client process", service),
            latency.source,
            given.join(", "),
        ),
    );
    let deadline = service.deadline as f64;
    let _ = writeln!(
        text,
        "\ndescription = {:?}\nsource = \"relent advise\"",
        format!("for {}", service.name)
    );

    say(
        &mut text,
        "The caller goes away after this time, so later attempts would be useless.",
    );
    let _ = writeln!(text, "deadline = \"{}\"", exact(service.deadline));

    let (timeout, why) = timeout(latency, deadline);
    say(&mut text, &why);
    let timeout = match timeout {
        Some(timeout) => {
            let _ = writeln!(text, "attempt_timeout = \"{}\"", exact(timeout));
            timeout
        }
        None => service.deadline,
    };

    say(
        &mut text,
        "Eight attempts, as in `standard`: at a failure rate of 50 % they hide it from more than 99 % of the requests. \
         The retry budget and the circuit breaker limit the extra load.",
    );
    let _ = writeln!(text, "max_retries = {MAX_RETRIES}");
    let initial = INITIAL_DELAY_NANOS
        .max(latency.quantile(0.5))
        .min(deadline / 8.0);
    let ceiling = MAX_DELAY_NANOS.min(deadline / 4.0).max(initial);
    say(
        &mut text,
        "The first delay: 100 ms, or the median if that is longer, since a slow service does not recover sooner; an \
         eighth of the deadline at most. \
         The cap: a quarter of the deadline, 20 s at most, so that the last delay leaves time for an attempt. \
         Full jitter keeps callers that failed together from retrying together.",
    );
    let _ = writeln!(
        text,
        "backoff.exponential = {{ initial = \"{}\" }}\nmax_delay = \"{}\"\njitter = \"full\"",
        time(initial),
        time(ceiling)
    );

    repeatable(&mut text, service);
    budget(&mut text, service, size, hedges);
    circuit_breaker(&mut text, service, size);
    hedge(&mut text, latency, hedges);
    (text, timeout)
}

/// The attempt timeout, with its reason.
fn timeout(latency: &Latency, deadline: f64) -> (Option<u64>, String) {
    let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|share| latency.quantile(share));
    let rounded = |nanos: f64| {
        let text = time(nanos);
        relent_core::parse_duration(&text).map_or(nanos as u64, |time| {
            u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
        })
    };
    let estimated = match latency.given().any(|(name, _)| name == "p999") {
        true => "",
        false => " (estimated from those that are known)",
    };
    let wanted = (2.0 * p999).max(5.0 * p50).max(10e6);
    if wanted <= deadline / 2.0 {
        let why = format!(
            "Twice p99.9, which is {}{estimated}: at p99.9 itself one attempt in a thousand would be cut off in \
             normal operation (AWS Builders' Library, \"Timeouts, retries, and backoff with jitter\"), and a service at \
             half speed still responds in time; no less than five times the median, nor than 10 ms.",
            time(p999)
        );
        return (Some(rounded(wanted)), why);
    }
    if p99 <= deadline / 2.0 {
        let why = format!(
            "Half of the deadline, so that a second attempt fits. p99 is {}, p99.9 is {}{estimated}: some that would \
             have succeeded are cut off.",
            time(p99),
            time(p999)
        );
        return (Some(rounded(deadline / 2.0)), why);
    }
    let why = format!(
        "No attempt timeout: p99 is {}, so that a second attempt does not fit before the deadline.",
        time(p99)
    );
    (None, why)
}

fn repeatable(text: &mut String, service: &Description) {
    text.push('\n');
    let status = service.failure.status;
    match (service.repeatable, status, service.failure.retry_after) {
        (true, ..) => comment(
            text,
            "A request may safely run twice, so ambiguous failures (timeouts, cut connections, 5xx) are \
             repeated. Over HTTP this holds for a POST only with an Idempotency-Key, a precondition, or if the \
             caller says so; this file leaves it to the caller.",
        ),
        (false, 503, Some(_)) => comment(
            text,
            "A request must not run twice, so it is repeated only if it was certainly not processed: here a 503 \
             with a Retry-After qualifies, a timeout does not. `retry(..)` assumes that its operation is repeatable: \
             set `.repeatable(false)`. An idempotency key would let the rest be repeated too.",
        ),
        (false, ..) => comment(
            text,
            &format!(
                "A request must not run twice, so it is repeated only if it was certainly not processed: refused \
                 connections qualify, a {status} without Retry-After and a timeout do not. `retry(..)` assumes that \
                 its operation is repeatable: set `.repeatable(false)`. An idempotency key would let the rest \
                 be repeated too."
            ),
        ),
    }
    let _ = writeln!(text, "assume_repeatable = false");
}

fn budget(text: &mut String, service: &Description, size: Size, hedges: &Hedges) {
    let share = service.failure.share;
    let needed = 1.2 * share / (1.0 - share);
    let mut ratio = libm::ceil(needed.clamp(BUDGET_RATIO, 1.0) * 100.0) / 100.0;
    let mut paid = "";
    if matches!(hedges, Hedges::Slowest) {
        ratio += 0.05;
        paid = "Another 5 % pays for the hedges.";
    }
    let spare = (size.capacity - service.rate).max(0.05 * size.capacity);
    let processes = f64::from(service.processes);
    let reserve = libm::floor((spare / processes).clamp(1.0, 10.0));
    // Most of several tokens are for failures that load does not cause, as in `standard`.
    let overload_reserve = libm::floor(0.8 * reserve);
    let why = match needed > BUDGET_RATIO {
        true => format!(
            "{} % of the attempts fail independently of load: hiding them takes {} % more attempts, and a \
             fifth of that as a margin.",
            figure(100.0 * share),
            figure(100.0 * share / (1.0 - share))
        ),
        false => "A retry for ten requests, as in `standard`; the circuit breaker widens it while failures do not \
                  depend on load."
            .to_owned(),
    };
    text.push('\n');
    comment(
        text,
        &format!(
            "{why} {paid} The initial tokens of {} add up: all together no more than the spare capacity of a second, \
             but at least 1 and at most 10 for each. {overload_reserve} of each are reserved for failures that load does \
             not cause. Time adds none, a timeout costs three, a successful retry nothing, and a retry that the budget \
             cannot pay is queued at the circuit breaker, all as in `standard`.",
            counted_processes("process", service)
        ),
    );
    let _ = writeln!(
        text,
        "[budget]\nratio = {}\ninitial_tokens = {reserve}\nper_second = 0\ntimeout_cost = 3\noverload_reserve = {overload_reserve}\nqueue_when_exhausted = \
         true\nrefund_on_success = true",
        figure(ratio)
    );
}

/// The number of client processes with its noun.
fn counted_processes(noun: &str, service: &Description) -> String {
    match service.processes {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}es"),
    }
}

fn circuit_breaker(text: &mut String, service: &Description, size: Size) {
    let outage = service.failure.outage as f64;
    // All processes together probe with 5 % of the capacity at most.
    let least = 20.0 * f64::from(service.processes) / size.capacity * SECOND as f64;
    let most = (outage / 20.0).clamp(500e6, 5e9).max(least.min(30e9));
    text.push('\n');
    comment(
        text,
        &format!(
            "Requests are queued while the service is down, and single probes go out. The longest time between two: \
             5 % of the typical outage of {}, from 500 ms to 5 s, so that its end is detected soon; longer, up to 30 s, \
             if {} together would probe with more than 5 % of the capacity.",
            exact(service.failure.outage),
            counted_processes("process", service)
        ),
    );
    let _ = writeln!(
        text,
        "[circuit_breaker]\nfirst_probe = \"500ms\"\nmax_probe = \"{}\"",
        time(most)
    );
    if service.deadline > 300 * SECOND {
        let _ = writeln!(text, "max_queue_time = \"{}\"", exact(service.deadline));
    }
}

/// Whether hedging is an option.
#[derive(Clone, Debug)]
pub(super) enum Hedges {
    /// No hedging, for this reason.
    None(String),
    /// Hedging of the slowest 5 %.
    Slowest,
}

impl Hedges {
    pub(super) fn of(service: &Description, latency: &Latency, size: Size) -> Self {
        let [p50, p99] = [0.5, 0.99].map(|share| latency.quantile(share));
        let busy = service.rate / size.capacity;
        match (service.repeatable, p99 > 5.0 * p50, busy < 0.75) {
            (false, ..) => Self::None("a request must not run twice".to_owned()),
            (true, false, _) => Self::None(format!(
                "p99 ({}) is not above five times the median ({}), so there is no tail to cut off",
                time(p99),
                time(p50)
            )),
            (true, true, false) => Self::None(format!(
                "{} % of the capacity is in use, and hedges double the cost of one request in twenty",
                figure(100.0 * busy)
            )),
            (true, true, true) => Self::Slowest,
        }
    }

    pub(super) const fn may_help(&self) -> bool {
        matches!(self, Self::Slowest)
    }

    pub(super) fn without(&self) -> Self {
        match self {
            Self::None(_) => self.clone(),
            Self::Slowest => Self::None(
                "they are advised only if they shorten p99 in a simulation and lose almost no requests"
                    .to_owned(),
            ),
        }
    }
}

fn hedge(text: &mut String, latency: &Latency, hedges: &Hedges) {
    let [p50, p95, p99] = [0.5, 0.95, 0.99].map(|share| latency.quantile(share));
    text.push('\n');
    match hedges {
        Hedges::None(why) => comment(text, &format!("No hedges: {why}.")),
        Hedges::Slowest => {
            comment(
                text,
                &format!(
                    "p99 ({}) is more than five times the median ({}): a second attempt in addition to one that takes \
                     longer than p95 cuts the tail, and sends one request in twenty twice (Dean and Barroso, \"The \
                     Tail at Scale\", 2013). The percentile is measured continuously, with the present \
                     p95 as its minimum. The budget pays for hedges.",
                    time(p99),
                    time(p50)
                ),
            );
            let most = p95.max(10e9);
            let _ = writeln!(
                text,
                "[hedge]\npercentile = 0.95\nleast = \"{}\"\nmost = \"{}\"",
                time(p95),
                time(most)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advise::advise;
    use proptest::prelude::*;
    use relent::NamedPolicy;
    use relent::policy::PolicyFile;

    fn read(text: &str) -> NamedPolicy {
        let file = PolicyFile::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        file.get(None).unwrap().clone()
    }

    #[test]
    fn advised_times_use_their_most_readable_unit() {
        for (nanos, text) in [
            (1, "1ns"),
            (2_500_000, "2.5ms"),
            (1_500_000_000, "1.5s"),
            (120_000_000_000, "120s"),
            (1_000_000_001, "1.000000001s"),
            (33_000, "33us"),
        ] {
            assert_eq!(exact(nanos), text);
            let read = relent_core::parse_duration(text).unwrap();
            assert_eq!(read.as_nanos(), u128::from(nanos));
        }
    }

    fn described(more: &str) -> (Description, Latency) {
        let text = format!(
            "rate = 80\ncapacity = 200\nprocesses = 4\ndeadline = \"10s\"\n{more}\n\
             latency = {{ p50 = \"20ms\", p99 = \"200ms\" }}"
        );
        let service = Description::parse(&text).unwrap();
        let latency = service.latency().unwrap();
        (service, latency)
    }

    #[test]
    fn advised_values_follow_from_the_description() {
        let (service, latency) =
            described("repeatable = true\nfailure = { share = 0.2, outage = \"20s\" }");
        let policy = read(&advise(&service, &latency).policy).policy;
        let seconds = |time: Option<std::time::Duration>| time.unwrap().as_secs_f64();
        assert_eq!(seconds(policy.deadline()), 10.0);
        // p99.9 is 426 ms.
        assert_eq!(seconds(policy.attempt_timeout()), 0.85);
        assert_eq!(policy.budget().unwrap().ratio, 0.3);
        assert_eq!(
            policy.circuit_breaker().unwrap().max_probe.as_secs_f64(),
            1.0
        );
        assert!(policy.hedge().is_none());
        let hedged = read(&advise(&service, &latency).hedged.unwrap()).policy;
        assert!(hedged.hedge().is_some());
        assert_eq!(hedged.budget().unwrap().ratio, 0.35);
    }

    #[test]
    fn advice_queues_requests_for_a_deadline_above_five_minutes() {
        let (mut service, latency) = described("repeatable = true");
        service.deadline = 400 * SECOND;
        let policy = read(&advise(&service, &latency).policy).policy;
        let breaker = policy.circuit_breaker().unwrap();
        assert_eq!(breaker.max_queue_time.as_secs(), 400);
    }

    #[test]
    fn advice_has_no_hedges_for_non_repeatable_requests() {
        let (service, latency) = described("repeatable = false");
        let advice = advise(&service, &latency);
        let text = advice.policy;
        assert_eq!(advice.hedged, None);
        assert!(text.contains("must not run twice"), "{text}");
    }

    /// The comments in one line.
    fn uncommented(text: &str) -> String {
        text.replace("\n# ", " ")
    }

    #[test]
    fn the_reasons_of_an_advice_name_the_limits_that_apply() {
        let (mut service, latency) = described("repeatable = true");
        service.deadline = SECOND / 5;
        let advice = advise(&service, &latency);
        let policy = read(&advice.policy).policy;
        assert_eq!(
            *policy.backoff(),
            relent_core::Backoff::exponential(std::time::Duration::from_millis(25))
        );
        let text = uncommented(&advice.policy);
        assert!(text.contains("an eighth of the deadline at most"), "{text}");
        // Nothing has been simulated.
        service.deadline = 10 * SECOND;
        let text = uncommented(&super::super::advise(&service, &latency).policy);
        assert!(
            text.contains("No hedges: they are advised only if"),
            "{text}"
        );
    }

    #[test]
    fn advice_for_many_processes_has_fewer_tokens_and_rarer_probes() {
        let (mut service, latency) = described("repeatable = true");
        service.processes = 1000;
        let policy = read(&advise(&service, &latency).policy).policy;
        let budget = policy.budget().unwrap();
        assert_eq!(budget.initial_tokens, 1.0);
        assert_eq!((budget.per_second, budget.overload_reserve), (0.0, 0.0));
        // A thousand tokens exceed the spare capacity of 120.
        let text = uncommented(&advise(&service, &latency).policy);
        assert!(
            text.contains("but at least 1 and at most 10 for each. 0 of each are reserved"),
            "{text}"
        );
        assert!(
            text.contains("longer, up to 30 s, if 1000 processes"),
            "{text}"
        );
        assert_eq!(
            policy.circuit_breaker().unwrap().max_probe.as_secs_f64(),
            30.0
        );
    }

    proptest! {
        /// For any description, Relent accepts the policy file and the scenarios.
        #[test]
        fn any_advice_is_a_valid_policy_with_valid_scenarios(
            rate in 0.001..1e6_f64, capacity in 0.001..1e6_f64, processes in 1..1_000_000_u32,
            nodes in 1..50_u16, deadline in 10_u64..100_000, p50 in 1_u64..5_000_000, tail in 1.0..50.0_f64,
            share in 0.0..0.9_f64, outage in 1_u64..10_000, repeatable: bool, hint: bool,
        ) {
            let hint = if hint { "retry_after = \"3s\"" } else { "" };
            let text = format!(
                "rate = {rate}\ncapacity = {capacity}\nprocesses = {processes}\nnodes = {nodes}\n\
                 deadline = \"{deadline}ms\"\nrepeatable = {repeatable}\n\
                 [latency]\np50 = \"{p50}us\"\np99 = \"{}us\"\n\
                 [failure]\nshare = {share}\noutage = \"{outage}s\"\n{hint}",
                (p50 as f64 * tail) as u64,
            );
            let service = Description::parse(&text).unwrap();
            let latency = service.latency().unwrap();
            let advice = advise(&service, &latency);
            read(&advice.policy);
            advice.hedged.iter().for_each(|hedged| drop(read(hedged)));
            for fault_scenario in &advice.fault_scenarios {
                let scenario = crate::Scenario::parse(&fault_scenario.text);
                prop_assert!(scenario.is_ok(), "{}\n{}", scenario.unwrap_err(), fault_scenario.text);
            }
        }
    }
}
