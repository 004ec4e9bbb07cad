//! Routes of endpoints: register, list, enable, disable, test and delete.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::header::{ETAG, HeaderMap};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use relent_http::problem::Problem;
use relent_server::precondition::{EntityTag, PreconditionError, Preconditions};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::limits::MAX_POLICY;
use super::object::Object;
use super::response::{
    HandlerResult, Refused, name, ok, query, read, refuse, store_failed, stored, unacceptable,
};
use super::state::{Api, Shared};
use crate::endpoint::{Activity, Endpoint};
use crate::headers::{self, InvalidHeader};
use crate::health::Health;
use crate::message::{MAX_NAME, MessageId, NewMessage, is_name};
use crate::schedule;
use crate::secrets::{KeyError, Secrets, is_fingerprint};
use crate::store::{Deletion, EndpointStatus, EnqueueError, Store};
use crate::target::Target;
use crate::worker::{HeldEndpoint, HoldReason};

/// The largest number of endpoints on a page, and the default.
const MAX_PAGE_LENGTH: usize = 1000;
const DEFAULT_PAGE_LENGTH: usize = 100;
/// The largest number of signing keys of an endpoint: two during a rotation, and some more.
const MAX_SECRETS: usize = 8;
/// The number of tries of a change that conflicts with concurrent changes.
const MAX_TRIES: u32 = 16;

type Named = Result<Path<String>, PathRejection>;

/// The owner of the endpoint, from the query.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Owner {
    #[serde(default)]
    pub(super) tenant: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    tenant: Option<String>,
    after_tenant: Option<String>,
    after: Option<String>,
    limit: Option<usize>,
}

