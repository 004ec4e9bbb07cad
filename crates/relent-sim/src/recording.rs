//! What happened when: a run that is kept in bounded memory, for charts.

use relent_core::Policy;

use crate::latency::Latencies;
use crate::metrics::{Metrics, Recorder};
use crate::scenario::{Arrivals, Scenario};
use crate::world::{MOST_EVENTS, TooManyEvents, run_within};

/// The most bins of a series. When a run needs more they are merged.
const MOST_BINS: usize = 4000;
/// The width of a bin at first: a millisecond.
const FIRST_WIDTH: u64 = 1_000_000;
/// The most clients of a herd whose attempts are kept: a picture has no more rows.
const MOST_ROWS: u32 = 100;
/// The most attempts that are kept of one client.
const MOST_MARKS: usize = 200;

/// Runs like [`run`](crate::run), and keeps what happened when, in bounded memory.
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
    let recorder = run_within(scenario, policy, seed, recorder, MOST_EVENTS)?;
    Ok(recorder.finish_recording(scenario))
}

/// What happened in one bin of a [`Series`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Bin {
    /// Requests made.
    pub requests: u64,
    /// Attempts that reached the service.
    pub attempts: u64,
    /// Requests that succeeded.
    pub successes: u64,
}

impl Bin {
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.attempts += other.attempts;
        self.successes += other.successes;
    }
}

/// Counts over time, in bins of equal width from the start of the run.
///
/// The width begins with a millisecond and grows with the run, by two and by five in turn, so that
/// there are never more than 4000 bins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Series {
    /// The width of a bin in nanoseconds: 1 or 2 times a power of ten.
    pub width: u64,
    /// The bins, up to the last in which anything happened.
    pub bins: Vec<Bin>,
}

impl Series {
    const fn new() -> Self {
        Self {
            width: FIRST_WIDTH,
            bins: Vec::new(),
        }
    }

    /// When the last bin ends, in nanoseconds.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.width.saturating_mul(self.bins.len() as u64)
    }

    /// The same counts in bins of `width` nanoseconds, which has to be a multiple of the present
    /// width; other widths are rounded down to one.
    #[must_use]
    pub fn with_width(&self, width: u64) -> Self {
        let factor = (width / self.width).max(1);
        let merged = self.bins.chunks(factor as usize).map(|bins| {
            let mut sum = Bin::default();
            bins.iter().for_each(|bin| sum.add(*bin));
            sum
        });
        Self {
            width: self.width * factor,
            bins: merged.collect(),
        }
    }

    fn at(&mut self, now: u64) -> &mut Bin {
        while now / self.width >= MOST_BINS as u64 {
            let two = self.width.ilog10() != (self.width * 5).ilog10();
            *self = self.with_width(self.width * if two { 5 } else { 2 });
        }
        let index = (now / self.width) as usize;
        if self.bins.len() <= index {
            self.bins.resize(index + 1, Bin::default());
        }
        &mut self.bins[index]
    }
}

/// When one client of a herd made its attempts, in nanoseconds.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Row {
    /// The number of the client, from 0.
    pub client: u32,
    /// When its first 200 attempts started.
    pub attempts: Vec<u64>,
    /// Attempts that are not among them.
    pub more: u64,
    /// When its request succeeded; `None` if it never did.
    pub succeeded: Option<u64>,
}

/// A run, and what happened when in it.
#[derive(Clone, Debug)]
pub struct Recording {
    /// What was measured of it: the same as without recording.
    pub metrics: Metrics,
    /// Counts over time.
    pub series: Series,
    /// At most 100 clients, spread evenly over the herd; empty where requests are not made by a herd.
    pub rows: Vec<Row>,
    pub(crate) latencies: Latencies,
}

impl Recording {
    /// The time in nanoseconds that this share of the successes did not exceed, waits included;
    /// `None` without a success.
    #[must_use]
    pub fn latency(&self, share: f64) -> Option<u64> {
        self.latencies.quantile(share)
    }
}

