//! Route `/metrics`: the counters of this process, and gauges of the whole outbox from the store.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use super::response::{HandlerResult, refuse};
use super::state::Shared;
use crate::observe::{self, ENDPOINTS_DISABLED, LAG, MESSAGES};
use crate::store::{Store, Summary};

pub(super) async fn render<S: Store>(State(api): State<Shared<S>>) -> HandlerResult {
    let Some(render) = &api.render else {
        return Err(refuse(
            StatusCode::NOT_FOUND,
            "this server keeps no metrics",
        ));
    };
    // If the store fails, the counters still matter; the gauges are then NaN.
    let summary = api.store.summary().await;
    let summary = summary.map_err(|error| observe::store_error("summary", &error.to_string()));
    let value = |of: fn(&Summary) -> u64| summary.as_ref().map_or(f64::NAN, |all| of(all) as f64);
    observe::gauge(&MESSAGES, "pending", value(|all| all.pending));
    observe::gauge(&MESSAGES, "running", value(|all| all.running));
    observe::gauge(&MESSAGES, "dead", value(|all| all.dead));
    observe::gauge(&LAG, "", value(|all| all.lag_ms.unwrap_or(0)) / 1e3);
    observe::gauge(&ENDPOINTS_DISABLED, "", value(|all| all.disabled));
    let text = (CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8");
    Ok(([text], render()).into_response())
}
