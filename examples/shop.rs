//! A small shop that takes payments in three ways that charge no order twice, and in one that may.
//!
//! | way | protection from a duplicate charge |
//! |---|---|
//! | `POST /unique/{order}` | a unique key in Redis, claimed before the charge |
//! | `POST /payments/{order}` | the key is a row of the transaction that charges |
//! | `PUT /orders/{order}` | the order is paid only in the version that the customer saw |
//! | `POST /unprotected/{order}` | nothing |
//!
//! The example also runs the customers, who click twice and repeat unanswered requests. Meanwhile it kills the shop's
//! process (kill -9) and restarts it. At the end it compares the ledger with the orders. `shop --redis URL` includes
//! the first way.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::Path as File;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::extract::{Extension, Path, State};
use axum::http::header::{ETAG, IF_MATCH};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Router, response};
use relent::{Backoff, Policy};
use relent_reqwest::{Client, IdempotencyKey};
use relent_server::idempotency::IdempotencyLayer;
use relent_server::precondition::{EntityTag, PreconditionError, Preconditions};
use relent_server::store::Sqlite;
use relent_server::transactional::{Transactional, WorkError};
use rusqlite::{Connection, params};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;

type Failed = Box<dyn Error + Send + Sync>;

// The shop.

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS charges (way TEXT NOT NULL, number INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS receipts (number INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, state TEXT NOT NULL, version INTEGER NOT NULL);
";

fn charge(connection: &Connection, way: &str, number: u32) -> rusqlite::Result<usize> {
    connection.execute("INSERT INTO charges VALUES (?1, ?2)", params![way, number])
}

/// Work before the charge, such as checking the stock.
async fn check_stock() {
    sleep(Duration::from_millis(5)).await;
}

fn shop(store: Sqlite) -> Router {
    // One transaction contains the key, the charge, the response and the receipt to be sent.
    let once = IdempotencyLayer::anonymous(store.clone())
        .require(|_| true)
        .transactional();
    Router::new()
        .route("/payments/{number}", post(pay_once))
        .layer(once)
        .route("/unprotected/{number}", post(pay))
        .route("/orders/{number}", get(order).put(pay_order))
        .with_state(store)
}

/// Charges for every request.
async fn pay(State(store): State<Sqlite>, Path(number): Path<u32>) -> response::Response {
    charge_alone(store, "unprotected", number).await
}

async fn charge_alone(store: Sqlite, way: &'static str, number: u32) -> response::Response {
    check_stock().await;
    let charged = store.writer().run(move |connection| {
        charge(connection, way, number)?;
        Ok::<_, Failed>("paid")
    });
    charged.await.map_err(failed).into_response()
}

/// Charges in the transaction of the key. The receipt is a row of it, too, for a process that sends receipts later. So
/// one receipt is sent for each committed charge, and for no other.
async fn pay_once(
    Extension(once): Extension<Transactional<Sqlite>>,
    Path(number): Path<u32>,
) -> response::Response {
    check_stock().await;
    let paid = once.run(move |connection| {
        charge(connection, "payments", number)?;
        connection.execute("INSERT INTO receipts VALUES (?1)", [number])?;
        Ok::<_, WorkError>(Response::new("paid"))
    });
    paid.await.map_err(failed).into_response()
}

/// The state of an order, and its version as an entity tag.
async fn order(State(store): State<Sqlite>, Path(number): Path<u32>) -> response::Response {
    let order = store.writer().run(move |connection| {
        let find = "SELECT state, version FROM orders WHERE number = ?1";
        let order = connection.query_row(find, [number], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, u32>(1)?))
        })?;
        Ok::<_, Failed>(order)
    });
    let order = order.await.map_err(failed);
    order
        .map(|(state, version)| {
            let tag = EntityTag::of_version(version.into()).to_value();
            ([(ETAG, tag)], state)
        })
        .into_response()
}

/// Charges if the order has not changed since the customer saw it.
async fn pay_order(
    State(store): State<Sqlite>,
    Path(number): Path<u32>,
    headers: HeaderMap,
) -> response::Response {
    check_stock().await;
    let version = match Preconditions::of(&headers).and_then(|seen| seen.version()) {
        Ok(version) => version.cast_signed(),
        Err(error) => return refused(error),
    };
    let paid = store.writer().run(move |connection| {
        let update = "UPDATE orders SET state = 'paid', version = version + 1 WHERE number = ?1 AND version = ?2";
        let rows = connection.execute(update, params![number, version])?;
        PreconditionError::unless_changed(rows as u64)?;
        charge(connection, "orders", number)?;
        Ok::<_, Failed>("paid")
    });
    paid.await
        .map_err(|error| match error.downcast::<PreconditionError>() {
            Ok(error) => refused(*error),
            Err(error) => failed(error).into_response(),
        })
        .into_response()
}

fn refused(error: PreconditionError) -> response::Response {
    error.response().map(axum::body::Body::from)
}

/// The response if nothing was changed.
#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: Failed) -> (StatusCode, String) {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

