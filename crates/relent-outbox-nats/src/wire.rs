//! Messages between dispatchers and NATS workers: one line of JSON, `[length of the rest, head]`, and the rest in
//! bytes.
//!
//! The input is untrusted: any client that may publish to a subject can send anything. A message that is malformed,
//! truncated or has an impossible number is refused with a description. Parsing takes memory in proportion to the
//! message, whose size NATS limits.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use relent_core::{Cause, Failure, FailureKind, Network};
use serde::{Deserialize, Serialize};

use relent_outbox::acknowledgement::{BodyEnd, MAX_BODY};
use relent_outbox::fault::FaultKind;
use relent_outbox::sender::{Exchange, Received};
use relent_outbox::text::printable;

#[cfg(any(test, fuzzing))]
mod tests;
#[cfg(fuzzing)]
pub use tests::any_bytes;

/// The time in which a NATS worker must start after its first request for permission.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(5);
/// Replies of a dispatcher to a result: accepted, and the prefix of a refusal.
pub(crate) const ACCEPTED: &[u8] = b"accepted";
pub(crate) const REFUSED_PREFIX: &str = "refused: ";
/// The version of this format. Attempts of another version are left to the NATS workers of their dispatcher's version.
pub(crate) const VERSION: u32 = 1;
/// The longest field of a response that is forwarded, with its name, in bytes. Longer ones do not affect its
/// evaluation.
const MAX_FIELD_BYTES: usize = 1024;
/// The largest number of forwarded fields of a response.
const MAX_RESPONSE_FIELDS: usize = 128;
/// The longest first line, in bytes. It fits [`MAX_RESPONSE_FIELDS`] fields with any content.
const MAX_HEAD_BYTES: usize = 512 << 10;
/// The longest time limit of an attempt: 24 h.
pub(crate) const MAX_ATTEMPT_TIME: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest part of a JSON error that is kept, in bytes; the error may quote its input.
const MAX_ERROR_BYTES: usize = 200;

/// An attempt as it is sent to a NATS worker. Its payload follows.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) struct Attempt {
    pub(crate) version: u32,
    /// The subject for requests for permission and for the result.
    pub(crate) relay: String,
    pub(crate) url: String,
    /// The fields of the request, signed.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) limit: Duration,
    /// The largest part of the response body to send back, in bytes.
    pub(crate) keep: usize,
}

/// The result of an HTTP request. The body of the response follows.
#[derive(Serialize, Deserialize, Debug)]
struct ResultHead {
    outcome: Outcome,
    address: String,
    took: Duration,
}

#[derive(Serialize, Deserialize, Debug)]
enum Outcome {
    Answered {
        status: u16,
        headers: Vec<(String, String)>,
        #[serde(with = "End")]
        end: BodyEnd,
    },
    Failed {
        #[serde(with = "KindOf")]
        kind: FailureKind,
        /// `None` for a timeout.
        network: Option<Cut>,
        error: String,
        /// The local fault of the NATS worker that caused it, if any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fault: Option<FaultKind>,
    },
}

#[derive(Serialize, Deserialize, Debug)]
struct Cut(#[serde(with = "NetworkOf")] Network);

#[derive(Serialize, Deserialize)]
#[serde(remote = "BodyEnd")]
enum End {
    Whole,
    TooLong,
    Cut,
    TimedOut,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "FailureKind")]
