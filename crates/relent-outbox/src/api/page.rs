//! Web page for operators: stuck messages, the reasons, and actions. It needs no script.

use std::collections::HashSet;
use std::str::FromStr;

use axum::Form;
use axum::extract::rejection::{FormRejection, PathRejection, RawFormRejection};
use axum::extract::{Extension, Path, RawForm, State};
use axum::http::header::{CONTENT_TYPE, SET_COOKIE};
use axum::http::{StatusCode, Uri};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use maud::{Markup, html};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as InvalidWord, StrDeserializer};
use serde_json::{Map, Value};
use url::form_urlencoded;

use super::access::SESSION;
use super::contents::DEFAULT_SHOWN_BYTES;
use super::endpoints::{is_encrypted, key_number, names, redact, shown_keys, without_key};
use super::messages::only;
use super::response::{name, query};
use super::sessions::{Contents, PageSession};
use super::state::{Route, Shared};
use super::wait::with_waits;
use crate::endpoint::Activity;
use crate::health::Health;
use crate::message::{MAX_NAME, MessageId, NewMessage, is_name};
use crate::store::{EndpointStatus, Filter, MessageState, MessageStatus, Store, millis};
use crate::text::escape_bidi_in_page;

mod link;
mod listed;
mod time;
mod view;

use link::page_of;
use listed::Listed;
use view::LATEST;

const CSS: &str = include_str!("page/style.css");
/// The largest number of endpoints of the overview, and of messages in a list.
const MAX_ENDPOINTS: usize = 1000;
const MAX_MESSAGES: usize = 100;
/// The refusal of a form of another session.
const OTHER_FORM: &str =
    "This form is not of your session: you have signed in again since. Open the page again.";
/// The number of additional endpoints to query for their first failed message: each query is slow in a large store.
const MAX_HIDDEN_ENDPOINTS: usize = 5;

pub(super) fn routes<S: Store>() -> Vec<Route<S>> {
    vec![
        ("get", "/", get(overview::<S>)),
        ("get", "/endpoints/{name}", get(endpoint::<S>)),
        ("get", "/messages", get(messages::<S>)),
        ("get", "/messages/{id}", get(message::<S>)),
        ("get", "/messages/{id}/content", get(content::<S>)),
        ("post", "/do", post(act::<S>)),
        ("post", "/do-selected", post(act_on_selected::<S>)),
        ("get", "/login", get(login_form)),
        ("post", "/login", post(login::<S>)),
        ("post", "/logout", post(logout::<S>)),
        ("get", "/style.css", get(style)),
    ]
}

async fn style() -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/css; charset=utf-8")], CSS)
}

/// Renders a page with this status.
fn page(status: StatusCode, title: &str, signed_in: bool, content: &Markup) -> Response {
    let page = view::page(title, signed_in, content).into_string();
    (status, Html(escape_bidi_in_page(&page))).into_response()
}

fn ok(title: &str, content: &Markup) -> Response {
    page(StatusCode::OK, title, true, content)
}

/// Renders an error page.
fn failed(status: StatusCode, what: &str) -> Response {
    let content = html! { h1 { "That did not work" } p.bad { (what) } p { a href="/" { "Back to the overview" } } };
    page(status, "That did not work", true, &content)
}

/// Returns the result of a store call, or responds with an error page.
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

