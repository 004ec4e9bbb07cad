//! Messages: enqueued, listed, sent again and cancelled.

use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use relent_http::problem::Problem;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::answer::{
    Answer, Refused, name, ok, query, read, refuse, store_failed, stored, unacceptable,
};
use super::endpoints::page_length;
use super::{MAX_BATCH, Shared};
use crate::message::{MessageId, NewMessage};
use crate::store::{
    AttemptRecord, EnqueueError, Enqueued, Filter, MessageStatus, Refusal, State as MessageState,
    Store,
};

const USUAL: usize = 100;

type Identified = Result<Path<String>, PathRejection>;

/// A message as a producer describes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    #[serde(default)]
    tenant: String,
    endpoint: String,
    event: String,
    #[serde(default)]
    topic: String,
    order: Option<String>,
    content_type: Option<String>,
    /// Sent byte by byte as it stands in the request.
    payload: Option<Box<RawValue>>,
    text: Option<String>,
    base64: Option<String>,
    #[serde(default)]
    delay_ms: u64,
}

impl Described {
    fn message(self) -> Result<NewMessage, String> {
        let (payload, usual) = match (self.payload, self.text, self.base64) {
            (Some(json), None, None) => (json.get().to_owned().into_bytes(), "application/json"),
            (None, Some(text), None) => (text.into_bytes(), "text/plain; charset=utf-8"),
            (None, None, Some(coded)) => {
                let bytes = STANDARD
                    .decode(coded)
                    .map_err(|error| format!("base64: {error}"))?;
                (bytes, "application/octet-stream")
            }
            _ => {
                return Err(
                    "give one of payload (JSON, sent as it stands there), text and base64"
                        .to_owned(),
                );
            }
        };
        let mut message = NewMessage::new(self.endpoint, self.event, payload)
            .tenant(self.tenant)
            .topic(self.topic)
            .content_type(self.content_type.as_deref().unwrap_or(usual))
            .delay(Duration::from_millis(self.delay_ms));
        message.order = self.order;
        message.check().map_err(|error| error.to_string())?;
        Ok(message)
    }
}

#[derive(Serialize)]
struct Accepted {
    id: MessageId,
    duplicate: bool,
}

#[derive(Serialize)]
struct AcceptedAll {
    messages: Vec<Accepted>,
}

/// Enqueues one message, or an array of them: all or none.
pub(super) async fn enqueue<S: Store>(
    State(api): State<Shared<S>>,
    body: Result<Bytes, BytesRejection>,
) -> Answer {
    let one = |body: &Bytes| body.trim_ascii_start().first() != Some(&b'[');
    let single = body.as_ref().is_ok_and(one);
    let described: Vec<Described> = match single {
        true => vec![read(body)?],
        false => read(body)?,
    };
    if !(1..=MAX_BATCH).contains(&described.len()) {
        return Err(unacceptable(format!(
            "an array has 1 to {MAX_BATCH} messages, and this one {}",
            described.len()
        )));
    }
    let refused = |status, index: usize, detail: &str| match single {
        true => refuse(status, detail),
        false => {
            let detail = format!("nothing is enqueued, for the message at index {index}: {detail}");
            let problem = Problem::new(status).detail(detail);
            let index = u64::try_from(index).unwrap_or(u64::MAX);
            // `index` is no name that RFC 9457 defines.
            let numbered = problem.clone().member("index", index);
            numbered.unwrap_or(problem).into()
        }
    };
    let mut messages = Vec::with_capacity(described.len());
    for (index, described) in described.into_iter().enumerate() {
        let message = described.message();
        messages.push(
            message.map_err(|detail| refused(StatusCode::UNPROCESSABLE_ENTITY, index, &detail))?,
        );
    }
    let enqueued = match api.store.enqueue(messages).await {
        Ok(enqueued) => enqueued,
        Err(EnqueueError::Store(error)) => return Ok(store_failed(&error)),
        Err(EnqueueError::Refused { index, refusal }) => {
            let status = match &refusal {
                Refusal::OtherPayload(_) => StatusCode::CONFLICT,
                _ => StatusCode::UNPROCESSABLE_ENTITY,
            };
            return Err(refused(status, index, &refusal.to_string()));
        }
    };
    let status = match enqueued.iter().all(|enqueued| enqueued.duplicate) {
        true => StatusCode::OK,
        false => StatusCode::ACCEPTED,
    };
    let mut messages: Vec<_> = enqueued
        .into_iter()
        .map(|Enqueued { id, duplicate }| Accepted { id, duplicate })
        .collect();
    Ok(match messages.pop() {
        Some(one) if single => (status, Json(one)).into_response(),
        last => {
            messages.extend(last);
            (status, Json(AcceptedAll { messages })).into_response()
        }
    })
}

