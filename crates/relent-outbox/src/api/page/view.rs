//! HTML of the pages.

use std::cmp::Reverse;
use std::collections::HashMap;

use maud::{DOCTYPE, Markup, html};
use relent::presets;

use super::link::page_of;
use super::listed::Listed;
use super::time::{exact, is_past, lasting, long, time};
use crate::api::contents::Shown;
use crate::api::endpoints::names;
use crate::api::wait::{MessageView, WaitReason};
use crate::endpoint::{Acknowledgement, Activity, Endpoint, OnDeadLetter};
use crate::health::Health;
use crate::schedule;
use crate::store::{
    AttemptRecord, EndpointStatus, MessageState, MessageStatus, Recent, Summary, millis,
};
use crate::topic;
use crate::worker::{HeldEndpoint, HoldReason};

/// The number of stuck messages and endpoints shown at first.
pub(super) const LATEST: usize = 20;

pub(super) fn page(title: &str, signed_in: bool, content: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " · relent deliver" }
                link rel="icon" href="data:,";
                link rel="stylesheet" href="/style.css";
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                header {
                    a.brand href="/" { "relent deliver" }
                    @if signed_in {
                        nav aria-label="Pages" {
                            a href="/" { "Overview" }
                            a href="/messages" { "Messages" }
                            form method="post" action="/logout" { button.plain { "Sign out" } }
                        }
                    }
                }
                main #main tabindex="-1" { (content) }
            }
        }
    }
}

pub(super) fn login(refused: bool) -> Markup {
    html! {
        h1 { "Sign in" }
        @if refused { p.bad role="alert" { "That is not the token of this server." } }
        form.stack method="post" action="/login" {
            // Password managers store a token under a user name.
            input type="text" name="username" value="relent deliver" autocomplete="username" hidden;
            label for="token" { "Token" }
            input #token name="token" type="password" autocomplete="current-password" required autofocus;
            p.note { "It is in the file that " code { "relent deliver serve" } " names when it starts." }
            button { "Sign in" }
        }
    }
}

