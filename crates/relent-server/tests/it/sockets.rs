//! Tests over sockets with clients that retry: whatever happens to connections, each key has one effect, and each
//! client gets the response.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::post;
use futures_util::future::join_all;
use relent::random::SessionRandom;
use relent::{Backoff, Policy};
use relent_core::Random;
use relent_reqwest::{Client, IdempotencyKey};
use relent_server::idempotency::IdempotencyLayer;
use relent_server::store::Sqlite;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The number of charges of each order.
type Charges = Arc<Mutex<HashMap<String, usize>>>;

async fn pay(State(charges): State<Charges>, Path(order): Path<String>) -> String {
    // A client may disconnect meanwhile.
    tokio::time::sleep(Duration::from_millis(4)).await;
    *charges.lock().unwrap().entry(order.clone()).or_default() += 1;
    format!("charged for {order}")
}

struct Shop {
    address: String,
    charges: Charges,
    _directory: tempfile::TempDir,
}

async fn shop() -> Shop {
    let directory = tempfile::tempdir().unwrap();
    let store = Sqlite::open(directory.path().join("keys.db")).unwrap();
    let charges = Charges::default();
    let app = Router::new()
        .route("/payments/{order}", post(pay))
        .layer(IdempotencyLayer::anonymous(store).require(|_| true))
        .with_state(Arc::clone(&charges));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(axum::serve(listener, app).into_future());
    Shop {
        address,
        charges,
        _directory: directory,
    }
}

fn client() -> Client {
    let policy = Policy::builder(Backoff::constant(Duration::from_millis(2)))
        .max_retries(1000)
        .build()
        .unwrap();
    Client::new(policy).unwrap()
}

/// Retries until there is a response; returns it, and whether it was replayed.
async fn answer(client: &Client, address: &str, order: &str) -> (String, bool) {
    let url = format!("http://{address}/payments/{order}");
    let key: IdempotencyKey = format!("key of {order}").replace(' ', "-").parse().unwrap();
    loop {
        let response = client.post(&url).idempotency_key(key.clone()).send().await;
        let response = response.unwrap().error_for_status().unwrap();
        let replayed = response.headers().contains_key("idempotent-replayed");
        // A truncated body is not a response.
        if let Ok(text) = response.text().await {
            return (text, replayed);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_of_64_concurrent_clients_with_one_key_get_the_same_charge() {
    let shop = shop().await;
    let answers = (0..64).map(|_| async { answer(&client(), &shop.address, "book").await });
    for (text, _) in join_all(answers).await {
        assert_eq!(text, "charged for book");
    }
    assert_eq!(shop.charges.lock().unwrap()["book"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_disconnect_and_retry_are_charged_once() {
    let shop = shop().await;
    let mut random = SessionRandom::with_seed(1);
    for order in 0..40 {
        let order = format!("order-{order}");
        let mut stream = TcpStream::connect(&shop.address).await.unwrap();
        let request = format!(
            "POST /payments/{order} HTTP/1.1\r\nhost: shop\r\nidempotency-key: key-of-{order}\r\ncontent-length: 0\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_micros(random.next_u64() % 12_000)).await;
        drop(stream);
        let (text, _) = answer(&client(), &shop.address, &order).await;
        assert_eq!(text, format!("charged for {order}"));
    }
    let charges = shop.charges.lock().unwrap();
    assert_eq!(charges.len(), 40);
    assert!(charges.values().all(|&times| times == 1), "{charges:?}");
}

/// Forwards messages between clients and the shop, and closes the connection after a number of response bytes.
async fn cutter(listener: TcpListener, shop: String, left: Arc<AtomicUsize>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let server = TcpStream::connect(&shop).await.unwrap();
        let left = Arc::clone(&left);
        tokio::spawn(async move {
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            let there = async { drop(tokio::io::copy(&mut from_client, &mut to_server).await) };
            let back = async {
                let mut bytes = vec![0; 1 << 16];
                while let Ok(length @ 1..) = from_server.read(&mut bytes).await {
                    let may = left.load(Ordering::SeqCst);
                    if may == usize::MAX {
                        drop(to_client.write_all(&bytes[..length]).await);
                    } else if length > may {
                        drop(to_client.write_all(&bytes[..may]).await);
                        left.store(usize::MAX, Ordering::SeqCst);
                        return;
                    } else {
                        left.store(may - length, Ordering::SeqCst);
                        drop(to_client.write_all(&bytes[..length]).await);
                    }
                }
            };
            tokio::select! {
                () = there => {}
                () = back => {}
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_truncated_at_any_byte_is_retried_without_a_second_charge() {
    let shop = shop().await;
    let left = Arc::new(AtomicUsize::new(usize::MAX));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(cutter(listener, shop.address.clone(), Arc::clone(&left)));
    let client = client();
    for cut in 0.. {
        left.store(cut, Ordering::SeqCst);
        let order = format!("order-{cut}");
        let (text, replayed) = answer(&client, &address, &order).await;
        assert_eq!(text, format!("charged for {order}"));
        assert_eq!(shop.charges.lock().unwrap()[&order], 1, "cut at {cut}");
        let was_cut = left.swap(usize::MAX, Ordering::SeqCst) == usize::MAX;
        assert_eq!(replayed, was_cut, "cut at {cut}");
        if !was_cut {
            assert!(cut > 100, "the answer has {cut} bytes");
            break;
        }
    }
}
