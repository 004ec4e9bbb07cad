//! Tests of metrics and events.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{Full, StreamBody};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use relent::observe::MetricKind;
use relent_core::admission::{ConcurrencyConfig, ConcurrencyLimiterConfig, LimiterConfig};
use relent_core::idempotency::{ClaimConfig, Fingerprint, Lease};
use relent_server::ServerLayer;
use relent_server::admission::{AdmissionLayer, Quota};
use relent_server::idempotency::{Body, IdempotencyLayer};
use relent_server::observe::{METRICS, RESOLVED, UNKNOWN};
use relent_server::overload::OverloadLayer;
use relent_server::store::{
    Change, Claimed, Key, Memory, Resolution, ResolveError, Store, StoredResponse, UnknownOutcome,
    WriteError,
};
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};
use tracing_subscriber::layer::SubscriberExt;

use crate::collector::ask_all_subscribers;

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A store that fails while the flag is set.
struct Failing(Memory, Mutex<bool>);

impl Store for Failing {
    type Error = std::io::Error;

    async fn claim(
        &self,
        key: &Key,
        owner: u128,
        fingerprint: Fingerprint,
        config: &ClaimConfig,
    ) -> Result<Claimed, Self::Error> {
        if *self.1.lock().unwrap() {
            return Err(std::io::Error::other("secret"));
        }
        let claimed = self.0.claim(key, owner, fingerprint, config).await;
        claimed.map_err(std::io::Error::other)
    }

    async fn write(
        &self,
        key: &Key,
        lease: &Lease,
        change: Change,
        config: &ClaimConfig,
    ) -> Result<Lease, WriteError<Self::Error>> {
        let written = self.0.write(key, lease, change, config).await;
        written.map_err(|error| match error {
            WriteError::Lost => WriteError::Lost,
            WriteError::Gone => WriteError::Gone,
            WriteError::Store(error) => WriteError::Store(std::io::Error::other(error)),
        })
    }

    async fn find_unknown(
        &self,
        after: Option<&UnknownOutcome>,
        most: usize,
        config: &ClaimConfig,
    ) -> Result<Vec<UnknownOutcome>, Self::Error> {
        self.0
            .find_unknown(after, most, config)
            .await
            .map_err(std::io::Error::other)
    }

    async fn resolve(
        &self,
        found: &UnknownOutcome,
        resolution: Resolution,
        config: &ClaimConfig,
    ) -> Result<(), ResolveError<Self::Error>> {
        self.0
            .resolve(found, resolution, config)
            .await
            .map_err(|error| match error {
                ResolveError::Refused(why) => ResolveError::Refused(why),
                ResolveError::Store(error) => ResolveError::Store(std::io::Error::other(error)),
            })
    }

    async fn remove_expired(&self, _: usize) -> Result<usize, Self::Error> {
        Ok(0)
    }
}

/// Records each event as a line.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl<S: tracing_subscriber::registry::LookupSpan<'static> + tracing::Subscriber>
    tracing_subscriber::Layer<S> for Lines
{
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        struct Visit(String);
        impl tracing::field::Visit for Visit {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                write!(self.0, " {field}={value:?}").unwrap();
            }
        }
        if event.metadata().target() == "relent" {
            let mut visit = Visit(event.metadata().level().to_string());
            event.record(&mut visit);
            self.0.lock().unwrap().push(visit.0);
        }
    }
}

async fn handle(request: Request<Body<Full<Bytes>>>) -> Result<Response<Full<Bytes>>, Infallible> {
    let fails = request.headers().contains_key("x-fails");
    drop(request);
    sleep(Duration::from_millis(100)).await;
    let mut response = Response::new(Full::from("paid"));
    if fails {
        *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
    }
    Ok(response)
}