/// The representation of an endpoint.
#[derive(Serialize)]
struct View {
    #[serde(flatten)]
    status: EndpointStatus,
    /// The time since which no attempt has succeeded, in milliseconds since 1970.
    failing_since_ms: Option<u64>,
    /// The error of the last attempt; empty if it succeeded.
    last_error: String,
    /// The reason that its due messages wait, if they do and the worker of this process owns it.
    held: Option<Waiting>,
    /// The fingerprint of each signing key, in their order; `None` if the key is unavailable.
    fingerprints: Vec<Option<String>>,
    /// Warnings about probably unintended settings.
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct Waiting {
    hold_reason: HoldReason,
    /// When the worker checks again, in milliseconds since 1970; `null` if it checks when an attempt ends.
    until_ms: Option<u64>,
    /// The local fault, if any.
    error: String,
}

impl View {
    fn of(status: EndpointStatus, held: Option<&HeldEndpoint>, secrets: &Secrets) -> Self {
        let health = Health::read(&status.health);
        let millis = |at: SystemTime| {
            let since = at.duration_since(UNIX_EPOCH).ok()?;
            u64::try_from(since.as_millis()).ok()
        };
        Self {
            failing_since_ms: health.failing_since().and_then(millis),
            held: held.map(|held| Waiting {
                hold_reason: held.hold_reason,
                until_ms: held.until.and_then(millis),
                error: held.error.clone(),
            }),
            fingerprints: secrets.fingerprints(&status.endpoint),
            warnings: warnings(&status.endpoint, secrets),
            last_error: health.last_error().to_owned(),
            status: redact(status),
        }
    }
}

/// Warnings about probably unintended settings of a valid endpoint.
fn warnings(endpoint: &Endpoint, secrets: &Secrets) -> Vec<String> {
    let of_policy = match schedule::policy(&endpoint.policy) {
        Ok(policy) => schedule::warnings(&policy)
            .iter()
            .map(ToString::to_string)
            .collect(),
        Err(error) => vec![error.to_string()],
    };
    let of_policy = of_policy.into_iter().map(|text| format!("policy: {text}"));
    let of_keys = secrets.signing(endpoint).err();
    let of_keys =
        of_keys.map(|error| format!("secrets: {error}; until then its messages are held"));
    of_policy.chain(of_keys).collect()
}

/// The entity tag of an endpoint: the version of the registration, not of the status.
fn tag(status: &EndpointStatus) -> EntityTag {
    EntityTag::of_version(u64::try_from(status.revision).unwrap_or_default())
}

/// Responds with one endpoint and its entity tag.
async fn answer<S: Store>(api: &Api<S>, code: StatusCode, status: EndpointStatus) -> Response {
    let tag = tag(&status).to_value();
    let held = api.held().await;
    let held = held.get(&names(&status));
    let view = View::of(status, held, &api.secrets);
    (code, [(ETAG, tag)], Json(view)).into_response()
}

/// The tenant and the name of an endpoint.
pub(super) fn names(status: &EndpointStatus) -> (String, String) {
    let Endpoint { tenant, name, .. } = &status.endpoint;
    (tenant.clone(), name.clone())
}

#[derive(Serialize)]
struct Listed {
    endpoints: Vec<View>,
    /// The link to the next page.
    next: Option<String>,
}

/// Whether a stored key is encrypted, and no reference.
pub(super) fn is_encrypted(kept: &str) -> bool {
    !kept.starts_with("env:")
}

/// The visible form of each signing key of an endpoint, with its fingerprint.
pub(super) fn shown_keys(secrets: &Secrets, endpoint: &Endpoint) -> Vec<String> {
    let kept = endpoint.secrets.iter().zip(secrets.fingerprints(endpoint));
    let shown = |(kept, fingerprint): (&String, Option<String>)| {
        let fingerprint = fingerprint.unwrap_or_else(|| "unavailable".to_owned());
        format!("{} ({fingerprint})", headers::shown(kept))
    };
    kept.map(shown).collect()
}

/// Replaces signing keys and header values of an endpoint by their visible forms.
pub(super) fn redact(mut status: EndpointStatus) -> EndpointStatus {
    let Endpoint {
        secrets, headers, ..
    } = &mut status.endpoint;
    for kept in secrets.iter_mut().chain(headers.values_mut()) {
        *kept = headers::shown(kept).to_owned();
    }
    status
}

pub(super) async fn list<S: Store>(State(api): State<Shared<S>>, uri: Uri) -> HandlerResult {
    let page: Page = query(&uri)?;
    let limit = page_length(page.limit, DEFAULT_PAGE_LENGTH)?;
    for text in [&page.tenant, &page.after_tenant, &page.after]
        .into_iter()
        .flatten()
    {
        if !(text.is_empty() || is_name(text)) {
            return Err(unacceptable(format!(
                "after the ?: a name has {MAX_NAME} characters at most, none of them NUL"
            )));
        }
    }
    // A tenant's list starts after the empty name, which no endpoint has.
    let after = match (page.after_tenant, page.after) {
        (Some(tenant), Some(name)) => Some((tenant, name)),
        (None, None) => page.tenant.clone().map(|tenant| (tenant, String::new())),
        _ => {
            return Err(unacceptable(
                "after the ?: give after_tenant and after, or neither",
            ));
        }
    };
    let mut found = stored!(api.store.endpoints(after, limit + 1));
    if let Some(tenant) = &page.tenant {
        found.retain(|status| status.endpoint.tenant == *tenant);
    }
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|last| {
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let mut next = format!(
            "/v1/endpoints?after_tenant={}&after={}&limit={limit}",
            encoded(&last.endpoint.tenant),
            encoded(&last.endpoint.name)
        );
        if let Some(tenant) = &page.tenant {
            next.push_str("&tenant=");
            next.push_str(&encoded(tenant));
        }
        next
    });
    let held = api.held().await;
    let view = |status| {
        let held = held.get(&names(&status));
        View::of(status, held, &api.secrets)
    };
    ok(&Listed {
        endpoints: found.into_iter().map(view).collect(),
        next,
    })
}