fn number(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

/// Summarizes which problems need an operator, and which are retried automatically.
fn summary_markup(summary: &Summary, faulty: u64, failing: u64) -> Markup {
    let parts = [
        (
            faulty,
            "endpoint held by a local fault",
            "endpoints held by local faults",
            "#endpoints",
        ),
        (summary.dead, "dead letter", "dead letters", "#dead"),
        (
            summary.disabled,
            "disabled endpoint",
            "disabled endpoints",
            "#endpoints",
        ),
    ];
    let parts: Vec<_> = parts.iter().filter(|(count, ..)| *count > 0).collect();
    let alone = faulty + summary.dead + summary.disabled == 1;
    html! {
        @if parts.is_empty() {
            p.lead.good { "Nothing needs you: no dead letters, and no endpoint is disabled or held by a local fault." }
        } @else {
            p.lead.bad {
                @for (place, (count, one, many, href)) in parts.into_iter().enumerate() {
                    @if place > 0 { " and " }
                    a href=(href) { (count) " " (if *count == 1 { one } else { many }) }
                }
                (if alone { " needs" } else { " need" }) " somebody."
            }
        }
        @if failing > 0 {
            p {
                (number(failing, "endpoint"))
                (if failing == 1 { " fails. What waits for it" } else { " fail. What waits for them" })
                " is tried again by its schedule."
            }
        }
    }
}

/// Whether the endpoint is active and its last attempt failed.
fn fails(status: &EndpointStatus) -> bool {
    status.activity == Activity::Active && Health::read(&status.health).failing_since().is_some()
}

pub(super) fn overview(
    summary: &Summary,
    mut endpoints: Vec<EndpointStatus>,
    held: &HashMap<(String, String), HeldEndpoint>,
    dead: &[MessageView],
    waiting: &[MessageView],
    most: usize,
) -> Markup {
    let is_faulty = |status: &EndpointStatus| {
        let held = held.get(&names(status));
        status.activity == Activity::Active && held.is_some_and(HeldEndpoint::is_faulty)
    };
    // Problems that need an operator come first, then those that are retried.
    endpoints.sort_by_cached_key(|status| {
        let disabled = status.activity == Activity::Disabled;
        let (dead, lag) = (status.dead, status.lag_ms);
        let needs_operator = (is_faulty(status), disabled, dead > 0);
        Reverse((needs_operator, fails(status), lag, dead, status.pending))
    });
    let cut = endpoints.len() > most;
    endpoints.truncate(most);
    let faulty = endpoints.iter().filter(|status| is_faulty(status)).count() as u64;
    let failing = endpoints.iter().filter(|status| fails(status)).count() as u64;
    let (worst, others) = endpoints.split_at(endpoints.len().min(LATEST));
    let needs_attention = |status: &&EndpointStatus| {
        is_faulty(status)
            || fails(status)
            || status.activity == Activity::Disabled
            || status.dead > 0
    };
    let needing_attention = others.iter().filter(needs_attention).count();
    let tile = |name: &str, value: String, bad: bool| {
        html! { div.tile.bad[bad] { dt { (name) } dd { (value) } } }
    };
    html! {
        h1 { "What is stuck, and why" }
        (summary_markup(summary, faulty, failing))
        dl.tiles {
            (tile("Waiting", summary.pending.to_string(), false))
            (tile("Running", summary.running.to_string(), false))
            (tile("Longest overdue", summary.lag_ms.map_or_else(|| "–".to_owned(), long), false))
            (tile("Dead letters", summary.dead.to_string(), summary.dead > 0))
            (tile("Disabled endpoints", summary.disabled.to_string(), summary.disabled > 0))
        }
        section aria-labelledby="endpoints" {
            h2 #endpoints { "Endpoints" }
            @if endpoints.is_empty() {
                p { "There is none yet. Register one below, or by " code { "relent deliver endpoints add NAME URL" } }
            } @else {
                (endpoint_table(worst, held))
                @if !others.is_empty() {
                    details {
                        summary {
                            (others.len()) " more"
                            @if needing_attention > 0 { ", of which " (needing_attention) " fail, are held by a local fault, are disabled or have dead letters" }
                        }
                        (endpoint_table(others, held))
                    }
                }
            }
            @if cut { p.note { (most) " are shown, those that need somebody first. The API lists all." } }
        }
        section aria-labelledby="dead" {
            h2 #dead { "Dead letters" }
            @if dead.is_empty() { p { "None." } } @else {
                (message_table(dead, true, false))
                p { a href="/messages?state=dead" { "All dead letters, to send again or cancel several" } }
            }
        }
        section aria-labelledby="waiting" {
            h2 #waiting { "Waiting after a failure" }
            @if waiting.is_empty() { p { "None among the latest messages." } } @else {
                p.note { "One of each endpoint, among its latest messages. All that fail are under Endpoints." }
                (message_table(waiting, true, false))
            }
        }
    }
}

fn full_name(tenant: &str, name: &str) -> Markup {
    html! { a href=(page_of(tenant, name)) { @if !tenant.is_empty() { (tenant) " / " } (name) } }
}

/// The status of an endpoint, with the reason for and the end of a hold.
fn status_markup(status: &EndpointStatus, held: Option<&HeldEndpoint>) -> Markup {
    html! {
        div {
            @match status.activity {
                Activity::Disabled => { span.tag.bad { "disabled" } " " (status.reason) }
                Activity::Active if held.is_some_and(HeldEndpoint::is_faulty) => { span.tag.bad { "held by a local fault" } }
                Activity::Active => { (failing(status)) }
            }
        }
        @if let Some(held) = held {
            div.note {
                "On hold: " (held.hold_reason)
                @if !held.error.is_empty() { ": " (held.error) }
                ". The next attempt "
                @match held.until.map(millis) {
                    Some(until) if is_past(until) => { "now." }
                    Some(until) => { (time(until)) "." }
                    None => { "when one ends." }
                }
            }
        }
    }
}

/// Since when no attempt has succeeded, with the last error.
fn failing(status: &EndpointStatus) -> Markup {
    let health = Health::read(&status.health);
    let since = health.failing_since().map(millis);
    html! {
        @match since {
            None => { span.tag.good { "active" } }
            Some(since) => { span.tag.bad { "failing" } " for " (lasting(since)) ": " (health.last_error()) }
        }
    }
}

fn endpoint_table(
    endpoints: &[EndpointStatus],
    held: &HashMap<(String, String), HeldEndpoint>,
) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-labelledby="endpoints" {
            table.cards {
                thead { tr {
                    th scope="col" { "Endpoint" } th scope="col" { "State" }
                    th.n scope="col" { "Overdue" } th.n scope="col" { "Waiting" } th.n scope="col" { "Dead" }
                } }
                tbody {
                    @for status in endpoints {
                        tr {
                            th scope="row" data-label="Endpoint" {
                                (full_name(&status.endpoint.tenant, &status.endpoint.name))
                                div.note { (status.endpoint.url) }
                            }
                            td data-label="State" { (status_markup(status, held.get(&names(status)))) }
                            td.n data-label="Overdue" { (status.lag_ms.map_or_else(|| "–".to_owned(), long)) }
                            td.n data-label="Waiting" { (status.pending) }
                            td.n data-label="Dead" { (status.dead) }
                        }
                    }
                }
            }
        }
    }
}

