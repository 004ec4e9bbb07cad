//! Retry-After with reserved slots: many callers at a limit of a hundred per second, over sockets, against an axum
//! service with the admission layer. Every caller completes within 1.05 of the time that the limit needs for all,
//! plus the lag of the event loop that they share with the service. Callers that obey the Retry-After need at most
//! 2.05 attempts on average, also if a fifth of the callers do not.
//!
//! `cargo test -p relent-harness --release --test exact_time -- --ignored --nocapture` plays it with a thousand callers.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests may"
)]

use std::fs::File;
use std::io::Write;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use relent::Policy;
use relent_core::admission::LimiterConfig;
use relent_harness::agreement::{Agreement, Share, verdict_of};
use relent_harness::clock::{Lateness, Watch, machine_time};
use relent_reqwest::{Client, default_builder};
use relent_server::admission::{AdmissionLayer, Quota};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

const RATE: u32 = 100;
const BURST: u32 = 10;
/// The interval between attempts of a caller that ignores the Retry-After.
const IGNORING_INTERVAL: Duration = Duration::from_millis(50);
/// The most runs, if the machine disturbs them.
const TRIES: u32 = 3;

struct Run {
    /// The time from the first request until the last caller completes, as a multiple of the time that the limit
    /// needs for all.
    time: f64,
    /// The mean attempts of callers that obey the Retry-After.
    attempts: f64,
    late: Lateness,
    share: Share,
}

/// The service, which records the time of the first request.
fn service(first: Arc<OnceLock<Instant>>) -> Router {
    let config = LimiterConfig {
        burst: BURST,
        ..LimiterConfig::new(RATE, Duration::from_secs(1))
    };
    let admission = AdmissionLayer::new()
        .quota(Quota::new("service", config).unwrap())
        .caller(move |request| {
            first.get_or_init(Instant::now);
            Some(request.headers.get("x-caller")?.as_bytes().to_vec())
        });
    Router::new()
        .route("/", get(|| async { "served" }))
        .layer(admission)
}

/// The attempts of a caller that obeys the Retry-After.
async fn obedient_caller(http: reqwest::Client, url: String, caller: u32) -> u32 {
    let client = Client::from_client(http, Policy::STANDARD.clone());
    let response = client
        .get(url)
        .header("x-caller", caller)
        .send()
        .await
        .unwrap();
    assert!(response.status().is_success(), "{response:?}");
    response.summary().attempts
}

/// A caller that ignores the Retry-After.
async fn ignoring_caller(http: reqwest::Client, url: String, caller: u32) {
    loop {
        let response = http.get(&url).header("x-caller", caller).send().await;
        if response.is_ok_and(|response| response.status().is_success()) {
            return;
        }
        tokio::time::sleep(IGNORING_INTERVAL).await;
    }
}

/// Runs this many callers, of which one in `deaf_one_in` ignores the Retry-After.
async fn run_callers(callers: u32, deaf_one_in: u32) -> (f64, f64) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(16_384).unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let first = Arc::new(OnceLock::new());
    let service = service(Arc::clone(&first));
    let server = tokio::spawn(async move { axum::serve(listener, service).await });
    let http = default_builder().no_proxy().build().unwrap();
    let (mut obedient, mut others) = (JoinSet::new(), JoinSet::new());
    for caller in 0..callers {
        let (http, url) = (http.clone(), url.clone());
        if caller % deaf_one_in == deaf_one_in - 1 {
            others.spawn(ignoring_caller(http, url, caller));
        } else {
            obedient.spawn(obedient_caller(http, url, caller));
        }
    }
    let attempts = obedient.join_all().await;
    others.join_all().await;
    let time = first.get().unwrap().elapsed().as_secs_f64();
    server.abort();
    let mean = f64::from(attempts.iter().sum::<u32>()) / attempts.len() as f64;
    (time / ideal(callers), mean)
}

/// The seconds that the limit needs for this many callers.
fn ideal(callers: u32) -> f64 {
    f64::from(callers - BURST) / f64::from(RATE)
}

fn run(callers: u32, deaf_one_in: u32) -> Run {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (began, taken) = (Instant::now(), machine_time());
    let mut watch = Watch::new(0);
    let (time, attempts) = runtime.block_on(async {
        tokio::select! {
            done = run_callers(callers, deaf_one_in) => done,
            () = watch.watch() => panic!("it ends only when it is dropped"),
        }
    });
    let (late, used) = watch.end();
    let whole = began.elapsed().as_secs_f64()
        * std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let own = used as f64 / 1e9;
    let others = taken.zip(machine_time()).map_or(0.0, |(before, after)| {
        after.saturating_sub(before).as_secs_f64() - own
    });
    let share = Share {
        own: own / whole,
        others: others.max(0.0) / whole,
    };
    Run {
        time,
        attempts,
        late,
        share,
    }
}

/// Checks the time and the attempts of a run; repeats it while the machine disturbed it.
fn is_exact(callers: u32, deaf_one_in: u32) {
    for attempt in 1..=TRIES {
        let run = run(callers, deaf_one_in);
        let text = format!(
            "{callers} callers, one in {deaf_one_in} ignores the time: {:.3} of the ideal time, {:.3} attempts; {:?}, {:?}",
            run.time, run.attempts, run.late, run.share
        );
        eprintln!("{text}");
        // On a machine of any load: no caller is admitted too early.
        assert!(run.time >= 0.999, "{text}");
        // The callers and the service share one event loop. It is late twice: when a rejection arrives, and when its
        // wait ends.
        let late = 2.0 * run.late.loops.worst as f64 / 1e9 / ideal(callers);
        let is_exact = run.time <= 1.05 + late && run.attempts <= 2.05;
        let differs = (!is_exact).then(|| text.clone());
        match verdict_of(run.late.loops, run.late.machine, run.share, true, differs) {
            Agreement::Agrees => return,
            Agreement::Disturbed(_) if attempt < TRIES => {}
            Agreement::Disturbed(what) => return report_disturbed(&what),
            Agreement::Differs(what) => panic!("{what}"),
        }
    }
}

/// Reports that this test proves nothing, where it is visible.
fn report_disturbed(what: &str) {
    let line =
        format!("DISTURBED: exact_time: the machine was too busy in each of {TRIES} runs ({what})");
    eprintln!("{line}");
    if let Some(list) = std::env::var_os("RELENT_DISTURBED") {
        let mut list = File::options()
            .append(true)
            .create(true)
            .open(list)
            .unwrap();
        writeln!(list, "{line}").unwrap();
    }
}

#[test]
fn many_callers_are_served_at_the_rate_with_two_attempts_each() {
    is_exact(400, u32::MAX);
    is_exact(400, 5);
}

#[test]
#[ignore = "it takes half a minute"]
fn a_thousand_callers_are_served_at_the_rate_with_two_attempts_each() {
    is_exact(1000, u32::MAX);
    is_exact(1000, 5);
}
