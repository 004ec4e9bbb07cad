//! tower's retry layer with the policies of its documentation. The service is built once and
//! called `n` times, which is how it is used; the call clones the policy and the service.

use std::cell::Cell;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tower::Service;
use tower::retry::backoff::{Backoff, ExponentialBackoff, ExponentialBackoffMaker, MakeBackoff};
use tower::retry::budget::{Budget, TpsBudget};
use tower::retry::{Policy, Retry};
use tower::service_fn;

use crate::work::{Allowance, Failed, ask, ask_four_times, poll_once, runtime};
use crate::{Row, Scenario};

/// Its rows.
pub const ROWS: &[Row] = &[
    Row::new(Scenario::AsyncSuccess, "tower", async_success),
    Row::new(Scenario::TenDelays, "tower", ten_delays),
    Row::new(Scenario::AsyncThreeFailures, "tower", async_failures),
    Row::new(
        Scenario::AsyncSuccessBudget,
        "tower, TpsBudget",
        with_budget,
    ),
    Row::new(
        Scenario::AsyncFailuresBudget,
        "tower, TpsBudget",
        failures_with_budget,
    ),
    Row::new(Scenario::BudgetPair, "tower, TpsBudget", budget_pair),
];

/// The policy of the documentation of [`Policy`].
#[derive(Clone)]
struct Attempts(usize);

impl<Q: Clone> Policy<Q, u64, Failed> for Attempts {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut Q, result: &mut Result<u64, Failed>) -> Option<Ready<()>> {
        match result {
            Ok(_) => None,
            Err(_) if self.0 > 0 => {
                self.0 -= 1;
                Some(ready(()))
            }
            Err(_) => None,
        }
    }

    fn clone_request(&mut self, request: &Q) -> Option<Q> {
        Some(request.clone())
    }
}

/// The policy of the documentation of [`Budget`].
#[derive(Clone)]
struct Budgeted(Arc<TpsBudget>);

impl<Q: Clone> Policy<Q, u64, Failed> for Budgeted {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut Q, result: &mut Result<u64, Failed>) -> Option<Ready<()>> {
        match result {
            Ok(_) => {
                self.0.deposit();
                None
            }
            Err(_) => self.0.withdraw().then(|| ready(())),
        }
    }

    fn clone_request(&mut self, request: &Q) -> Option<Q> {
        Some(request.clone())
    }
}

/// Like [`Attempts`], with a backoff.
#[derive(Clone)]
struct Patient(ExponentialBackoff);

impl Policy<u64, u64, Failed> for Patient {
    type Future = tokio::time::Sleep;

    fn retry(
        &mut self,
        _: &mut u64,
        result: &mut Result<u64, Failed>,
    ) -> Option<tokio::time::Sleep> {
        result.is_err().then(|| self.0.next_backoff())
    }

    fn clone_request(&mut self, request: &u64) -> Option<u64> {
        Some(*request)
    }
}

#[inline(always)]
fn call<Q, S: Service<Q, Response = u64, Error = Failed>>(service: &mut S, request: Q) {
    let ready = service.poll_ready(&mut Context::from_waker(Waker::noop()));
    if let Poll::Ready(Ok(())) = ready {
        let _ = black_box(poll_once(service.call(request)));
    }
}

fn async_success(n: u64) {
    let mut service = Retry::new(Attempts(10), service_fn(ask));
    for request in 0..n {
        call(&mut service, black_box(request));
    }
}

fn ten_delays(n: u64) {
    let runtime = runtime();
    let _context = runtime.enter();
    let mut maker = ExponentialBackoffMaker::default();
    for _ in 0..n {
        let mut backoff = maker.make_backoff();
        for _ in 0..10 {
            black_box(&backoff.next_backoff());
        }
    }
}

fn async_failures(n: u64) {
    let calls = Cell::new(0);
    let mut service = Retry::new(Attempts(3), service_fn(ask_four_times));
    for _ in 0..n {
        call(&mut service, &calls);
    }
}

fn with_budget(n: u64) {
    let budget = Arc::new(TpsBudget::default());
    let mut service = Retry::new(Budgeted(budget), service_fn(ask));
    for request in 0..n {
        call(&mut service, black_box(request));
    }
}

fn failures_with_budget(n: u64) {
    // Four tokens for each request, of which three are taken.
    let budget = TpsBudget::new(std::time::Duration::from_secs(10), 1000, 4.0);
    let calls = Cell::new(0);
    let mut service = Retry::new(Budgeted(Arc::new(budget)), service_fn(ask_four_times));
    for _ in 0..n {
        call(&mut service, &calls);
        assert_eq!(calls.get(), 0, "the budget pays for three retries");
    }
}

impl Allowance for TpsBudget {
    fn pair(&self, _: u64) {
        self.deposit();
        black_box(self.withdraw());
    }
}

/// One retry per request, like the other budgets.
#[must_use]
pub fn balanced() -> TpsBudget {
    TpsBudget::new(std::time::Duration::from_secs(10), 10, 1.0)
}

fn budget_pair(n: u64) {
    let budget = black_box(balanced());
    for turn in 0..n {
        budget.pair(turn);
    }
}

/// The size of its future with a policy that does not wait.
pub fn future_size() -> usize {
    size_of_val(&Retry::new(Attempts(10), service_fn(ask)).call(1))
}

/// The size of its future with a policy that waits by tokio's timer.
pub fn future_size_with_sleep() -> usize {
    let backoff = ExponentialBackoffMaker::default().make_backoff();
    size_of_val(&Retry::new(Patient(backoff), service_fn(ask)).call(1))
}