enum KindOf {
    NotProcessed,
    Ambiguous,
    Permanent,
    Throttled,
    Overloaded,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Network")]
enum NetworkOf {
    Dns,
    NameNotFound,
    Connect,
    Handshake,
    Certificate,
    RefusedStream,
    GoAway,
    Reset,
    Truncated,
    BadRequest,
    Other,
    Malformed,
    Local,
}

/// Serializes an attempt with its payload.
pub(crate) fn attempt(attempt: &Attempt, payload: &[u8]) -> Result<Bytes, String> {
    write(attempt, payload)
}

/// Parses an attempt of this version.
pub(crate) fn read_attempt(message: &Bytes) -> Result<(Attempt, Bytes), String> {
    let (attempt, payload): (Attempt, Bytes) = read(message)?;
    let Attempt {
        version,
        relay,
        limit,
        ..
    } = &attempt;
    if *version != VERSION {
        return Err(format!(
            "it is of version {version}, and this reads {VERSION}: run the same version of Relent at both ends"
        ));
    }
    if !is_subject(relay) {
        return Err("its relay is no subject of NATS".to_owned());
    }
    if *limit > MAX_ATTEMPT_TIME {
        return Err(format!(
            "it may take {} s, and {} s are the most",
            limit.as_secs(),
            MAX_ATTEMPT_TIME.as_secs()
        ));
    }
    Ok((attempt, payload))
}

/// Whether the text is a subject without wildcards or other special characters.
fn is_subject(subject: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let mut words = subject.split('.');
    words.all(|word| !word.is_empty() && word.bytes().all(valid))
}

/// Serializes the time in which an attempt may be started; zero denies it.
pub(crate) fn permission(left: Duration) -> Bytes {
    left.as_millis().to_string().into()
}

/// Parses the time in which an attempt may be started.
pub(crate) fn read_permission(message: &[u8]) -> Result<Duration, String> {
    let left = str::from_utf8(message)
        .ok()
        .and_then(|left| left.parse().ok());
    left.map(Duration::from_millis)
        .filter(|left| *left <= START_TIMEOUT)
        .ok_or_else(|| {
            format!(
                "permission to begin is a number of milliseconds, {} at most",
                START_TIMEOUT.as_millis()
            )
        })
}

/// Serializes a result with up to `keep` bytes of the body. Shortens it to `most` bytes in total, as far as possible.
pub(crate) fn answer(exchange: Exchange, keep: usize, most: usize) -> Result<Bytes, String> {
    let mut body = Bytes::new();
    let outcome = match exchange.result {
        Ok(received) => {
            body = received.body.slice(..received.body.len().min(keep));
            Outcome::Answered {
                status: received.status.as_u16(),
                headers: fields_for_evaluation(&received.headers, most / 2),
                end: received.end,
            }
        }
        Err((failure, error)) => Outcome::Failed {
            kind: failure.kind,
            network: match failure.cause {
                Cause::Network(network) => Some(Cut(network)),
                _ => None,
            },
            error: printable(&error, MAX_FIELD_BYTES),
            fault: exchange.fault,
        },
    };
    let mut answer = ResultHead {
        outcome,
        address: exchange.address,
        took: exchange.took,
    };
    let whole = write(&answer, &body)?;
    let Some(excess) = whole.len().checked_sub(most).filter(|excess| *excess > 0) else {
        return Ok(whole);
    };
    if let Outcome::Answered { end, .. } = &mut answer.outcome
        && *end == BodyEnd::Whole
    {
        *end = BodyEnd::TooLong;
    }
    // `TooLong` is longer than `Whole`.
    const TOO_LONG_GROWTH_BYTES: usize = 16;
    body.truncate(body.len().saturating_sub(excess + TOO_LONG_GROWTH_BYTES));
    write(&answer, &body)
}

/// Parses a result.
pub(crate) fn read_answer(message: &Bytes) -> Result<Exchange, String> {
    let (answer, body): (ResultHead, Bytes) = read(message)?;
    if body.len() > MAX_BODY {
        return Err(format!(
            "its body has {} bytes, and {MAX_BODY} are the most",
            body.len()
        ));
    }
    // The address is stored, and PostgreSQL cannot store a NUL.
    if !answer.address.is_empty() && answer.address.parse::<SocketAddr>().is_err() {
        return Err("its address is none".to_owned());
    }
    let mut faulty = None;
    let result = match answer.outcome {
        Outcome::Answered {
            status,
            headers,
            end,
        } => Ok(Received {
            status: StatusCode::from_u16(status)
                .map_err(|_| format!("{status} is no status of HTTP"))?,
            headers: header_map(&headers)?,
            body,
            end,
        }),
        Outcome::Failed {
            kind,
            network,
            error,
            fault,
        } => {
            faulty = fault;
            let cause = network.map_or(Cause::Timeout, |Cut(network)| Cause::Network(network));
            Err((Failure::new(kind).cause(cause), error))
        }
    };
    Ok(Exchange {
        result,
        address: answer.address,
        took: answer.took,
        fault: faulty,
    })
}

/// The fields as texts. Other values are omitted; fields of requests are always text.
pub(crate) fn fields(headers: &HeaderMap) -> impl Iterator<Item = (String, String)> {
    headers
        .iter()
        .filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())))
}