/// The number of entries of a page.
pub(super) fn page_length(limit: Option<usize>, default_length: usize) -> Result<usize, Refused> {
    let limit = limit.unwrap_or(default_length);
    match (1..=MAX_PAGE_LENGTH).contains(&limit) {
        true => Ok(limit),
        false => Err(unacceptable(format!(
            "after the ?: limit has to be from 1 to {MAX_PAGE_LENGTH}"
        ))),
    }
}

pub(super) fn unknown(tenant: &str, name: &str) -> Refused {
    let whose = match tenant {
        "" => String::new(),
        tenant => format!(" of the tenant {tenant:?}"),
    };
    refuse(
        StatusCode::NOT_FOUND,
        format!("no endpoint{whose} is called {name:?}: GET /v1/endpoints lists those there are"),
    )
}

pub(super) async fn show<S: Store>(
    State(api): State<Shared<S>>,
    path: Named,
    uri: Uri,
) -> HandlerResult {
    let (tenant, name) = whose(path, &uri)?;
    match stored!(api.store.endpoint(&tenant, &name)) {
        Some(status) => Ok(answer(&api, StatusCode::OK, status).await),
        None => Err(unknown(&tenant, &name)),
    }
}

/// The owner of the endpoint to change, and whether its last key may be removed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Signed {
    #[serde(default)]
    tenant: String,
    #[serde(default)]
    allow_unsigned: bool,
}

/// The tenant and the name of the endpoint that a request addresses.
fn whose(path: Named, uri: &Uri) -> Result<(String, String), Refused> {
    let Owner { tenant } = query(uri)?;
    named(tenant, name(path)?)
}

/// Checks a tenant and a name.
fn named(tenant: String, name: String) -> Result<(String, String), Refused> {
    for (what, text) in [("tenant", &tenant), ("name", &name)] {
        if !(is_name(text) || text.is_empty() && what == "tenant") {
            return Err(unacceptable(format!(
                "the {what} has to have 1 to {MAX_NAME} characters, none of them NUL"
            )));
        }
    }
    Ok((tenant, name))
}

