//! A merchant that is notified of payments, also polls for them, and settles each order once.
//!
//! | path | by |
//! |---|---|
//! | the payment provider sends a notification until it is acknowledged | `WebhookLayer`: `POST /notifications` |
//! | the merchant polls the provider, with growing delays | `poll`: `GET /payments/{order}` there |
//!
//! Either may come first, twice, late, or never. Both settle an order with the same function, in a transaction.
//!
//! The example also runs the provider, and an unreliable network between the two: it refuses connections, cuts them and
//! loses responses. Meanwhile it kills the merchant's process (kill -9) and restarts it. At the end it compares the
//! merchant's ledger with the provider's payments.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::Path as File;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Router, response};
use relent::random::{FixedRandom, Random, SessionRandom};
use relent::{Backoff, GaveUp, NamedPolicy, Policy, PollOutcome, poll_until, retry};
use relent_http::webhook::{Signer, SigningKey, Verifier, VerifyingKey};
use relent_reqwest::network::classify;
use relent_reqwest::{Client, default_builder};
use relent_server::store::Sqlite;
use relent_server::transactional::{Transactional, WorkError};
use relent_server::webhook::{Delivery, WebhookLayer};
use rusqlite::{Connection, params};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

type Failed = Box<dyn Error + Send + Sync>;

/// The secret that both share. Do not put a real one into the code.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