fn state_tag(state: MessageState) -> Markup {
    let (good, bad) = (
        state == MessageState::Delivered,
        state == MessageState::Dead,
    );
    html! { span.tag.good[good].bad[bad] { (state) } }
}

/// The reason for the state of a message.
fn why(
    MessageView {
        status: message,
        wait,
    }: &MessageView,
) -> Markup {
    let is_waiting = wait.is_some();
    html! {
        @if !is_waiting && !message.reason.is_empty() { div { (message.reason) } }
        @if !message.last_error.is_empty() && !message.reason.contains(&message.last_error) {
            div.note { "last attempt: " (message.last_error) }
        }
        @if let Some(wait) = wait {
            @match (wait.reason, &message.blocked_by) {
                (WaitReason::DeadLetter, Some(behind)) => {
                    div { "waits behind the dead letter " a href={ "/messages/" (behind) } { (behind) } " with its order key" }
                }
                (WaitReason::Schedule | WaitReason::Worker, _) => {}
                _ => { div { "waits: " (wait.detail) } }
            }
        }
        @if let Some(due) = message.due_ms {
            div.note { (if is_past(due) { "due " } else { "next attempt " }) (time(due)) }
        }
    }
}

/// Whether a message waits until an operator acts.
fn needs_operator(reason: WaitReason) -> bool {
    matches!(
        reason,
        WaitReason::EndpointDisabled | WaitReason::Held(HoldReason::LocalFault)
    )
}

/// A table of messages, with checkboxes if it is in a form.
fn message_table(messages: &[MessageView], with_endpoint: bool, in_form: bool) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Messages" {
            table.cards {
                thead { tr {
                    @if in_form { th scope="col" { "Select" } }
                    th scope="col" { "Message" }
                    @if with_endpoint { th scope="col" { "Endpoint" } }
                    th scope="col" { "State" } th.n scope="col" { "Attempts" } th scope="col" { "Why" }
                    th scope="col" { "Enqueued" }
                } }
                tbody {
                    @for view in messages {
                        @let message = &view.status;
                        tr {
                            @if in_form {
                                td data-label="Select" {
                                    input.box type="checkbox" name="id" value={ (message.id) " " (message.state) } id={ "select-" (message.id) };
                                    label.box for={ "select-" (message.id) } { "select" }
                                }
                            }
                            th scope="row" data-label="Message" {
                                a href={ "/messages/" (message.id) } { (message.event) }
                                @if message.topic == topic::TEST { " " span.tag { "test" } }
                                @if !message.topic.is_empty() { div.note { (message.topic) } }
                            }
                            @if with_endpoint {
                                td data-label="Endpoint" { (full_name(&message.tenant, &message.endpoint)) }
                            }
                            td data-label="State" { (state_tag(message.state)) }
                            td.n data-label="Attempts" { (message.attempts) }
                            td data-label="Why" { (why(view)) }
                            td data-label="Enqueued" { (time(message.created_ms)) }
                        }
                    }
                }
            }
        }
    }
}

/// The hidden fields of a form.
fn hidden(fields: &[(&str, &str)]) -> Markup {
    html! { @for (name, value) in fields { input type="hidden" name=(name) value=(value); } }
}

