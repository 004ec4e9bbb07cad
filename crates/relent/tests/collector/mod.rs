//! Collects the events and spans of `tracing`, and metrics.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "shared by tests that each use a part"
)]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex};

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// The fields of an event or a span, as text; the message is the field `message`.
pub type Fields = BTreeMap<&'static str, String>;

/// A span or an event.
#[derive(Clone, Debug)]
pub struct Reported {
    pub target: &'static str,
    pub name: &'static str,
    pub level: Level,
    pub fields: Fields,
    /// Whether it is a span that has ended.
    pub ended: bool,
    /// The `otel.name` of the span that contains an event, or of a span's parent.
    pub within: Option<String>,
}

/// Makes tracing ask all subscribers whether they want an event, not only that of the current
/// thread.
///
/// With a single subscriber, tracing asks that of the thread on which an event first occurs, and
/// keeps the answer. In a concurrent test that thread has none. With two permanent subscribers
/// tracing asks all.
pub fn ask_all_subscribers() {
    static OTHERS: LazyLock<[Dispatch; 2]> =
        LazyLock::new(|| [(); 2].map(|()| Dispatch::new(tracing_subscriber::registry())));
    LazyLock::force(&OTHERS);
}

#[derive(Clone, Default)]
pub struct Collector {
    events: Arc<Mutex<Vec<Reported>>>,
    spans: Arc<Mutex<Vec<(Id, Reported)>>>,
}

struct Texts<'a>(&'a mut Fields);

impl Visit for Texts<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        let own = field.name().starts_with("relent.");
        assert!(
            !own,
            "{field} = {value}: OpenTelemetry has no unsigned numbers"
        );
        self.record_debug(field, &value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Collector {
    /// Collects on this thread until the guard is dropped.
    #[must_use]
    pub fn start() -> (Self, DefaultGuard) {
        Self::start_at(LevelFilter::TRACE)
    }

    /// Like [`start`](Self::start), for a subscriber with this minimum level.
    #[must_use]
    pub fn start_at(level: LevelFilter) -> (Self, DefaultGuard) {
        ask_all_subscribers();
        let collector = Self::default();
        let subscriber = tracing_subscriber::registry()
            .with(level)
            .with(collector.clone());
        (collector, tracing::subscriber::set_default(subscriber))
    }

    pub fn events(&self) -> Vec<Reported> {
        self.events.lock().unwrap().clone()
    }

    /// The events of this project, as level and message.
    pub fn lines(&self) -> Vec<(Level, String)> {
        let events = self.events();
        let own = events
            .into_iter()
            .filter(|event| event.target.starts_with("relent"));
        own.map(|event| (event.level, event.fields["message"].clone()))
            .collect()
    }

    /// The spans of this project, in the order of their start.
    pub fn spans(&self) -> Vec<Reported> {
        let spans = self.spans.lock().unwrap();
        let all = spans.iter().map(|(_, span)| span.clone());
        all.filter(|span| span.target.starts_with("relent"))
            .collect()
    }

    /// All events and spans as one text.
    pub fn text(&self) -> String {
        format!("{:?} {:?}", self.events(), self.spans.lock().unwrap())
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Collector {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        let metadata = attributes.metadata();
        let mut told = Reported {
            target: metadata.target(),
            name: metadata.name(),
            level: *metadata.level(),
            fields: Fields::new(),
            ended: false,
            within: None,
        };
        attributes.record(&mut Texts(&mut told.fields));
        self.spans.lock().unwrap().push((id.clone(), told));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let mut spans = self.spans.lock().unwrap();
        // Ids are reused: the last span with this id is meant.
        let span = spans.iter_mut().rev().find(|(known, _)| known == id);
        if let Some((_, told)) = span {
            values.record(&mut Texts(&mut told.fields));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let spans = self.spans.lock().unwrap();
        let within = context.event_span(event).and_then(|span| {
            let mut known = spans.iter().rev();
            known.find_map(|(id, told)| (*id == span.id()).then(|| told.name.to_owned()))
        });
        drop(spans);
        let metadata = event.metadata();
        let mut told = Reported {
            target: metadata.target(),
            name: metadata.name(),
            level: *metadata.level(),
            fields: Fields::new(),
            ended: true,
            within,
        };
        event.record(&mut Texts(&mut told.fields));
        self.events.lock().unwrap().push(told);
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        let mut spans = self.spans.lock().unwrap();
        let span = spans.iter_mut().rev().find(|(known, _)| *known == id);
        if let Some((_, told)) = span {
            told.ended = true;
        }
    }
}

/// Metrics by `name{label="value"}`: counters and gauges with their current values, histograms with
/// the values recorded since the last snapshot.
pub type Measured = BTreeMap<String, Vec<f64>>;

pub fn measured(snapshotter: &Snapshotter) -> Measured {
    let metrics = snapshotter.snapshot().into_vec();
    let named = metrics.into_iter().map(|(key, _, _, value)| {
        let (name, labels) = key.key().clone().into_parts();
        let labels: Vec<_> = labels
            .iter()
            .map(|label| format!("{}={:?}", label.key(), label.value()))
            .collect();
        let name = match labels.as_slice() {
            [] => name.as_str().to_owned(),
            labels => format!("{}{{{}}}", name.as_str(), labels.join(",")),
        };
        let values = match value {
            DebugValue::Counter(count) => vec![count as f64],
            DebugValue::Gauge(value) => vec![*value],
            DebugValue::Histogram(values) => values.into_iter().map(|value| *value).collect(),
        };
        (name, values)
    });
    named.collect()
}

/// Records the metrics of this thread while `run` runs.
pub fn measure<T>(run: impl FnOnce() -> T) -> (T, Measured) {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let result = metrics::with_local_recorder(&recorder, run);
    (result, measured(&snapshotter))
}
