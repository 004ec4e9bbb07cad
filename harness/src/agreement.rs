//! Whether a run over sockets is what the simulator says, or was disturbed.

use crate::clock::Lag;

/// An event loop that is usually later than this, in nanoseconds, measures itself. It is what a gate takes
/// for a queue.
pub const BUSY: u64 = 10_000_000;
/// A process that stood still for so long, in nanoseconds, may have sent a request or an answer into
/// another phase of the run: half of the time between two probes of a gate.
pub const STALL: u64 = 250_000_000;
/// A run that takes more than this share of the machine, and more than all others, is itself what keeps the
/// machine busy.
pub const OWN: f64 = 0.05;

/// Who took how much of the processors' time during a run, each from 0 to 1.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Share {
    /// The processes of the run.
    pub own: f64,
    /// Everybody else; 0 where it is not known.
    pub others: f64,
}

/// What a run says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Agreement {
    /// It is one that the simulator might have given.
    Agrees,
    /// It is not, and nothing but the project is the reason.
    Differs(String),
    /// It is not, but the machine disturbed it: nothing can be said.
    Disturbed(String),
}

/// Whether others on the machine disturbed a run: only what was measured of the machine decides, never
/// what the run came to.
#[must_use]
pub fn disturbed(machine: Lag, share: Share) -> bool {
    let by_itself = share.own > OWN && share.own > share.others;
    !by_itself && (machine.usual > BUSY || machine.worst > STALL)
}

/// The verdict on a run whose event loops and machine were so late, and that differs in this from what was
/// simulated.
///
/// Event loops that are usually late although the machine was not are a difference of their own: the
/// simulator knows no code that blocks. But not in a `herd`, whose clients all begin at once: that keeps their
/// loops busy at the start.
#[must_use]
pub fn judge(
    loops: Lag,
    machine: Lag,
    share: Share,
    herd: bool,
    differs: Option<String>,
) -> Agreement {
    match (differs, disturbed(machine, share)) {
        (Some(what), true) => Agreement::Disturbed(what),
        (Some(what), false) => Agreement::Differs(what),
        (None, false) if loops.usual > BUSY && !herd => {
            Agreement::Differs("event loops are late, and others are not the reason".to_owned())
        }
        (None, _) => Agreement::Agrees,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON_TIME: Lag = Lag {
        usual: BUSY,
        worst: STALL,
    };
    const LATE: Lag = Lag {
        usual: BUSY + 1,
        worst: STALL,
    };
    const STOOD_STILL: Lag = Lag {
        usual: 0,
        worst: STALL + 1,
    };
    const SHARED: Share = Share {
        own: 0.1,
        others: 0.8,
    };

    #[test]
    fn measured_lateness_alone_decides_whether_a_run_was_disturbed() {
        let what = || "1.96 attempts".to_owned();
        for (machine, verdict) in [
            (ON_TIME, Agreement::Differs(what())),
            (LATE, Agreement::Disturbed(what())),
            (STOOD_STILL, Agreement::Disturbed(what())),
        ] {
            assert_eq!(disturbed(machine, SHARED), machine != ON_TIME);
            for herd in [false, true] {
                let judged = |differs| judge(machine, machine, SHARED, herd, differs);
                assert_eq!(judged(Some(what())), verdict);
                assert_eq!(judged(None), Agreement::Agrees);
            }
        }
    }

    #[test]
    fn a_loop_that_is_late_on_a_machine_that_is_not_is_a_difference() {
        assert!(matches!(
            judge(LATE, ON_TIME, SHARED, false, None),
            Agreement::Differs(_)
        ));
        for herd in [false, true] {
            let differs = judge(LATE, ON_TIME, SHARED, herd, Some("goodput".to_owned()));
            assert_eq!(differs, Agreement::Differs("goodput".to_owned()));
        }
        let herd = judge(LATE, ON_TIME, SHARED, true, None);
        assert_eq!(herd, Agreement::Agrees);
    }

    #[test]
    fn who_keeps_the_machine_busy_himself_was_not_disturbed() {
        for (own, others, by_itself) in [
            (0.9, 0.0, true),
            (0.2, 0.1, true),
            (0.2, 0.7, false),
            // Whatever stood still, it was not for want of a processor that the run took.
            (0.02, 0.0, false),
        ] {
            assert_eq!(disturbed(LATE, Share { own, others }), !by_itself);
        }
    }
}
