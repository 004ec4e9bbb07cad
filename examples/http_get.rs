//! A GET with 5 s per attempt, three retries, and a line with error and delay before each retry. The delays are the
//! defaults of cenkalti/backoff: `http_get [URL]`.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::time::Duration;

use relent::{NamedPolicy, retry};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "http://127.0.0.1:8080/".to_owned());
    let policy = NamedPolicy::load("cenkalti")?
        .policy
        .into_builder()
        .max_retries(3)
        .attempt_timeout(Duration::from_secs(5))
        .build()?;
    let client = reqwest::Client::builder()
        .retry(reqwest::retry::never())
        .build()?;

    let body = retry(&policy, || async {
        client
            .get(&url)
            .send()
            .await?
            .error_for_status()?
            .text()
            .await
    })
    .classify(relent_reqwest::network::classify)
    .notify(|notice| eprintln!("{notice}"))
    .await?;
    print!("{body}");
    Ok(())
}
