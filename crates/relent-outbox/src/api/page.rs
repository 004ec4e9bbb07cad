//! The page for people: what is stuck and why, and what can be done about it. It needs no script.

use axum::Form;
use axum::extract::rejection::{FormRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::header::{CONTENT_TYPE, SET_COOKIE};
use axum::http::{StatusCode, Uri};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use maud::{Markup, html};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::access::SESSION;
use super::answer::{name, query};
use super::endpoints::{names, redact};
use super::messages::only;
use super::{Route, Shared};
use crate::endpoint::Activity;
use crate::health::Health;
use crate::message::MAX_NAME;
use crate::store::{EndpointStatus, Filter, MessageStatus, State as MessageState, Store, millis};
use crate::text::escape_bidi_in_page;

mod time;
mod view;

const CSS: &str = include_str!("page/style.css");
/// The most endpoints that the overview looks at, and the most messages of a list.
const MOST_ENDPOINTS: usize = 1000;
const MOST_MESSAGES: usize = 100;
/// How many of the latest are shown of what is stuck.
const LATEST: usize = 20;
/// How many endpoints are asked for a message that failed, beside the latest: each takes a store a while that has many.
const MOST_HIDDEN: usize = 5;

pub(super) fn routes<S: Store>() -> Vec<Route<S>> {
    vec![
        ("get", "/", get(overview::<S>)),
        ("get", "/endpoints/{name}", get(endpoint::<S>)),
        ("get", "/messages", get(messages::<S>)),
        ("get", "/messages/{id}", get(message::<S>)),
        ("post", "/do", post(act::<S>)),
        ("get", "/login", get(login_form)),
        ("post", "/login", post(login::<S>)),
        ("post", "/logout", post(logout)),
        ("get", "/style.css", get(style)),
    ]
}

async fn style() -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/css; charset=utf-8")], CSS)
}

/// A page, with its status.
fn page(status: StatusCode, title: &str, signed_in: bool, content: &Markup) -> Response {
    let page = view::page(title, signed_in, content).into_string();
    (status, Html(escape_bidi_in_page(&page))).into_response()
}

fn ok(title: &str, content: &Markup) -> Response {
    page(StatusCode::OK, title, true, content)
}

/// Says on a page what went wrong.
fn failed(status: StatusCode, what: &str) -> Response {
    let content = html! { h1 { "That did not work" } p.bad { (what) } p { a href="/" { "Back to the overview" } } };
    page(status, "That did not work", true, &content)
}

/// Returns the answer of a store, or a page that says why there is none.
macro_rules! stored {
    ($asked:expr) => {
        match $asked.await {
            Ok(answer) => answer,
            Err(error) => {
                let what = format!("The store does not answer: {error}. Try it again.");
                return failed(StatusCode::SERVICE_UNAVAILABLE, &what);
            }
        }
    };
}

async fn overview<S: Store>(State(api): State<Shared<S>>, uri: Uri) -> Response {
    let summary = stored!(api.store.summary());
    let endpoints = stored!(api.store.endpoints(None, MOST_ENDPOINTS + 1));
    let in_state = |state| Filter {
        state: Some(state),
        ..Filter::default()
    };
    let dead = stored!(api.store.messages(in_state(MessageState::Dead), LATEST));
    let latest = stored!(
        api.store
            .messages(in_state(MessageState::Pending), MOST_MESSAGES)
    );
    let mut waiting = first_failed(latest);
    // Those that a busy endpoint hides.
    let mut hidden = failing(&endpoints);
    hidden.retain(|(tenant, name, _)| {
        let is_of =
            |message: &MessageStatus| message.tenant == *tenant && message.endpoint == *name;
        !waiting.iter().any(is_of)
    });
    for (tenant, name, until) in hidden.into_iter().take(MOST_HIDDEN) {
        let filter = Filter {
            tenant: Some(tenant),
            endpoint: Some(name),
            until_ms: Some(until),
            ..in_state(MessageState::Pending)
        };
        let failed = stored!(api.store.messages(filter, MOST_MESSAGES));
        waiting.extend(first_failed(failed));
    }
    waiting.sort_by_key(|message| message.created_ms);
    waiting.truncate(LATEST);
    let endpoints: Vec<_> = endpoints.into_iter().map(redact).collect();
    let held = api.held().await;
    let content = view::overview(&summary, endpoints, &held, &dead, &waiting, MOST_ENDPOINTS);
    ok("Overview", &html! { (done(&uri)) (content) })
}

