//! Keeps the events of a run over time, in bounded memory.

use crate::scenario::{Arrivals, Scenario};
use crate::series::Series;

/// The most clients of a herd whose attempts are kept: a picture has no more rows.
const MAX_ROWS: u32 = 100;
/// The most attempts that are kept of one client.
const MAX_ATTEMPTS_OF_A_ROW: usize = 200;

/// The times of the attempts of one client, in nanoseconds.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Row {
    /// The number of the client, from 0, in the order in which requests are made.
    pub client: u32,
    /// The times of its first 200 attempts.
    pub attempts: Vec<u64>,
    /// The number of further attempts.
    pub more: u64,
    /// The time at which its request succeeded; `None` if it never did.
    pub succeeded: Option<u64>,
}

/// No row.
const NO_ROW: u32 = u32::MAX;

/// Collects a [`Recording`] while the run goes on.
#[derive(Debug)]
pub(crate) struct EventLog {
    pub(crate) series: Series,
    pub(crate) rows: Vec<Row>,
    /// The number of clients per row.
    every: u32,
    clients: u32,
    seen: u32,
    /// The row of each call.
    row_of: Vec<u32>,
}

impl EventLog {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let clients = match scenario.clients.arrivals {
            Arrivals::Herd { clients } => clients,
            _ => 0,
        };
        Self {
            series: Series::new(),
            rows: Vec::new(),
            every: clients.div_ceil(MAX_ROWS).max(1),
            clients,
            seen: 0,
            row_of: Vec::new(),
        }
    }

    /// With a row for every request.
    pub(crate) fn of_all(scenario: &Scenario) -> Self {
        Self {
            every: 1,
            clients: u32::MAX,
            ..Self::new(scenario)
        }
    }

    pub(crate) fn on_request(&mut self, now: u64) {
        self.series.at(now).requests += 1;
    }

    pub(crate) fn on_attempt(&mut self, now: u64) {
        self.series.at(now).attempts += 1;
    }

    /// The next client makes its request, as this call.
    pub(crate) fn on_call(&mut self, call: u32) {
        if self.seen >= self.clients {
            return;
        }
        let client = self.seen;
        self.seen += 1;
        let mut row = NO_ROW;
        if client.is_multiple_of(self.every) {
            row = self.rows.len() as u32;
            self.rows.push(Row {
                client,
                ..Row::default()
            });
        }
        let call = call as usize;
        if self.row_of.len() <= call {
            self.row_of.resize(call + 1, NO_ROW);
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
        match row.attempts.len() < MAX_ATTEMPTS_OF_A_ROW {
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
