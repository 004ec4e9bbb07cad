//! A common clock for all processes, and their lag.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// The instant from which a run counts its time.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    instant: Instant,
    late: u64,
}

impl Start {
    /// The start at `wall` nanoseconds since 1970, by the clock of the machine, which all processes share. The clock
    /// is read once, so adjusting it during a run has no effect.
    #[must_use]
    pub fn at(wall: u128) -> Self {
        let now = wall_clock();
        let ahead = u64::try_from(wall.saturating_sub(now)).unwrap_or(0);
        Self {
            instant: Instant::now() + Duration::from_nanos(ahead),
            late: u64::try_from(now.saturating_sub(wall)).unwrap_or(u64::MAX),
        }
    }

    /// The nanoseconds by which this process starts later than the others, because its start command came too late.
    #[must_use]
    pub const fn late(self) -> u64 {
        self.late
    }

    /// Nanoseconds since the start; 0 before it.
    #[must_use]
    pub fn now(self) -> u64 {
        nanos(self.instant.elapsed())
    }

    /// The instant this many nanoseconds after the start.
    #[must_use]
    pub fn instant(self, nanos: u64) -> tokio::time::Instant {
        (self.instant + Duration::from_nanos(nanos)).into()
    }
}

/// Nanoseconds since 1970.
#[must_use]
pub fn wall_clock() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos())
}

/// The lag of timers behind their due times.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Lag {
    /// The 95th percentile, in nanoseconds.
    pub usual: u64,
    /// The maximum, in nanoseconds.
    pub worst: u64,
}

impl Lag {
    /// The greater lag of two processes, for each value.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            usual: self.usual.max(other.usual),
            worst: self.worst.max(other.worst),
        }
    }

    fn of(mut late: Vec<u64>) -> Self {
        late.sort_unstable();
        let at = |index: usize| late.get(index).copied().unwrap_or(0);
        Self {
            usual: at(late.len() * 95 / 100),
            worst: at(late.len().saturating_sub(1)),
        }
    }
}

/// The lag of the event loop of a process, and the part that the machine caused.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Lateness {
    /// The lag of timers of the event loop, for any reason.
    pub loops: Lag,
    /// The part that the machine caused: no processor was free.
    pub machine: Lag,
}

impl Lateness {
    /// The greater lag of two processes, for each value.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            loops: self.loops.max(other.loops),
            machine: self.machine.max(other.machine),
        }
    }
}

/// The interval of the measurements.
const TICK: Duration = Duration::from_millis(5);

/// Measures the lag of its event loop.
///
/// The machine's part is the time for which the loop's thread waited for a processor, as the kernel reports it. In
/// addition, an otherwise idle thread measures its own lag, which also shows pauses of the whole machine. So a loop
/// that blocks or computes is late, but the machine is not.
#[derive(Debug)]
pub struct Watch {
    loops: Vec<u64>,
    machine: Vec<u64>,
    /// The processor time of the process before the measurement.
    used: u64,
    /// The thread ends when this is dropped.
    stop: Sender<()>,
    thread: JoinHandle<Vec<u64>>,
}

impl Watch {
    /// Creates a measurement for a run that the process began this many nanoseconds too late.
    #[must_use]
    pub fn new(began_late: u64) -> Self {
        let (stop, stopped) = channel();
        Self {
            loops: vec![began_late],
            machine: vec![began_late],
            used: processor_time(),
            stop,
            thread: thread::spawn(move || idle(&stopped)),
        }
    }

    /// Measures until it is dropped.
    pub async fn watch(&mut self) {
        let mut due = tokio::time::Instant::now();
        let mut waited = waited_for_a_processor();
        let mut before = 0;
        loop {
            // A tick is due every 5 ms, also while the loop is blocked: each missed one counts.
            due += TICK;
            tokio::time::sleep_until(due).await;
            let late = nanos(due.elapsed());
            let so_far = waited_for_a_processor();
            let machine = match (waited, so_far) {
                (Some(waited), Some(so_far)) => {
                    machines_part(late, so_far.saturating_sub(waited), before)
                }
                // Without a report of the kernel, all of it may be the machine's.
                _ => late,
            };
            waited = so_far;
            before = machine;
            self.loops.push(late);
            self.machine.push(machine);
        }
    }

    /// Returns the measured lag, and the processor time of the process since the start, in nanoseconds.
    #[must_use]
    pub fn end(self) -> (Lateness, u64) {
        drop(self.stop);
        let idle = self.thread.join().unwrap_or_default();
        let late = Lateness {
            loops: Lag::of(self.loops),
            machine: Lag::of(self.machine).max(Lag::of(idle)),
        };
        (late, processor_time().saturating_sub(self.used))
    }
}

