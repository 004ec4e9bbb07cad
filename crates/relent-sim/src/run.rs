//! Runs a policy through a scenario.

use relent_core::Policy;

use crate::event_log::Row;
use crate::metrics::Metrics;
use crate::recorder::Recorder;
use crate::recording::Recording;
use crate::scenario::Scenario;
use crate::shared_medium::{self, Cable};
use crate::too_many_events::{MAX_EVENTS, TooManyEvents};
use crate::world;

/// Runs `policy` through `scenario` in virtual time. The same seed gives the same result, bit for bit, on every
/// machine. [`Call`](relent_core::call::Call) and [`Destination`](relent_core::destination::Destination) make the decisions.
///
/// ```
/// use relent_core::Policy;
/// use relent_sim::{Scenario, run};
///
/// let scenario = Scenario::parse(r#"
///     clients.arrivals.poisson = { rate = 100, for = "60s" }
///     service.failures = 0.01
/// "#)?;
/// let metrics = run(&scenario, Policy::STANDARD, 1)?;
/// assert!(metrics.goodput > 0.999);
/// assert_eq!(metrics, run(&scenario, Policy::STANDARD, 1)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`TooManyEvents`] if a policy without backoff would run for hours.
pub fn run(scenario: &Scenario, policy: &Policy, seed: u64) -> Result<Metrics, TooManyEvents> {
    let recorder = Recorder::new(scenario);
    let recorder = run_within(scenario, policy, seed, recorder, MAX_EVENTS)?;
    Ok(recorder.finish(scenario))
}

/// Runs like [`run`](crate::run), and also keeps counts over time, in bounded memory.
///
/// ```
/// use relent_core::Policy;
/// use relent_sim::{record, run, scenarios};
///
/// let herd = scenarios::get("herd").expect("a scenario").load()?;
/// let recording = record(&herd, Policy::STANDARD, 1)?;
/// assert_eq!(recording.metrics, run(&herd, Policy::STANDARD, 1)?);
/// assert_eq!(recording.rows.len(), 100, "a row for each client");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Those of [`run`](crate::run).
pub fn record(scenario: &Scenario, policy: &Policy, seed: u64) -> Result<Recording, TooManyEvents> {
    let recorder = Recorder::recording(scenario);
    let recorder = run_within(scenario, policy, seed, recorder, MAX_EVENTS)?;
    Ok(recorder.finish_recording(scenario))
}

/// Runs like [`run`](crate::run), and returns the times of the attempts of every client, in the order of the requests.
/// For small runs: memory grows with the run, up to 200 attempts of each client. Stations of a medium have no rows.
///
/// ```
/// use relent_core::Policy;
/// use relent_sim::{Scenario, trace};
///
/// let scenario = Scenario::parse("clients.arrivals.herd = { clients = 3 }")?;
/// let trace = trace(&scenario, Policy::STANDARD, 1)?;
/// assert_eq!(trace.len(), 3);
/// assert!(trace.iter().all(|row| row.attempts == [0] && row.succeeded.is_some()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Those of [`run`](crate::run).
pub fn trace(scenario: &Scenario, policy: &Policy, seed: u64) -> Result<Vec<Row>, TooManyEvents> {
    let recorder = Recorder::tracing(scenario);
    let recorder = run_within(scenario, policy, seed, recorder, MAX_EVENTS)?;
    Ok(recorder.finish_recording(scenario).rows)
}

/// Runs like [`run`](crate::run), and gives up after `max_events` events.
pub(crate) fn run_bounded(
    scenario: &Scenario,
    policy: &Policy,
    seed: u64,
    max_events: u64,
) -> Result<Metrics, TooManyEvents> {
    let recorder = run_within(scenario, policy, seed, Recorder::new(scenario), max_events)?;
    Ok(recorder.finish(scenario))
}

/// Runs with this recorder, and gives up after `max_events` events.
fn run_within(
    scenario: &Scenario,
    policy: &Policy,
    seed: u64,
    recorder: Recorder,
    max_events: u64,
) -> Result<Recorder, TooManyEvents> {
    match Cable::of(scenario) {
        Some(cable) => {
            shared_medium::run_within(scenario, policy, seed, cable, recorder, max_events)
        }
        None => world::run_within(scenario, policy, seed, recorder, max_events),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use relent_core::Backoff;

    use crate::series::Bin;

    #[test]
    fn a_run_with_too_many_events_is_given_up() {
        let scenario = Scenario::parse(
            "clients.arrivals.herd = { clients = 10 }\nservice.failures = 1\nnetwork.one_way = \"1us\"",
        )
        .unwrap();
        let hot = Policy::builder(Backoff::None).unlimited_retries();
        let hot = hot.build().unwrap();
        let run = |policy| run_within(&scenario, policy, 1, Recorder::new(&scenario), 10_000);
        assert_eq!(run(&hot).err(), Some(TooManyEvents));
        assert!(run(Policy::STANDARD).is_ok());
    }

    #[test]
    fn recording_does_not_change_a_run_and_its_bins_add_up() {
        for name in ["herd", "chain", "random-failures"] {
            let text = crate::scenarios::get(name).unwrap().text;
            let changes: &[(&str, &str)] = match name {
                "random-failures" => &[("clients.arrivals.poisson.for", "20s")],
                _ => &[],
            };
            let scenario = Scenario::parse_with(text, changes).unwrap();
            let recording = record(&scenario, Policy::STANDARD, 3).unwrap();
            assert_eq!(
                run(&scenario, Policy::STANDARD, 3).as_ref(),
                Ok(&recording.metrics)
            );
            let sum = |of: fn(&Bin) -> u64| recording.series.bins.iter().map(of).sum::<u64>();
            let metrics = &recording.metrics;
            assert_eq!(sum(|bin| bin.requests), metrics.requests, "{name}");
            assert_eq!(sum(|bin| bin.attempts), metrics.attempts, "{name}");
            assert_eq!(sum(|bin| bin.successes), metrics.successes, "{name}");
            let again = record(&scenario, Policy::STANDARD, 3).unwrap();
            assert_eq!(again.series, recording.series);
            assert_eq!(again.rows, recording.rows);
        }
    }

    #[test]
    fn every_client_of_a_small_herd_has_a_row_with_all_its_attempts() {
        let herd = crate::scenarios::get("herd").unwrap().load().unwrap();
        let recording = record(&herd, Policy::STANDARD, 1).unwrap();
        let clients: Vec<u32> = recording.rows.iter().map(|row| row.client).collect();
        assert_eq!(clients, (0..100).collect::<Vec<_>>());
        let attempts: u64 = recording
            .rows
            .iter()
            .map(|row| row.attempts.len() as u64 + row.more)
            .sum();
        assert_eq!(attempts, recording.metrics.attempts);
        let succeeded = recording.rows.iter().filter(|row| row.succeeded.is_some());
        assert_eq!(succeeded.count() as u64, recording.metrics.successes);
    }

    #[test]
    fn recorded_rows_are_spread_over_a_large_herd() {
        let scenario = Scenario::parse("clients.arrivals.herd = { clients = 950 }").unwrap();
        let recording = record(&scenario, Policy::STANDARD, 1).unwrap();
        assert_eq!(recording.rows.len(), 95);
        assert_eq!(recording.rows.last().map(|row| row.client), Some(940));
        let stream = Scenario::parse("clients.arrivals.poisson = { rate = 9, for = \"9s\" }");
        let recording = record(&stream.unwrap(), Policy::STANDARD, 1).unwrap();
        assert!(recording.rows.is_empty(), "no herd, no rows");
    }
}
