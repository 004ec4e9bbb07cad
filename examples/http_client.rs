//! A GET, a POST and a download that succeed although the server fails: `http_client URL`.
//!
//! Start a server that fails, which prints its URL:
//! `cargo run -p relent --example flaky_server -- 127.0.0.1:8080 503:1 200 500 200 tagged`
#![allow(clippy::print_stdout)]

use std::time::Duration;

use relent::{Backoff, Policy};
use relent_reqwest::{Client, IdempotencyKey, Response};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "http://127.0.0.1:8080/".to_owned());
    let policy = Policy::builder(Backoff::exponential(Duration::from_millis(100)))
        .max_retries(4)
        .attempt_timeout(Duration::from_secs(5))
        .build()?;
    let client = Client::new(policy)?;

    let response = client.get(&url).send().await?.error_for_status()?;
    tell("GET", &response);
    print!("    {}", response.text().await?);

    // After a 500 the payment may have been made. The key lets the server detect the duplicate; without it there would
    // be no second attempt.
    let paid = client
        .post(&url)
        .body("amount=5")
        .idempotency_key(IdempotencyKey::new())
        .send()
        .await?
        .error_for_status()?;
    tell("POST with a key", &paid);

    // A body that is cut short is retried, too, and resumes if it has a strong tag.
    let whole = client.get(&url).whole_body().send().await?;
    tell("GET of the whole body", &whole);
    print!("    {}", whole.text().await?);
    Ok(())
}

fn tell(what: &str, response: &Response) {
    let attempts = response.summary().attempts;
    let plural = if attempts == 1 { "" } else { "s" };
    println!(
        "{what}: {} after {attempts} attempt{plural}",
        response.status()
    );
}