async fn overview<S: Store>(
    State(api): State<Shared<S>>,
    Extension(session): Extension<PageSession>,
    uri: Uri,
) -> Response {
    let summary = stored!(api.store.summary());
    // Endpoints that need attention come first, however many others there are.
    let mut endpoints = stored!(api.store.endpoints_needing_attention(MAX_ENDPOINTS + 1));
    let others = stored!(api.store.endpoints(None, MAX_ENDPOINTS + 1));
    let needing_attention: HashSet<_> = endpoints.iter().map(names).collect();
    let others = others
        .into_iter()
        .filter(|one| !needing_attention.contains(&names(one)));
    endpoints.extend(others.take(MAX_ENDPOINTS + 1));
    let in_state = |state| Filter {
        state: Some(state),
        ..Filter::default()
    };
    let dead = stored!(api.store.messages(in_state(MessageState::Dead), LATEST));
    let latest = stored!(
        api.store
            .messages(in_state(MessageState::Pending), MAX_MESSAGES)
    );
    let mut waiting = first_failed(latest);
    // Failed messages that those of a busy endpoint hide.
    let mut hidden = failing(&endpoints);
    hidden.retain(|(tenant, name, _)| {
        let is_of =
            |message: &MessageStatus| message.tenant == *tenant && message.endpoint == *name;
        !waiting.iter().any(is_of)
    });
    for (tenant, name, until) in hidden.into_iter().take(MAX_HIDDEN_ENDPOINTS) {
        let filter = Filter {
            tenant: Some(tenant),
            endpoint: Some(name),
            enqueued_until_ms: Some(until),
            ..in_state(MessageState::Pending)
        };
        let failed = stored!(api.store.messages(filter, MAX_MESSAGES));
        waiting.extend(first_failed(failed));
    }
    waiting.sort_by_key(|message| message.created_ms);
    waiting.truncate(LATEST);
    let held = api.held().await;
    // An endpoint whose attempts this process cannot make has perhaps never failed.
    let listed: HashSet<_> = endpoints.iter().map(names).collect();
    let faulty = held
        .iter()
        .filter(|(names, held)| held.is_faulty() && !listed.contains(*names));
    for ((tenant, name), _) in faulty.take(MAX_ENDPOINTS) {
        endpoints.extend(stored!(api.store.endpoint(tenant, name)));
    }
    let endpoints: Vec<_> = endpoints.into_iter().map(redact).collect();
    let (dead, waiting) = (with_waits(dead, &held), with_waits(waiting, &held));
    let content = view::overview(&summary, endpoints, &held, &dead, &waiting, MAX_ENDPOINTS);
    let register = view::register(session.form_token.as_str());
    ok("Overview", &html! { (done(&uri)) (content) (register) })
}

/// Returns the first enqueued failed message of each endpoint, from messages in reverse order of enqueuing.
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

/// Returns failing endpoints with pending messages, those that fail longest first. With the time until when the first
/// failed message was enqueued, in milliseconds since 1970.
fn failing(endpoints: &[EndpointStatus]) -> Vec<(String, String, i64)> {
    let mut failing: Vec<_> = endpoints
        .iter()
        .filter(|status| status.pending > 0)
        .filter_map(|status| {
            let since = Health::read(&status.health).failing_since()?;
            let (tenant, name) = names(status);
            // The time is stored in whole seconds.
            Some((tenant, name, millis(since).saturating_add(1000)))
        })
        .collect();
    failing.sort_by_key(|(_, _, until)| *until);
    failing
}

