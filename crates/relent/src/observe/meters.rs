//! The metrics, sent to the currently installed recorder.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics::{Gauge, Key, Level, Metadata, SharedString, Unit, with_recorder};
use relent_core::destination::{BlockedBy, Budget};
use relent_core::{Failure, StopReason};

use super::{
    ATTEMPTS, BUDGET_LEFT, BY, CIRCUIT_BREAKER_CHANGES, COOLDOWNS, DESTINATION, FAILURES, HEDGES,
    HELD, HELD_BACK, HINT, KIND, METRICS, Metric, MetricKind, RATE_LIMIT, REASON, RESENDS, RETRIES,
    STATE, STOPS, TARGET, WAIT,
};
use crate::destination::BreakerState;

static METADATA: Metadata<'static> = Metadata::new(TARGET, Level::INFO, Some(module_path!()));

/// The keys without a destination label.
static UNLABELLED_KEYS: Keys = Keys {
    attempts: Key::from_static_name(ATTEMPTS.name),
    retries: Key::from_static_name(RETRIES.name),
    hedges: Key::from_static_name(HEDGES.name),
    resends: Key::from_static_name(RESENDS.name),
    budget_left: Key::from_static_name(BUDGET_LEFT.name),
    rate_limit: Key::from_static_name(RATE_LIMIT.name),
    cooldowns: Key::from_static_name(COOLDOWNS.name),
    labelled: [const { OnceLock::new() }; MAX_LABELLED_KEYS],
};

/// A destination label for the metrics of its sessions; clones share one.
///
/// Create few labels: each has its own time series. For this reason a name is never derived from an
/// address.
///
/// ```
/// use relent::observe::Label;
/// use relent::Policy;
/// use relent::clock::StdClock;
/// use relent::driver::Driver;
///
/// let payments = Label::new("payments");
/// let mut driver = Driver::builder(Policy::STANDARD, StdClock).label(payments.clone()).start();
/// let permit = driver.enter(None).permit().expect("nothing holds it back");
/// driver.on_attempt(permit);
/// assert_eq!(payments.name(), "payments");
/// ```
#[derive(Clone)]
pub struct Label(Arc<Named>);

struct Named {
    name: SharedString,
    keys: Keys,
}

/// The metric keys of one label, each made once. The facade does not reveal whether a recorder is
/// installed, so frequent metrics must be cheap to report.
struct Keys {
    attempts: Key,
    retries: Key,
    hedges: Key,
    resends: Key,
    budget_left: Key,
    rate_limit: Key,
    cooldowns: Key,
    /// Keys with a second label, in the order of their first use.
    labelled: [OnceLock<LabelledKey>; MAX_LABELLED_KEYS],
}

/// A metric, the value of its label, and the key of both.
type LabelledKey = (&'static str, &'static str, Key);
/// The number of cached keys: above the number of kinds, reasons, hint sources, states and
/// controls. Keys beyond it are made each time.
const MAX_LABELLED_KEYS: usize = 64;

impl Label {
    /// Creates a label, such as `payments`.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        let name = SharedString::from_shared(name.into());
        let key = |metric| {
            let label = metrics::Label::new(DESTINATION, name.clone());
            Key::from_parts(metric, vec![label])
        };
        let keys = Keys {
            attempts: key(ATTEMPTS.name),
            retries: key(RETRIES.name),
            hedges: key(HEDGES.name),
            resends: key(RESENDS.name),
            budget_left: key(BUDGET_LEFT.name),
            rate_limit: key(RATE_LIMIT.name),
            cooldowns: key(COOLDOWNS.name),
            labelled: [const { OnceLock::new() }; MAX_LABELLED_KEYS],
        };
        Self(Arc::new(Named { name, keys }))
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Label").field(&self.name()).finish()
    }
}

/// Registers descriptions and units of the metrics with the installed recorder. Call it once, after
/// the recorder is installed.
pub fn describe() {
    describe_metrics(&METRICS);
}

/// Registers descriptions and units of a table of metrics with the installed recorder, for crates with
/// a table of their own.
pub fn describe_metrics(metrics: &[Metric]) {
    for metric in metrics {
        let unit = match metric.unit {
            "seconds" => Unit::Seconds,
            "bytes" => Unit::Bytes,
            "attempts per second" => Unit::CountPerSecond,
            _ => Unit::Count,
        };
        let (name, unit, meaning) = (metric.name.into(), Some(unit), metric.meaning.into());
        with_recorder(|recorder| match metric.kind {
            MetricKind::Counter => recorder.describe_counter(name, unit, meaning),
            MetricKind::Gauge => recorder.describe_gauge(name, unit, meaning),
            MetricKind::Histogram => recorder.describe_histogram(name, unit, meaning),
        });
    }
}