// The merchant.

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, state TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS ledger (number INTEGER NOT NULL, told_by TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS deliveries (number INTEGER NOT NULL, repeated INTEGER NOT NULL);
";

/// Settles a paid order, unless it is already settled. Notification and poll both call it.
fn settle(transaction: &Connection, number: u32, told_by: &str) -> rusqlite::Result<()> {
    let settle = "UPDATE orders SET state = 'settled' WHERE number = ?1 AND state = 'open'";
    if transaction.execute(settle, [number])? == 1 {
        let book = "INSERT INTO ledger VALUES (?1, ?2)";
        transaction.execute(book, params![number, told_by])?;
    }
    Ok(())
}

/// Handles a notification with a valid signature. Settlement, record and acknowledgement are one transaction.
async fn notified(
    State(store): State<Sqlite>,
    Extension(once): Extension<Transactional<Sqlite>>,
    Extension(delivery): Extension<Delivery>,
) -> response::Response {
    let body = std::str::from_utf8(delivery.body()).unwrap_or_default();
    let Some(Ok(number)) = body.strip_prefix("paid=").map(str::parse) else {
        return (StatusCode::UNPROCESSABLE_ENTITY, "which order is paid?").into_response();
    };
    let settled = once.run(move |transaction| {
        settle(transaction, number, "notification")?;
        Ok::<_, WorkError>(Response::new("success"))
    });
    let answer = match settled.await {
        Ok(answer) => answer,
        // Nothing was changed, and the provider sends it again.
        Err(error) => {
            return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response();
        }
    };
    let repeated = answer.headers().contains_key("idempotent-replayed");
    let note = store.writer().run(move |connection| {
        let note = "INSERT INTO deliveries VALUES (?1, ?2)";
        connection.execute(note, params![number, repeated])?;
        Ok::<_, Failed>(())
    });
    // Only for the report.
    drop(note.await);
    answer.into_response()
}

/// Polls the provider until the order is paid, unless a notification comes first.
async fn watch(store: Sqlite, client: Client, provider: String, number: u32) -> Result<(), Failed> {
    // Scaled to the time of this example: frequent at first, then with growing delays.
    let policy = Policy::builder(Backoff::elapsed(Duration::from_millis(200), 0.2))
        .unlimited_retries()
        .build()?;
    let look = || async {
        let open = store.writer().run(move |connection| {
            let find = "SELECT state = 'open' FROM orders WHERE number = ?1";
            Ok::<bool, Failed>(connection.query_row(find, [number], |row| row.get(0))?)
        });
        if !open.await? {
            return Ok(PollOutcome::Done(()));
        }
        // The client retries failures. If it gives up, the next poll asks again.
        let url = format!("{provider}/payments/{number}");
        let state = async { client.get(url).send().await.ok()?.text().await.ok() };
        if state.await.as_deref() != Some("paid") {
            return Ok(PollOutcome::Pending);
        }
        let settled = store
            .writer()
            .run(move |transaction| Ok::<_, Failed>(settle(transaction, number, "poll")?));
        settled.await?;
        Ok(PollOutcome::Done(()))
    };
    poll_until(&policy, look)
        .await
        .map_err(|gave_up: GaveUp<Failed>| gave_up.to_string().into())
}

fn open(directory: &File) -> Result<Sqlite, Failed> {
    let file = directory.join("merchant.db");
    Ok(Sqlite::open_with(file, |connection| {
        connection.execute_batch(TABLES)
    })?)
}

/// The merchant's process: prints its address, and serves until it is killed.
async fn merchant(directory: &File, address: &str, provider: &str) -> Result<(), Failed> {
    let store = open(directory)?;
    let open = store.writer().run(|connection| {
        let mut find = connection.prepare("SELECT number FROM orders WHERE state = 'open'")?;
        let numbers = find.query_map([], |row| row.get(0))?;
        Ok::<Vec<u32>, Failed>(numbers.collect::<Result<_, _>>()?)
    });
    let policy = Policy::builder(Backoff::exponential(Duration::from_millis(20)))
        .max_retries(2)
        .attempt_timeout(Duration::from_secs(2))
        .build()?;
    let client = Client::from_builder(
        || default_builder().no_proxy().pool_max_idle_per_host(0),
        policy,
    )?;
    for number in open.await? {
        let (store, client, provider) = (store.clone(), client.clone(), provider.to_owned());
        tokio::spawn(async move {
            if let Err(error) = watch(store, client, provider, number).await {
                println!("order {number} is not watched any more: {error}");
            }
        });
    }
    let key: VerifyingKey = SECRET.parse()?;
    let notifications =
        WebhookLayer::new(store.clone(), "provider", Verifier::new([key])).transactional();
    let router = Router::new()
        .route("/notifications", post(notified))
        .layer(notifications)
        .with_state(store);
    let listener = TcpListener::bind(address).await?;
    println!("{}", listener.local_addr()?);
    Ok(axum::serve(listener, router).await?)
}

// The provider.

/// Results of the provider's notification attempts.
#[derive(Default)]
struct Attempts {
    all: AtomicU32,
    acknowledged: AtomicU32,
    refused: AtomicU32,
    cut: AtomicU32,
    answered: AtomicU32,
}

/// Delivers one notification until it is acknowledged, by WeChat Pay's schedule (15 s, 15 s, 30 s, 3 min, 10 min, …),
/// here a thousand times as fast.
async fn deliver(
    url: &str,
    id: &str,
    body: String,
    key: SigningKey,
    attempts: &Attempts,
) -> Result<(), Failed> {
    let policy = NamedPolicy::load("wechat-pay")?.policy;
    let waits = policy.waits(FixedRandom::at(0.5)).map(|wait| wait / 1000);
    let signer = Signer::new(key);
    let client = default_builder()
        .no_proxy()
        .pool_max_idle_per_host(0)
        .timeout(Duration::from_secs(5))
        .build()?;
    // Each attempt has its own time and signature. The identifier stays the same.
    let sign = || {
        let mut headers = HeaderMap::new();
        let signed = signer.sign(id, SystemTime::now(), body.as_bytes(), &mut headers);
        signed.map(|()| headers)
    };
    sign()?; // Fails if the identifier is invalid.
    let attempt = || async {
        attempts.all.fetch_add(1, Ordering::Relaxed);
        let request = client.post(url).headers(sign().unwrap_or_default());
        let answer = match request.body(body.clone()).send().await {
            Ok(answer) => answer.error_for_status(),
            Err(error) => Err(error),
        };
        let counter = match &answer {
            Ok(_) => &attempts.acknowledged,
            Err(error) if error.is_status() => &attempts.answered,
            Err(error) if error.is_connect() => &attempts.refused,
            Err(_) => &attempts.cut,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        answer
    };
    let delivered = retry(&policy, attempt).classify(classify).waits(waits);
    delivered.await?;
    Ok(())
}

/// Returns whether an order is paid.
async fn payment(
    State(paid): State<Arc<[AtomicBool]>>,
    Path(number): Path<usize>,
) -> Result<&'static str, StatusCode> {
    let paid = paid.get(number).ok_or(StatusCode::NOT_FOUND)?;
    Ok(match paid.load(Ordering::Relaxed) {
        true => "paid",
        false => "open",
    })
}

// The network.

/// Condition of a connection.
enum ConnectionFault {
    NoFault,
    /// Closed during the request.
    Cut,
    /// Closed when the response arrives.
    AnswerLost,
}

/// Forwards connections to `to`. Refuses connections at intervals, and cuts some, until the storm ends.
async fn network(address: String, to: String, seed: u64, storm_end: Instant) -> Result<(), Failed> {
    let mut random = SessionRandom::with_seed(seed);
    loop {
        let listener = TcpListener::bind(&address).await?;
        let stormy = Instant::now() < storm_end;
        let take = async {
            loop {
                let Ok((client, _)) = listener.accept().await else {
                    continue;
                };
                let fault = match random.next_u64() % 10 {
                    0..3 if stormy => ConnectionFault::Cut,
                    3..6 if stormy => ConnectionFault::AnswerLost,
                    _ => ConnectionFault::NoFault,
                };
                let to = to.clone();
                // Failed connections are the purpose of this function.
                tokio::spawn(async move { drop(carry(client, &to, fault).await) });
            }
        };
        let up = Duration::from_millis(if stormy { 600 } else { 60_000 });
        if timeout(up, take).await.is_err() {
            drop(listener);
            sleep(Duration::from_millis(200)).await;
        }
    }
}

async fn carry(mut client: TcpStream, to: &str, fault: ConnectionFault) -> std::io::Result<()> {
    let mut server = TcpStream::connect(to).await?;
    match fault {
        ConnectionFault::NoFault => {
            drop(tokio::io::copy_bidirectional(&mut client, &mut server).await);
        }
        ConnectionFault::Cut => {
            let mut part = [0; 100];
            client.read_exact(&mut part).await?;
            server.write_all(&part).await?;
        }
        ConnectionFault::AnswerLost => {
            let (mut from_client, mut to_client) = client.split();
            let (mut from_server, mut to_server) = server.split();
            let mut first = [0; 1];
            tokio::select! {
                _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
                _ = from_server.read(&mut first) => {}
            }
            drop(to_client.shutdown().await);
        }
    }
    Ok(())
}

// The players.

const PAYMENTS: u32 = 60;
/// Time between two payments.
const PAYMENT_INTERVAL: Duration = Duration::from_millis(100);
const KILLS: u32 = 5;
/// Forged notifications for an order that is never paid: number 0.
const FORGED: u32 = 5;

/// The merchant's process, and the arguments to restart it.
struct Merchant<'a> {
    child: Child,
    address: String,
    directory: &'a File,
    provider: &'a str,
}

