//! Arrival times of requests.

use crate::random_stream::{ARRIVALS, BACKLOG, POPULATION, Stream, rounded};
use crate::scenario::{Arrivals, RequestBacklog, Scenario};

/// A request of the simulated clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// When it is made, in nanoseconds from the start.
    pub at: u64,
    /// The client process that makes it, from 0.
    pub process: u32,
}

/// The requests of a [run](crate::run) with this seed, in order, for a run on another medium.
///
/// Returns `None` for closed-loop clients and stations of a shared medium: the times of their requests depend on the
/// responses. Also `None` for several request classes, since [`Request`] has no class. Not for a chain: its other
/// layers have processes, too.
///
/// ```
/// use relent_sim::{requests, scenarios};
///
/// let herd = scenarios::get("herd").expect("a scenario").load()?;
/// let requests = requests(&herd, 1).expect("a herd needs no response");
/// assert_eq!(requests.len(), 100);
/// assert!(requests.iter().all(|request| request.at == 0));
/// # Ok::<(), relent_sim::ScenarioError>(())
/// ```
#[must_use]
pub fn requests(scenario: &Scenario, seed: u64) -> Option<Vec<Request>> {
    let arrivals = &scenario.clients.arrivals;
    let waits = matches!(
        arrivals,
        Arrivals::Closed { .. } | Arrivals::Saturated { .. }
    );
    if waits || !scenario.clients.classes.is_empty() {
        return None;
    }
    let mut stream = Stream::new(seed, ARRIVALS);
    let mut times = first(arrivals, &mut stream);
    while let Some(at) = times
        .last()
        .and_then(|last| next(arrivals, *last, &mut stream))
    {
        times.push(at);
    }
    if let Some(backlog) = scenario.clients.backlog {
        times.extend(of_backlog(backlog, Stream::new(seed, BACKLOG)));
        times.sort();
    }
    let mut population = Stream::new(seed, POPULATION);
    let mut process = || population.below(scenario.clients.processes);
    let times = times.into_iter();
    Some(
        times
            .map(|at| Request {
                at,
                process: process(),
            })
            .collect(),
    )
}

/// The times at which the first requests are made.
pub(crate) fn first(arrivals: &Arrivals, stream: &mut Stream) -> Vec<u64> {
    match *arrivals {
        Arrivals::Herd { clients } => vec![0; clients as usize],
        Arrivals::Closed { clients, .. } => (0..clients)
            .filter_map(|_| next(arrivals, 0, stream))
            .collect(),
        Arrivals::Poisson { .. }
        | Arrivals::Bursts { .. }
        | Arrivals::Curve { .. }
        | Arrivals::Wave { .. } => next(arrivals, 0, stream).into_iter().collect(),
        // Stations of a medium, which has a loop of its own.
        Arrivals::Saturated { .. } => Vec::new(),
    }
}

/// The time of the request that follows the one made at `now` (for closed-loop clients: ended at `now`); `None` if
/// there is none.
pub(crate) fn next(arrivals: &Arrivals, now: u64, stream: &mut Stream) -> Option<u64> {
    let mut gap = |rate: f64| stream.exponential(rounded(1e9 / rate));
    let (at, lasts) = match *arrivals {
        Arrivals::Poisson { rate, lasts } => (now.saturating_add(gap(rate)), lasts),
        Arrivals::Closed { think, lasts, .. } => {
            (now.saturating_add(stream.exponential(think)), lasts)
        }
        Arrivals::Bursts {
            rate,
            on,
            off,
            idle: 0.0,
            lasts,
        } => {
            // On a clock that stops between bursts, the arrivals are one continuous stream.
            let (bursts, into) = (now / (on + off), now % (on + off));
            let at = (bursts * on + into.min(on)).saturating_add(gap(rate));
            (at.saturating_add((at / on).saturating_mul(off)), lasts)
        }
        Arrivals::Bursts { lasts, .. }
        | Arrivals::Curve { lasts, .. }
        | Arrivals::Wave { lasts, .. } => {
            // Thinning (Lewis and Shedler, 1979): draw at the highest rate, keep each arrival with probability rate ÷
            // highest rate.
            let highest = highest_rate(arrivals);
            let mut at = now;
            loop {
                at = at.saturating_add(stream.exponential(rounded(1e9 / highest)));
                if at >= lasts || stream.happens(rate_at(arrivals, at) / highest) {
                    break;
                }
            }
            (at, lasts)
        }
        Arrivals::Herd { .. } | Arrivals::Saturated { .. } => return None,
    };
    (at < lasts).then_some(at)
}

