//! The metrics, recorded by the currently installed recorder.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics::{Key, Label, Level, Metadata, SharedString, Unit, with_recorder};
use relent_core::Criticality;

use super::{
    ADMITTED, ANSWER_BYTES, CRITICALITY, IDEMPOTENT_REQUESTS, IDEMPOTENT_WAITS, IN_FLIGHT,
    LEASE_LOST, LIMIT, NOT_VERIFIED, QUOTA, RATE_ADMITTED, RATE_LOCAL, RATE_REFUSED, REASON,
    RESOLVED, STORE_ERRORS, TARGET, TURNED_AWAY, UNKNOWN, WAIT, WAITING,
};

static METADATA: Metadata<'static> = Metadata::new(TARGET, Level::INFO, Some(module_path!()));

/// Registers descriptions and units of the metrics with the installed recorder. Call it once, after installing a
/// recorder.
pub fn describe() {
    with_recorder(|recorder| {
        let count = Some(Unit::Count);
        for (name, what) in [
            (
                RATE_ADMITTED,
                "Requests that the rate limits let in, by ticket.",
            ),
            (
                RATE_REFUSED,
                "Requests that the rate limits refused, by reason and quota.",
            ),
            (
                RATE_LOCAL,
                "Requests decided while Redis was unreachable, by the decision.",
            ),
            (ADMITTED, "Requests that got a slot, by criticality."),
            (
                TURNED_AWAY,
                "Requests that were turned away, by criticality and reason.",
            ),
            (
                IDEMPOTENT_REQUESTS,
                "What became of requests with an idempotency key, by result.",
            ),
            (
                NOT_VERIFIED,
                "Deliveries of webhooks that were not believed, by reason.",
            ),
            (
                IDEMPOTENT_WAITS,
                "Duplicates that waited for the request that ran.",
            ),
            (
                UNKNOWN,
                "Executions of which nobody knows whether they had an effect.",
            ),
            (
                RESOLVED,
                "Unknown outcomes that were resolved, by resolution.",
            ),
            (
                LEASE_LOST,
                "Executions that found that another had taken their key.",
            ),
            (
                STORE_ERRORS,
                "Calls of the store of idempotency keys that failed, by operation.",
            ),
        ] {
            recorder.describe_counter(name.into(), count, what.into());
        }
        for (name, what) in [
            (LIMIT, "Requests that may be served at once."),
            (IN_FLIGHT, "Requests that are served."),
            (WAITING, "Requests that wait for a slot."),
        ] {
            recorder.describe_gauge(name.into(), count, what.into());
        }
        let what = "How long requests waited for a slot, by criticality.";
        recorder.describe_histogram(WAIT.into(), Some(Unit::Seconds), what.into());
        let what = "The bodies of the answers that were stored.";
        recorder.describe_histogram(ANSWER_BYTES.into(), Some(Unit::Bytes), what.into());
    });
}

/// A metric name, a label and its value; empty strings for none.
type Named = (&'static str, &'static str, &'static str);

/// A cache of metric keys with more places than there are keys; without a free place a key is created for each use.
static KEYS: [OnceLock<(Named, Option<Criticality>, Key)>; 64] = [const { OnceLock::new() }; 64];

fn with_key<T>(named: Named, class: Option<Criticality>, using: impl FnOnce(&Key) -> T) -> T {
    let make = || {
        let (name, label, value) = named;
        let own = (!label.is_empty()).then(|| Label::from_static_parts(label, value));
        let class = class.map(|class| Label::from_static_parts(CRITICALITY, class.name()));
        let labels: Vec<_> = [own, class].into_iter().flatten().collect();
        Key::from_parts(name, labels)
    };
    for slot in &KEYS {
        let (known, of, key) = slot.get_or_init(|| (named, class, make()));
        if *known == named && *of == class {
            return using(key);
        }
    }
    using(&make())
}

pub(super) fn count(named: Named, class: Option<Criticality>) {
    with_key(named, class, |key| {
        with_recorder(|recorder| recorder.register_counter(key, &METADATA).increment(1));
    });
}

pub(super) fn rate_refused(reason: &'static str, quota: Option<&Arc<str>>) {
    with_recorder(|recorder| {
        let quota = quota.map_or_else(|| "".into(), |quota| SharedString::from(Arc::clone(quota)));
        let labels = vec![
            Label::from_static_parts(REASON, reason),
            Label::new(QUOTA, quota),
        ];
        let key = Key::from_parts(RATE_REFUSED, labels);
        recorder.register_counter(&key, &METADATA).increment(1);
    });
}

pub(super) fn admitted(class: Criticality, waited: Duration) {
    count((ADMITTED, "", ""), Some(class));
    if !waited.is_zero() {
        with_key((WAIT, "", ""), Some(class), |key| {
            with_recorder(|recorder| {
                let histogram = recorder.register_histogram(key, &METADATA);
                histogram.record(waited.as_secs_f64());
            });
        });
    }
}

pub(super) fn slots(limit: u32, in_flight: u32, waiting: u32) {
    static LIMITS: Key = Key::from_static_name(LIMIT);
    static SERVED: Key = Key::from_static_name(IN_FLIGHT);
    static WAIT: Key = Key::from_static_name(WAITING);
    with_recorder(|recorder| {
        for (key, value) in [(&LIMITS, limit), (&SERVED, in_flight), (&WAIT, waiting)] {
            recorder
                .register_gauge(key, &METADATA)
                .set(f64::from(value));
        }
    });
}

pub(super) fn stored(bytes: usize) {
    static KEY: Key = Key::from_static_name(ANSWER_BYTES);
    with_recorder(|recorder| {
        let histogram = recorder.register_histogram(&KEY, &METADATA);
        histogram.record(bytes as f64);
    });
}