/// Registers or replaces an endpoint. Keys, header fields and topics stay if they are omitted. A client cannot read
/// keys and header fields, so it could not repeat them; without its topics the endpoint would miss events.
pub(super) async fn register<S: Store>(
    State(api): State<Shared<S>>,
    path: Named,
    uri: Uri,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> HandlerResult {
    let Signed {
        tenant,
        allow_unsigned,
    } = query(&uri)?;
    let (tenant, name) = named(tenant, name(path)?)?;
    let Object(given) = read(body)?;
    let [keeps_secrets, keeps_headers, keeps_topics] =
        ["secrets", "headers", "topics"].map(|key| !given.contains_key(key));
    let endpoint = api.check(&tenant, &name, given)?;
    let kept = endpoint.secrets.iter().chain(endpoint.headers.values());
    if let Some(refused) = other_key(&api, kept).await {
        return refused;
    }
    let refused = |error: PreconditionError| Ok(error.response().map(Body::from));
    let preconditions = match Preconditions::of(&headers) {
        Ok(preconditions) => preconditions,
        Err(error) => return refused(error),
    };
    for _ in 0..MAX_TRIES {
        let before = stored!(api.store.endpoint(&tenant, &name));
        if let Err(error) = preconditions.check(before.as_ref().map(tag).as_ref()) {
            return refused(error);
        }
        let (revision, mut endpoint) = (before.as_ref().map(|one| one.revision), endpoint.clone());
        let old = before.map(|before| before.endpoint);
        let was_signed = old.as_ref().is_some_and(|old| !old.secrets.is_empty());
        if was_signed && !keeps_secrets && endpoint.secrets.is_empty() && !allow_unsigned {
            return Err(unacceptable(format!("secrets: {LAST_KEY}")));
        }
        if let Some(old) = old {
            if keeps_secrets {
                endpoint.secrets = old.secrets;
            }
            if keeps_headers {
                endpoint.headers = old.headers;
            }
            if keeps_topics {
                endpoint.topics = old.topics;
            }
        }
        // Another request may have changed the endpoint since it was read.
        if !stored!(api.store.replace_endpoint(endpoint, revision)) {
            continue;
        }
        api.wake();
        let code = match revision {
            None => StatusCode::CREATED,
            Some(_) => StatusCode::OK,
        };
        return match stored!(api.store.endpoint(&tenant, &name)) {
            Some(status) => Ok(answer(&api, code, status).await),
            None => Err(unknown(&tenant, &name)),
        };
    }
    Err(refuse(StatusCode::SERVICE_UNAVAILABLE, BUSY))
}

/// The response if one of these is encrypted, and the key of this server is not that of the store: workers could not
/// decrypt it.
async fn other_key<S: Store>(
    api: &Api<S>,
    mut kept: impl Iterator<Item = &String>,
) -> Option<HandlerResult> {
    if !kept.any(|kept| is_encrypted(kept)) {
        return None;
    }
    match api.secrets.check(&api.store).await {
        Ok(()) => None,
        Err(KeyError::Store(error)) => Some(Ok(store_failed(&error))),
        Err(error) => Some(Err(unacceptable(format!(
            "secrets: the key of this server is not that of the store: {error}"
        )))),
    }
}

const BUSY: &str = "others change this endpoint all the time, and it is not changed: ask again";

const LAST_KEY: &str = "without any signing key the attempts would not be signed: leave one, or say so by ?allow_unsigned=true";

const NUMBERED: &str = "a number names another key after each removal: name the key by its fingerprint, or send If-Match with the \
     ETag of the endpoint";

/// Returns the number of the signing key with this fingerprint.
fn number_of(secrets: &Secrets, endpoint: &Endpoint, key: &str) -> Result<NonZeroUsize, Refused> {
    let fingerprints = secrets.fingerprints(endpoint);
    let index = fingerprints
        .iter()
        .position(|one| one.as_deref() == Some(key));
    index
        .and_then(|index| NonZeroUsize::new(index + 1))
        .ok_or_else(|| {
            refuse(
                StatusCode::NOT_FOUND,
                format!("it has no signing key with the fingerprint {key}, or has it no more"),
            )
        })
}

/// Parses the number of a signing key: 1 is the newest.
pub(super) fn key_number(text: &str) -> Result<NonZeroUsize, Refused> {
    text.parse().map_err(|_| {
        unacceptable(format!(
            "{text:?} is neither the fingerprint of a signing key nor its number: 1 is the newest"
        ))
    })
}

/// Removes one of the signing keys; the last one only if `may_be_unsigned` allows it, or else responds with its text.
pub(super) fn without_key(
    mut endpoint: Endpoint,
    number: NonZeroUsize,
    may_be_unsigned: Result<(), &str>,
) -> Result<Endpoint, Refused> {
    let keys = endpoint.secrets.len();
    if number.get() > keys {
        return Err(refuse(
            StatusCode::NOT_FOUND,
            format!("it has no signing key {number}: it has {keys}, and 1 is the newest"),
        ));
    }
    if keys == 1 {
        may_be_unsigned.map_err(|how| refuse(StatusCode::CONFLICT, how))?;
    }
    endpoint.secrets.remove(number.get() - 1);
    Ok(endpoint)
}

/// Removes one signing key, by its fingerprint, or by its number in a version of the endpoint. So a repeated request
/// removes no other key.
pub(super) async fn remove_secret<S: Store>(
    State(api): State<Shared<S>>,
    path: Result<Path<(String, String)>, PathRejection>,
    uri: Uri,
    headers: HeaderMap,
) -> HandlerResult {
    let Path((name, key)) =
        path.map_err(|_| unacceptable("the path has to be UTF-8, percent-encoded"))?;
    let Signed {
        tenant,
        allow_unsigned,
    } = query(&uri)?;
    let (tenant, name) = named(tenant, name)?;
    let number = match is_fingerprint(&key) {
        true => None,
        false => Some(key_number(&key)?),
    };
    if number.is_some() {
        match Preconditions::of(&headers).and_then(|preconditions| preconditions.version()) {
            Ok(_) => {}
            Err(PreconditionError::Required) => {
                return Err(refuse(StatusCode::PRECONDITION_REQUIRED, NUMBERED));
            }
            Err(error) => return Ok(error.response().map(Body::from)),
        }
    }
    let without = |endpoint: Endpoint| {
        let number = number.map_or_else(|| number_of(&api.secrets, &endpoint, &key), Ok)?;
        without_key(
            endpoint,
            number,
            allow_unsigned.then_some(()).ok_or(LAST_KEY),
        )
    };
    change(&api, &tenant, &name, &headers, without).await
}

/// A signing key to add.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewSecret {
    secret: String,
}