/// Requests per second at a moment.
fn rate_at(arrivals: &Arrivals, at: u64) -> f64 {
    match arrivals {
        Arrivals::Bursts {
            rate,
            on,
            off,
            idle,
            ..
        } => match at % (on + off) < *on {
            true => *rate,
            false => *idle,
        },
        Arrivals::Curve { points, .. } => {
            let after = points.partition_point(|point| point.at <= at);
            // The first is at 0.
            let before = points[after.saturating_sub(1)];
            let Some(next) = points.get(after) else {
                return before.rate;
            };
            let share = (at - before.at) as f64 / (next.at - before.at) as f64;
            before.rate + share * (next.rate - before.rate)
        }
        Arrivals::Wave {
            rate,
            swing,
            period,
            ..
        } => {
            let turns = (at % period) as f64 / *period as f64;
            rate * (1.0 + swing * libm::sin(std::f64::consts::TAU * turns))
        }
        Arrivals::Poisson { rate, .. } => *rate,
        Arrivals::Herd { .. } | Arrivals::Closed { .. } | Arrivals::Saturated { .. } => 0.0,
    }
}

/// The highest of the rates.
fn highest_rate(arrivals: &Arrivals) -> f64 {
    match arrivals {
        Arrivals::Wave { rate, swing, .. } => rate * (1.0 + swing),
        Arrivals::Curve { points, .. } => points.iter().map(|point| point.rate).fold(0.0, f64::max),
        Arrivals::Bursts { rate, .. } | Arrivals::Poisson { rate, .. } => *rate,
        Arrivals::Herd { .. } | Arrivals::Closed { .. } | Arrivals::Saturated { .. } => 0.0,
    }
}

/// The times of a backlog.
pub(crate) fn of_backlog(backlog: RequestBacklog, mut stream: Stream) -> impl Iterator<Item = u64> {
    let RequestBacklog { requests, at, over } = backlog;
    (0..requests).map(move |_| at + rounded(stream.unit() * over as f64).min(over))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::SECOND;

    #[test]
    fn bursts_arrive_at_their_rate_and_never_between_bursts() {
        let bursts = Arrivals::Bursts {
            rate: 100.0,
            on: 2 * SECOND,
            off: 3 * SECOND,
            idle: 0.0,
            lasts: 1000 * SECOND,
        };
        let mut stream = Stream::new(1, 1);
        let mut times = first(&bursts, &mut stream);
        while let Some(at) = next(&bursts, times[times.len() - 1], &mut stream) {
            times.push(at);
        }
        assert!(times.is_sorted());
        assert!(times.iter().all(|at| at % (5 * SECOND) < 2 * SECOND));
        // 200 bursts of 2 s: 40,000 requests, with a deviation of 200.
        assert!(times.len().abs_diff(40_000) < 4 * 200, "{}", times.len());
    }

    #[test]
    fn backlog_requests_arrive_within_their_span_or_simultaneously() {
        let backlog = |over| RequestBacklog {
            requests: 10_000,
            at: 7 * SECOND,
            over,
        };
        let stream = || Stream::new(1, 1);
        assert!(of_backlog(backlog(0), stream()).all(|at| at == 7 * SECOND));
        let times: Vec<u64> = of_backlog(backlog(2 * SECOND), stream()).collect();
        assert!(
            times
                .iter()
                .all(|at| (7 * SECOND..=9 * SECOND).contains(at))
        );
        let early = times.iter().filter(|at| **at < 8 * SECOND).count();
        assert!(early.abs_diff(5000) < 4 * 50, "{early}");
    }
}