/// The parts of a [`Filter`], and how many.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    tenant: Option<String>,
    endpoint: Option<String>,
    topic: Option<String>,
    state: Option<MessageState>,
    from_ms: Option<i64>,
    until_ms: Option<i64>,
    before: Option<MessageId>,
    limit: Option<usize>,
}

#[derive(Serialize)]
struct Listed {
    messages: Vec<MessageStatus>,
    /// What to ask for as `before` to have the list go on.
    next: Option<MessageId>,
}

pub(super) async fn list<S: Store>(State(api): State<Shared<S>>, uri: Uri) -> Answer {
    let page: Page = query(&uri)?;
    let limit = page_length(page.limit, USUAL)?;
    let filter = Filter {
        id: None,
        tenant: page.tenant,
        endpoint: page.endpoint,
        topic: page.topic,
        state: page.state,
        from_ms: page.from_ms,
        until_ms: page.until_ms,
        before: page.before,
    };
    let mut messages = stored!(api.store.messages(filter, limit + 1));
    let more = messages.len() > limit;
    messages.truncate(limit);
    let last = messages.last().filter(|_| more);
    let next = last.map(|message| message.id.clone());
    ok(&Listed { messages, next })
}

#[derive(Serialize)]
struct Shown {
    message: MessageStatus,
    attempts: Vec<AttemptRecord>,
}

pub(super) fn only(id: MessageId) -> Filter {
    Filter {
        id: Some(id),
        ..Filter::default()
    }
}

fn identifier(path: Identified) -> Result<MessageId, Refused> {
    let name = name(path)?;
    name.parse().map_err(|_| unknown(&name))
}

fn unknown(id: &str) -> Refused {
    refuse(
        StatusCode::NOT_FOUND,
        format!("there is no message {id:?}: GET /v1/messages lists those there are"),
    )
}

pub(super) async fn show<S: Store>(State(api): State<Shared<S>>, path: Identified) -> Answer {
    let id = identifier(path)?;
    let found = stored!(api.store.messages(only(id.clone()), 1));
    let Some(message) = found.into_iter().next() else {
        return Err(unknown(id.as_str()));
    };
    let attempts = stored!(api.store.attempts(&id));
    ok(&Shown { message, attempts })
}

#[derive(Serialize)]
struct Resent {
    resent: u64,
}

#[derive(Serialize)]
struct Cancelled {
    cancelled: u64,
}

/// Why nothing became of one message: it is not there, or in a state that does not allow it.
async fn unchanged<S: Store>(api: &Shared<S>, id: MessageId, allowed: &str) -> Answer {
    match stored!(api.store.messages(only(id.clone()), 1)).first() {
        None => Err(unknown(id.as_str())),
        Some(message) => Err(refuse(
            StatusCode::CONFLICT,
            format!("it is {}, and only {allowed}", message.state),
        )),
    }
}

pub(super) async fn resend<S: Store>(State(api): State<Shared<S>>, path: Identified) -> Answer {
    let id = identifier(path)?;
    match stored!(api.store.resend(only(id.clone()))) {
        0 => {
            let allowed = "what is delivered, dead or cancelled is sent again";
            unchanged(&api, id, allowed).await
        }
        resent => {
            api.wake();
            ok(&Resent { resent })
        }
    }
}

pub(super) async fn cancel<S: Store>(State(api): State<Shared<S>>, path: Identified) -> Answer {
    let id = identifier(path)?;
    match stored!(api.store.cancel(only(id.clone()))) {
        0 => unchanged(&api, id, "what is pending or dead is cancelled").await,
        cancelled => {
            // Those behind it with its order key may go.
            api.wake();
            ok(&Cancelled { cancelled })
        }
    }
}

/// Has all messages that a filter means sent again.
pub(super) async fn replay<S: Store>(
    State(api): State<Shared<S>>,
    body: Result<Bytes, BytesRejection>,
) -> Answer {
    let filter: Filter = read(body)?;
    if filter == Filter::default() {
        return Err(unacceptable(
            "this would send everything again: name an endpoint, a state or a time, such as \
             {\"endpoint\":\"shop\",\"state\":\"dead\"}; {\"from_ms\":0} means all",
        ));
    }
    let resent = stored!(api.store.resend(filter));
    api.wake();
    ok(&Resent { resent })
}

pub(super) async fn summary<S: Store>(State(api): State<Shared<S>>) -> Answer {
    ok(&stored!(api.store.summary()))
}