/// Whether messages are held while the endpoint is down.
fn waits_while_down(spec: &Endpoint) -> bool {
    spec.hold && !schedule::policy(&spec.policy).is_ok_and(|policy| schedule::is_contract(&policy))
}

pub(super) fn endpoint(
    status: &EndpointStatus,
    keys: &[String],
    held: Option<&HeldEndpoint>,
    here: bool,
    recent: &Recent,
    messages: &[MessageView],
    form_token: &str,
) -> Markup {
    let spec = &status.endpoint;
    let about = |act| {
        hidden(&[
            ("form_token", form_token),
            ("act", act),
            ("tenant", &spec.tenant),
            ("name", &spec.name),
        ])
    };
    let list = |state: &str| {
        let listed = Listed {
            tenant: spec.tenant.clone(),
            endpoint: spec.name.clone(),
            state: state.to_owned(),
            ..Listed::default()
        };
        listed.link()
    };
    html! {
        p.over { "Endpoint" @if !spec.tenant.is_empty() { " of " (spec.tenant) } }
        h1 { (spec.name) }
        div.lead { (status_markup(status, held)) }
        dl.facts {
            dt { "URL" } dd { (spec.url) }
            dt { "Waiting" } dd { (status.pending) }
            dt { "Dead letters" } dd {
                @if status.dead == 0 { "none" } @else { a href=(list("dead")) { (status.dead) } }
            }
            dt { "Overdue" } dd { (status.lag_ms.map_or_else(|| "nothing is".to_owned(), long)) }
            dt { "Lately" } dd { (lately(recent)) }
            dt { "Subscribed to" } dd {
                @if spec.topics.is_empty() { "nothing: it gets what is sent to it by name" } @else { (spec.topics.join(", ")) }
            }
            dt { "Worker" } dd {
                @if status.worker.is_empty() { "none has it now" } @else {
                    (status.worker)
                    @if !here { div.note { "of another process, whose own page shows what it waits for" } }
                }
            }
            dt { "Acknowledged by" } dd { (spec.acknowledgement.describe()) }
            dt { "At once" } dd { (number(spec.concurrency.get().into(), "attempt")) " at most" }
            dt { "While it is down" } dd {
                @if waits_while_down(spec) { "messages wait without attempts" } @else { "each message has its attempts" }
            }
            dt { "Behind a dead one" } dd {
                @match spec.on_dead_letter {
                    OnDeadLetter::Block => "messages with its order key wait",
                    OnDeadLetter::Skip => "messages with its order key go",
                }
            }
            dt { "Signing keys" } dd {
                @if keys.is_empty() { "none: attempts are not signed" } @else { (keys.join(", ")) }
            }
            dt { "Header fields" } dd {
                @if spec.headers.is_empty() { "none of its own" } @else {
                    @for (name, value) in &spec.headers { div { (name) ": " (value) } }
                }
            }
            dt { "Policy" } dd {
                @if spec.policy.contains('\n') { pre { (spec.policy) } } @else { code { (spec.policy) } }
            }
        }
        section aria-labelledby="actions" {
            h2 #actions { "What can be done" }
            div.forms {
                @match status.activity {
                    Activity::Disabled => form.stack method="post" action="/do" {
                        (about("enable"))
                        p { "Messages that have waited go at once." }
                        button { "Enable" }
                    },
                    Activity::Active => form.stack method="post" action="/do" {
                        (about("disable"))
                        label for="reason" { "Hold back its messages because" }
                        input #reason name="reason" maxlength="256" required;
                        button.danger { "Disable" }
                    },
                }
                @if status.activity == Activity::Active {
                    form.stack method="post" action="/do" {
                        (about("test"))
                        p { "Send a message that says that it is a test, and see what comes of it." }
                        button { "Send a test" }
                    }
                }
                @if status.pending > 0 {
                    form.stack method="post" action="/do" {
                        (about("send-all-now"))
                        p {
                            "Make due now what waits for its next attempt. Order keys and the limits of the endpoint hold as before."
                        }
                        button { "Send all now" }
                    }
                }
                @if !keys.is_empty() {
                    form.stack method="post" action="/do" {
                        @let revision = status.revision.to_string();
                        (about("remove-key"))
                        (hidden(&[("revision", &revision)]))
                        label for="key" { "Remove a signing key, once the receiver has a newer one" }
                        select #key name="number" {
                            @for (at, key) in keys.iter().enumerate().rev() {
                                option value=(at + 1) {
                                    (at + 1) ": " (key) @if at == 0 { ", the newest" }
                                }
                            }
                        }
                        @if keys.len() == 1 {
                            div.tick {
                                input.box #unsigned type="checkbox" name="unsigned" required;
                                label for="unsigned" { "Attempts are not signed from then on" }
                            }
                        }
                        button.danger { "Remove" }
                    }
                }
                form.stack method="post" action="/do" {
                    (about("replay"))
                    label for="state" { "Send again all that are" }
                    select #state name="state" {
                        option value="dead" { "dead" }
                        option value="delivered" { "delivered" }
                        option value="cancelled" { "cancelled" }
                    }
                    label for="from" { "and ended from (UTC; may stay empty)" }
                    input #from name="from" type="datetime-local";
                    label for="until" { "until before (UTC; may stay empty, except for delivered)" }
                    input #until name="until" type="datetime-local";
                    button { "Replay" }
                }
            }
        }
        section aria-labelledby="messages" {
            h2 #messages { "Its latest messages" }
            @if messages.is_empty() { p { "None." } } @else {
                (message_table(messages, false, false))
                p { a href=(list("")) { "All of them, to be searched" } }
            }
        }
    }
}