async fn endpoint<S: Store>(
    State(api): State<Shared<S>>,
    Extension(session): Extension<PageSession>,
    path: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Response {
    let (name, tenant) = match (name(path), query::<DoneAction>(&uri)) {
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
    let messages = stored!(api.store.messages(filter, MAX_MESSAGES));
    let (tenant, name) = names(&status);
    let recent = stored!(api.store.recent(&tenant, &name)).unwrap_or_default();
    let held = api.held().await;
    let messages = with_waits(messages, &held);
    let held = held.get(&names(&status));
    let here = api
        .watch
        .as_ref()
        .is_some_and(|watch| watch.name() == status.worker);
    let keys = shown_keys(&api.secrets, &status.endpoint);
    let content = view::endpoint(
        &redact(status),
        &keys,
        held,
        here,
        &recent,
        &messages,
        session.form_token.as_str(),
    );
    ok(&name, &html! { (done(&uri)) (content) })
}

async fn messages<S: Store>(
    State(api): State<Shared<S>>,
    Extension(session): Extension<PageSession>,
    uri: Uri,
) -> Response {
    let Ok(listed) = query::<Listed>(&uri) else {
        return failed(StatusCode::NOT_FOUND, "There is no such page.");
    };
    let Some(filter) = listed.filter() else {
        let what = "A time is written as 2026-01-31T12:00, in UTC; a state is one of those that the form has; a name has 256 \
                    characters at most.";
        return failed(StatusCode::UNPROCESSABLE_ENTITY, what);
    };
    let mut messages = stored!(api.store.messages(filter, MAX_MESSAGES + 1));
    let more = messages.len() > MAX_MESSAGES;
    messages.truncate(MAX_MESSAGES);
    let messages = api.with_waits(messages).await;
    let content = view::messages(&listed, &messages, more, session.form_token.as_str());
    ok("Messages", &html! { (done(&uri)) (content) })
}

/// Returns the message of this path, or responds with 404.
macro_rules! found {
    ($api:expr, $path:expr) => {{
        let unknown = || failed(StatusCode::NOT_FOUND, "There is no such message.");
        let Some(id) = name($path).ok().and_then(|id| id.parse().ok()) else {
            return unknown();
        };
        let found = stored!($api.store.messages(only(id), 1));
        let Some(message) = found.into_iter().next() else {
            return unknown();
        };
        message
    }};
}

async fn message<S: Store>(
    State(api): State<Shared<S>>,
    Extension(session): Extension<PageSession>,
    path: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Response {
    let message = found!(api, path);
    let attempts = stored!(api.store.attempts(&message.id));
    let Contents(contents) = session.contents;
    let form_token = session.form_token.as_str();
    let message = api.with_wait(message).await;
    let content = view::message(&message, &attempts, contents, form_token);
    ok(
        message.status.id.as_str(),
        &html! { (done(&uri)) (content) },
    )
}

async fn content<S: Store>(
    State(api): State<Shared<S>>,
    Extension(session): Extension<PageSession>,
    path: Result<Path<String>, PathRejection>,
) -> Response {
    if session.contents != Contents(true) {
        let what = "The token that you have signed in with does not let you see what messages hold. Sign in with the content \
                    token of this server.";
        return failed(StatusCode::FORBIDDEN, what);
    }
    let message = found!(api, path);
    let Some(payload) = stored!(api.shown(&message, DEFAULT_SHOWN_BYTES)) else {
        return failed(StatusCode::NOT_FOUND, "There is no such message.");
    };
    let attempts = stored!(api.store.attempts(&message.id));
    let content = view::content(&message, &payload, &attempts);
    ok(message.id.as_str(), &content)
}

/// The action before this page was shown. Only numbers are shown from the URL, and no text.
#[derive(Deserialize, Default)]
#[serde(default)]
struct DoneAction {
    tenant: String,
    resent: Option<u64>,
    cancelled: Option<u64>,
    due: Option<u64>,
}

fn done(uri: &Uri) -> Markup {
    let marked: DoneAction = query(uri).unwrap_or_default();
    let messages = |count| match count {
        1 => "1 message".to_owned(),
        count => format!("{count} messages"),
    };
    let said = match (marked.resent, marked.cancelled, marked.due) {
        (Some(0), ..) => {
            "No message is sent again: none was selected, or it has changed since.".to_owned()
        }
        (Some(count), ..) => format!("{} will be sent again.", messages(count)),
        (None, Some(0), _) => {
            "No message is cancelled: none was selected, or it has changed since.".to_owned()
        }
        (None, Some(1), _) => "It is cancelled.".to_owned(),
        (None, Some(count), _) => format!("{} are cancelled.", messages(count)),
        (None, None, Some(0)) => "Nothing was waiting.".to_owned(),
        (None, None, Some(count)) => format!("Due now: {}.", messages(count)),
        (None, None, None) => return html! {},
    };
    html! { p.done role="status" { (said) } }
}

/// A message as the page showed it.
#[derive(Deserialize)]
struct Shown {
    id: MessageId,
    /// Another operator or a worker may have changed it since: then the button does nothing.
    state: Option<MessageState>,
}

impl Shown {
    fn filter(self) -> Filter {
        let state = self.state;
        Filter {
            state,
            ..only(self.id)
        }
    }
}

/// Parses the value of a selected message: its identifier and its state.
impl FromStr for Shown {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (id, state) = match text.split_once(' ') {
            Some((id, state)) => (id, Some(state)),
            None => (text, None),
        };
        let state = state.map(|state| {
            let name: StrDeserializer<'_, InvalidWord> = state.into_deserializer();
            MessageState::deserialize(name)
        });
        Ok(Self {
            id: id.parse().map_err(drop)?,
            state: state.transpose().map_err(drop)?,
        })
    }
}

/// The action of a button.
#[derive(Deserialize)]
#[serde(tag = "act", rename_all = "kebab-case")]
enum Act {
    Resend(Shown),
    Cancel(Shown),
    SendNow(Shown),
    Enable(Target),
    Test(Target),
    SendAllNow(Target),
    Register(New),
    RemoveKey {
        #[serde(flatten)]
        target: Target,
        number: String,
        /// The revision that the number refers to.
        revision: String,
        /// Present if the last key may be removed.
        unsigned: Option<String>,
    },
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

impl Target {
    /// The filter for messages of this endpoint.
    fn filter(&self) -> Filter {
        Filter {
            tenant: Some(self.tenant.clone()),
            endpoint: Some(self.name.clone()),
            ..Filter::default()
        }
    }
}

/// An endpoint as described in the form.
#[derive(Deserialize)]
struct New {
    tenant: String,
    name: String,
    url: String,
    policy: String,
    acknowledgement: String,
    /// Separated by white space or commas.
    topics: String,
    /// One key, or none.
    secret: String,
    /// One per line.
    headers: String,
}

impl New {
    /// Converts it to the JSON object of the API.
    fn described(&self) -> Result<Map<String, Value>, String> {
        let mut described = Map::new();
        described.insert("url".to_owned(), self.url.trim().into());
        described.insert("policy".to_owned(), self.policy.clone().into());
        let acknowledgement = self.acknowledgement.clone();
        described.insert("acknowledgement".to_owned(), acknowledgement.into());
        let topics = self
            .topics
            .split(|one: char| one.is_whitespace() || one == ',');
        let topics: Vec<_> = topics.filter(|topic| !topic.is_empty()).collect();
        described.insert("topics".to_owned(), topics.into());
        let secrets: Vec<_> = [self.secret.trim()]
            .into_iter()
            .filter(|secret| !secret.is_empty())
            .collect();
        described.insert("secrets".to_owned(), secrets.into());
        let mut headers = Map::new();
        for line in self.headers.lines().filter(|line| !line.trim().is_empty()) {
            let (name, value) = line.split_once(':').ok_or(
                "A header field is written as a name, a colon and a value, each on its own line.",
            )?;
            let name = name.trim().to_ascii_lowercase();
            if headers.insert(name.clone(), value.trim().into()).is_some() {
                return Err(format!("The header field {name} is there twice."));
            }
        }
        described.insert("headers".to_owned(), headers.into());
        Ok(described)
    }
}

#[derive(Deserialize)]
struct Filled {
    form_token: String,
    #[serde(flatten)]
    act: Act,
}

/// Applies an action to the messages selected in a list.
async fn act_on_selected<S: Store>(
    State(api): State<Shared<S>>,
    Extension(session): Extension<PageSession>,
    form: Result<RawForm, RawFormRejection>,
) -> Response {
    let Ok(RawForm(form)) = form else {
        let what = "The form is larger than a list of messages is. Select fewer.";
        return failed(StatusCode::UNPROCESSABLE_ENTITY, what);
    };
    let (mut shown, mut act, mut form_token, mut list) =
        (Vec::new(), None, None, Listed::default());
    for (key, value) in form_urlencoded::parse(&form) {
        match &*key {
            "id" => match value.parse() {
                Ok(message) if shown.len() < MAX_MESSAGES => shown.push(message),
                _ => return failed(StatusCode::UNPROCESSABLE_ENTITY, "That is no message."),
            },
            "act" => act = Some(value.into_owned()),
            "form_token" => form_token = Some(value.into_owned()),
            "list" => {
                let uri = value.parse::<Uri>().ok();
                list = uri.and_then(|uri| query(&uri).ok()).unwrap_or_default();
            }
            _ => {}
        }
    }
    if !form_token.is_some_and(|token| session.form_token.is(&token)) {
        return failed(StatusCode::FORBIDDEN, OTHER_FORM);
    }
    let act = act.as_deref();
    let Some(done) = ["resent", "cancelled", "due"]
        .into_iter()
        .find(|one| act == Some(one))
    else {
        return failed(StatusCode::UNPROCESSABLE_ENTITY, "No button does that.");
    };
    // Process messages in the order of enqueuing.
    shown.reverse();
    let mut count = 0;
    for message in shown {
        let filter = Shown::filter(message);
        count += match done {
            "resent" => stored!(api.store.resend(filter)),
            "cancelled" => stored!(api.store.cancel(filter)),
            _ => stored!(api.store.send_now(filter)),
        };
    }
    api.wake();
    Redirect::to(&format!("{}{done}={count}", list.link())).into_response()
}

async fn act<S: Store>(
    State(api): State<Shared<S>>,
    Extension(session): Extension<PageSession>,
    form: Result<Form<Filled>, FormRejection>,
) -> Response {
    let Ok(Form(Filled { form_token, act })) = form else {
        let what = "The form was not filled in completely. Go back and try it again.";
        return failed(StatusCode::UNPROCESSABLE_ENTITY, what);
    };
    if !session.form_token.is(&form_token) {
        return failed(StatusCode::FORBIDDEN, OTHER_FORM);
    }
    let to = match act {
        Act::Resend(shown) => {
            let to = format!("/messages/{}?resent=", shown.id);
            to + &stored!(api.store.resend(shown.filter())).to_string()
        }
        Act::Cancel(shown) => {
            let to = format!("/messages/{}?cancelled=", shown.id);
            to + &stored!(api.store.cancel(shown.filter())).to_string()
        }
        Act::SendNow(shown) => {
            let to = format!("/messages/{}?due=", shown.id);
            to + &stored!(api.store.send_now(shown.filter())).to_string()
        }
        Act::SendAllNow(target) => {
            let count = stored!(api.store.send_now(target.filter()));
            format!("{}&due={count}", page_of(&target.tenant, &target.name))
        }
        Act::Test(Target { tenant, name }) => {
            match api
                .store
                .enqueue(vec![NewMessage::test(tenant, name)])
                .await
            {
                Ok(enqueued) => match enqueued.first() {
                    Some(enqueued) => format!("/messages/{}", enqueued.id),
                    None => "/messages".to_owned(),
                },
                Err(error) => {
                    return failed(StatusCode::UNPROCESSABLE_ENTITY, &format!("{error}."));
                }
            }
        }
        Act::Register(new) => {
            let described = match new.described() {
                Ok(described) => described,
                Err(what) => return failed(StatusCode::UNPROCESSABLE_ENTITY, &what),
            };
            let (tenant, name) = (new.tenant.trim(), new.name.trim());
            let endpoint = match api.check(tenant, name, described) {
                Ok(endpoint) => endpoint,
                Err(refused) => {
                    return failed(StatusCode::UNPROCESSABLE_ENTITY, &refused.detail());
                }
            };
            let mut kept = endpoint.secrets.iter().chain(endpoint.headers.values());
            if kept.any(|kept| is_encrypted(kept))
                && let Err(error) = api.secrets.check(&api.store).await
            {
                let what = format!("The key of this server is not that of the store: {error}.");
                return failed(StatusCode::UNPROCESSABLE_ENTITY, &what);
            }
            if !stored!(api.store.replace_endpoint(endpoint, None)) {
                let what = "There is an endpoint of this name already. Choose another name, or change that one by \
                            `relent deliver endpoints add`.";
                return failed(StatusCode::CONFLICT, what);
            }
            page_of(tenant, name)
        }
        Act::RemoveKey {
            target: Target { tenant, name },
            number,
            revision,
            unsigned,
        } => {
            let Some(status) = stored!(api.store.endpoint(&tenant, &name)) else {
                return failed(StatusCode::NOT_FOUND, "No endpoint has this name.");
            };
            let says_so = unsigned.map(drop).ok_or(
                "It is the last signing key, and attempts are not signed without one. Tick the box to remove it.",
            );
            let is_revision = revision == status.revision.to_string();
            let changed = key_number(&number)
                .and_then(|number| without_key(status.endpoint, number, says_so));
            let changed = match changed {
                Ok(changed) => changed,
                Err(refused) => {
                    return failed(StatusCode::UNPROCESSABLE_ENTITY, &refused.detail());
                }
            };
            // Another key may have this number since.
            if !is_revision || !stored!(api.store.replace_endpoint(changed, Some(status.revision)))
            {
                let what = "The endpoint was changed since this page was opened. Open it again, and look at its keys.";
                return failed(StatusCode::CONFLICT, what);
            }
            page_of(&tenant, &name)
        }
        Act::Enable(Target { tenant, name }) => {
            stored!(api.store.set_activity(&tenant, &name, Activity::Active, ""));
            page_of(&tenant, &name)
        }
        Act::Disable { target, reason } => {
            let Target { tenant, name } = target;
            let reason = match reason.trim() {
                "" => "disabled on the page",
                reason if !is_name(reason) => {
                    let what = format!("The reason may have {MAX_NAME} characters.");
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
            target,
            state,
            from,
            until,
        } => {
            let (Ok(ended_from_ms), Ok(ended_until_ms)) = (time::read(&from), time::read(&until))
            else {
                let what = "A time is written as 2026-01-31T12:00, in UTC.";
                return failed(StatusCode::UNPROCESSABLE_ENTITY, what);
            };
            if state == MessageState::Delivered && ended_until_ms.is_none() {
                let what = "Give an end for delivered messages, such as the present time: a repeated replay then sends none \
                            of them again.";
                return failed(StatusCode::UNPROCESSABLE_ENTITY, what);
            }
            let filter = Filter {
                state: Some(state),
                ended_from_ms,
                ended_until_ms,
                ..target.filter()
            };
            let count = stored!(api.store.resend(filter));
            format!("{}&resent={count}", page_of(&target.tenant, &target.name))
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
    let contents = match &form {
        Ok(Form(Login { token })) => api.contents_by(token.trim()),
        Err(_) => None,
    };
    match contents {
        Some(contents) => {
            let session = api.sessions.begin(contents);
            let cookie = format!(
                "{SESSION}={}; HttpOnly; SameSite=Strict; Path=/",
                session.id.as_str()
            );
            ([(SET_COOKIE, cookie)], Redirect::to("/")).into_response()
        }
        None => page(
            StatusCode::UNAUTHORIZED,
            "Sign in",
            false,
            &view::login(true),
        ),
    }
}

async fn logout<S: Store>(
    State(api): State<Shared<S>>,
    Extension(session): Extension<PageSession>,
) -> Response {
    api.sessions.end(&session);
    let cookie = format!("{SESSION}=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0");
    ([(SET_COOKIE, cookie)], Redirect::to("/login")).into_response()
}