/// Adds a signing key as the newest. A key that the endpoint has already stays where it is, so that the request may be
/// repeated.
pub(super) async fn add_secret<S: Store>(
    State(api): State<Shared<S>>,
    path: Named,
    uri: Uri,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> HandlerResult {
    let (tenant, name) = whose(path, &uri)?;
    let NewSecret { secret } = read(body)?;
    let encrypted = api
        .secrets
        .encrypt(&tenant, &name, &secret)
        .map_err(|error| unacceptable(format!("secret: {error}")))?;
    if let Some(refused) = other_key(&api, [&encrypted].into_iter()).await {
        return refused;
    }
    let with = |mut endpoint: Endpoint| {
        if api.secrets.has_key(&endpoint, &secret) {
            return Ok(endpoint);
        }
        if endpoint.secrets.len() >= MAX_SECRETS {
            return Err(unacceptable(format!(
                "secret: the endpoint has {MAX_SECRETS} keys, and these are the most: remove one first"
            )));
        }
        endpoint.secrets.insert(0, encrypted.clone());
        Ok(endpoint)
    };
    change(&api, &tenant, &name, &headers, with).await
}

/// Changes an endpoint that exists, if the preconditions of the request hold.
async fn change<S: Store>(
    api: &Api<S>,
    tenant: &str,
    name: &str,
    headers: &HeaderMap,
    changed: impl Fn(Endpoint) -> Result<Endpoint, Refused>,
) -> HandlerResult {
    let preconditions = match Preconditions::of(headers) {
        Ok(preconditions) => preconditions,
        Err(error) => return Ok(error.response().map(Body::from)),
    };
    for _ in 0..MAX_TRIES {
        let before = stored!(api.store.endpoint(tenant, name));
        if let Err(error) = preconditions.check(before.as_ref().map(tag).as_ref()) {
            return Ok(error.response().map(Body::from));
        }
        let before = before.ok_or_else(|| unknown(tenant, name))?;
        let endpoint = changed(before.endpoint.clone())?;
        if endpoint == before.endpoint {
            return Ok(answer(api, StatusCode::OK, before).await);
        }
        if !stored!(api.store.replace_endpoint(endpoint, Some(before.revision))) {
            continue;
        }
        api.wake();
        return match stored!(api.store.endpoint(tenant, name)) {
            Some(status) => Ok(answer(api, StatusCode::OK, status).await),
            None => Err(unknown(tenant, name)),
        };
    }
    Err(refuse(StatusCode::SERVICE_UNAVAILABLE, BUSY))
}

/// The parameters of a deletion.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Deleting {
    #[serde(default)]
    tenant: String,
    #[serde(default)]
    discard: bool,
}

#[derive(Serialize)]
struct Deleted {
    messages: u64,
}