/// Statistics of the latest attempts.
fn lately(recent: &Recent) -> Markup {
    let Recent {
        window_ms,
        attempts,
        acknowledged,
        per_minute,
        p50_ms,
        p99_ms,
    } = *recent;
    html! {
        @match (p50_ms, p99_ms) {
            (Some(p50), Some(p99)) => {
                (number(attempts, "attempt")) " in " (long(window_ms)) " (" (format!("{per_minute:.1}")) " a minute), "
                (acknowledged * 100 / attempts.max(1)) " % acknowledged; "
                "half took at most " (long(p50)) " (p50), 99 of 100 at most " (long(p99)) " (p99)"
            }
            _ => { "no attempts in " (long(window_ms)) }
        }
    }
}

/// The form to register an endpoint.
pub(super) fn register(form_token: &str) -> Markup {
    let fields = hidden(&[("form_token", form_token), ("act", "register")]);
    html! {
        section aria-labelledby="register" {
            h2 #register { "Register an endpoint" }
            details {
                summary { "Open the form" }
                form.stack method="post" action="/do" autocomplete="off" {
                    (fields)
                    label for="name" { "Name" }
                    input #name name="name" maxlength="256" required;
                    label for="url" { "URL" }
                    input #url name="url" type="url" maxlength="2048" required;
                    label for="tenant" { "Tenant (may stay empty)" }
                    input #tenant name="tenant" maxlength="256";
                    label for="policy" { "Schedule" }
                    select #policy name="policy" {
                        @for preset in presets::names() {
                            option value=(preset) selected[preset == "standard-webhooks"] { (preset) }
                        }
                    }
                    label for="acknowledgement" { "Acknowledged by" }
                    select #acknowledgement name="acknowledgement" {
                        @for (_, name, answer) in Acknowledgement::ALL {
                            option value=(name) { (answer) }
                        }
                    }
                    label for="topics" { "Topics that it subscribes to, such as order.* (may stay empty)" }
                    input #topics name="topics";
                    label for="secret" { "Signing key, whsec_… or env:NAME (may stay empty)" }
                    input #secret name="secret" type="password" autocomplete="off";
                    label for="headers" { "Header fields, one on each line, such as authorization: Bearer TOKEN (may stay empty)" }
                    textarea #headers name="headers" rows="2" {}
                    button { "Register" }
                }
            }
        }
    }
}

const STATES: [MessageState; 5] = [
    MessageState::Pending,
    MessageState::Running,
    MessageState::Delivered,
    MessageState::Dead,
    MessageState::Cancelled,
];

