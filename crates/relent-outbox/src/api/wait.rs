//! The reason that a pending message waits, for people and programs.

use std::collections::HashMap;
use std::time::SystemTime;

use serde::Serialize;

use super::state::Api;
use crate::store::{MessageState, MessageStatus, Store, millis};
use crate::worker::{HeldEndpoint, HoldReason};

/// A message with the reason that it waits.
#[derive(Serialize)]
pub(super) struct MessageView {
    #[serde(flatten)]
    pub(super) status: MessageStatus,
    /// `None` unless it is pending.
    pub(super) wait: Option<Wait>,
}

/// The reason that a pending message waits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Wait {
    pub(super) reason: WaitReason,
    /// The reason as a sentence, without the time.
    pub(super) detail: String,
    /// When the reason is expected to end, in milliseconds since 1970; `None` if it is unknown.
    pub(super) until_ms: Option<i64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum WaitReason {
    /// The endpoint is disabled.
    EndpointDisabled,
    /// A dead letter with the same order key goes first.
    DeadLetter,
    /// A message with the same order key goes first.
    EarlierMessage,
    /// The first or the next attempt is due later.
    Schedule,
    /// It is due, and the worker of this process does not hold it: another process has it, or starts it soon.
    Worker,
    /// The worker holds the message or its endpoint.
    #[serde(untagged)]
    Held(HoldReason),
}

impl Wait {
    /// Returns the reason that comes first: an enabled endpoint before the order, the order before the time.
    fn of(message: &MessageStatus, held: Option<&HeldEndpoint>, now_ms: i64) -> Option<Self> {
        if message.state != MessageState::Pending {
            return None;
        }
        let wait = |reason, detail: String, until_ms| Self {
            reason,
            detail,
            until_ms,
        };
        let later = message.due_ms.filter(|due| *due > now_ms);
        Some(match (&message.disabled, &message.blocked_by, held) {
            (Some(why), ..) => {
                let detail = format!("its endpoint is disabled: {why}");
                wait(WaitReason::EndpointDisabled, detail, None)
            }
            (_, Some(dead), _) => {
                let detail = format!(
                    "it is behind the dead letter {dead} with its order key: resend that or cancel it"
                );
                wait(WaitReason::DeadLetter, detail, None)
            }
            _ if message.is_behind => {
                let detail = "an earlier message with its order key goes first".to_owned();
                wait(WaitReason::EarlierMessage, detail, None)
            }
            // A fault that concerns this message alone.
            _ if !message.reason.is_empty() => {
                let detail = format!("a local fault: {}", message.reason);
                wait(WaitReason::Held(HoldReason::LocalFault), detail, later)
            }
            _ if later.is_some() => {
                let which = if message.attempts == 0 {
                    "first"
                } else {
                    "next"
                };
                let detail = format!("its {which} attempt is due later");
                wait(WaitReason::Schedule, detail, later)
            }
            (.., Some(held)) => {
                let detail = match held.hold_reason {
                    HoldReason::LocalFault => format!("a local fault: {}", held.error),
                    reason => reason.to_string(),
                };
                let until = held.until.map(millis);
                wait(WaitReason::Held(held.hold_reason), detail, until)
            }
            _ => {
                let detail = "it is due; its attempt has not started yet".to_owned();
                wait(WaitReason::Worker, detail, None)
            }
        })
    }
}

/// The held endpoints, by tenant and name.
type Held = HashMap<(String, String), HeldEndpoint>;

/// Adds to each message the reason that it waits.
pub(super) fn with_waits(messages: Vec<MessageStatus>, held: &Held) -> Vec<MessageView> {
    let now_ms = millis(SystemTime::now());
    let view = |status| MessageView::of(status, held, now_ms);
    messages.into_iter().map(view).collect()
}

impl MessageView {
    fn of(status: MessageStatus, held: &Held, now_ms: i64) -> Self {
        let names = (status.tenant.clone(), status.endpoint.clone());
        let wait = Wait::of(&status, held.get(&names), now_ms);
        Self { status, wait }
    }
}

impl<S: Store> Api<S> {
    /// The message with the reason that it waits.
    pub(super) async fn with_wait(&self, message: MessageStatus) -> MessageView {
        let held = self.held_if_pending(std::slice::from_ref(&message)).await;
        MessageView::of(message, &held, millis(SystemTime::now()))
    }