fn keys(label: Option<&Label>) -> &Keys {
    label.map_or(&UNLABELLED_KEYS, |label| &label.0.keys)
}

fn count(key: &Key) {
    with_recorder(|recorder| recorder.register_counter(key, &METADATA).increment(1));
}

#[inline]
pub(super) fn attempt(label: Option<&Label>, number: u32) {
    let keys = keys(label);
    count(&keys.attempts);
    if number > 1 {
        count(&keys.retries);
    }
}

pub(super) fn hedge(label: Option<&Label>) {
    let keys = keys(label);
    count(&keys.attempts);
    count(&keys.hedges);
}

#[cold]
pub(super) fn resends(label: Option<&Label>, number: u32) {
    let key = &keys(label).resends;
    with_recorder(|recorder| {
        let counter = recorder.register_counter(key, &METADATA);
        counter.increment(number.into());
    });
}

#[inline]
pub(super) fn budget(label: Option<&Label>, budget: &Budget) {
    let key = &keys(label).budget_left;
    with_recorder(|recorder| {
        recorder
            .register_gauge(key, &METADATA)
            .set(budget.balance());
    });
}

/// Calls `using` with the key for this label and the destination.
fn with_key<T>(
    label: Option<&Label>,
    (metric, key, value): (&'static str, &'static str, &'static str),
    using: impl FnOnce(&Key) -> T,
) -> T {
    let make = || {
        let own = metrics::Label::from_static_parts(key, value);
        let destination = label.map(|label| metrics::Label::new(DESTINATION, label.0.name.clone()));
        let labels: Vec<_> = [Some(own), destination].into_iter().flatten().collect();
        Key::from_parts(metric, labels)
    };
    for slot in &keys(label).labelled {
        let (known, of, key) = slot.get_or_init(|| (metric, value, make()));
        if *known == metric && *of == value {
            return using(key);
        }
    }
    using(&make())
}

fn count_labelled(label: Option<&Label>, key: (&'static str, &'static str, &'static str)) {
    with_key(label, key, count);
}

#[cold]
pub(super) fn failure(label: Option<&Label>, failure: &Failure) {
    count_labelled(
        label,
        (FAILURES.name, KIND, failure.kind_of_attempt().name()),
    );
}

#[cold]
pub(super) fn wait(label: Option<&Label>, failure: &Failure, wait: Duration) {
    let hint = match failure.hint.delay() {
        Some(_) => failure.hint.source.name(),
        None => "none",
    };
    record(label, (WAIT.name, HINT, hint), wait);
}

#[cold]
pub(super) fn stop(label: Option<&Label>, reason: StopReason) {
    count_labelled(label, (STOPS.name, REASON, reason.name()));
}

pub(super) fn held(
    label: Option<&Label>,
    before: Option<BlockedBy>,
    held: Option<Duration>,
    after: Option<BlockedBy>,
) {
    let gauge = |by: BlockedBy, change: fn(&Gauge)| {
        with_key(label, (HELD_BACK.name, BY, by.name()), |key| {
            with_recorder(|recorder| change(&recorder.register_gauge(key, &METADATA)));
        });
    };
    if let Some(by) = before {
        gauge(by, |gauge| gauge.decrement(1.0));
        if let Some(held) = held {
            record(label, (HELD.name, BY, by.name()), held);
        }
    }
    if let Some(by) = after {
        gauge(by, |gauge| gauge.increment(1.0));
    }
}

/// Records a time in seconds.
fn record(label: Option<&Label>, key: (&'static str, &'static str, &'static str), time: Duration) {
    with_key(label, key, |key| {
        with_recorder(|recorder| {
            recorder
                .register_histogram(key, &METADATA)
                .record(time.as_secs_f64());
        });
    });
}

#[cold]
pub(super) fn cooldown(label: Option<&Label>) {
    count(&keys(label).cooldowns);
}

#[cold]
pub(super) fn circuit_breaker(label: Option<&Label>, state: BreakerState) {
    count_labelled(label, (CIRCUIT_BREAKER_CHANGES.name, STATE, state.name()));
}

pub(super) fn rate_limit(label: Option<&Label>, rate: f64) {
    let key = &keys(label).rate_limit;
    with_recorder(|recorder| recorder.register_gauge(key, &METADATA).set(rate));
}
