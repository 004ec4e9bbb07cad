//! The metrics, recorded by the currently installed recorder.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics::{Key, Label, Level, Metadata, SharedString, with_recorder};
use relent::observe::MetricKind;
use relent_core::Criticality;

use super::{
    ADMITTED, ANSWER_BYTES, CRITICALITY, IN_FLIGHT, LIMIT, METRICS, QUOTA, RATE_REJECTED, REASON,
    TARGET, WAIT, WAITING,
};

static METADATA: Metadata<'static> = Metadata::new(TARGET, Level::INFO, Some(module_path!()));

/// Registers descriptions and units of the metrics with the installed recorder, and each counter without labels with the
/// value 0. Call it once, after installing a recorder.
pub fn describe() {
    relent::observe::describe_metrics(&METRICS);
    start_counters();
}

/// Sets each counter without labels to 0, so that `increase()` of PromQL sees its first event.
pub(super) fn start_counters() {
    for metric in METRICS {
        if metric.kind == MetricKind::Counter && metric.labels.is_empty() {
            let key = Key::from_static_name(metric.name);
            with_recorder(|recorder| recorder.register_counter(&key, &METADATA).increment(0));
        }
    }
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

pub(super) fn rate_rejected(reason: &'static str, quota: Option<&Arc<str>>) {
    with_recorder(|recorder| {
        let quota = quota.map_or_else(|| "".into(), |quota| SharedString::from(Arc::clone(quota)));
        let labels = vec![
            Label::from_static_parts(REASON, reason),
            Label::new(QUOTA, quota),
        ];
        let key = Key::from_parts(RATE_REJECTED.name, labels);
        recorder.register_counter(&key, &METADATA).increment(1);
    });
}

pub(super) fn admitted(class: Criticality, waited: Duration) {
    count((ADMITTED.name, "", ""), Some(class));
    if !waited.is_zero() {
        with_key((WAIT.name, "", ""), Some(class), |key| {
            with_recorder(|recorder| {
                let histogram = recorder.register_histogram(key, &METADATA);
                histogram.record(waited.as_secs_f64());
            });
        });
    }
}

pub(super) fn slots(limit: u32, in_flight: u32, waiting: u32) {
    static LIMITS: Key = Key::from_static_name(LIMIT.name);
    static SERVED: Key = Key::from_static_name(IN_FLIGHT.name);
    static WAIT: Key = Key::from_static_name(WAITING.name);
    with_recorder(|recorder| {
        for (key, value) in [(&LIMITS, limit), (&SERVED, in_flight), (&WAIT, waiting)] {
            recorder
                .register_gauge(key, &METADATA)
                .set(f64::from(value));
        }
    });
}

pub(super) fn stored(bytes: usize) {
    static KEY: Key = Key::from_static_name(ANSWER_BYTES.name);
    with_recorder(|recorder| {
        let histogram = recorder.register_histogram(&KEY, &METADATA);
        histogram.record(bytes as f64);
    });
}
