//! Whether a run over sockets matches the simulator, or the machine disturbed it.

use crate::clock::Lag;

/// The usual lag of an event loop, in nanoseconds, above which the run measures the loop itself. A circuit breaker
/// takes a delay of this size for a queue.
pub const BUSY_LAG_NANOS: u64 = 10_000_000;
/// A process that paused for this long, in nanoseconds, may have sent a request or a response into another phase of
/// the run. It is half of the time between two probes of a circuit breaker.
pub const PAUSE_NANOS: u64 = 250_000_000;
/// If a run takes more than this share of the machine, and more than all other processes, the run itself keeps the
/// machine busy.
pub const OWN_SHARE: f64 = 0.05;

/// The shares of the processors' time during a run, each from 0 to 1.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Share {
    /// The processes of the run.
    pub own: f64,
    /// All other processes; 0 if unknown.
    pub others: f64,
}

/// The result of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Agreement {
    /// The run could be a simulated one.
    Agrees,
    /// It could not, and only the project can be the reason.
    Differs(String),
    /// It could not, but the machine disturbed it, so it proves nothing.
    Disturbed(String),
}

/// Whether other processes disturbed a run. Only measurements of the machine decide this, never the results of the
/// run.
#[must_use]
pub fn disturbed(machine: Lag, share: Share) -> bool {
    let by_itself = share.own > OWN_SHARE && share.own > share.others;
    !by_itself && (machine.usual > BUSY_LAG_NANOS || machine.worst > PAUSE_NANOS)
}

/// The verdict on a run, from the lag of its event loops and of the machine, and its difference to the simulation.
///
/// Event loops that are usually late although the machine is not are a difference of their own: the simulator has no
/// blocking code. A `herd` is exempt, since its clients all start simultaneously and keep their loops busy at the
/// start.
#[must_use]
pub fn verdict_of(
    loops: Lag,
    machine: Lag,
    share: Share,
    herd: bool,
    differs: Option<String>,
) -> Agreement {
    match (differs, disturbed(machine, share)) {
        (Some(what), true) => Agreement::Disturbed(what),
        (Some(what), false) => Agreement::Differs(what),
        (None, false) if loops.usual > BUSY_LAG_NANOS && !herd => {
            Agreement::Differs("event loops are late, and others are not the reason".to_owned())
        }
        (None, _) => Agreement::Agrees,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON_TIME: Lag = Lag {
        usual: BUSY_LAG_NANOS,
        worst: PAUSE_NANOS,
    };
    const LATE: Lag = Lag {
        usual: BUSY_LAG_NANOS + 1,
        worst: PAUSE_NANOS,
    };
    const STOOD_STILL: Lag = Lag {
        usual: 0,
        worst: PAUSE_NANOS + 1,
    };
    const SHARED: Share = Share {
        own: 0.1,
        others: 0.8,
    };

    #[test]
    fn only_measured_lag_decides_whether_a_run_was_disturbed() {
        let what = || "1.96 attempts".to_owned();
        for (machine, verdict) in [
            (ON_TIME, Agreement::Differs(what())),
            (LATE, Agreement::Disturbed(what())),
            (STOOD_STILL, Agreement::Disturbed(what())),
        ] {
            assert_eq!(disturbed(machine, SHARED), machine != ON_TIME);
            for herd in [false, true] {
                let judged = |differs| verdict_of(machine, machine, SHARED, herd, differs);
                assert_eq!(judged(Some(what())), verdict);
                assert_eq!(judged(None), Agreement::Agrees);
            }
        }
    }

    #[test]
    fn a_late_event_loop_on_a_punctual_machine_is_a_difference() {
        assert!(matches!(
            verdict_of(LATE, ON_TIME, SHARED, false, None),
            Agreement::Differs(_)
        ));
        for herd in [false, true] {
            let differs = verdict_of(LATE, ON_TIME, SHARED, herd, Some("goodput".to_owned()));
            assert_eq!(differs, Agreement::Differs("goodput".to_owned()));
        }
        let herd = verdict_of(LATE, ON_TIME, SHARED, true, None);
        assert_eq!(herd, Agreement::Agrees);
    }

    #[test]
    fn a_run_that_keeps_the_machine_busy_itself_is_not_disturbed() {
        for (own, others, by_itself) in [
            (0.9, 0.0, true),
            (0.2, 0.1, true),
            (0.2, 0.7, false),
            // It paused for another reason than a lack of processor time.
            (0.02, 0.0, false),
        ] {
            assert_eq!(disturbed(LATE, Share { own, others }), !by_itself);
        }
    }
}