/// Requires a unique key in Redis. The charge is not in its transaction. If the shop is killed in between, the outcome
/// is unknown, and the shop does not charge again.
#[cfg(feature = "redis")]
async fn unique(store: Sqlite, url: &str, namespace: &str) -> Result<Router, Failed> {
    use relent_server::store::Redis;

    async fn pay(State(store): State<Sqlite>, Path(number): Path<u32>) -> response::Response {
        charge_alone(store, "unique", number).await
    }
    // A production service uses `connect`, which rejects a Redis that may lose keys.
    let redis = Redis::connect_unchecked(redis::Client::open(url)?).await?;
    let mut claim = relent_core::idempotency::ClaimConfig::DEFAULT;
    claim.lease = Duration::from_secs(1);
    let layer = IdempotencyLayer::anonymous(redis.namespace(namespace))
        .require(|_| true)
        .claim(claim)?;
    let router = Router::new().route("/unique/{number}", post(pay));
    Ok(router.layer(layer).with_state(store))
}

#[cfg(not(feature = "redis"))]
async fn unique(_: Sqlite, _: &str, _: &str) -> Result<Router, Failed> {
    Err("build the example with --features sqlite,redis".into())
}

fn open(directory: &File) -> Result<Sqlite, Failed> {
    let file = directory.join("shop.db");
    Ok(Sqlite::open_with(file, |connection| {
        connection.execute_batch(TABLES)
    })?)
}

/// The shop's process: prints its address, and serves until it is killed.
async fn serve(directory: &File, address: &str, redis: Option<&str>) -> Result<(), Failed> {
    let store = open(directory)?;
    let mut router = shop(store.clone());
    if let Some(url) = redis {
        let namespace = directory.display().to_string();
        router = router.merge(unique(store, url, &namespace).await?);
    }
    let listener = TcpListener::bind(address).await?;
    println!("{}", listener.local_addr()?);
    Ok(axum::serve(listener, router).await?)
}

// The players.

const ORDERS: u32 = 60;
/// A customer who clicks twice is simulated by two clients with the same request.
const CLICKS: u32 = 2;
/// The number of concurrent customers.
const CONCURRENT_CUSTOMERS: usize = 8;
const KILLS: u32 = 5;

/// The shop's process, and the arguments to restart it.
struct Shop<'a> {
    child: Child,
    address: String,
    directory: &'a File,
    redis: Option<&'a str>,
}

impl<'a> Shop<'a> {
    fn start(directory: &'a File, address: &str, redis: Option<&'a str>) -> Result<Self, Failed> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").arg(directory).arg(address).args(redis);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut output = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut output)?;
        }
        if output.is_empty() {
            return Err(format!("the shop does not begin: {}", child.wait()?).into());
        }
        let address = output.trim().to_owned();
        Ok(Self {
            child,
            address,
            directory,
            redis,
        })
    }

    fn kill_and_start_again(&mut self) -> Result<(), Failed> {
        self.child.kill()?;
        self.child.wait()?;
        *self = Self::start(self.directory, &self.address, self.redis)?;
        Ok(())
    }
}

impl Drop for Shop<'_> {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The final result for a customer.
#[derive(PartialEq)]
enum ClickResult {
    Paid,
    /// The shop does not know whether it has charged.
    Unknown,
}

/// One click: repeats its request until it gets a response. It sends the key in every way, even if the shop ignores it.
async fn click(client: Client, url: String, key: IdempotencyKey) -> Result<ClickResult, Failed> {
    let response = client.post(url).idempotency_key(key).send().await?;
    if response.status() == StatusCode::CONFLICT {
        return Ok(ClickResult::Unknown);
    }
    response.error_for_status()?;
    Ok(ClickResult::Paid)
}

/// One click of a customer who reads the order first. If it has changed meanwhile, the customer reads it again.
async fn look_and_click(client: Client, url: String) -> Result<ClickResult, Failed> {
    loop {
        let order = client.get(&url).send().await?.error_for_status()?;
        let version = order.headers()[ETAG].clone();
        if order.text().await? == "paid" {
            return Ok(ClickResult::Paid);
        }
        let paid = client.put(&url).header(IF_MATCH, version).send().await?;
        if paid.status() != StatusCode::PRECONDITION_FAILED {
            paid.error_for_status()?;
        }
    }
}

