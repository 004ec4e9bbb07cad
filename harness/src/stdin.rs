//! What a process is told. When nobody can tell it anything any more, it ends.

use std::io::BufRead;
use std::thread;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// The lines that the process is told, read on a thread of its own. The channel is closed when
/// standard input is: whoever started this process has ended, however that happened.
#[must_use]
pub fn lines() -> UnboundedReceiver<String> {
    let (tell, told) = unbounded_channel();
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if tell.send(line).is_err() {
                return;
            }
        }
    });
    told
}

/// The time at which the run starts, as [`crate::clock::Start::at`] takes it. `None` if there will be
/// no run.
pub async fn start(told: &mut UnboundedReceiver<String>) -> Option<u128> {
    let line = told.recv().await?;
    line.strip_prefix("start ")?.parse().ok()
}
