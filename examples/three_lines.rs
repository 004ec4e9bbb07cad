//! The shortest use: three lines around an operation that fails twice.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::sync::atomic::{AtomicU32, Ordering};

use relent::{Policy, retry};

static CALLS: AtomicU32 = AtomicU32::new(0);

async fn fetch() -> Result<&'static str, std::io::Error> {
    match CALLS.fetch_add(1, Ordering::Relaxed) {
        0 | 1 => Err(std::io::ErrorKind::ConnectionReset.into()),
        _ => Ok("an answer"),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let answer = retry(Policy::STANDARD, fetch)
        .notify(|notice| eprintln!("{notice}"))
        .await?;
    println!("{answer}");
    Ok(())
}
