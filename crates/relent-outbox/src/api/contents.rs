//! Contents of messages and attempts, for clients with the content token.

use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::{StatusCode, Uri};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::messages::{identifier, only, unknown};
use super::response::{HandlerResult, Refused, ok, query, refuse, stored, unacceptable};
use super::sessions::Contents;
use super::state::{Api, Shared};
use crate::headers::{self, REDACTED};
use crate::message::MAX_PAYLOAD;
use crate::store::{AttemptRecord, Content, MessageStatus, Store};

/// The default length of a shown payload, in bytes.
pub(super) const DEFAULT_SHOWN_BYTES: usize = 16 << 10;

/// A payload, as far as it is shown.
#[derive(Serialize)]
pub(super) struct Shown {
    pub(super) content_type: String,
    /// The size of the payload in bytes.
    pub(super) bytes: usize,
    /// Whether only a part is shown.
    pub(super) truncated: bool,
    /// The text, if it is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) base64: Option<String>,
}

impl Shown {
    /// Shows a payload without these secrets. A secret that is truncated at the end is redacted, too.
    fn of(content: &Content, most: usize, secrets: &[impl AsRef<str>]) -> Self {
        let bytes = content.payload.len();
        let part = &content.payload[..bytes.min(most)];
        let text = match str::from_utf8(part) {
            Ok(text) => Some(text),
            // The limit may split a character.
            Err(error) if error.error_len().is_none() && bytes > part.len() => {
                str::from_utf8(&part[..error.valid_up_to()]).ok()
            }
            Err(_) => None,
        };
        let text = text.map(|text| {
            let mut text = text.to_owned();
            for secret in secrets.iter().map(AsRef::as_ref) {
                if secret.is_empty() {
                    continue;
                }
                text = text.replace(secret, REDACTED);
                let cut = (4..secret.len())
                    .rev()
                    .filter(|end| secret.is_char_boundary(*end));
                let mut cut = cut.map(|end| &secret[..end]);
                if bytes > part.len()
                    && let Some(begun) = cut.find(|begun| text.ends_with(begun))
                {
                    text.truncate(text.len() - begun.len());
                    text.push_str(REDACTED);
                }
            }
            text
        });
        Self {
            content_type: content.content_type.clone(),
            bytes,
            truncated: bytes > part.len(),
            base64: text.is_none().then(|| STANDARD.encode(part)),
            text,
        }
    }
}

#[derive(Serialize)]
struct Field {
    name: String,
    value: String,
}

fn fields(lines: &str) -> Vec<Field> {
    let field = |line: &str| {
        let (name, value) = line.split_once(": ")?;
        Some(Field {
            name: name.to_owned(),
            value: value.to_owned(),
        })
    };
    lines.lines().filter_map(field).collect()
}

#[derive(Serialize)]
struct Attempt {
    number: u32,
    started_ms: i64,
    request: Vec<Field>,
    response: Vec<Field>,
    /// The beginning of the response body.
    excerpt: String,
}

impl From<AttemptRecord> for Attempt {
    fn from(record: AttemptRecord) -> Self {
        Self {
            number: record.number,
            started_ms: record.started_ms,
            request: fields(&record.request),
            response: fields(&record.response),
            excerpt: record.excerpt,
        }
    }
}

#[derive(Serialize)]
struct Whole {
    payload: Shown,
    attempts: Vec<Attempt>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ContentQuery {
    max_bytes: Option<usize>,
}

impl<S: Store> Api<S> {
    /// The payload of a message, as far as it is shown; `None` if the message no longer exists.
    pub(super) async fn shown(
        &self,
        message: &MessageStatus,
        most: usize,
    ) -> Result<Option<Shown>, S::Error> {
        let Some(content) = self.store.content(&message.id).await? else {
            return Ok(None);
        };
        let found = self
            .store
            .endpoint(&message.tenant, &message.endpoint)
            .await?;
        let mut secrets = Vec::new();
        if let Some(status) = found {
            // If the secrets are unavailable, there is nothing to redact.
            if let Ok(Some(signing)) = self.secrets.signing(&status.endpoint) {
                secrets.extend(signing.texts);
            }
            if let Ok(custom) = headers::open(&self.secrets, &status.endpoint) {
                secrets.extend(custom.texts);
            }
        }
        let secrets: Vec<_> = secrets.iter().map(|secret| secret.as_str()).collect();
        Ok(Some(Shown::of(&content, most, &secrets)))
    }
}

pub(super) async fn show<S: Store>(
    State(api): State<Shared<S>>,
    Extension(Contents(may)): Extension<Contents>,
    path: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> HandlerResult {
    if !may {
        return Err(forbidden(api.content_token.is_some()));
    }
    let id = identifier(path)?;
    let ContentQuery { max_bytes } = query(&uri)?;
    let most = max_bytes.unwrap_or(DEFAULT_SHOWN_BYTES);
    if !(1..=MAX_PAYLOAD).contains(&most) {
        return Err(unacceptable(format!(
            "after the ?: max_bytes has to be from 1 to {MAX_PAYLOAD}"
        )));
    }
    let found = stored!(api.store.messages(only(id.clone()), 1));
    let Some(message) = found.first() else {
        return Err(unknown(id.as_str()));
    };
    let Some(payload) = stored!(api.shown(message, most)) else {
        return Err(unknown(id.as_str()));
    };
    let attempts = stored!(api.store.attempts(&id));
    ok(&Whole {
        payload,
        attempts: attempts.into_iter().map(Attempt::from).collect(),
    })
}

/// The response to a token that does not permit contents.
fn forbidden(exists: bool) -> Refused {
    let how = match exists {
        true => "send the content token of this server",
        false => {
            "this server has none: an operator gives it one by `relent deliver serve --content-token-file FILE`"
        }
    };
    refuse(
        StatusCode::FORBIDDEN,
        format!("this token does not let you see what messages hold: {how}"),
    )
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn shown(payload: &[u8], most: usize) -> Shown {
        let content = Content {
            content_type: "text/plain".to_owned(),
            payload: Bytes::copy_from_slice(payload),
        };
        Shown::of(&content, most, &["whsec_4711"])
    }

    #[test]
    fn a_shown_payload_is_truncated_between_characters() {
        let cut = shown("\u{fc}\u{fc}".as_bytes(), 3);
        assert_eq!(
            (cut.text.as_deref(), cut.bytes, cut.truncated),
            (Some("\u{fc}"), 4, true)
        );
        let whole = shown(b"abc", 3);
        assert_eq!(
            (whole.text.as_deref(), whole.truncated),
            (Some("abc"), false)
        );
        let binary = shown(b"\xff\0", 3);
        assert_eq!(
            (binary.text, binary.base64.as_deref()),
            (None, Some("/wA="))
        );
    }

    #[test]
    fn a_payload_is_shown_without_the_keys_of_its_endpoint() {
        assert_eq!(shown(b"a whsec_4711 b", 99).text.unwrap(), "a [redacted] b");
        assert_eq!(shown(b"a whsec_4711 b", 9).text.unwrap(), "a [redacted]");
    }
}
