//! An axum service with both layers of `relent-server`: excess load is rejected immediately, and a payment that is sent
//! twice is made once.
//!
//! ```text
//! cargo run -p relent-server --example server -- 127.0.0.1:3000 &
//! curl -i localhost:3000/payments -H 'Idempotency-Key: 1' -d 5
//! ```
#![allow(clippy::print_stdout)]

use std::sync::atomic::{AtomicU32, Ordering};

use axum::{Router, routing::post};
use relent_server::ServerLayer;
use relent_server::idempotency::IdempotencyLayer;
use relent_server::store::Memory;

static CHARGES: AtomicU32 = AtomicU32::new(0);

async fn pay(amount: String) -> String {
    let number = CHARGES.fetch_add(1, Ordering::SeqCst) + 1;
    format!("charge {number}: {amount}\n")
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    // A service that authenticates its callers identifies the account: `IdempotencyLayer::new(store, |parts| ..)`.
    let idempotency = IdempotencyLayer::anonymous(Memory::new()).require(|_| true);
    let app = Router::new()
        .route("/payments", post(pay))
        .layer(ServerLayer::new(idempotency));
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, app).await
}