impl<'a> Merchant<'a> {
    fn start(directory: &'a File, address: &str, provider: &'a str) -> Result<Self, Failed> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("serve")
            .arg(directory)
            .args([address, provider]);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut output = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut output)?;
        }
        if output.is_empty() {
            return Err(format!("the merchant does not begin: {}", child.wait()?).into());
        }
        let address = output.trim().to_owned();
        Ok(Self {
            child,
            address,
            directory,
            provider,
        })
    }

    fn kill_and_start_again(&mut self) -> Result<(), Failed> {
        self.child.kill()?;
        self.child.wait()?;
        *self = Self::start(self.directory, &self.address, self.provider)?;
        Ok(())
    }
}

impl Drop for Merchant<'_> {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// An address that is currently free.
async fn address() -> Result<String, Failed> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    Ok(listener.local_addr()?.to_string())
}

async fn play(directory: &File) -> Result<Attempts, Failed> {
    let paid: Arc<[AtomicBool]> = (0..=PAYMENTS).map(|_| AtomicBool::new(false)).collect();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let provider = listener.local_addr()?.to_string();
    let router = Router::new()
        .route("/payments/{number}", get(payment))
        .with_state(Arc::clone(&paid));
    tokio::spawn(axum::serve(listener, router).into_future());

    // The storm lasts as long as payments are made.
    let storm_end = Instant::now() + PAYMENT_INTERVAL * PAYMENTS;
    let (to_provider, to_merchant) = (address().await?, address().await?);
    tokio::spawn(network(to_provider.clone(), provider, 1, storm_end));
    let asked = format!("http://{to_provider}");
    let mut merchant = Merchant::start(directory, "127.0.0.1:0", &asked)?;
    let known = merchant.address.clone();
    tokio::spawn(network(to_merchant.clone(), known.clone(), 2, storm_end));

    let attempts = Arc::new(Attempts::default());
    let url = format!("http://{to_merchant}/notifications");
    let mut notifications = JoinSet::new();
    for number in 1..=PAYMENTS {
        sleep(PAYMENT_INTERVAL).await;
        if let Some(paid) = paid.get(number as usize) {
            paid.store(true, Ordering::Relaxed);
        }
        let (url, attempts, key) = (url.clone(), Arc::clone(&attempts), SECRET.parse()?);
        notifications.spawn(async move {
            let id = format!("msg_{number}");
            deliver(&url, &id, format!("paid={number}"), key, &attempts).await
        });
        if number % (PAYMENTS / (KILLS + 1)) == 0 && number < PAYMENTS {
            // While requests are running.
            sleep(Duration::from_millis(u64::from(number % 9))).await;
            merchant.kill_and_start_again()?;
        }
    }
    // The storm has ended, so each of these gets one response.
    let client = default_builder().no_proxy().build()?;
    for number in 0..FORGED {
        let key: SigningKey = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA".parse()?;
        let (id, body) = (format!("msg_forged_{number}"), "paid=0");
        let mut headers = HeaderMap::new();
        Signer::new(key).sign(&id, SystemTime::now(), body.as_bytes(), &mut headers)?;
        let forged = client.post(format!("http://{known}/notifications"));
        let answer = forged.headers(headers).body(body).send().await?;
        if answer.status() != StatusCode::UNAUTHORIZED {
            return Err(format!("a forged notification was answered {}", answer.status()).into());
        }
    }
    while let Some(notified) = notifications.join_next().await {
        notified??;
    }
    drop(merchant);
    Arc::into_inner(attempts).ok_or_else(|| "an attempt is left".into())
}