/// The machine's part in the lag of a tick: the thread's wait for a processor since the last tick, plus the rest of
/// the wait that delayed that one.
fn machines_part(late: u64, waited: u64, before: u64) -> u64 {
    let left = before.saturating_sub(nanos(TICK));
    late.min(waited.saturating_add(left))
}

/// Measures the lag of an idle thread.
fn idle(stopped: &Receiver<()>) -> Vec<u64> {
    let mut late = Vec::new();
    let mut due = Instant::now();
    loop {
        due += TICK;
        let ahead = due.saturating_duration_since(Instant::now());
        match stopped.recv_timeout(ahead) {
            Err(RecvTimeoutError::Timeout) => late.push(nanos(due.elapsed())),
            _ => return late,
        }
    }
}

/// The time for which this thread was ready but had no processor, in nanoseconds. `None` if the kernel does not
/// report it.
fn waited_for_a_processor() -> Option<u64> {
    let account = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    account.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The busy time of all processors since boot, including time stolen by other virtual machines. `None` if the kernel
/// does not report it.
#[must_use]
pub fn machine_time() -> Option<Duration> {
    let account = std::fs::read_to_string("/proc/stat").ok()?;
    let all = account.lines().next()?.strip_prefix("cpu ")?;
    let all: Vec<u64> = all
        .split_ascii_whitespace()
        .filter_map(|ticks| ticks.parse().ok())
        .collect();
    // user, nice, system, (idle, iowait,) irq, softirq, steal, in hundredths of a second
    let taken = [0, 1, 2, 5, 6, 7].iter().filter_map(|at| all.get(*at));
    Some(Duration::from_millis(10 * taken.sum::<u64>()))
}

/// The processor time of this process, in nanoseconds; 0 if unknown.
fn processor_time() -> u64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| {
        let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        u64::try_from(micros).unwrap_or(0).saturating_mul(1000)
    })
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lag_has_a_maximum_and_a_95th_percentile() {
        let mut late = vec![10; 960];
        late.extend([1000; 40]);
        let lag = Lag::of(late);
        assert_eq!((lag.usual, lag.worst), (10, 1000));
        assert_eq!(Lag::of(Vec::new()), Lag::default());
    }

    #[test]
    fn the_machine_lag_is_the_wait_of_the_thread_for_a_processor() {
        let ms = 1_000_000;
        assert_eq!(machines_part(60 * ms, 0, 0), 0, "the code on it blocked");
        assert_eq!(machines_part(60 * ms, 55 * ms, 0), 55 * ms);
        assert_eq!(
            machines_part(3 * ms, 9 * ms, 0),
            3 * ms,
            "not what it made up for"
        );
        // The ticks that a wait of 55 ms delayed, one after the other.
        assert_eq!(machines_part(55 * ms, 0, 55 * ms), 50 * ms);
        assert_eq!(machines_part(5 * ms, 0, 5 * ms), 0);
    }

    #[tokio::test]
    async fn a_blocked_event_loop_is_late_without_machine_lag() {
        let mut watch = Watch::new(0);
        let blocked = Duration::from_millis(300);
        tokio::select! {
            () = watch.watch() => {}
            () = async {
                tokio::time::sleep(TICK * 2).await;
                thread::sleep(blocked);
                tokio::time::sleep(TICK * 2).await;
            } => {}
        }
        assert!(
            watch
                .loops
                .iter()
                .any(|late| *late >= nanos(blocked - 2 * TICK))
        );
        // On an idle machine it has not waited at all; on a busy one not while it slept.
        let machine: Vec<_> = watch.loops.iter().zip(&watch.machine).collect();
        assert!(machine.iter().all(|(loops, machine)| machine <= loops));
        // A tick is due every 5 ms whatever happens in between.
        assert!(watch.loops.len() as u128 > blocked.as_millis() / 5);
    }

    #[test]
    fn a_late_start_command_counts_as_lag() {
        assert_eq!(Start::at(wall_clock() + 3_600_000_000_000).late(), 0);
        assert!(Start::at(wall_clock() - 1_000_000_000).late() >= 1_000_000_000);
    }

    #[test]
    fn all_processes_count_time_from_the_same_start() {
        let wall = wall_clock();
        let (one, other) = (Start::at(wall), Start::at(wall));
        let (first, second) = (one.now(), other.now());
        assert!(first.abs_diff(second) < 1_000_000_000);
        assert_eq!(
            Start::at(wall + 3_600_000_000_000).now(),
            0,
            "an hour from now"
        );
    }
}
