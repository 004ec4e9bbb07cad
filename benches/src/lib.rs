//! Benchmarks of Relent and of comparable crates.
//!
//! A [`Row`] is `n` calls of one scenario by one subject, and nothing else, so that the difference
//! between two numbers of calls is the cost of the calls alone. `scripts/bench` runs the rows and
//! prints the tables of `docs/research/benchmarks.md`.

use std::fmt;

pub mod loopback;
#[cfg(feature = "outbox")]
pub mod receivers;
pub mod subjects;
pub mod threads;
pub mod work;

/// The measured scenarios.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scenario {
    /// An asynchronous operation that succeeds immediately.
    AsyncSuccess,
    /// A blocking operation that succeeds immediately.
    SyncSuccess,
    /// Ten jittered delays of an exponential backoff, without operation or timer.
    TenDelays,
    /// A blocking operation that fails three times, retried without a wait.
    SyncThreeFailures,
    /// An asynchronous operation that fails three times, retried without a wait or a timer.
    AsyncThreeFailures,
    /// An asynchronous operation that succeeds immediately, with a shared budget (and a deadline).
    AsyncSuccessBudget,
    /// The set-up of the README: an asynchronous operation that succeeds immediately at a shared destination of
    /// the policy `standard`.
    StandardSuccess,
    /// An asynchronous operation that succeeds immediately, and whose attempts are traced.
    TracedSuccess,
    /// An asynchronous operation that fails three times, each retry paid for from a shared budget, without
    /// a wait or a timer.
    AsyncFailuresBudget,
    /// An asynchronous operation with a limit of time that has to wait once.
    AsyncLimit,
    /// One deposit into a shared budget and one withdrawal from it.
    BudgetPair,
    /// A call of an HTTP service that responds immediately, without header fields or a body.
    HttpSuccess,
    /// The same with three header fields, which have to be kept for a retry.
    HttpSuccessFields,
    /// A GET through reqwest with an immediate response, without header fields or a body.
    ReqwestSuccess,
    /// A limiter lets an attempt go on.
    Limit,
    /// The same with a limiter for each of ten thousand keys, behind a lock.
    KeyedLimit,
    /// A request goes through a rate limit for all and one for each of ten thousand accounts.
    AdmissionLayer,
}

impl Scenario {
    /// Every scenario, in the order of the tables.
    pub const ALL: [Self; 17] = [
        Self::AsyncSuccess,
        Self::SyncSuccess,
        Self::TenDelays,
        Self::SyncThreeFailures,
        Self::AsyncThreeFailures,
        Self::AsyncSuccessBudget,
        Self::StandardSuccess,
        Self::TracedSuccess,
        Self::AsyncFailuresBudget,
        Self::AsyncLimit,
        Self::BudgetPair,
        Self::HttpSuccess,
        Self::HttpSuccessFields,
        Self::ReqwestSuccess,
        Self::Limit,
        Self::KeyedLimit,
        Self::AdmissionLayer,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AsyncSuccess => "async-success",
            Self::SyncSuccess => "sync-success",
            Self::TenDelays => "ten-delays",
            Self::SyncThreeFailures => "sync-three-failures",
            Self::AsyncThreeFailures => "async-three-failures",
            Self::AsyncSuccessBudget => "async-success-budget",
            Self::StandardSuccess => "standard-success",
            Self::TracedSuccess => "traced-success",
            Self::AsyncFailuresBudget => "async-failures-budget",
            Self::AsyncLimit => "async-limit",
            Self::BudgetPair => "budget-pair",
            Self::HttpSuccess => "http-success",
            Self::HttpSuccessFields => "http-success-fields",
            Self::ReqwestSuccess => "reqwest-success",
            Self::Limit => "limit",
            Self::KeyedLimit => "keyed-limit",
            Self::AdmissionLayer => "admission-layer",
        }
    }
}

/// One scenario, as one subject runs it.
#[derive(Clone, Copy)]
pub struct Row {
    /// What is measured.
    pub scenario: Scenario,
    /// Who does it; `bare` is the operation alone.
    pub subject: &'static str,
    /// Does it `n` times.
    pub run: fn(n: u64),
}

impl Row {
    const fn new(scenario: Scenario, subject: &'static str, run: fn(u64)) -> Self {
        Self {
            scenario,
            subject,
            run,
        }
    }
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\t{}", self.scenario.name(), self.subject)
    }
}

/// Every row, by scenario.
#[must_use]
pub fn rows() -> Vec<Row> {
    let mut rows: Vec<Row> = subjects::ROWS.iter().copied().flatten().copied().collect();
    let place = |row: &Row| Scenario::ALL.iter().position(|one| *one == row.scenario);
    rows.sort_by_key(place);
    rows
}
