//! An axum service that calls another service. The client is in its state, and the deadline of its caller is passed
//! down. An order is booked once, and the marker "retries exhausted" is passed up.
//!
//! It also starts a flaky warehouse on a free port, makes three calls as its caller, and ends.
#![allow(clippy::print_stdout)]

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use relent::policy::PolicyError;
use relent::{Policy, StopReason};
use relent_http::{CallerContext, ErrorResponse, Mark};
use relent_reqwest::{Client, Error, IdempotencyKey};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let warehouse = serve(warehouse()).await?;
    let shop = serve(shop(warehouse)?).await?;

    let client = Client::new(policy(Duration::from_secs(2))?)?.cross_layer();
    let calls = [
        // After an ambiguous failure it is sent again with the same key.
        client
            .post(format!("{shop}/orders"))
            .body("2 tea")
            .idempotency_key(IdempotencyKey::new()),
        client.get(format!("{shop}/price/tea")),
        client.get(format!("{shop}/price/gone")),
    ];
    for call in calls {
        let response = call.send().await?;
        let (status, attempts) = (response.status(), response.summary().attempts);
        let mark = Mark::read(response.headers()).map_or("none", Mark::name);
        let body = response.text().await?;
        println!("caller: {status}, {body:?}; attempts: {attempts}, mark: {mark}");
    }
    Ok(())
}

fn policy(deadline: Duration) -> Result<Policy, PolicyError> {
    let standard = Policy::STANDARD.clone().into_builder();
    standard.max_retries(3).deadline(deadline).build()
}

async fn serve(router: Router) -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(axum::serve(listener, router).into_future());
    Ok(url)
}

// The service. Create the client once: its clones share connections, and the budget, circuit breaker and cooldown of
// each host.

#[derive(Clone)]
struct Shop {
    client: Client,
    warehouse: String,
}

fn shop(warehouse: String) -> Result<Router, Box<dyn std::error::Error>> {
    // Shorter than the deadlines of the callers, so that they receive the reason for a failure. A caller may ask for
    // an even shorter one.
    let client = Client::new(policy(Duration::from_secs(1))?)?.cross_layer();
    let routes = Router::new()
        .route("/price/{item}", get(price))
        .route("/orders", post(order));
    Ok(routes.with_state(Shop { client, warehouse }))
}

async fn price(
    State(shop): State<Shop>,
    incoming: IncomingRequest,
    Path(item): Path<String>,
) -> Result<String, Failed> {
    let url = format!("{}/price/{item}", shop.warehouse);
    let request = shop.client.get(url).headers(incoming.pass_on());
    Ok(succeeded(request.send().await)?.text().await?)
}

async fn order(
    State(shop): State<Shop>,
    incoming: IncomingRequest,
    order: String,
) -> Result<String, Failed> {
    let request = shop.client.post(format!("{}/orders", shop.warehouse));
    // The caller's key, so that a repeated request books no second order.
    let key = incoming.key.clone().unwrap_or_else(IdempotencyKey::new);
    let request = request.idempotency_key(key).headers(incoming.pass_on());
    Ok(succeeded(request.body(order).send().await)?.text().await?)
}

/// The caller's headers, and the time of arrival.
struct IncomingRequest {
    caller: CallerContext,
    key: Option<IdempotencyKey>,
    arrived: Instant,
}

impl<S: Sync> FromRequestParts<S> for IncomingRequest {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self {
            caller: CallerContext::from_headers(&parts.headers),
            key: IdempotencyKey::of(&parts.headers),
            arrived: Instant::now(),
        })
    }
}

impl IncomingRequest {
    /// Headers for an outgoing request on behalf of this one, with the time left.
    fn pass_on(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        self.caller.pass_on(self.arrived.elapsed(), &mut headers);
        headers
    }
}

/// Response after a failed call to the warehouse: a status for the reason, the warehouse's `Retry-After`, and the
/// no-retry marker for all outer layers.
struct Failed(ErrorResponse);

fn succeeded(
    outcome: Result<relent_reqwest::Response, Error>,
) -> Result<relent_reqwest::Response, Failed> {
    let response = outcome?;
    match ErrorResponse::gave_up(response.summary(), SystemTime::now()) {
        None => Ok(response),
        Some(failed) => Err(Failed(failed)),
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        let summary = error.summary();
        let failed = summary.and_then(|summary| ErrorResponse::gave_up(summary, SystemTime::now()));
        // An error while reading the body has no reason.
        Self(failed.unwrap_or_else(|| ErrorResponse::stopped(StopReason::Permanent, None)))
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        self.0.into_http().into_response()
    }
}

// The flaky warehouse.

#[derive(Clone, Default)]
struct Warehouse {
    request_counts: Arc<Mutex<HashMap<String, u32>>>,
    booked: Arc<Mutex<Vec<String>>>,
}

fn warehouse() -> Router {
    let routes = Router::new()
        .route("/price/{item}", get(stocked))
        .route("/orders", post(book));
    routes.with_state(Warehouse::default())
}

/// Unavailable for the first request of each path, and always for paths that end with `gone`.
async fn stocked(
    State(warehouse): State<Warehouse>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let path = uri.path();
    let first = warehouse.is_first(path);
    let status = match first || path.ends_with("gone") {
        true => StatusCode::SERVICE_UNAVAILABLE,
        false => StatusCode::OK,
    };
    log_request(&method, path, &headers, status);
    (status, "4 euros").into_response()
}

/// Books one order per key, and fails the first response for each key.
async fn book(State(warehouse): State<Warehouse>, headers: HeaderMap) -> Response {
    let key = IdempotencyKey::of(&headers).unwrap_or_else(IdempotencyKey::new);
    let key = key.as_str().to_owned();
    let first = warehouse.is_first(&key);
    let orders = match warehouse.booked.lock() {
        Ok(mut booked) => {
            if !booked.contains(&key) {
                booked.push(key);
            }
            booked.len()
        }
        Err(_) => 0,
    };
    let status = match first {
        true => StatusCode::INTERNAL_SERVER_ERROR,
        false => StatusCode::OK,
    };
    log_request(&Method::POST, "/orders", &headers, status);
    (status, format!("orders booked: {orders}")).into_response()
}

impl Warehouse {
    fn is_first(&self, what: &str) -> bool {
        let Ok(mut request_counts) = self.request_counts.lock() else {
            return false;
        };
        let count = request_counts.entry(what.to_owned()).or_default();
        *count += 1;
        *count == 1
    }
}

fn log_request(method: &Method, path: &str, headers: &HeaderMap, status: StatusCode) {
    let caller = CallerContext::from_headers(headers);
    let left = caller.remaining.unwrap_or_default().as_millis();
    println!(
        "    [warehouse] {method} {path}: attempt {}, {left} ms left -> {status}",
        caller.attempt
    );
}