/// The search form of the list of messages.
fn search(listed: &Listed) -> Markup {
    let field = |name: &str, label: &str, kind: &str, value: &str| {
        html! {
            div {
                label for={ "by-" (name) } { (label) }
                input id={ "by-" (name) } name=(name) type=(kind) value=(value);
            }
        }
    };
    html! {
        form.search method="get" action="/messages" role="search" {
            (field("search", "Event or identifier begins with", "search", &listed.search))
            div {
                label for="by-state" { "State" }
                select #by-state name="state" {
                    option value="" { "all" }
                    @for state in STATES.map(|state| state.to_string()) {
                        option value=(state) selected[state == listed.state] { (state) }
                    }
                }
            }
            (field("topic", "Topic, or one such as order.*", "text", &listed.topic))
            (field("tenant", "Tenant", "text", &listed.tenant))
            (field("endpoint", "Endpoint", "text", &listed.endpoint))
            (field("from", "Enqueued from (UTC)", "datetime-local", &listed.from))
            (field("until", "Enqueued before (UTC)", "datetime-local", &listed.until))
            button { "Search" }
        }
    }
}

pub(super) fn messages(
    listed: &Listed,
    messages: &[MessageView],
    more: bool,
    form_token: &str,
) -> Markup {
    let of_one = !listed.endpoint.is_empty();
    let with = |state: &str, before: Option<i64>| Listed {
        state: state.to_owned(),
        before,
        ..listed.clone()
    };
    let link = |state: &str| {
        let current = (listed.state == state).then_some("page");
        let text = if state.is_empty() { "all" } else { state };
        html! { a href=(with(state, None).link()) aria-current=[current] { (text) } }
    };
    html! {
        h1 { "Messages" @if of_one { " to " (full_name(&listed.tenant, &listed.endpoint)) } }
        (search(listed))
        nav.filter aria-label="States" {
            (link(""))
            @for state in STATES { (link(&state.to_string())) }
        }
        @if messages.is_empty() { p { "None." } } @else {
            form method="post" action="/do-selected" {
                (hidden(&[("form_token", form_token), ("list", &listed.link())]))
                div.buttons {
                    button name="act" value="resent" { "Send selected again" }
                    button name="act" value="due" { "Send selected now" }
                    button.danger name="act" value="cancelled" { "Cancel selected" }
                }
                (message_table(messages, !of_one, true))
            }
        }
        @if let Some(last) = messages.last().filter(|_| more) {
            p { a href=(with(&listed.state, Some(last.status.place)).link()) { "Earlier ones" } }
        }
    }
}

/// A payload with the header fields of the attempts.
pub(super) fn content(
    message: &MessageStatus,
    payload: &Shown,
    attempts: &[AttemptRecord],
) -> Markup {
    html! {
        p.over { "What " a href={ "/messages/" (message.id) } { (message.id) } " holds" }
        h1 { (message.event) }
        dl.facts {
            dt { "Content type" } dd { (payload.content_type) }
            dt { "Length" } dd { (number(payload.bytes as u64, "byte")) }
        }
        section aria-labelledby="payload" {
            h2 #payload { "Payload" }
            @if payload.truncated { p.note { "Only its beginning is shown." } }
            @match (&payload.text, &payload.base64) {
                (Some(text), _) => pre.content tabindex="0" role="region" aria-labelledby="payload" { (text) },
                (None, coded) => {
                    p.note { "It is not UTF-8, and shown in base64." }
                    pre.content tabindex="0" role="region" aria-labelledby="payload" { (coded.as_deref().unwrap_or_default()) }
                }
            }
        }
        @for (attempt, is_resend) in with_resends(attempts) {
            section {
                h2 { "Attempt " (attempt.number) @if is_resend { ", after a resend" } }
                p.note { (exact(attempt.started_ms)) }
                h3 { "Request" }
                (fields(&attempt.request))
                h3 { "Answer" }
                (fields(&attempt.response))
                @if !attempt.excerpt.is_empty() {
                    p.note { "The beginning of its body:" }
                    pre { (attempt.excerpt) }
                }
            }
        }
    }
}

fn fields(lines: &str) -> Markup {
    html! { @if lines.is_empty() { p { "None is kept." } } @else { pre { (lines) } } }
}

