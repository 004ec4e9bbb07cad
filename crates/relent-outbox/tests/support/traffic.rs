//! Servers with an API and a worker, and changes of an endpoint under traffic.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine;
use relent_http::webhook::{Verifier, VerifyingKey};
use relent_outbox::api::{Api, Token};
use relent_outbox::guard::AddressGuard;
use relent_outbox::message::NewMessage;
use relent_outbox::secrets::Secrets;
use relent_outbox::store::{Postgres, Store};
use relent_outbox::worker::{Worker, WorkerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::servers;
use crate::support::{self, Hit, Receiver, Reply, local_sender, ok};

const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
/// The number of changes of the endpoint.
const CHANGES: usize = 5;

/// The signing key of a change.
fn secret(change: usize) -> String {
    let key = [u8::try_from(change).unwrap(); 24];
    let key = base64::engine::general_purpose::STANDARD.encode(key);
    format!("whsec_{key}")
}

/// Starts a server: the API, and a worker, to which `change` may give a relay.
pub(crate) async fn serve<S: Store>(
    store: S,
    token: &Token,
    change: impl FnOnce(Worker<S>) -> Worker<S>,
    tasks: &mut JoinSet<()>,
) -> SocketAddr {
    let secrets = || Secrets::with_key(KEY).unwrap();
    let worker = change(Worker::new(
        store.clone(),
        local_sender(),
        secrets(),
        WorkerConfig::default(),
    ));
    let api = Api::new(store, secrets(), token.clone())
        .guard(AddressGuard::new().allow("127.0.0.0/8".parse().unwrap()))
        .allow_http(true)
        .hint(worker.hint());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        let _ = worker.run(std::future::pending()).await;
    });
    tasks.spawn(async move { api.serve(listener, std::future::pending()).await });
    address
}

/// Sends a request to a server, and returns the status.
async fn ask(address: SocketAddr, token: &Token, method: &str, path: &str, body: &str) -> u16 {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        token.as_str(),
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    status.unwrap_or_else(|| panic!("{answer}"))
}

/// The requests that have arrived, with their times.
type Came = Arc<Mutex<Vec<(Instant, Hit)>>>;

fn change_of(hit: &Hit) -> usize {
    hit.path.trim_start_matches('/').parse().unwrap()
}

/// Changes URL and key of an endpoint repeatedly while messages are enqueued, by servers in turn.
pub(crate) async fn change_under_traffic<S: Store>(
    store: S,
    servers: &[SocketAddr],
    token: &Token,
) {
    let came: Came = Arc::default();
    let mut receivers = Vec::new();
    for _ in 0..2 {
        let came = Arc::clone(&came);
        let receiver = Receiver::new(move |hit| {
            came.lock().unwrap().push((Instant::now(), hit.clone()));
            match hit.body.ends_with(b"slow") {
                true => Reply::Late(Duration::from_secs(3), support::answer("200 OK", "", "")),
                false => ok(),
            }
        });
        receivers.push(receiver.await);
    }
    let put = async |change: usize| {
        let url = receivers[change % 2].url(&change.to_string());
        let body = serde_json::json!({"url": url, "secrets": [secret(change)], "concurrency": 8});
        let server = servers[change % servers.len()];
        let path = "/v1/endpoints/shop";
        let status = ask(server, token, "PUT", path, &body.to_string()).await;
        assert!(matches!(status, 200 | 201), "{status}");
        Instant::now()
    };
    let mut in_force = vec![put(0).await];
    let stop = Arc::new(AtomicBool::new(false));
    let (producer, stopped) = (store.clone(), Arc::clone(&stop));
    let producing = tokio::spawn(async move {
        let mut event = 0;
        while !stopped.load(Ordering::Relaxed) {
            let payload = match event % 50 {
                7 => "slow",
                _ => "{}",
            };
            let message = NewMessage::new("shop", event.to_string(), payload);
            producer.enqueue(vec![message]).await.unwrap();
            event += 1;
            tokio::time::sleep(Duration::from_millis(4)).await;
        }
    });
    // However busy the machine is, each change gets some of the traffic.
    let served = async |change: usize| {
        let has_some = || {
            let came = came.lock().unwrap();
            let of_this = came.iter().filter(|(_, hit)| change_of(hit) == change);
            of_this.count() > 10
        };
        let waiting = async {
            while !has_some() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
        assert!(waited.is_ok(), "change {change} has had no traffic");
    };
    for change in 1..=CHANGES {
        tokio::time::sleep(Duration::from_millis(700)).await;
        served(change - 1).await;
        in_force.push(put(change).await);
    }
    // No attempt starts while the endpoint is disabled, and none after it is deleted.
    tokio::time::sleep(Duration::from_millis(500)).await;
    served(CHANGES).await;
    let path = "/v1/endpoints/shop/disable";
    let status = ask(servers[0], token, "POST", path, r#"{"reason":"test"}"#).await;
    assert_eq!(status, 200);
    let disabled = Instant::now();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let enabling = Instant::now();
    let status = ask(servers[0], token, "POST", "/v1/endpoints/shop/enable", "").await;
    assert_eq!(status, 200);
    let latest = || came.lock().unwrap().last().map(|(at, _)| *at);
    while latest().is_none_or(|at| at < enabling) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.store(true, Ordering::Relaxed);
    producing.await.unwrap();
    let path = "/v1/endpoints/shop?discard=true";
    assert_eq!(ask(servers[0], token, "DELETE", path, "").await, 200);
    let deleted = Instant::now();
    tokio::time::sleep(Duration::from_secs(1)).await;

    let came = came.lock().unwrap();
    for (at, hit) in came.iter() {
        let change = change_of(hit);
        if let Some(next) = in_force.get(change + 1) {
            assert!(at <= next, "{:?} too late for {change}", *at - *next);
        }
        assert!(*at <= disabled || *at >= enabling, "while it is disabled");
        assert!(*at <= deleted, "after it is deleted");
        let verifier = Verifier::new([secret(change).parse::<VerifyingKey>().unwrap()]);
        let headers = hit.headers.iter().map(|(name, value)| {
            let name: http::HeaderName = name.parse().unwrap();
            (name, value.parse().unwrap())
        });
        let now = std::time::SystemTime::now();
        let headers = headers.collect();
        assert!(
            verifier.verify(&headers, &hit.body, now).is_ok(),
            "signed with another key than that of {change}"
        );
    }
}

/// A store for each server, in a shared PostgreSQL database.
pub(crate) async fn stores(server: &servers::Postgres, many: usize) -> Vec<Postgres> {
    let config = server.config();
    let store = |_| {
        let pool = relent_server::postgres::pool(&config, 8).unwrap();
        Postgres::new(pool).listen(config.parse().unwrap(), tokio_postgres::NoTls)
    };
    let stores: Vec<_> = (0..many).map(store).collect();
    stores[0].create_tables().await.unwrap();
    stores
}
