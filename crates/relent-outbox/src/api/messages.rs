//! Routes of messages: enqueue, publish, list, resend and cancel.

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
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::endpoints::page_length;
use super::limits::MAX_BATCH;
use super::object::Object;
use super::response::{
    HandlerResult, Refused, name, ok, query, read, refuse, store_failed, stored, unacceptable,
};
use super::state::Shared;
use super::wait::MessageView;
use crate::message::{MessageId, NewEvent, NewMessage};
use crate::store::{AttemptRecord, EnqueueError, Enqueued, Filter, MessageState, Refusal, Store};

const DEFAULT_PAGE_LENGTH: usize = 100;

type Identified = Result<Path<String>, PathRejection>;

/// A message or an event as a producer describes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    #[serde(default)]
    tenant: String,
    #[serde(default, deserialize_with = "some")]
    endpoint: Option<String>,
    event: String,
    topic: Option<String>,
    order: Option<String>,
    content_type: Option<String>,
    /// Sent unchanged, as it is written in the request.
    #[serde(default, deserialize_with = "some")]
    payload: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "some")]
    text: Option<String>,
    #[serde(default, deserialize_with = "some")]
    base64: Option<String>,
    #[serde(default)]
    delay_ms: u64,
}

/// Accepts a present member only with a value: `null` is a valid payload, but not a valid text.
fn some<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// The longest delay of a first attempt: 366 days.
const MAX_DELAY_MS: u64 = 366 * 24 * 3600 * 1000;

