//! `/metrics`: what the workers of this process count, and what the store says of the whole outbox.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use metrics::gauge;

use super::Shared;
use super::answer::{Answer, refuse, stored};
use crate::store::Store;

/// Gauge: messages by `state`: `pending`, `running` and `dead`.
pub(super) const MESSAGES: &str = "relent_outbox_messages";
/// Gauge: for how long the oldest message that may be attempted has been due, in seconds; 0 if none is.
pub(super) const LAG: &str = "relent_outbox_lag_seconds";
/// Gauge: endpoints that are disabled.
pub(super) const DISABLED: &str = "relent_outbox_endpoints_disabled";

pub(super) async fn render<S: Store>(State(api): State<Shared<S>>) -> Answer {
    let Some(render) = &api.render else {
        return Err(refuse(
            StatusCode::NOT_FOUND,
            "this server keeps no metrics",
        ));
    };
    let summary = stored!(api.store.summary());
    for (state, count) in [
        ("pending", summary.pending),
        ("running", summary.running),
        ("dead", summary.dead),
    ] {
        gauge!(MESSAGES, "state" => state).set(count as f64);
    }
    gauge!(LAG).set(summary.lag_ms.unwrap_or(0) as f64 / 1e3);
    gauge!(DISABLED).set(summary.disabled as f64);
    let text = (CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8");
    Ok(([text], render()).into_response())
}