/// No row.
const NONE: u32 = u32::MAX;

/// Collects a [`Recording`] while the run goes on.
#[derive(Debug)]
pub(crate) struct Tape {
    pub(crate) series: Series,
    pub(crate) rows: Vec<Row>,
    /// One client in so many has a row.
    every: u32,
    clients: u32,
    seen: u32,
    /// The row of each call.
    row_of: Vec<u32>,
}

impl Tape {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let clients = match scenario.clients.arrivals {
            Arrivals::Herd { clients } => clients,
            _ => 0,
        };
        Self {
            series: Series::new(),
            rows: Vec::new(),
            every: clients.div_ceil(MOST_ROWS).max(1),
            clients,
            seen: 0,
            row_of: Vec::new(),
        }
    }

    pub(crate) fn on_request(&mut self, now: u64) {
        self.series.at(now).requests += 1;
    }

    pub(crate) fn on_attempt(&mut self, now: u64) {
        self.series.at(now).attempts += 1;
    }

    /// The next client of the herd makes its request, as this call.
    pub(crate) fn on_call(&mut self, call: u32) {
        if self.seen >= self.clients {
            return;
        }
        let client = self.seen;
        self.seen += 1;
        let mut row = NONE;
        if client.is_multiple_of(self.every) {
            row = self.rows.len() as u32;
            self.rows.push(Row {
                client,
                ..Row::default()
            });
        }
        let call = call as usize;
        if self.row_of.len() <= call {
            self.row_of.resize(call + 1, NONE);
        }
        self.row_of[call] = row;
    }

    fn row(&mut self, call: u32) -> Option<&mut Row> {
        let row = *self.row_of.get(call as usize)?;
        self.rows.get_mut(row as usize)
    }

    /// The client of this call starts an attempt.
    pub(crate) fn on_start(&mut self, call: u32, now: u64) {
        let Some(row) = self.row(call) else { return };
        match row.attempts.len() < MOST_MARKS {
            true => row.attempts.push(now),
            false => row.more += 1,
        }
    }

    pub(crate) fn on_success(&mut self, call: u32, now: u64) {
        self.series.at(now).successes += 1;
        if let Some(row) = self.row(call) {
            row.succeeded = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run;

    #[test]
    fn bins_grow_with_the_run_and_nothing_is_lost() {
        let mut series = Series::new();
        let mut seen = vec![series.width];
        for second in 0..50_000 {
            series.at(second * 1_000_000_000).attempts += 1;
            if seen.last() != Some(&series.width) {
                seen.push(series.width);
            }
            assert!(series.bins.len() <= MOST_BINS);
        }
        let millis: Vec<u64> = seen.iter().map(|width| width / 1_000_000).collect();
        assert_eq!(millis, [1, 2, 10, 20, 100, 200, 1000, 2000, 10_000, 20_000]);
        let total: u64 = series.bins.iter().map(|bin| bin.attempts).sum();
        assert_eq!(total, 50_000);
        assert_eq!(series.end(), 50_000 * 1_000_000_000);
    }

    #[test]
    fn a_recorded_run_is_the_same_run_and_its_bins_add_up() {
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
    fn rows_are_spread_over_a_large_herd() {
        let scenario = Scenario::parse("clients.arrivals.herd = { clients = 950 }").unwrap();
        let recording = record(&scenario, Policy::STANDARD, 1).unwrap();
        assert_eq!(recording.rows.len(), 95);
        assert_eq!(recording.rows.last().map(|row| row.client), Some(940));
        let stream = Scenario::parse("clients.arrivals.poisson = { rate = 9, for = \"9s\" }");
        let recording = record(&stream.unwrap(), Policy::STANDARD, 1).unwrap();
        assert!(recording.rows.is_empty(), "no herd, no rows");
    }
}