pub(super) async fn delete<S: Store>(
    State(api): State<Shared<S>>,
    path: Named,
    uri: Uri,
    headers: HeaderMap,
) -> HandlerResult {
    let Deleting { tenant, discard } = query(&uri)?;
    let (tenant, name) = named(tenant, name(path)?)?;
    // The deletion runs in batches, so the precondition holds only for its start.
    let checked = match Preconditions::of(&headers) {
        // An endpoint that cannot be read can be deleted, too.
        Ok(preconditions) if preconditions.is_empty() => Ok(()),
        Ok(preconditions) => {
            let before = stored!(api.store.endpoint(&tenant, &name));
            preconditions.check(before.as_ref().map(tag).as_ref())
        }
        Err(error) => Err(error),
    };
    if let Err(error) = checked {
        return Ok(error.response().map(Body::from));
    }
    match stored!(api.store.delete_endpoint(&tenant, &name, discard)) {
        Deletion::Deleted { messages } => ok(&Deleted { messages }),
        Deletion::Unknown => Err(unknown(&tenant, &name)),
        Deletion::Refused { pending, dead } => {
            let problem = Problem::new(StatusCode::CONFLICT).detail(format!(
                "it has messages that were not delivered (pending: {pending}, dead: {dead}) and would lose them: have \
                 them delivered or cancel them, or discard them by ?discard=true"
            ));
            let counted = problem.clone().member("pending", pending);
            let counted = counted.and_then(|problem| problem.member("dead", dead));
            Err(counted.unwrap_or(problem).into())
        }
    }
}

impl<S> Api<S> {
    /// Parses and checks the described endpoint, and encrypts its keys.
    pub(super) fn check(
        &self,
        tenant: &str,
        name: &str,
        mut given: Map<String, Value>,
    ) -> Result<Endpoint, Refused> {
        if name == "." || name == ".." {
            return Err(unacceptable(format!(
                "the name {name:?} cannot stand in a URL: choose another"
            )));
        }
        for (what, text) in [("tenant", tenant), ("name", name)] {
            if text.contains('/') {
                return Err(unacceptable(format!(
                    "the {what} {text:?} contains /, which separates tenant and name where endpoints are shown: choose another"
                )));
            }
            if given.contains_key(what) {
                return Err(unacceptable(format!(
                    "{what} stands in the URL, as in PUT /v1/endpoints/NAME?tenant=TENANT: take it out of the body"
                )));
            }
            given.insert(what.to_owned(), text.into());
        }
        let mut endpoint: Endpoint = serde_json::from_value(Value::Object(given))
            .map_err(|error| unacceptable(error.to_string()))?;
        Target::parse(&endpoint.url, self.http_allowed, &self.guard)
            .map_err(|error| unacceptable(format!("url: {error}")))?;
        if endpoint.policy.len() > MAX_POLICY {
            return Err(unacceptable(format!(
                "policy: it may have {} KiB",
                MAX_POLICY >> 10
            )));
        }
        schedule::policy(&endpoint.policy)
            .map_err(|error| unacceptable(format!("policy: {error}")))?;
        endpoint
            .check()
            .map_err(|error| unacceptable(format!("topics: {error}")))?;
        endpoint.headers = self.encrypted_headers(tenant, name, &endpoint.headers)?;
        if endpoint.secrets.len() > MAX_SECRETS {
            return Err(unacceptable(format!(
                "secrets: {MAX_SECRETS} keys at most, the newest first"
            )));
        }
        for secret in &mut endpoint.secrets {
            *secret = self
                .secrets
                .encrypt(tenant, name, secret)
                .map_err(|error| unacceptable(format!("secrets: {error}")))?;
        }
        Ok(endpoint)
    }
}

