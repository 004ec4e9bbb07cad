//! When requests are made.

use crate::scenario::{Arrivals, Backlog, Scenario};
use crate::stream::{ARRIVALS, BACKLOG, POPULATION, Stream, rounded};

/// A request of a crowd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// When it is made, in nanoseconds from the start.
    pub at: u64,
    /// The client process that makes it, from 0.
    pub process: u32,
}

/// The requests of a [run](crate::run) with this seed, in order, to make them somewhere else. `None`
/// for clients that wait for their answers, and for stations of a medium: when they ask depends on
/// what they hear. Not for a chain, whose other layers have processes too.
///
/// ```
/// use relent_sim::{requests, scenarios};
///
/// let herd = scenarios::get("herd").expect("a scenario").load()?;
/// let requests = requests(&herd, 1).expect("a herd waits for nobody");
/// assert_eq!(requests.len(), 100);
/// assert!(requests.iter().all(|request| request.at == 0));
/// # Ok::<(), relent_sim::ScenarioError>(())
/// ```
#[must_use]
pub fn requests(scenario: &Scenario, seed: u64) -> Option<Vec<Request>> {
    let arrivals = &scenario.clients.arrivals;
    if let Arrivals::Closed { .. } | Arrivals::Saturated { .. } = arrivals {
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
        Arrivals::Poisson { .. } | Arrivals::Bursts { .. } => {
            next(arrivals, 0, stream).into_iter().collect()
        }
        // Stations of a medium, which has a loop of its own.
        Arrivals::Saturated { .. } => Vec::new(),
    }
}

/// The time of the request that follows one made, or for clients that wait one ended, at `now`;
/// `None` if there is none.
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
            lasts,
        } => {
            // On a clock that stands still between bursts they are a stream without a pause.
            let (bursts, into) = (now / (on + off), now % (on + off));
            let at = (bursts * on + into.min(on)).saturating_add(gap(rate));
            (at.saturating_add((at / on).saturating_mul(off)), lasts)
        }
        Arrivals::Herd { .. } | Arrivals::Saturated { .. } => return None,
    };
    (at < lasts).then_some(at)
}

/// The times of a backlog.
pub(crate) fn of_backlog(backlog: Backlog, mut stream: Stream) -> impl Iterator<Item = u64> {
    let Backlog { requests, at, over } = backlog;
    (0..requests).map(move |_| at + rounded(stream.unit() * over as f64).min(over))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::SECOND;

    #[test]
    fn bursts_come_at_their_rate_while_they_last_and_never_between() {
        let bursts = Arrivals::Bursts {
            rate: 100.0,
            on: 2 * SECOND,
            off: 3 * SECOND,
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
    fn a_backlog_comes_within_its_time_or_all_at_once() {
        let backlog = |over| Backlog {
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