/// The final state of the merchant's database.
struct Ledger {
    entries: u32,
    /// Paid orders that were settled, and those that were settled more than once.
    settled: u32,
    twice: u32,
    by_notification: u32,
    by_poll: u32,
    /// Orders that were settled without a payment.
    unpaid: u32,
    deliveries: u32,
    repeated: u32,
}

impl Ledger {
    fn read(directory: &File) -> Result<Self, Failed> {
        let connection = Connection::open(directory.join("merchant.db"))?;
        let count = "SELECT (SELECT count(*) FROM ledger), count(*), coalesce(sum(times > 1), 0),
                (SELECT count(*) FROM ledger WHERE told_by = 'notification'),
                (SELECT count(*) FROM ledger WHERE told_by = 'poll'),
                (SELECT count(*) FROM ledger WHERE number = 0),
                (SELECT count(*) FROM deliveries), (SELECT coalesce(sum(repeated), 0) FROM deliveries)
            FROM (SELECT count(*) AS times FROM ledger WHERE number > 0 GROUP BY number)";
        Ok(connection.query_row(count, [], |row| {
            Ok(Self {
                entries: row.get(0)?,
                settled: row.get(1)?,
                twice: row.get(2)?,
                by_notification: row.get(3)?,
                by_poll: row.get(4)?,
                unpaid: row.get(5)?,
                deliveries: row.get(6)?,
                repeated: row.get(7)?,
            })
        })?)
    }
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", directory, address, provider] => {
            return merchant(directory.as_ref(), address, provider).await;
        }
        [] => {}
        _ => return Err("Usage: merchant".into()),
    }
    let directory = tempfile::tempdir()?;
    let directory = directory.path();
    open(directory)?;
    let connection = Connection::open(directory.join("merchant.db"))?;
    for number in 0..=PAYMENTS {
        connection.execute("INSERT INTO orders VALUES (?1, 'open')", [number])?;
    }
    drop(connection);
    println!(
        "A merchant has {PAYMENTS} orders. Its payment provider notifies it of each payment until that is acknowledged, and \
         the\nmerchant asks the provider, too. Connections between them are refused, cut half-way, or end before the answer. \
         The\nprocess of the merchant is killed (kill -9) {KILLS} times and started again. A stranger sends {FORGED} forged \
         notifications.\n"
    );
    let began = Instant::now();
    let attempts = timeout(Duration::from_secs(60), play(directory)).await??;
    let ledger = Ledger::read(directory)?;
    let read = |counter: &AtomicU32| counter.load(Ordering::Relaxed);
    let acknowledged = read(&attempts.acknowledged);
    println!(
        "Notifications          {PAYMENTS}, sent in {} attempts",
        read(&attempts.all)
    );
    println!("  connection refused   {}", read(&attempts.refused));
    println!("  no answer            {}", read(&attempts.cut));
    println!("  answered by an error {}", read(&attempts.answered));
    println!("  acknowledged         {acknowledged}");
    println!("Deliveries received    {}", ledger.deliveries);
    println!(
        "  handled              {}",
        ledger.deliveries - ledger.repeated
    );
    println!("  answered from record {}", ledger.repeated);
    println!("Orders settled         {}", ledger.settled);
    println!("  told by notification {}", ledger.by_notification);
    println!("  told by poll         {}", ledger.by_poll);
    println!("  settled twice        {}", ledger.twice);
    println!("  settled, not paid    {}\n", ledger.unpaid);
    let once = (ledger.entries, ledger.settled) == (PAYMENTS, PAYMENTS);
    if once && acknowledged == PAYMENTS {
        println!(
            "The ledger: orders settled = payments, each once. It took {:.1} s.",
            began.elapsed().as_secs_f64()
        );
        Ok(())
    } else {
        Err("the ledger is not as it should be".into())
    }
}
