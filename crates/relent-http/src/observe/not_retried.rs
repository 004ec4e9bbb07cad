//! Warns, once per process, about a request that other libraries would have retried.

use std::sync::atomic::{AtomicBool, Ordering};

use relent_core::StopReason;

/// Logs that a call ends without a retry that other libraries would make. Only the first of each kind is logged.
#[inline]
pub fn not_retried(reason: StopReason) {
    static NOT_REPEATABLE: AtomicBool = AtomicBool::new(false);
    static NOT_REPLAYABLE: AtomicBool = AtomicBool::new(false);
    let (logged, why) = match reason {
        StopReason::NotRepeatable => (
            &NOT_REPEATABLE,
            "a request was not retried: it may have taken effect, and its method is not idempotent. Other \
             libraries repeat such a request. Give it an idempotency key, or declare it repeatable",
        ),
        StopReason::NotReplayable => (
            &NOT_REPLAYABLE,
            "a request was not retried: its body is a stream that was not kept to its end. Send bytes, a file, \
             or a body that can be made again, or raise the cap of the bytes that are kept",
        ),
        _ => return,
    };
    if !logged.swap(true, Ordering::Relaxed) {
        tracing::warn!(target: "relent_http", { relent.reason = reason.name() }, "{why}. This is logged once");
    }
}
