//! The rules of the circuit breaker, by name. docs/spec/circuit-breaker.md has their table.
//!
//! With the feature `ablation`, a test switches one rule off for the whole process, and shows what gets
//! worse. Without it, every rule is on, and the compiler removes the switch.

#[cfg(feature = "ablation")]
use core::sync::atomic::{AtomicU64, Ordering};

/// One bit for each rule that is off.
#[cfg(feature = "ablation")]
static OFF: AtomicU64 = AtomicU64::new(0);

macro_rules! rules {
    ($($rule:ident),+ $(,)?) => {
        /// A rule of the circuit breaker.
        #[allow(missing_docs, reason = "docs/spec/circuit-breaker.md describes them")]
        #[cfg_attr(not(feature = "ablation"), allow(unreachable_pub, reason = "public for a test"))]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum BreakerRule { $($rule),+ }

        #[cfg(feature = "ablation")]
        impl BreakerRule {
            /// All rules.
            pub const ALL: &[Self] = &[$(Self::$rule),+];
        }
    };
}

rules! {
    BaselineShare,
    Chance,
    CheapLoss,
    FallBack,
    FastSuccess,
    Flapping,
    FreeProbe,
    HalvedStep,
    HoldBack,
    KeptDemand,
    KnownAfterAMinute,
    LateAttempt,
    LearnWhileLimited,
    LoneTimeout,
    LossAfterFalseAlarm,
    LossIsNoSilence,
    LowTraffic,
    MostlyRejected,
    OneInTwenty,
    Overload,
    OverloadMemory,
    PacketLoss,
    Pause,
    ProbePace,
    ProbeSpacing,
    QueuedDemand,
    Ratio,
    Relearn,
    Replace,
    RoundTrip,
    Silence,
    SilenceOfRequests,
    SlowFailure,
    SlowSuccess,
    Spread,
    SpreadLater,
    TwoTimeouts,
    UnpaidProbe,
    Weight,
}

impl BreakerRule {
    /// Whether the rule applies.
    #[inline]
    pub(crate) fn is_on(self) -> bool {
        #[cfg(feature = "ablation")]
        return OFF.load(Ordering::Relaxed) & 1 << self as u64 == 0;
        #[cfg(not(feature = "ablation"))]
        return true;
    }

    /// Switches this rule off, and all others on.
    #[cfg(feature = "ablation")]
    pub fn switch_off_only(self) {
        OFF.store(1 << self as u64, Ordering::Relaxed);
    }

    /// Switches all rules on.
    #[cfg(feature = "ablation")]
    pub fn switch_all_on() {
        OFF.store(0, Ordering::Relaxed);
    }
}
