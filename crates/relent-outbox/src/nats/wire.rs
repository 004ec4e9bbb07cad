//! What relays and deliverers say to each other: one line of JSON, and bytes behind it.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use relent_core::{Cause, Failure, Kind, Network};
use serde::{Deserialize, Serialize};

use crate::acknowledgement::BodyEnd;
use crate::sender::{Exchange, Received};

/// The version of this format. An attempt of another one is left to the deliverers of its relay's version.
pub(super) const VERSION: u32 = 1;
/// A field of an answer that is longer says nothing that is judged.
const LONGEST_FIELD: usize = 1024;

/// An attempt, as a deliverer needs it. Its payload follows.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Attempt {
    pub(super) version: u32,
    /// The subject by which its relay is asked and told.
    pub(super) relay: String,
    pub(super) url: String,
    /// The fields of the request, signed.
    pub(super) headers: Vec<(String, String)>,
    pub(super) limit: Duration,
    /// As much of the answer's body is sent back.
    pub(super) keep: usize,
}

/// What came of an exchange. The body of the answer follows.
#[derive(Serialize, Deserialize, Debug)]
struct Answer {
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
        kind: Kind,
        /// `None` for a timeout.
        network: Option<Cut>,
        error: String,
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
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Kind")]
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
}

/// An attempt and its payload, as they are published.
pub(super) fn attempt(attempt: &Attempt, payload: &[u8]) -> Result<Bytes, String> {
    write(attempt, payload)
}

/// Reads them; `None` if it is none of this version.
pub(super) fn read_attempt(message: &Bytes) -> Option<(Attempt, Bytes)> {
    let (attempt, payload): (Attempt, Bytes) = read(message)?;
    (attempt.version == VERSION).then_some((attempt, payload))
}

/// What came of an exchange, with as much of the body.
pub(super) fn answer(exchange: Exchange, keep: usize) -> Result<Bytes, String> {
    let mut body = Bytes::new();
    let outcome = match exchange.result {
        Ok(received) => {
            body = received.body.slice(..received.body.len().min(keep));
            Outcome::Answered {
                status: received.status.as_u16(),
                headers: fields(&received.headers, LONGEST_FIELD),
                end: received.end,
            }
        }
        Err((failure, error)) => Outcome::Failed {
            kind: failure.kind,
            network: match failure.cause {
                Cause::Network(network) => Some(Cut(network)),
                _ => None,
            },
            error,
        },
    };
    let answer = Answer {
        outcome,
        address: exchange.address,
        took: exchange.took,
    };
    write(&answer, &body)
}

/// Reads it.
pub(super) fn read_answer(message: &Bytes) -> Option<Exchange> {
    let (answer, body): (Answer, Bytes) = read(message)?;
    let result = match answer.outcome {
        Outcome::Answered {
            status,
            headers,
            end,
        } => Ok(Received {
            status: StatusCode::from_u16(status).ok()?,
            headers: header_map(&headers)?,
            body,
            end,
        }),
        Outcome::Failed {
            kind,
            network,
            error,
        } => {
            let cause = network.map_or(Cause::Timeout, |Cut(network)| Cause::Network(network));
            Err((Failure::new(kind).cause(cause), error))
        }
    };
    Some(Exchange {
        result,
        address: answer.address,
        took: answer.took,
    })
}

/// Fields as texts. What is no text, which no field of a request is, or longer, is left out.
pub(super) fn fields(headers: &HeaderMap, longest: usize) -> Vec<(String, String)> {
    let fields = headers.iter().filter_map(|(name, value)| {
        let value = value.to_str().ok()?;
        (value.len() <= longest).then(|| (name.to_string(), value.to_owned()))
    });
    fields.collect()
}

pub(super) fn header_map(fields: &[(String, String)]) -> Option<HeaderMap> {
    let mut headers = HeaderMap::with_capacity(fields.len());
    for (name, value) in fields {
        let name: HeaderName = name.parse().ok()?;
        headers.append(name, HeaderValue::from_str(value).ok()?);
    }
    Some(headers)
}

fn write(head: &impl Serialize, rest: &[u8]) -> Result<Bytes, String> {
    let mut bytes = Vec::with_capacity(1024 + rest.len());
    serde_json::to_writer(&mut bytes, head).map_err(|error| error.to_string())?;
    bytes.push(b'\n');
    bytes.extend_from_slice(rest);
    Ok(bytes.into())
}

fn read<T: for<'de> Deserialize<'de>>(message: &Bytes) -> Option<(T, Bytes)> {
    let end = message.iter().position(|byte| *byte == b'\n')?;
    let head = serde_json::from_slice(&message[..end]).ok()?;
    Some((head, message.slice(end + 1..)))
}