/// One runtime and one thread, because recorder and subscriber are per thread.
#[test]
fn every_response_is_counted_and_important_events_are_emitted() {
    let (recorder, lines) = (DebuggingRecorder::new(), Lines::default());
    let snapshotter = recorder.snapshotter();
    ask_all_subscribers();
    let subscriber = tracing_subscriber::registry().with(lines.clone());
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    tracing::subscriber::with_default(subscriber, || {
        metrics::with_local_recorder(&recorder, || runtime.block_on(play()));
    });
    let mut metrics = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let key = key.key();
        // Calls of `relent` itself are counted if another crate enables that.
        if !key.name().starts_with("relent_server_") {
            continue;
        }
        let labels = key.labels().map(|label| format!(" {}", label.value()));
        let name = format!("{}{}", key.name(), labels.collect::<String>());
        let value = match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Gauge(value) => value.into_inner(),
            DebugValue::Histogram(values) => values.iter().map(|value| value.into_inner()).sum(),
        };
        metrics.insert(name, value);
    }
    let expected = [
        ("relent_server_admitted_total CRITICAL", 7.0),
        ("relent_server_admitted_total SHEDDABLE", 1.0),
        ("relent_server_answer_bytes", 4.0),
        ("relent_server_concurrency_limit", 2.0),
        ("relent_server_in_flight", 0.0),
        (
            "relent_server_idempotent_requests_total idempotency-key-reused",
            1.0,
        ),
        (
            "relent_server_idempotent_requests_total idempotency-outcome-unknown",
            1.0,
        ),
        (
            "relent_server_idempotent_requests_total idempotency-store-failed",
            1.0,
        ),
        ("relent_server_idempotent_requests_total replayed", 2.0),
        ("relent_server_idempotent_requests_total run", 2.0),
        ("relent_server_idempotent_waits_total", 1.0),
        ("relent_server_lease_lost_total", 0.0),
        ("relent_server_outcome_unknown_total", 1.0),
        ("relent_server_store_errors_total claim", 1.0),
        ("relent_server_shed_total do_not_retry SHEDDABLE", 1.0),
        ("relent_server_shed_total expired CRITICAL", 1.0),
        ("relent_server_shed_total overloaded CRITICAL", 1.0),
        ("relent_server_waiting", 0.0),
    ];
    let expected: BTreeMap<_, _> = expected
        .map(|(name, value)| (name.to_owned(), value))
        .into();
    assert_eq!(metrics, expected);

    let lines = lines.0.lock().unwrap().clone();
    let has = |level: &str, text: &str| {
        let is = |line: &&String| line.starts_with(level) && line.contains(text);
        assert_eq!(lines.iter().filter(is).count(), 1, "{text}: {lines:#?}");
    };
    has("WARN", "http.response.status_code=500");
    has("ERROR", "relent.operation=\"claim\"");
    let replays = lines.iter().filter(|line| line.contains("was replayed"));
    assert!(replays.clone().count() == 2 && replays.clone().all(|line| line.contains(TRACE)));
    assert!(!lines.iter().any(|line| line.contains("secret")));
}

/// Otherwise an alert on `increase()` misses the first unknown outcome of a process.
#[test]
fn each_counter_without_labels_is_zero_from_the_start() {
    let create_layer = || drop(IdempotencyLayer::anonymous(Memory::new()));
    for start in [create_layer, relent_server::observe::describe] {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        metrics::with_local_recorder(&recorder, start);
        let counted = snapshotter.snapshot().into_vec().into_iter();
        let counted: BTreeMap<_, _> = counted
            .map(|(key, _, _, value)| (key.key().name().to_owned(), value))
            .collect();
        for metric in METRICS {
            if metric.kind == MetricKind::Counter && metric.labels.is_empty() {
                assert_eq!(counted[metric.name], DebugValue::Counter(0));
            }
        }
        assert!(counted.contains_key(UNKNOWN.name));
    }
}

#[test]
fn each_resolution_is_counted_and_reported() {
    let (recorder, lines) = (DebuggingRecorder::new(), Lines::default());
    let snapshotter = recorder.snapshotter();
    ask_all_subscribers();
    let subscriber = tracing_subscriber::registry().with(lines.clone());
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().build().unwrap();
    let resolve = async {
        let (key, print) = (Key([1; 32]), Fingerprint([0; 32]));
        let lost = ClaimConfig {
            lease: Duration::from_nanos(1),
            ..ClaimConfig::DEFAULT
        };
        let layer = IdempotencyLayer::anonymous(Memory::new())
            .claim(lost)
            .unwrap();
        layer.store().claim(&key, 1, print, &lost).await.unwrap();
        let outcomes = layer.unknown_outcomes();
        let found = outcomes.find(None, 1).await.unwrap()[0];
        let answer =
            StoredResponse::from_parts(http::StatusCode::OK, http::HeaderMap::new(), None, None);
        let applied = Resolution::Applied(Arc::new(answer));
        outcomes
            .resolve(&found, Resolution::NotApplied)
            .await
            .unwrap();
        outcomes.resolve(&found, applied).await.unwrap_err();
    };
    tracing::subscriber::with_default(subscriber, || {
        metrics::with_local_recorder(&recorder, || runtime.block_on(resolve));
    });
    let counts = snapshotter.snapshot().into_vec().into_iter();
    let mut counts = counts.filter(|(_, _, _, value)| *value != DebugValue::Counter(0));
    let (key, _, _, value) = counts.next().unwrap();
    let labels: Vec<_> = key.key().labels().map(metrics::Label::value).collect();
    assert_eq!(
        (key.key().name(), &labels[..], value),
        (RESOLVED.name, &["not_applied"][..], DebugValue::Counter(1))
    );
    assert!(counts.next().is_none());
    let lines = lines.0.lock().unwrap();
    let [line] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert!(
        line.starts_with("INFO") && line.contains("relent.resolution=\"not_applied\""),
        "{line}"
    );
}