/// Of the messages that have failed, the one of each endpoint that was enqueued first, from messages of which the latest
/// come first.
fn first_failed(latest: Vec<MessageStatus>) -> Vec<MessageStatus> {
    let mut first: Vec<MessageStatus> = Vec::new();
    let failed = latest.into_iter().rev();
    for message in failed.filter(|message| !message.last_error.is_empty()) {
        let is_same = |other: &MessageStatus| {
            (&other.tenant, &other.endpoint) == (&message.tenant, &message.endpoint)
        };
        if !first.iter().any(is_same) {
            first.push(message);
        }
    }
    first
}

/// The endpoints where nothing has arrived for the longest time although messages wait, those that fail longest first, and
/// until when the message was enqueued that failed first, in milliseconds since 1970.
fn failing(endpoints: &[EndpointStatus]) -> Vec<(String, String, i64)> {
    let mut failing: Vec<_> = endpoints
        .iter()
        .filter(|status| status.pending > 0)
        .filter_map(|status| {
            let since = Health::read(&status.health).failing_since()?;
            let (tenant, name) = names(status);
            // It is known to the second.
            Some((tenant, name, millis(since).saturating_add(1000)))
        })
        .collect();
    failing.sort_by_key(|(_, _, until)| *until);
    failing
}

async fn endpoint<S: Store>(
    State(api): State<Shared<S>>,
    path: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Response {
    let (name, tenant) = match (name(path), query::<Marked>(&uri)) {
        (Ok(name), Ok(marked)) => (name, marked.tenant),
        _ => return failed(StatusCode::NOT_FOUND, "There is no such page."),
    };
    let Some(status) = stored!(api.store.endpoint(&tenant, &name)) else {
        return failed(StatusCode::NOT_FOUND, "No endpoint has this name.");
    };
    let filter = Filter {
        tenant: Some(tenant),
        endpoint: Some(name.clone()),
        ..Filter::default()
    };
    let messages = stored!(api.store.messages(filter, MOST_MESSAGES));
    let held = api.held().await;
    let held = held.get(&names(&status));
    let here = api
        .watch
        .as_ref()
        .is_some_and(|watch| watch.name() == status.worker);
    let content = view::endpoint(
        &redact(status),
        held,
        here,
        &messages,
        api.form_token.as_str(),
    );
    ok(&name, &html! { (done(&uri)) (content) })
}

/// Which messages a list shows.
#[derive(Deserialize)]
struct Listed {
    #[serde(default)]
    tenant: String,
    endpoint: Option<String>,
    state: Option<MessageState>,
    before: Option<crate::message::MessageId>,
}

async fn messages<S: Store>(State(api): State<Shared<S>>, uri: Uri) -> Response {
    let Ok(listed) = query::<Listed>(&uri) else {
        return failed(StatusCode::NOT_FOUND, "There is no such page.");
    };
    let Listed { state, before, .. } = listed;
    let whose = listed.endpoint.map(|endpoint| (listed.tenant, endpoint));
    let (tenant, endpoint) = whose.clone().unzip();
    let filter = Filter {
        tenant,
        endpoint,
        state,
        before,
        ..Filter::default()
    };
    let messages = stored!(api.store.messages(filter, MOST_MESSAGES));
    let more = messages.len() == MOST_MESSAGES;
    ok("Messages", &view::messages(&whose, state, &messages, more))
}

async fn message<S: Store>(
    State(api): State<Shared<S>>,
    path: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Response {
    let unknown = || failed(StatusCode::NOT_FOUND, "There is no such message.");
    let Some(id) = name(path).ok().and_then(|id| id.parse().ok()) else {
        return unknown();
    };
    let found = stored!(api.store.messages(only(id), 1));
    let Some(message) = found.first() else {
        return unknown();
    };
    let attempts = stored!(api.store.attempts(&message.id));
    let content = view::message(message, &attempts, api.form_token.as_str());
    ok(message.id.as_str(), &html! { (done(&uri)) (content) })
}

/// What was done before this page was shown. Only numbers are taken from the address, and no text.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Marked {
    tenant: String,
    resent: Option<u64>,
    cancelled: Option<u64>,
}

fn done(uri: &Uri) -> Markup {
    let marked: Marked = query(uri).unwrap_or_default();
    let said = match (marked.resent, marked.cancelled) {
        (Some(0), _) => "Nothing was there to be sent again.".to_owned(),
        (Some(1), _) => "1 message will be sent again.".to_owned(),
        (Some(count), _) => format!("{count} messages will be sent again."),
        (None, Some(0)) => "It could not be cancelled: it is no longer pending or dead.".to_owned(),
        (None, Some(_)) => "It is cancelled.".to_owned(),
        (None, None) => return html! {},
    };
    html! { p.done role="status" { (said) } }
}

/// What a button does.
#[derive(Deserialize)]
#[serde(tag = "act", rename_all = "kebab-case")]
enum Act {
    Resend {
        id: crate::message::MessageId,
    },
    Cancel {
        id: crate::message::MessageId,
    },
    Enable(Target),
    Disable {
        #[serde(flatten)]
        target: Target,
        reason: String,
    },
    Replay {
        #[serde(flatten)]
        target: Target,
        state: MessageState,
        #[serde(default)]
        from: String,
        #[serde(default)]
        until: String,
    },
}

#[derive(Deserialize)]
struct Target {
    tenant: String,
    name: String,
}

#[derive(Deserialize)]
struct Filled {
    form_token: String,
    #[serde(flatten)]
    act: Act,
}

/// A part of a path or a query.
fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// The page of an endpoint.
fn page_of(tenant: &str, name: &str) -> String {
    format!("/endpoints/{}?tenant={}", encoded(name), encoded(tenant))
}

async fn act<S: Store>(
    State(api): State<Shared<S>>,
    form: Result<Form<Filled>, FormRejection>,
) -> Response {
    let Ok(Form(Filled { form_token, act })) = form else {
        let what = "The form was not filled in completely. Go back and try it again.";
        return failed(StatusCode::UNPROCESSABLE_ENTITY, what);
    };
    if !api.form_token.is(&form_token) {
        let what = "This form is of an earlier run of the server. Open the page again.";
        return failed(StatusCode::FORBIDDEN, what);
    }
    let to = match act {
        Act::Resend { id } => {
            let to = format!("/messages/{id}?resent=");
            to + &stored!(api.store.resend(only(id))).to_string()
        }
        Act::Cancel { id } => {
            let to = format!("/messages/{id}?cancelled=");
            to + &stored!(api.store.cancel(only(id))).to_string()
        }
        Act::Enable(Target { tenant, name }) => {
            stored!(api.store.set_activity(&tenant, &name, Activity::Active, ""));
            page_of(&tenant, &name)
        }
        Act::Disable { target, reason } => {
            let Target { tenant, name } = target;
            let reason = match reason.trim() {
                "" => "disabled on the page",
                reason if reason.len() > MAX_NAME || reason.contains('\0') => {
                    let what = format!("The reason may have {MAX_NAME} bytes.");
                    return failed(StatusCode::UNPROCESSABLE_ENTITY, &what);
                }
                reason => reason,
            };
            stored!(
                api.store
                    .set_activity(&tenant, &name, Activity::Disabled, reason)
            );
            page_of(&tenant, &name)
        }
        Act::Replay {
            target: Target { tenant, name },
            state,
            from,
            until,
        } => {
            let (Ok(from_ms), Ok(until_ms)) = (time::read(&from), time::read(&until)) else {
                let what = "A time is written as 2026-01-31T12:00, in UTC.";
                return failed(StatusCode::UNPROCESSABLE_ENTITY, what);
            };
            let filter = Filter {
                tenant: Some(tenant.clone()),
                endpoint: Some(name.clone()),
                state: Some(state),
                from_ms,
                until_ms,
                ..Filter::default()
            };
            let count = stored!(api.store.resend(filter));
            format!("{}&resent={count}", page_of(&tenant, &name))
        }
    };
    api.wake();
    Redirect::to(&to).into_response()
}

async fn login_form() -> Response {
    page(StatusCode::OK, "Sign in", false, &view::login(false))
}

#[derive(Deserialize)]
struct Login {
    token: String,
}

async fn login<S: Store>(
    State(api): State<Shared<S>>,
    form: Result<Form<Login>, FormRejection>,
) -> Response {
    match form {
        Ok(Form(Login { token })) if api.token.is(token.trim()) => {
            let cookie = format!(
                "{SESSION}={}; HttpOnly; SameSite=Strict; Path=/",
                api.session.as_str()
            );
            ([(SET_COOKIE, cookie)], Redirect::to("/")).into_response()
        }
        _ => page(
            StatusCode::UNAUTHORIZED,
            "Sign in",
            false,
            &view::login(true),
        ),
    }
}

async fn logout() -> Response {
    let cookie = format!("{SESSION}=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0");
    ([(SET_COOKIE, cookie)], Redirect::to("/login")).into_response()
}
