//! The wait for the end of a message, for `relent deliver send --wait` and `endpoints test --wait`.

use std::cell::RefCell;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::list::attempt_line;
use super::server::{Server, encoded, text, wait_text};
use crate::console::say;
use crate::exit_status::ExitError;
use crate::human::human;
use crate::options::duration;

/// The interval at which the state of a message is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// A due message whose attempt has not started is reported after this time.
const WORKER_TIME: Duration = Duration::from_secs(3);
/// The longest wait for the end of a message, unless another is given.
pub(super) const WAIT_LIMIT: &str = "5m";

/// The longest wait for the end of a message; `None` for no limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitLimit(pub(super) Option<Duration>);

/// Parses the longest wait for the end of a message.
pub(super) fn wait_limit(text: &str) -> Result<WaitLimit, String> {
    match text {
        "unlimited" => Ok(WaitLimit(None)),
        text => duration(text)
            .map(|limit| WaitLimit(Some(limit)))
            .map_err(|error| format!("{error}; or unlimited")),
    }
}

/// Polls a message until it has ended, and reports its attempts and why it waits.
///
/// # Errors
/// It is dead, cancelled or deleted, the server does not respond, or it has not ended within the limit: status 124.
pub(super) async fn wait(
    server: &Server,
    id: &str,
    WaitLimit(limit): WaitLimit,
    quiet: bool,
) -> Result<i32, ExitError> {
    let why = RefCell::new(None);
    let ended = poll(server, id, quiet, &why);
    let Some(limit) = limit else {
        return ended.await;
    };
    timeout(limit, ended).await.unwrap_or_else(|_| {
        let why = why
            .take()
            .map_or_else(String::new, |why| format!(": {why}"));
        Err(ExitError::timed_out(format!(
            "{id} was not acknowledged within {}{why}; {}",
            human(limit),
            stays_enqueued(id)
        )))
    })
}

/// The end of an error message if the wait ends before the message does.
fn stays_enqueued(id: &str) -> String {
    format!("{id} stays enqueued, and `relent deliver show {id}` shows its state")
}

/// Polls a message until it has ended. `why` is the reason that it waits.
async fn poll(
    server: &Server,
    id: &str,
    quiet: bool,
    why: &RefCell<Option<String>>,
) -> Result<i32, ExitError> {
    let path = format!("/v1/messages/{}", encoded(id));
    let mut told = 0;
    let begun = Instant::now();
    let mut reported = Value::Null;
    loop {
        let shown = server.get_version(&path).await.map_err(|mut error| {
            error.message = format!("{}; {}", error.message, stays_enqueued(id));
            error
        })?;
        let deleted = || ExitError::failed(format!("{id} was deleted before it was acknowledged"));
        let (shown, _) = shown.ok_or_else(deleted)?;
        let attempts = shown["attempts"].as_array();
        for attempt in attempts.into_iter().flatten().skip(told).filter(|_| !quiet) {
            say(&attempt_line(attempt));
        }
        told = attempts.map_or(0, Vec::len);
        let message = &shown["message"];
        match message["state"].as_str() {
            Some("delivered") => return Ok(0),
            Some(state @ ("dead" | "cancelled")) => {
                let reason = text(message, "reason");
                return Err(ExitError::failed(format!("{id} is {state}: {reason}")));
            }
            _ => {}
        }
        let wait = &message["wait"];
        why.replace(wait_text(message));
        // Its time moves while a fault lasts.
        let reason = json!([wait["reason"], wait["detail"], told]);
        let is_starting = wait["reason"] == "worker" && begun.elapsed() < WORKER_TIME;
        if wait.is_object() && !is_starting && reason != reported {
            reported = reason;
            let text = why.borrow().clone().unwrap_or_default();
            if !quiet {
                say(&format!("waiting: {text}"));
            }
        }
        sleep(POLL_INTERVAL).await;
    }
}