#[test]
fn rate_limit_decisions_are_counted_by_quota() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    let config = LimiterConfig {
        burst: 1,
        ..LimiterConfig::new(1, Duration::from_secs(1))
    };
    let layer = AdmissionLayer::new()
        .quota(Quota::new("service", config).unwrap())
        .cost(|parts| if parts.uri.path() == "/dear" { 9 } else { 1 });
    let asks = [("/", "9"), ("/", "9"), ("/dear", "9"), ("/", "0")];
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            for (path, left) in asks {
                let request = Request::get(path).header("relent-deadline-ms", left);
                let request = request.body(Full::<Bytes>::default()).unwrap();
                let handler =
                    |_| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) };
                drop(layer.layer(service_fn(handler)).oneshot(request).await);
            }
        });
    });
    let mut counts = Vec::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let key = key.key();
        let labels: Vec<_> = key.labels().map(|label| label.value().to_owned()).collect();
        counts.push((key.name().to_owned(), labels, value));
    }
    counts.sort_by_key(|(name, labels, _)| (name.clone(), labels.clone()));
    let expected = [
        ("relent_server_rate_admitted_total", ["false"].as_slice()),
        ("relent_server_rate_rejected_total", &["expired", ""]),
        ("relent_server_rate_rejected_total", &["limited", "service"]),
        (
            "relent_server_rate_rejected_total",
            &["too_costly", "service"],
        ),
    ];
    assert_eq!(counts.len(), expected.len(), "{counts:?}");
    for ((name, labels, value), (counter, of)) in counts.iter().zip(expected) {
        assert_eq!((name.as_str(), &labels.join(" ")), (counter, &of.join(" ")));
        assert_eq!(*value, DebugValue::Counter(1), "{name} {labels:?}");
    }
}

/// Returns the counts during the run, by name and labels.
fn counted(play: impl Future<Output = ()>) -> BTreeMap<String, u64> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    metrics::with_local_recorder(&recorder, || runtime.block_on(play));
    let snapshot = snapshotter.snapshot().into_vec();
    let counts = snapshot.into_iter().filter_map(|(key, _, _, value)| {
        let labels = key
            .key()
            .labels()
            .map(|label| format!(" {}", label.value()));
        let name = format!("{}{}", key.key().name(), labels.collect::<String>());
        match value {
            DebugValue::Counter(count) if count > 0 && name.starts_with("relent_server_") => {
                Some((name, count))
            }
            _ => None,
        }
    });
    counts.collect()
}

#[cfg(feature = "redis")]
#[test]
fn local_rate_limit_decisions_are_counted() {
    use relent_server::admission::RedisLimits;

    let counts = counted(async {
        let client = || redis::Client::open("redis+unix:///nowhere/at/all").unwrap();
        let fleets = [
            RedisLimits::open(client()),
            RedisLimits::closed(client()),
            RedisLimits::local(client(), 2),
        ];
        for fleet in fleets {
            let config = LimiterConfig {
                burst: 1,
                ..LimiterConfig::new(1, Duration::from_secs(1))
            };
            let layer =
                AdmissionLayer::redis_limits(fleet).quota(Quota::new("service", config).unwrap());
            for _ in 0..2 {
                let request = Request::new(Full::<Bytes>::default());
                let handler =
                    |_| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) };
                drop(layer.layer(service_fn(handler)).oneshot(request).await);
            }
        }
    });
    let expected = [
        ("relent_server_rate_admitted_total false", 3),
        ("relent_server_rate_local_total closed", 2),
        ("relent_server_rate_local_total local", 2),
        ("relent_server_rate_local_total open", 2),
        ("relent_server_rate_rejected_total redis_down ", 2),
        ("relent_server_rate_rejected_total limited service", 1),
    ];
    let expected = expected.map(|(name, count)| (name.to_owned(), count));
    assert_eq!(counts, expected.into());
}

