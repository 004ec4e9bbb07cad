//! `/metrics`: what the workers of this process count, and what the store says of the whole outbox.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use metrics::gauge;

use super::Shared;
use super::answer::{Answer, refuse};
use crate::observe;
use crate::store::{Store, Summary};

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
    // What the process counts is wanted most when the store does not answer; what that holds is then no number.
    let summary = api.store.summary().await;
    let summary = summary.map_err(|error| observe::store_error("summary", &error.to_string()));
    let value = |of: fn(&Summary) -> u64| summary.as_ref().map_or(f64::NAN, |all| of(all) as f64);
    gauge!(MESSAGES, "state" => "pending").set(value(|all| all.pending));
    gauge!(MESSAGES, "state" => "running").set(value(|all| all.running));
    gauge!(MESSAGES, "state" => "dead").set(value(|all| all.dead));
    gauge!(LAG).set(value(|all| all.lag_ms.unwrap_or(0)) / 1e3);
    gauge!(DISABLED).set(value(|all| all.disabled));
    let text = (CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8");
    Ok(([text], render()).into_response())
}