/// The fields of a response for its evaluation, up to `most` bytes, without those that are too long or too many.
fn fields_for_evaluation(headers: &HeaderMap, most: usize) -> Vec<(String, String)> {
    // In JSON, a quotation mark or a backslash takes two bytes.
    const JSON_OVERHEAD_BYTES: usize = "[\"\",\"\"],".len();
    let mut left = most;
    fields(headers)
        .filter(|(name, value)| name.len() + value.len() <= MAX_FIELD_BYTES)
        .take(MAX_RESPONSE_FIELDS)
        .take_while(|(name, value)| {
            let takes = JSON_OVERHEAD_BYTES + name.len() + 2 * value.len();
            let fits = takes <= left;
            left = left.saturating_sub(takes);
            fits
        })
        .collect()
}

/// Converts parsed fields.
pub(crate) fn header_map(fields: &[(String, String)]) -> Result<HeaderMap, String> {
    // `HeaderMap` panics beyond some number of fields.
    if fields.len() > MAX_RESPONSE_FIELDS {
        return Err(format!(
            "it has {} fields, and {MAX_RESPONSE_FIELDS} are the most",
            fields.len()
        ));
    }
    let mut headers = HeaderMap::with_capacity(fields.len());
    for (at, (name, value)) in fields.iter().enumerate() {
        let wrong = |what| format!("the {what} of field {at} cannot stand in a header");
        let name: HeaderName = name.parse().map_err(|_| wrong("name"))?;
        let value = HeaderValue::from_str(value).map_err(|_| wrong("value"))?;
        headers.append(name, value);
    }
    Ok(headers)
}

fn write(head: &impl Serialize, rest: &[u8]) -> Result<Bytes, String> {
    let mut bytes = Vec::with_capacity(1024 + rest.len());
    serde_json::to_writer(&mut bytes, &(rest.len(), head)).map_err(|error| error.to_string())?;
    if bytes.len() > MAX_HEAD_BYTES {
        return Err(format!(
            "what describes it has {} bytes, and {MAX_HEAD_BYTES} are the most",
            bytes.len()
        ));
    }
    bytes.push(b'\n');
    bytes.extend_from_slice(rest);
    Ok(bytes.into())
}

fn read<T: for<'de> Deserialize<'de>>(message: &Bytes) -> Result<(T, Bytes), String> {
    let mut first = message.iter().take(MAX_HEAD_BYTES + 1);
    let Some(end) = first.position(|byte| *byte == b'\n') else {
        return Err(match message.len() {
            0 => "it is empty".to_owned(),
            1..=MAX_HEAD_BYTES => {
                "its first line has no end: it was cut off, or is none of Relent's".to_owned()
            }
            _ => format!("its first line has more than {MAX_HEAD_BYTES} bytes"),
        });
    };
    let (length, head): (usize, T) = serde_json::from_slice(&message[..end]).map_err(|error| {
        let error = printable(&error.to_string(), MAX_ERROR_BYTES);
        format!("its first line cannot be read ({error}): it is none of this version of Relent")
    })?;
    let rest = message.slice(end + 1..);
    if rest.len() != length {
        return Err(format!(
            "{} bytes follow its first line, which says {length}: it was cut off or changed",
            rest.len()
        ));
    }
    Ok((head, rest))
}