#[test]
fn a_rejection_after_an_upload_is_counted_by_the_overload_layer() {
    let counts = counted(async {
        tokio::time::pause();
        let config = ConcurrencyLimiterConfig {
            concurrency: ConcurrencyConfig::fixed(1),
            queue: 0,
            ..ConcurrencyLimiterConfig::DEFAULT
        };
        let layer = ServerLayer::new(IdempotencyLayer::anonymous(Memory::new()));
        let layer = layer.overload(OverloadLayer::new(&config).unwrap());
        let upload = |key, millis| {
            let body = async move {
                sleep(Duration::from_millis(millis)).await;
                Ok::<_, Infallible>(Frame::data(Bytes::from("5 EUR")))
            };
            let body = StreamBody::new(Box::pin(stream::once(body)));
            let request = Request::post("/pay").header("idempotency-key", key);
            let handler = service_fn(async |_: Request<Body<_>>| {
                sleep(Duration::from_millis(100)).await;
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
            });
            layer.layer(handler).oneshot(request.body(body).unwrap())
        };
        let _ = tokio::join!(upload("a", 20), upload("b", 10));
    });
    let expected = [
        ("relent_server_admitted_total CRITICAL", 2),
        (
            "relent_server_idempotent_requests_total idempotency-busy",
            1,
        ),
        ("relent_server_idempotent_requests_total run", 1),
        ("relent_server_shed_total overloaded CRITICAL", 1),
    ];
    let expected = expected.map(|(name, count)| (name.to_owned(), count));
    assert_eq!(counts, expected.into());
}

#[cfg(feature = "sqlite")]
#[test]
fn transactional_requests_are_counted() {
    use relent_server::store::Sqlite;
    use relent_server::transactional::{Transactional, WorkError};

    let directory = tempfile::tempdir().unwrap();
    let store = Sqlite::open(directory.path().join("keys.db")).unwrap();
    let counts = counted(async {
        let layer = IdempotencyLayer::anonymous(store).transactional();
        let handler = service_fn(async |request: Request<Body<Full<Bytes>>>| {
            let once = request.extensions().get::<Transactional<Sqlite>>().unwrap();
            let fails = request.headers().contains_key("x-fails");
            let done = once.run(move |_| match fails {
                true => Err(WorkError::from("no funds")),
                false => Ok(Response::new("done")),
            });
            let failed = |_| {
                Response::builder()
                    .status(500)
                    .body(Full::default())
                    .unwrap()
            };
            Ok::<_, Infallible>(done.await.unwrap_or_else(failed))
        });
        let ask = async |key: &str, more: &'static str| {
            let request = Request::post("/pay").header("idempotency-key", key);
            let request = request.header(more, "1").body(Full::default()).unwrap();
            drop(layer.layer(handler).oneshot(request).await);
        };
        ask("a", "x-fails").await;
        ask("a", "x-more").await;
        ask("a", "x-more").await;
        ask("a", "content-type").await;
    });
    let expected = [
        (
            "relent_server_idempotent_requests_total idempotency-key-reused",
            1,
        ),
        ("relent_server_idempotent_requests_total replayed", 1),
        ("relent_server_idempotent_requests_total run", 2),
    ];
    let expected = expected.map(|(name, count)| (name.to_owned(), count));
    assert_eq!(counts, expected.into());
}

async fn play() {
    let config = ConcurrencyLimiterConfig {
        concurrency: ConcurrencyConfig::fixed(2),
        queue: 0,
        ..ConcurrencyLimiterConfig::DEFAULT
    };
    let idempotency = IdempotencyLayer::anonymous(Failing(Memory::new(), Mutex::default()));
    let layer = ServerLayer::new(idempotency.clone());
    let layer = layer.overload(OverloadLayer::new(&config).unwrap());
    let ask = |fields: &[(&'static str, &str)]| {
        let mut request = Request::post("/pay").body(Full::default()).unwrap();
        for (name, value) in fields {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        layer.layer(service_fn(handle)).oneshot(request)
    };
    let key = |key| ("idempotency-key", key);
    // One request runs, a duplicate waits without a slot, another request holds the slot, and the rest get none.
    let duplicate = async {
        sleep(Duration::from_millis(10)).await;
        ask(&[key("a")]).await.map(drop)
    };
    let others = async {
        sleep(Duration::from_millis(20)).await;
        let last = async {
            sleep(Duration::from_millis(10)).await;
            drop(ask(&[]).await);
            let told = [
                ("relent-histogram", "0,9"),
                ("relent-criticality", "SHEDDABLE"),
            ];
            drop(ask(&told).await);
            drop(ask(&[("relent-deadline-ms", "0")]).await);
        };
        let batch = async { ask(&[("relent-criticality", "SHEDDABLE")]).await.map(drop) };
        tokio::join!(batch, last)
    };
    let first = async { ask(&[key("a"), ("traceparent", TRACE)]).await.map(drop) };
    let _ = tokio::join!(first, duplicate, others);
    let again = ask(&[key("a")]).await.unwrap();
    assert!(!again.headers().contains_key("relent-original-traceparent"));
    drop(again);
    drop(ask(&[key("a"), ("content-type", "text/plain")]).await);
    drop(ask(&[key("b"), ("x-fails", "1")]).await);
    drop(ask(&[key("b"), ("x-fails", "1")]).await);
    *idempotency.store().1.lock().unwrap() = true;
    drop(ask(&[key("c")]).await);
}
