//! Compares the costs of Relent with their bounds; exits with 1 if one exceeds the limit of CI.
//!
//! A cost may exceed its bound by three tenths before CI fails, since other work on the machine slows it. Each time is
//! a median of nine runs. The runs of two compared rows alternate, so that both are slowed alike.

use std::alloc::System;
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use relent_benches::Row;
use relent_benches::subjects::relent::Shared;
use relent_benches::threads::times;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Runs of each row.
const RUNS: usize = 9;
/// The most measurements of all costs: a machine may be busy during one.
const ROUNDS: usize = 3;
/// The limit of CI, as a multiple of a bound.
const NOISE: f64 = 1.3;

/// A measured cost with its bound.
struct Cost {
    name: &'static str,
    measured: f64,
    bound: f64,
    unit: &'static str,
}

impl Cost {
    const fn nanos(name: &'static str, measured: f64, bound: f64) -> Self {
        Self {
            name,
            measured,
            bound,
            unit: " ns",
        }
    }

    const fn ratio(name: &'static str, measured: f64, bound: f64) -> Self {
        Self {
            name,
            measured,
            bound,
            unit: "",
        }
    }
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let is_within = |cost: &Cost| cost.measured <= cost.bound * NOISE;
    let mut costs = costs()?;
    for _ in 1..ROUNDS {
        if costs.iter().all(is_within) {
            break;
        }
        costs = self::costs()?;
    }
    println!("| cost | measured | bound | |");
    println!("|---|---:|---:|---|");
    for cost in &costs {
        let Cost {
            name,
            measured,
            bound,
            unit,
        } = cost;
        let verdict = match is_within(cost) {
            false => "FAILED",
            true if measured > bound => "exceeded",
            true => "kept",
        };
        println!("| {name} | {measured:.2}{unit} | {bound}{unit} | {verdict} |");
    }
    Ok(ExitCode::from(u8::from(!costs.iter().all(is_within))))
}

fn costs() -> Result<Vec<Cost>, Box<dyn Error>> {
    let allocations = |name, scenario, subject| {
        Ok::<_, Box<dyn Error>>(Cost::ratio(
            name,
            allocations_per_call(row(scenario, subject)?),
            0.0,
        ))
    };
    let pair = |scenario, subject, other, calls| {
        let (first, second) = (row(scenario, subject)?, row(scenario, other)?);
        Ok::<_, Box<dyn Error>>(medians(first, second, calls))
    };
    let mut costs = vec![
        allocations(
            "allocations, success without a destination",
            "async-success",
            "relent",
        )?,
        allocations(
            "allocations, success at a `standard` destination",
            "standard-success",
            "relent",
        )?,
    ];
    let (success, bare) = pair("async-success", "relent", "bare", 200_000)?;
    costs.push(Cost::nanos(
        "success without a destination, beyond a bare future",
        success - bare,
        50.0,
    ));

    let shared = Shared::default();
    // Other work on the machine slows two threads more than one, so the quick batches count. If it is so busy that the
    // threads do not run together, nothing can be said.
    if let (Some(one), Some(two)) = times(&shared, &shared, 0.1) {
        costs.push(Cost::nanos(
            "success at a `standard` destination, one thread",
            one,
            150.0,
        ));
        costs.push(Cost::ratio(
            "the same, two threads over one thread",
            two / one,
            1.0,
        ));
    }

    let traced = "relent, budget and trace";
    let (failures, bare) = pair("async-failures-budget", traced, "bare", 20_000)?;
    costs.push(Cost::nanos(
        "one failure, with budget and trace",
        (failures - bare) / 3.0,
        500.0,
    ));
    let (delays, tower) = pair("ten-delays", "relent", "tower", 20_000)?;
    costs.push(Cost::ratio("ten delays, over tower's", delays / tower, 1.0));

    let (client, request) = pair("reqwest-success", "relent", "bare", 2_000)?;
    costs.push(Cost::ratio(
        "a GET over the loopback by the client, over reqwest",
        client / request,
        1.02,
    ));
    let (layer, bare) = pair("http-success", "relent", "bare", 50_000)?;
    costs.push(Cost::ratio(
        "the layer, over the same GET",
        (request + layer - bare) / request,
        1.02,
    ));
    Ok(costs)
}

fn row(scenario: &str, subject: &str) -> Result<Row, String> {
    relent_benches::rows()
        .into_iter()
        .find(|row| row.scenario.name() == scenario && row.subject == subject)
        .ok_or_else(|| format!("there is no row {scenario}, {subject}"))
}

/// The median times of one call of both rows, in nanoseconds.
fn medians(first: Row, second: Row, calls: u64) -> (f64, f64) {
    let time = |row: Row| {
        let started = Instant::now();
        (row.run)(calls);
        started.elapsed().as_secs_f64() * 1e9 / calls as f64
    };
    let mut times = ([0.0; RUNS], [0.0; RUNS]);
    for run in 0..RUNS {
        (times.0[run], times.1[run]) = match run % 2 {
            0 => (time(first), time(second)),
            _ => {
                let of_second = time(second);
                (time(first), of_second)
            }
        };
    }
    let median = |mut all: [f64; RUNS]| {
        all.sort_by(f64::total_cmp);
        all[RUNS / 2]
    };
    (median(times.0), median(times.1))
}

/// The difference of two numbers of calls, which excludes the setup of a row.
fn allocations_per_call(row: Row) -> f64 {
    // The setup of a thread, such as its random generator, does not count for a call.
    (row.run)(1);
    let count = |calls| {
        let region = Region::new(ALLOCATOR);
        (row.run)(calls);
        let change = region.change();
        change.allocations + change.reallocations
    };
    (count(2_000) as f64 - count(1_000) as f64) / 1_000.0
}