pub(super) fn message(
    MessageView {
        status: message,
        wait,
    }: &MessageView,
    attempts: &[AttemptRecord],
    contents: bool,
    form_token: &str,
) -> Markup {
    let form = |act: &str| {
        let (id, state) = (message.id.as_str(), message.state.to_string());
        hidden(&[
            ("form_token", form_token),
            ("act", act),
            ("id", id),
            ("state", &state),
        ])
    };
    let ended = matches!(
        message.state,
        MessageState::Delivered | MessageState::Dead | MessageState::Cancelled
    );
    html! {
        p.over { "Message to " (full_name(&message.tenant, &message.endpoint)) }
        h1 { (message.event) }
        p.lead {
            (state_tag(message.state)) " " @if wait.is_none() { (message.reason) }
            @if message.topic == topic::TEST { " " span.tag { "test" } }
        }
        @if let Some(wait) = wait {
            @match (wait.reason, &message.blocked_by) {
                (WaitReason::DeadLetter, Some(behind)) => p.bad {
                    "It waits behind the dead letter " a href={ "/messages/" (behind) } { (behind) }
                    ", which has the same order key. Send that one again or cancel it, and this one goes."
                },
                (reason, _) => p.bad[needs_operator(reason)] {
                    "It waits: " (wait.detail) "."
                    @if let Some(until) = wait.until_ms.filter(|until| !is_past(*until)) { " Until then: " (time(until)) "." }
                },
            }
        }
        dl.facts {
            dt { "Identifier" } dd { code { (message.id) } }
            @if !message.topic.is_empty() { dt { "Topic" } dd { (message.topic) } }
            @if let Some(order) = &message.order { dt { "Order key" } dd { (order) } }
            dt { "Enqueued" } dd { (exact(message.created_ms)) }
            @if let Some(due) = message.due_ms { dt { (if is_past(due) { "Due" } else { "Next attempt" }) } dd { (exact(due)) } }
            @if let Some(ended) = message.ended_ms { dt { "Ended" } dd { (exact(ended)) } }
        }
        div.buttons {
            @if ended { form method="post" action="/do" { (form("resend")) button { "Send again" } } }
            @if message.state == MessageState::Pending {
                form method="post" action="/do" { (form("send-now")) button { "Send now" } }
            }
            @if matches!(message.state, MessageState::Pending | MessageState::Dead) {
                form method="post" action="/do" { (form("cancel")) button.danger { "Cancel" } }
            }
        }
        @if contents {
            p { a href={ "/messages/" (message.id) "/content" } { "Payload and header fields" } }
        }
        section aria-labelledby="attempts" {
            h2 #attempts { "Attempts" }
            @if attempts.is_empty() { p { "None yet." } } @else { (attempt_table(attempts)) }
        }
    }
}

/// The attempts, each with whether it is the first after a resend, from which the numbers start again.
fn with_resends(attempts: &[AttemptRecord]) -> impl Iterator<Item = (&AttemptRecord, bool)> {
    let before = std::iter::once(0).chain(attempts.iter().map(|attempt| attempt.number));
    let pairs = attempts.iter().zip(before);
    pairs.map(|(attempt, before)| (attempt, attempt.number <= before))
}

fn attempt_table(attempts: &[AttemptRecord]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-labelledby="attempts" {
            table.cards {
                thead { tr {
                    th.n scope="col" { "Attempt" } th scope="col" { "Began" } th.n scope="col" { "Took" }
                    th.n scope="col" { "Status" } th scope="col" { "What went wrong" } th scope="col" { "Answer" }
                    th scope="col" { "Address" }
                } }
                tbody {
                    @for (attempt, is_resend) in with_resends(attempts) {
                        tr {
                            th.n scope="row" data-label="Attempt" { (attempt.number) @if is_resend { ", after a resend" } }
                            td data-label="Began" { (exact(attempt.started_ms)) }
                            td.n data-label="Took" { (long(attempt.duration_ms.into())) }
                            td.n data-label="Status" { @match attempt.status { Some(status) => (status), None => "–" } }
                            td data-label="What went wrong" {
                                @if attempt.error.is_empty() { span.tag.good { "acknowledged" } } @else { (attempt.error) }
                            }
                            td data-label="Answer" {
                                @if attempt.excerpt.is_empty() { "–" } @else { pre { (attempt.excerpt) } }
                            }
                            td data-label="Address" { @if attempt.address.is_empty() { "–" } @else { (attempt.address) } }
                        }
                    }
                }
            }
        }
    }
}