    /// Like [`with_waits`], and asks which endpoints are held.
    pub(super) async fn with_waits(&self, messages: Vec<MessageStatus>) -> Vec<MessageView> {
        let held = self.held_if_pending(&messages).await;
        with_waits(messages, &held)
    }

    /// The held endpoints, if any of the messages is pending: no other message waits.
    async fn held_if_pending(&self, messages: &[MessageStatus]) -> Held {
        let mut states = messages.iter().map(|message| message.state);
        match states.any(|state| state == MessageState::Pending) {
            true => self.held().await,
            false => HashMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests may")]
    use serde_json::{Value, json};

    use super::*;
    use crate::api::OPENAPI;
    use crate::message::MessageId;

    const NOW_MS: i64 = 1_767_225_600_000;

    fn pending() -> MessageStatus {
        MessageStatus {
            id: MessageId::new(),
            place: 1,
            tenant: String::new(),
            endpoint: "shop".to_owned(),
            event: "e".to_owned(),
            topic: String::new(),
            order: None,
            blocked_by: None,
            is_behind: false,
            disabled: None,
            state: MessageState::Pending,
            reason: String::new(),
            last_error: String::new(),
            attempts: 0,
            created_ms: NOW_MS,
            due_ms: Some(NOW_MS),
            ended_ms: None,
        }
    }

    fn held(hold_reason: HoldReason) -> HeldEndpoint {
        HeldEndpoint {
            tenant: String::new(),
            name: "shop".to_owned(),
            hold_reason,
            until: None,
            running: 0,
            error: "env:KEY is not set".to_owned(),
        }
    }

    #[test]
    fn a_pending_message_names_the_first_reason_that_it_waits() {
        let fault = held(HoldReason::LocalFault);
        let mut message = pending();
        let mut reasons = Vec::new();
        let mut says = |message: &MessageStatus, held: Option<&HeldEndpoint>| {
            let wait = Wait::of(message, held, NOW_MS).unwrap();
            reasons.push(json!(wait.reason));
            wait.detail
        };
        says(&message, None);
        assert!(says(&message, Some(&fault)).contains("env:KEY"));
        says(&message, Some(&held(HoldReason::Down)));
        message.due_ms = Some(NOW_MS + 1);
        assert!(says(&message, Some(&fault)).contains("first attempt"));
        message.attempts = 1;
        assert!(says(&message, Some(&fault)).contains("next attempt"));
        message.reason = "too large".to_owned();
        assert!(says(&message, None).contains("too large"));
        message.is_behind = true;
        says(&message, None);
        message.blocked_by = Some(MessageId::new());
        says(&message, None);
        message.disabled = Some("moves".to_owned());
        assert!(says(&message, None).contains("moves"));
        assert_eq!(
            reasons,
            [
                "worker",
                "local-fault",
                "down",
                "schedule",
                "schedule",
                "local-fault",
                "earlier-message",
                "dead-letter",
                "endpoint-disabled"
            ]
        );
        message.state = MessageState::Running;
        assert_eq!(Wait::of(&message, None, NOW_MS), None);
    }

    #[test]
    fn openapi_lists_every_reason_to_wait() {
        let held = [
            HoldReason::Down,
            HoldReason::Recovering,
            HoldReason::Cooldown,
            HoldReason::RateLimit,
            HoldReason::Concurrency,
            HoldReason::Slots,
            HoldReason::LocalFault,
        ];
        let own = [
            WaitReason::EndpointDisabled,
            WaitReason::DeadLetter,
            WaitReason::EarlierMessage,
            WaitReason::Schedule,
            WaitReason::Worker,
        ];
        let all = own.into_iter().chain(held.map(WaitReason::Held));
        let description: Value = serde_json::from_str(OPENAPI).unwrap();
        let listed = |path: &str| description.pointer(path).unwrap().clone();
        let wait = listed("/components/schemas/Message/properties/wait/properties/reason/enum");
        assert_eq!(wait, json!(all.collect::<Vec<_>>()));
        let hold =
            listed("/components/schemas/Endpoint/properties/held/properties/hold_reason/enum");
        assert_eq!(hold, json!(held));
    }
}
