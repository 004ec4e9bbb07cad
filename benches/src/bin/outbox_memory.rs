//! Prints the memory of a worker with 1,000, 100,000 and 1,000,000 pending messages in SQLite: due in a day, or due
//! immediately to endpoints that take 10 s. Each run is a separate process, which only works.

use std::process::Command;
use std::time::Duration;

use relent_benches::receivers::{
    Failed, Receivers, SERVE, memory, processor_seconds, sender, serve,
};
use relent_outbox::endpoint::Endpoint;
use relent_outbox::message::NewMessage;
use relent_outbox::secrets::Secrets;
use relent_outbox::store::{Sqlite, Store};
use relent_outbox::worker::{Worker, WorkerConfig};

const ENDPOINTS: usize = 1000;
/// The duration for which a worker runs before its memory is read.
const RUN: Duration = Duration::from_secs(20);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [argument] if argument == SERVE => return serve().await,
        [argument, path] if argument == "work" => return work(path).await,
        _ => {}
    }
    println!("# outbox_memory: {ENDPOINTS} endpoints");
    println!("| due | pending | MiB after 20 s | at most | processor, s | MiB of the database |");
    println!("|---|---|---|---|---|---|");
    for (due, delay) in [("in a day", 24 * 3600), ("at once", 0)] {
        for messages in [1000, 100_000, 1_000_000] {
            let receivers = Receivers::start()?;
            let directory = tempfile::tempdir()?;
            let path = directory.path().join("outbox.db");
            let store = Sqlite::open(&path)?;
            for endpoint in 0..ENDPOINTS {
                let url = format!("http://e{endpoint}.test:{}/slow", receivers.port);
                store
                    .put_endpoint(Endpoint::new(endpoint.to_string(), url))
                    .await?;
            }
            for first in (0..messages).step_by(1000) {
                let batch = (first..first + 1000).map(|event| {
                    let to = (event % ENDPOINTS).to_string();
                    let message = NewMessage::new(to, event.to_string(), vec![b'x'; 200]);
                    message.delay(Duration::from_secs(delay))
                });
                store.enqueue(batch.collect()).await?;
            }
            drop(store);
            let mib = std::fs::metadata(&path)?.len() >> 20;
            let mut work = Command::new(std::env::current_exe()?);
            let work = work.arg("work").arg(&path).output()?;
            let told = String::from_utf8(work.stdout)?;
            println!("| {due} | {messages} | {} | {mib} |", told.trim());
        }
    }
    Ok(())
}

async fn work(path: &str) -> Result<(), Failed> {
    let worker = Worker::new(
        Sqlite::open(path)?,
        sender()?,
        Secrets::default(),
        WorkerConfig::default(),
    );
    tokio::spawn(worker.run(std::future::pending()));
    tokio::time::sleep(RUN).await;
    let (now, most) = memory()?;
    println!("{now:.1} | {most:.1} | {:.2}", processor_seconds()?);
    Ok(())
}
