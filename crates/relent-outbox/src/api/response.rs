//! Parsing of requests, and responses.

use std::error::Error;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, Query};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use relent_http::problem::Problem;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::limits::MAX_BODY;
use crate::observe;

/// The description of the API in OpenAPI 3.1, as JSON.
pub const OPENAPI: &str = include_str!("openapi.json");

/// The result of a handler.
pub(super) type HandlerResult = Result<Response, Refused>;

/// A problem response (RFC 9457).
#[derive(Debug)]
pub(super) struct Refused(Box<Problem>);

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self(Box::new(problem))
    }
}

impl Refused {
    /// The description of the problem.
    pub(super) fn detail(&self) -> String {
        let problem: Option<Value> = serde_json::from_str(&self.0.to_json()).ok();
        let detail = problem.and_then(|problem| problem["detail"].as_str().map(str::to_owned));
        detail.unwrap_or_default()
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        self.0.into_response().into_response()
    }
}

/// Creates a problem response with this status and description.
pub(super) fn refuse(status: StatusCode, detail: impl Into<String>) -> Refused {
    Problem::new(status).detail(detail.into()).into()
}

/// Creates a 422 response with this description.
pub(super) fn unacceptable(detail: impl Into<String>) -> Refused {
    refuse(StatusCode::UNPROCESSABLE_ENTITY, detail)
}

/// The response for a failing store: the outcome is unknown, and every request may be repeated.
pub(super) fn store_failed(error: &impl Error) -> Response {
    observe::store_error("api", &error.to_string());
    let detail = format!("the store does not answer, so ask again: {error}");
    let mut response = refuse(StatusCode::SERVICE_UNAVAILABLE, detail).into_response();
    let seconds = HeaderValue::from_static("1");
    response.headers_mut().insert(RETRY_AFTER, seconds);
    response
}

/// Returns the result of a store call, or responds with 503.
macro_rules! stored {
    ($asked:expr) => {
        match $asked.await {
            Ok(answer) => answer,
            Err(error) => return Ok($crate::api::response::store_failed(&error)),
        }
    };
}
pub(super) use stored;

pub(super) fn ok(value: &impl Serialize) -> HandlerResult {
    Ok(Json(value).into_response())
}

/// Parses the JSON of a body.
pub(super) fn read<T: DeserializeOwned>(body: Result<Bytes, BytesRejection>) -> Result<T, Refused> {
    let body = body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => refuse(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!(
                "a request may have {MAX_BODY} bytes in its body: send fewer messages in one request"
            ),
        ),
        status => refuse(status, "the body broke off: send the request again"),
    })?;
    serde_json::from_slice(&body).map_err(|error| match error.is_data() {
        true => unacceptable(error.to_string()),
        false => refuse(
            StatusCode::BAD_REQUEST,
            format!("the body is no JSON: {error}"),
        ),
    })
}

/// Parses the query string.
pub(super) fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, Refused> {
    let asked = Query::try_from_uri(uri);
    asked.map(|Query(asked)| asked).map_err(|rejection| {
        let source = rejection
            .source()
            .map_or_else(|| rejection.to_string(), ToString::to_string);
        unacceptable(format!("after the ?: {source}"))
    })
}

/// Decodes the variable part of a path.
pub(super) fn name(path: Result<Path<String>, PathRejection>) -> Result<String, Refused> {
    path.map(|Path(name)| name)
        .map_err(|_| unacceptable("the path has to be UTF-8, percent-encoded"))
}

pub(super) async fn not_found(uri: Uri) -> Refused {
    refuse(
        StatusCode::NOT_FOUND,
        format!(
            "there is no {}: /openapi.json describes what there is",
            uri.path()
        ),
    )
}

pub(super) async fn method_not_allowed(uri: Uri) -> Refused {
    refuse(
        StatusCode::METHOD_NOT_ALLOWED,
        format!(
            "{} takes other methods: /openapi.json describes them",
            uri.path()
        ),
    )
}

pub(super) async fn health() -> &'static str {
    "ok\n"
}

pub(super) async fn openapi() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], OPENAPI)
}
