//! Retrying inside `tokio::spawn`: with a plain closure, with an async closure that owns its state,
//! and with a borrowed connection.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use relent::{Attempt, Policy, retry, retry_mut, retry_on};

struct Connection {
    queries: u32,
}

impl Connection {
    async fn query(&mut self) -> Result<u32, String> {
        self.queries += 1;
        tokio::task::yield_now().await;
        if self.queries < 3 {
            Err(format!("query {} failed", self.queries))
        } else {
            Ok(self.queries)
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let plain = tokio::spawn(retry(Policy::STANDARD, || async { Ok::<_, String>(1) }));
    println!("plain: {:?}", plain.await?);

    let mut owned = Connection { queries: 0 };
    let closure = tokio::spawn(
        retry_mut(Policy::STANDARD, async move |attempt: Attempt| {
            println!("attempt {}", attempt.number);
            owned.query().await
        })
        .run(),
    );
    println!("async closure: {:?}", closure.await?);

    let borrowed = tokio::spawn(async {
        let mut connection = Connection { queries: 0 };
        retry_on(Policy::STANDARD, &mut connection, |connection, _| {
            Box::pin(connection.query())
        })
        .run()
        .await
    });
    println!("borrowed: {:?}", borrowed.await?);
    Ok(())
}