/// All customers pay in one way, while the shop is killed. Returns the number of orders with an unknown outcome.
async fn play(shop: &mut Shop<'_>, way: &'static str) -> Result<u32, Failed> {
    // A restarted shop is ready soon.
    let policy = Policy::builder(Backoff::exponential(Duration::from_millis(20)))
        .max_delay(Duration::from_millis(500))
        .max_retries(200)
        .max_elapsed(Duration::from_secs(30))
        .build()?;
    let client = Client::new(policy)?;
    let (permits, ended) = (
        Arc::new(Semaphore::new(CONCURRENT_CUSTOMERS)),
        Arc::new(AtomicU32::new(0)),
    );
    let mut customers = JoinSet::new();
    for number in 1..=ORDERS {
        let url = format!("http://{}/{way}/{number}", shop.address);
        let (client, permits, ended) = (client.clone(), Arc::clone(&permits), Arc::clone(&ended));
        customers.spawn(async move {
            let _turn = permits.acquire().await?;
            let key = IdempotencyKey::new();
            let mut clicks = JoinSet::new();
            for _ in 0..CLICKS {
                let (client, url, key) = (client.clone(), url.clone(), key.clone());
                clicks.spawn(async move {
                    match way {
                        "orders" => look_and_click(client, url).await,
                        _ => click(client, url, key).await,
                    }
                });
            }
            let mut unknown = false;
            while let Some(result) = clicks.join_next().await {
                unknown |= result?? == ClickResult::Unknown;
            }
            ended.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Failed>(u32::from(unknown))
        });
    }
    for kill in 1..=KILLS {
        // Spread evenly over the payments.
        while ended.load(Ordering::Relaxed) < kill * ORDERS / (KILLS + 1) && !customers.is_empty() {
            sleep(Duration::from_millis(1)).await;
        }
        shop.kill_and_start_again()?;
    }
    let mut unknown = 0;
    while let Some(customer) = customers.join_next().await {
        unknown += customer??;
    }
    Ok(unknown)
}

/// The ledger's totals for one way.
struct Ledger {
    charges: u32,
    /// Orders that were charged, and those that were charged more than once.
    charged: u32,
    twice: u32,
    /// The highest number of charges for one order.
    most: u32,
    receipts: u32,
}

impl Ledger {
    fn read(directory: &File, way: &str) -> Result<Self, Failed> {
        let connection = Connection::open(directory.join("shop.db"))?;
        let count = "SELECT coalesce(sum(times), 0), count(*), coalesce(sum(times > 1), 0), coalesce(max(times), 0),
                (SELECT count(*) FROM receipts)
             FROM (SELECT count(*) AS times FROM charges WHERE way = ?1 GROUP BY number)";
        Ok(connection.query_row(count, [way], |row| {
            Ok(Self {
                charges: row.get(0)?,
                charged: row.get(1)?,
                twice: row.get(2)?,
                most: row.get(3)?,
                receipts: row.get(4)?,
            })
        })?)
    }
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let redis = match arguments[..] {
        ["serve", directory, address] => return serve(directory.as_ref(), address, None).await,
        ["serve", directory, address, redis] => {
            return serve(directory.as_ref(), address, Some(redis)).await;
        }
        ["--redis", url] => Some(url),
        [] => None,
        _ => return Err("Usage: shop [--redis URL]".into()),
    };
    let directory = tempfile::tempdir()?;
    let directory = directory.path();
    open(directory)?;
    let connection = Connection::open(directory.join("shop.db"))?;
    for number in 1..=ORDERS {
        connection.execute("INSERT INTO orders VALUES (?1, 'open', 1)", [number])?;
    }
    drop(connection);
    let mut shop = Shop::start(directory, "127.0.0.1:0", redis)?;
    println!(
        "{ORDERS} customers pay one order each. Each of them clicks twice, so each order is sent by {CLICKS} clients at \
         once,\nwhich repeat it until they are answered. Meanwhile the process of the shop is killed (kill -9) \
         {KILLS} times,\nand started again.\n"
    );

    println!("POST /unprotected/N    The shop does not look at the Idempotency-Key.");
    play(&mut shop, "unprotected").await?;
    let bad = Ledger::read(directory, "unprotected")?;
    println!(
        "  {ORDERS} orders, {} charges: {} customers paid more than once, one of them {} times.\n",
        bad.charges, bad.twice, bad.most
    );

    println!("POST /payments/N       The key is a row in the transaction that charges (SQLite).");
    play(&mut shop, "payments").await?;
    let once = Ledger::read(directory, "payments")?;
    println!(
        "  {ORDERS} orders, {} charges, {} receipts to be sent: {} customers paid more than once.\n",
        once.charges, once.receipts, once.twice
    );

    println!(
        "PUT /orders/N          The order is paid only in the version that the customer saw (If-Match)."
    );
    play(&mut shop, "orders").await?;
    let version = Ledger::read(directory, "orders")?;
    println!(
        "  {ORDERS} orders, {} charges: {} customers paid more than once.\n",
        version.charges, version.twice
    );

    println!("POST /unique/N         The key is in Redis, and claimed before the charge.");
    let mut kept = true;
    if redis.is_some() {
        let unknown = play(&mut shop, "unique").await?;
        let unique = Ledger::read(directory, "unique")?;
        println!(
            "  {ORDERS} orders, {} charges: {} customers paid more than once. Of {unknown} orders the shop was killed \
             between the key\n  and the answer. It does not know whether it has charged them, says so, and charges nobody \
             again.\n",
            unique.charges, unique.twice
        );
        kept = unique.twice == 0 && unique.charged + unknown >= ORDERS;
    } else {
        println!("  Not played, since it needs a Redis: shop --redis redis://127.0.0.1/\n");
    }
    for ledger in [once, version] {
        kept &= (ledger.charges, ledger.charged) == (ORDERS, ORDERS);
    }
    if kept && bad.twice > 0 {
        println!(
            "The ledger: charges = orders where the shop was protected, and not where it was not."
        );
        Ok(())
    } else {
        Err("the ledger is not as it should be".into())
    }
}
