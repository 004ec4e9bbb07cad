//! Commands to a process. It ends when its standard input is closed.

use std::io::BufRead;
use std::thread;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// The commands to the process, read on a separate thread. The channel is closed when standard input is: the parent
/// process has ended, for any reason.
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

/// The start time of the run, for [`crate::clock::Start::at`]; `None` if there will be no run.
pub async fn start(told: &mut UnboundedReceiver<String>) -> Option<u128> {
    let line = told.recv().await?;
    line.strip_prefix("start ")?.parse().ok()
}