impl Described {
    /// The payload and its media type.
    fn payload(&mut self) -> Result<(Vec<u8>, String), String> {
        let given = (self.payload.take(), self.text.take(), self.base64.take());
        let (payload, default_type) = match given {
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
        if self.delay_ms > MAX_DELAY_MS {
            return Err(format!(
                "delay_ms: {MAX_DELAY_MS} are the most, which are 366 days"
            ));
        }
        let content_type = self.content_type.take();
        Ok((
            payload,
            content_type.unwrap_or_else(|| default_type.to_owned()),
        ))
    }

    fn message(mut self) -> Result<NewMessage, String> {
        let (payload, content_type) = self.payload()?;
        let endpoint = self.endpoint.ok_or(
            "missing field `endpoint`: name it, or POST /v1/events to reach all that have subscribed to the topic",
        )?;
        let mut message = NewMessage::new(endpoint, self.event, payload)
            .tenant(self.tenant)
            .topic(self.topic.unwrap_or_default())
            .content_type(content_type)
            .delay(Duration::from_millis(self.delay_ms));
        message.order = self.order;
        message.check().map_err(|error| error.to_string())?;
        Ok(message)
    }

    fn event(mut self) -> Result<NewEvent, String> {
        let (payload, content_type) = self.payload()?;
        if self.endpoint.is_some() {
            return Err(
                "an event has no `endpoint`: it goes to all that have subscribed to its topic; POST /v1/messages sends to one"
                    .to_owned(),
            );
        }
        let topic = self
            .topic
            .ok_or("missing field `topic`: what endpoints have subscribed to")?;
        let mut event = NewEvent::new(topic, self.event, payload)
            .tenant(self.tenant)
            .content_type(content_type)
            .delay(Duration::from_millis(self.delay_ms));
        if let Some(order) = self.order {
            event = event.in_order(order);
        }
        event.check().map_err(|error| error.to_string())?;
        Ok(event)
    }
}

/// The items that a body describes: one, or an array.
struct Batch<T> {
    all: Vec<T>,
    single: bool,
}

impl<T> Batch<T> {
    fn read(
        body: Result<Bytes, BytesRejection>,
        of: fn(Described) -> Result<T, String>,
    ) -> Result<Self, Refused> {
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
        let all = described.into_iter().enumerate().map(|(index, described)| {
            of(described)
                .map_err(|detail| refused(single, StatusCode::UNPROCESSABLE_ENTITY, index, &detail))
        });
        Ok(Self {
            all: all.collect::<Result<_, _>>()?,
            single,
        })
    }
}

/// The response if one item is refused, so that nothing is enqueued.
fn refused(single: bool, status: StatusCode, index: usize, detail: &str) -> Refused {
    match single {
        true => refuse(status, detail),
        false => {
            let detail = format!("nothing is enqueued, for the message at index {index}: {detail}");
            let problem = Problem::new(status).detail(detail);
            let index = u64::try_from(index).unwrap_or(u64::MAX);
            // `index` is not among the names that RFC 9457 defines.
            let numbered = problem.clone().member("index", index);
            numbered.unwrap_or(problem).into()
        }
    }
}

/// The response to a failed enqueue.
fn not_enqueued<E: std::error::Error>(single: bool, error: EnqueueError<E>) -> HandlerResult {
    match error {
        EnqueueError::Store(error) => Ok(store_failed(&error)),
        EnqueueError::Refused { index, refusal } => {
            let status = match &refusal {
                Refusal::OtherPayload(_) => StatusCode::CONFLICT,
                _ => StatusCode::UNPROCESSABLE_ENTITY,
            };
            Err(refused(single, status, index, &refusal.to_string()))
        }
    }
}

/// 202 if any message is new, otherwise 200.
fn status(mut duplicates: impl Iterator<Item = bool>) -> StatusCode {
    match duplicates.all(|duplicate| duplicate) {
        true => StatusCode::OK,
        false => StatusCode::ACCEPTED,
    }
}

#[derive(Serialize)]
struct Copy {
    endpoint: String,
    #[serde(flatten)]
    accepted: Accepted,
}

#[derive(Serialize)]
struct Fanned {
    messages: Vec<Copy>,
}

#[derive(Serialize)]
struct FannedAll {
    events: Vec<Fanned>,
}

/// Publishes one event, or an array of them, to all subscribed endpoints: all or none.
pub(super) async fn publish<S: Store>(
    State(api): State<Shared<S>>,
    body: Result<Bytes, BytesRejection>,
) -> HandlerResult {
    let Batch { all, single } = Batch::read(body, Described::event)?;
    let published = match api.store.publish(all).await {
        Ok(published) => published,
        Err(error) => return not_enqueued(single, error),
    };
    let status = status(published.iter().flatten().map(|(_, one)| one.duplicate));
    let copy = |(endpoint, Enqueued { id, duplicate })| Copy {
        endpoint,
        accepted: Accepted { id, duplicate },
    };
    let fanned = published.into_iter().map(|one| Fanned {
        messages: one.into_iter().map(copy).collect(),
    });
    let mut events: Vec<_> = fanned.collect();
    Ok(match events.pop() {
        Some(one) if single => (status, Json(one)).into_response(),
        last => {
            events.extend(last);
            (status, Json(FannedAll { events })).into_response()
        }
    })
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
) -> HandlerResult {
    let Batch { all, single } = Batch::read(body, Described::message)?;
    let enqueued = match api.store.enqueue(all).await {
        Ok(enqueued) => enqueued,
        Err(error) => return not_enqueued(single, error),
    };
    let status = status(enqueued.iter().map(|one| one.duplicate));
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

/// The query of a list: the parts of a [`Filter`], and the length of the page.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    tenant: Option<String>,
    endpoint: Option<String>,
    event: Option<String>,
    search: Option<String>,
    topic: Option<String>,
    state: Option<MessageState>,
    enqueued_from_ms: Option<i64>,
    enqueued_until_ms: Option<i64>,
    ended_from_ms: Option<i64>,
    ended_until_ms: Option<i64>,
    before: Option<i64>,
    limit: Option<usize>,
}

#[derive(Serialize)]
struct Listed {
    messages: Vec<MessageView>,
    /// The value of `before` for the next page.
    next: Option<String>,
}

pub(super) async fn list<S: Store>(State(api): State<Shared<S>>, uri: Uri) -> HandlerResult {
    let page: Page = query(&uri)?;
    let limit = page_length(page.limit, DEFAULT_PAGE_LENGTH)?;
    let filter = Filter {
        id: None,
        tenant: page.tenant,
        endpoint: page.endpoint,
        event: page.event,
        search: page.search,
        topic: page.topic,
        state: page.state,
        enqueued_from_ms: page.enqueued_from_ms,
        enqueued_until_ms: page.enqueued_until_ms,
        ended_from_ms: page.ended_from_ms,
        ended_until_ms: page.ended_until_ms,
        before: page.before,
    };
    check(&filter)?;
    let mut messages = stored!(api.store.messages(filter, limit + 1));
    let more = messages.len() > limit;
    messages.truncate(limit);
    let last = messages.last().filter(|_| more);
    let next = last.map(|message| message.place.to_string());
    let messages = api.with_waits(messages).await;
    ok(&Listed { messages, next })
}

#[derive(Serialize)]
struct Shown {
    message: MessageView,
    attempts: Vec<AttemptRecord>,
}

pub(super) fn only(id: MessageId) -> Filter {
    Filter {
        id: Some(id),
        ..Filter::default()
    }
}

pub(super) fn identifier(path: Identified) -> Result<MessageId, Refused> {
    let name = name(path)?;
    name.parse().map_err(|_| unknown(&name))
}

pub(super) fn unknown(id: &str) -> Refused {
    refuse(
        StatusCode::NOT_FOUND,
        format!("there is no message {id:?}: GET /v1/messages lists those there are"),
    )
}

pub(super) async fn show<S: Store>(
    State(api): State<Shared<S>>,
    path: Identified,
) -> HandlerResult {
    let id = identifier(path)?;
    let found = stored!(api.store.messages(only(id.clone()), 1));
    let Some(message) = found.into_iter().next() else {
        return Err(unknown(id.as_str()));
    };
    let attempts = stored!(api.store.attempts(&id));
    let message = api.with_wait(message).await;
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

/// The response if no message was changed: it does not exist, or its state does not allow the change.
async fn unchanged<S: Store>(api: &Shared<S>, id: MessageId, allowed: &str) -> HandlerResult {
    match stored!(api.store.messages(only(id.clone()), 1)).first() {
        None => Err(unknown(id.as_str())),
        Some(message) => Err(refuse(
            StatusCode::CONFLICT,
            format!("it is {}, and only {allowed}", message.state),
        )),
    }
}

pub(super) async fn resend<S: Store>(
    State(api): State<Shared<S>>,
    path: Identified,
) -> HandlerResult {
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

pub(super) async fn cancel<S: Store>(
    State(api): State<Shared<S>>,
    path: Identified,
) -> HandlerResult {
    let id = identifier(path)?;
    match stored!(api.store.cancel(only(id.clone()))) {
        0 => unchanged(&api, id, "what is pending or dead is cancelled").await,
        cancelled => {
            // Messages behind it with its order key may become free.
            api.wake();
            ok(&Cancelled { cancelled })
        }
    }
}

/// Parses a filter.
fn filter(body: Result<Bytes, BytesRejection>) -> Result<Filter, Refused> {
    let Object(given) = read(body)?;
    if let Some((name, _)) = given.iter().find(|(_, value)| value.is_null()) {
        return Err(unacceptable(format!(
            "{name}: null narrows nothing, so leave it out"
        )));
    }
    let filter: Filter = serde_json::from_value(Value::Object(given))
        .map_err(|error| unacceptable(error.to_string()))?;
    check(&filter)?;
    match filter.search.as_deref() {
        Some("") => Err(unacceptable(
            "search: nothing narrows nothing, so leave it out",
        )),
        _ => Ok(filter),
    }
}

fn check(filter: &Filter) -> Result<(), Refused> {
    filter
        .check()
        .map_err(|error| unacceptable(error.to_string()))
}

/// Resends all messages that a filter selects.
pub(super) async fn replay<S: Store>(
    State(api): State<Shared<S>>,
    body: Result<Bytes, BytesRejection>,
) -> HandlerResult {
    let filter = filter(body)?;
    if filter.is_all() {
        return Err(unacceptable(
            "this would send everything again: name an endpoint, a state or a time, such as \
             {\"endpoint\":\"shop\",\"state\":\"dead\"}; {\"ended_until_ms\":1767225600000} means all before that time",
        ));
    }
    let may_repeat = filter
        .state
        .is_none_or(|state| state == MessageState::Delivered);
    if may_repeat && filter.ended_until_ms.is_none() {
        return Err(unacceptable(
            "ended_until_ms: this may select delivered messages, so give an end, such as the present time: if the request is \
             repeated, it then does not deliver again what it has delivered; {\"state\":\"dead\"} needs none",
        ));
    }
    let resent = stored!(api.store.resend(filter));
    api.wake();
    ok(&Resent { resent })
}

#[derive(Serialize)]
struct Due {
    due: u64,
}

/// Makes one pending message due now.
pub(super) async fn send_now<S: Store>(
    State(api): State<Shared<S>>,
    path: Identified,
) -> HandlerResult {
    let id = identifier(path)?;
    match stored!(api.store.send_now(only(id.clone()))) {
        0 => unchanged(&api, id, "what is pending is sent now").await,
        due => {
            api.wake();
            ok(&Due { due })
        }
    }
}

/// Makes all pending messages due now that a filter selects.
pub(super) async fn send_all_now<S: Store>(
    State(api): State<Shared<S>>,
    body: Result<Bytes, BytesRejection>,
) -> HandlerResult {
    let filter = filter(body)?;
    if filter.is_all() {
        return Err(unacceptable(
            "this would send everything that waits: name an endpoint, a topic or a time, such as \
             {\"endpoint\":\"shop\"}; {\"state\":\"pending\"} means all",
        ));
    }
    if let Some(state) = filter.state.filter(|state| *state != MessageState::Pending) {
        return Err(unacceptable(format!(
            "state: what is {state} does not wait; only pending messages are sent now, and POST /v1/replay sends again what \
             has ended"
        )));
    }
    if filter.ended_from_ms.or(filter.ended_until_ms).is_some() {
        return Err(unacceptable(
            "pending messages have not ended: narrow by enqueued_from_ms and enqueued_until_ms",
        ));
    }
    let due = stored!(api.store.send_now(filter));
    api.wake();
    ok(&Due { due })
}

pub(super) async fn summary<S: Store>(State(api): State<Shared<S>>) -> HandlerResult {
    ok(&stored!(api.store.summary()))
}