impl<S> Api<S> {
    /// Checks the described header fields, and encrypts their values.
    fn encrypted_headers(
        &self,
        tenant: &str,
        name: &str,
        given: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, Refused> {
        let wrong = |detail: String| unacceptable(format!("headers: {detail}"));
        if given.len() > headers::MAX_FIELDS {
            return Err(wrong(InvalidHeader::TooMany.to_string()));
        }
        let mut encrypted = BTreeMap::new();
        for (field, value) in given {
            if value == headers::shown("") {
                return Err(wrong(format!(
                    "the value of {field} is only what is shown instead of it: give the value, or leave headers out to keep all"
                )));
            }
            let kept = headers::encrypt(&self.secrets, tenant, name, field, value)
                .map_err(|error| wrong(error.to_string()))?;
            encrypted.insert(field.clone(), kept);
        }
        Ok(encrypted)
    }
}

#[derive(Serialize)]
struct Tested {
    id: MessageId,
}

/// Enqueues a test message for the endpoint.
pub(super) async fn test<S: Store>(
    State(api): State<Shared<S>>,
    path: Named,
    uri: Uri,
) -> HandlerResult {
    let (tenant, name) = whose(path, &uri)?;
    match stored!(api.store.endpoint(&tenant, &name)) {
        None => return Err(unknown(&tenant, &name)),
        Some(EndpointStatus {
            activity: Activity::Disabled,
            ..
        }) => {
            return Err(refuse(
                StatusCode::CONFLICT,
                "it is disabled, and nothing is sent there: enable it first",
            ));
        }
        Some(_) => {}
    }
    match api
        .store
        .enqueue(vec![NewMessage::test(&tenant, &name)])
        .await
    {
        Ok(enqueued) => {
            let id = enqueued.into_iter().next().map(|one| one.id);
            let id = id.ok_or_else(|| unknown(&tenant, &name))?;
            Ok((StatusCode::ACCEPTED, Json(Tested { id })).into_response())
        }
        Err(EnqueueError::Store(error)) => Ok(store_failed(&error)),
        // The endpoint was deleted meanwhile.
        Err(EnqueueError::Refused { .. }) => Err(unknown(&tenant, &name)),
    }
}

/// Responds with statistics of its latest attempts.
pub(super) async fn recent<S: Store>(
    State(api): State<Shared<S>>,
    path: Named,
    uri: Uri,
) -> HandlerResult {
    let (tenant, name) = whose(path, &uri)?;
    match stored!(api.store.recent(&tenant, &name)) {
        Some(recent) => ok(&recent),
        None => Err(unknown(&tenant, &name)),
    }
}

/// The reason for disabling an endpoint.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Reason {
    reason: String,
}

impl Default for Reason {
    fn default() -> Self {
        Self {
            reason: "disabled by an operator".to_owned(),
        }
    }
}

pub(super) async fn enable<S: Store>(
    State(api): State<Shared<S>>,
    path: Named,
    uri: Uri,
) -> HandlerResult {
    let (tenant, name) = whose(path, &uri)?;
    set(&api, &tenant, &name, Activity::Active, "").await
}

pub(super) async fn disable<S: Store>(
    State(api): State<Shared<S>>,
    path: Named,
    uri: Uri,
    body: Result<Bytes, BytesRejection>,
) -> HandlerResult {
    let (tenant, name) = whose(path, &uri)?;
    // Like `enable`, it needs no body.
    let Reason { reason } = match body {
        Ok(body) if body.is_empty() => Reason::default(),
        body => read(body)?,
    };
    if reason.trim().is_empty() || !is_name(&reason) {
        return Err(unacceptable(format!(
            "reason: say in 1 to {MAX_NAME} characters why it is disabled; the page shows it"
        )));
    }
    set(&api, &tenant, &name, Activity::Disabled, &reason).await
}

async fn set<S: Store>(
    api: &Api<S>,
    tenant: &str,
    name: &str,
    activity: Activity,
    reason: &str,
) -> HandlerResult {
    stored!(api.store.set_activity(tenant, name, activity, reason));
    api.wake();
    match stored!(api.store.endpoint(tenant, name)) {
        Some(status) => Ok(answer(api, StatusCode::OK, status).await),
        None => Err(unknown(tenant, name)),
    }
}
