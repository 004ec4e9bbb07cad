//! Stored responses and their encoding.

use std::fmt;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use relent_http::{Outcome, grpc};

/// The stored response to the first request with a key, for its duplicates: status, header fields, trailers, and the
/// body unless it is too long.
///
/// Hop-by-hop and transient fields are removed: `Connection` and the fields it names, `Date`, `Set-Cookie`,
/// `Content-Length` (which the body determines), rate limits and trace identifiers. `Retry-After` is kept, since in a
/// 202 it announces the result.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StoredResponse {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub headers: HeaderMap,
    /// The body; `None` if it was too long to store.
    pub body: Option<Bytes>,
    /// The trailers.
    pub trailers: Option<HeaderMap>,
}

/// Hop-by-hop and transient fields.
const TRANSIENT_FIELDS: [&str; 20] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
    "date",
    "set-cookie",
    "ratelimit",
    "ratelimit-policy",
    "traceparent",
    "tracestate",
    "x-request-id",
    "x-trace-id",
    "idempotent-replayed",
    "relent-original-traceparent",
];

impl StoredResponse {
    /// Creates a stored response from a head and a body; removes the fields that are not stored.
    #[must_use]
    pub fn new(head: &Parts, body: Option<Bytes>, trailers: Option<HeaderMap>) -> Self {
        let named = |value: &HeaderValue| {
            let names = value.to_str().unwrap_or_default().to_ascii_lowercase();
            names
                .split(',')
                .map(|name| name.trim().to_owned())
                .collect::<Vec<_>>()
        };
        // The fields that `Connection` names are also hop-by-hop.
        let hop: Vec<_> = head
            .headers
            .get_all(header::CONNECTION)
            .iter()
            .flat_map(named)
            .collect();
        let is_transient_field = |name: &str| {
            // HTTP/1 sends only the trailers that this field names.
            let names_trailers = name == "trailer" && trailers.is_some();
            TRANSIENT_FIELDS.contains(&name) && !names_trailers
                || name.starts_with("x-ratelimit-")
                || hop.iter().any(|hop| hop == name)
        };
        let headers = head.headers.iter();
        let headers = headers
            .filter(|(name, _)| !is_transient_field(name.as_str()))
            .map(|(name, value)| (name.clone(), value.clone()));
        let mut kept = HeaderMap::new();
        for (name, value) in headers {
            kept.append(name, value);
        }
        Self {
            status: head.status,
            headers: kept,
            body,
            trailers,
        }
    }

    /// Creates a stored response from these parts without changes.
    #[must_use]
    pub const fn from_parts(
        status: StatusCode,
        headers: HeaderMap,
        body: Option<Bytes>,
        trailers: Option<HeaderMap>,
    ) -> Self {
        Self {
            status,
            headers,
            body,
            trailers,
        }
    }

    /// Returns the length of body, header fields and trailers in bytes.
    pub(crate) fn size(&self) -> usize {
        let fields = self.headers.iter().chain(self.trailers.iter().flatten());
        let fields = fields.map(|(name, value)| name.as_str().len() + value.len());
        fields.sum::<usize>() + self.body.as_ref().map_or(0, Bytes::len)
    }

    /// Returns whether the response rejects a request that had no effect: a 4xx but 408, or for gRPC a final status
    /// other than `OK`.
    pub(crate) fn is_refusal(&self) -> bool {
        let fields = [Some(&self.headers), self.trailers.as_ref()];
        let mut codes = (fields.into_iter().flatten())
            .filter_map(|fields| Some((grpc::code(fields)?, Outcome::of_trailers(Some(fields)))));
        match codes.next() {
            Some((code, outcome)) => code != 0 && outcome == Outcome::Final,
            None => {
                let outcome = Outcome::of_http(self.status, &self.headers);
                self.status.is_client_error() && outcome != Outcome::Unknown
            }
        }
    }
}

/// The version of the encoding, to be increased when it changes.
const VERSION: u8 = 1;

/// The bytes are not a stored response, or a later version has written them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidStoredResponse;

impl fmt::Display for InvalidStoredResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the bytes are no stored answer: a later version has written them, or something else has",
        )
    }
}

impl std::error::Error for InvalidStoredResponse {}

/// The encoding for stores.
impl StoredResponse {
    /// Encodes the response: a version, then each part with its length.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let body = self.body.as_deref().unwrap_or_default();
        let mut bytes = Vec::with_capacity(64 + body.len());
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.status.as_u16().to_be_bytes());
        write_fields(&mut bytes, Some(&self.headers));
        write_fields(&mut bytes, self.trailers.as_ref());
        // The rest is the body, if there is one.
        bytes.push(u8::from(self.body.is_some()));
        bytes.extend_from_slice(body);
        bytes
    }

    /// Decodes a response.
    ///
    /// # Errors
    /// The bytes are malformed, or of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, InvalidStoredResponse> {
        let mut rest = bytes;
        let [version] = take(&mut rest)?;
        let status = StatusCode::from_u16(u16::from_be_bytes(take(&mut rest)?));
        let headers = read_fields(&mut rest)?.ok_or(InvalidStoredResponse)?;
        let trailers = read_fields(&mut rest)?;
        let body = match take(&mut rest)? {
            [0] if rest.is_empty() => None,
            [1] => Some(Bytes::copy_from_slice(rest)),
            _ => return Err(InvalidStoredResponse),
        };
        if version != VERSION {
            return Err(InvalidStoredResponse);
        }
        Ok(Self {
            status: status.map_err(|_| InvalidStoredResponse)?,
            headers,
            body,
            trailers,
        })
    }
}

/// Writes the number of fields plus one; 0 means none.
fn write_fields(bytes: &mut Vec<u8>, fields: Option<&HeaderMap>) {
    let count = fields.map_or(0, |fields| fields.len() + 1);
    write_count(bytes, count);
    for (name, value) in fields.into_iter().flatten() {
        for part in [name.as_str().as_bytes(), value.as_bytes()] {
            write_count(bytes, part.len());
            bytes.extend_from_slice(part);
        }
    }
}

/// No field is longer than 4 GiB, and there are fewer than 2^32.
fn write_count(bytes: &mut Vec<u8>, count: usize) {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    bytes.extend_from_slice(&count.to_be_bytes());
}

fn read_fields(rest: &mut &[u8]) -> Result<Option<HeaderMap>, InvalidStoredResponse> {
    let count = u32::from_be_bytes(take(rest)?);
    let Some(count) = count.checked_sub(1) else {
        return Ok(None);
    };
    let mut fields = HeaderMap::new();
    for _ in 0..count {
        let name = HeaderName::from_bytes(read_part(rest)?).map_err(|_| InvalidStoredResponse)?;
        let value = HeaderValue::from_bytes(read_part(rest)?).map_err(|_| InvalidStoredResponse)?;
        fields
            .try_append(name, value)
            .map_err(|_| InvalidStoredResponse)?;
    }
    Ok(Some(fields))
}

fn read_part<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], InvalidStoredResponse> {
    let length = u32::from_be_bytes(take(rest)?);
    let length = usize::try_from(length).map_err(|_| InvalidStoredResponse)?;
    let (part, after) = rest.split_at_checked(length).ok_or(InvalidStoredResponse)?;
    *rest = after;
    Ok(part)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], InvalidStoredResponse> {
    let (taken, after) = rest.split_first_chunk().ok_or(InvalidStoredResponse)?;
    *rest = after;
    Ok(*taken)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fields() -> impl Strategy<Value = HeaderMap> {
        let field = (
            "[a-z][a-z0-9-]{0,8}",
            prop::collection::vec(0x20_u8..0x7f, 0..9),
        );
        prop::collection::vec(field, 0..5).prop_map(|fields| {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                let name = HeaderName::try_from(name).unwrap();
                headers.append(name, HeaderValue::from_bytes(&value).unwrap());
            }
            headers
        })
    }

    proptest! {
        #[test]
        fn stored_responses_round_trip(
            status in 100_u16..1000,
            headers in fields(),
            body in prop::option::of(prop::collection::vec(any::<u8>(), 0..40)),
            trailers in prop::option::of(fields()),
        ) {
            let status = StatusCode::from_u16(status).unwrap();
            let answer = StoredResponse { status, headers, body: body.map(Bytes::from), trailers };
            let bytes = answer.to_bytes();
            prop_assert_eq!(StoredResponse::from_bytes(&bytes), Ok(answer.clone()));
            // A cut within the body gives a different response; a cut before it is an error.
            let head = bytes.len() - answer.body.as_ref().map_or(0, Bytes::len);
            for end in 0..head {
                prop_assert_eq!(StoredResponse::from_bytes(&bytes[..end]), Err(InvalidStoredResponse));
            }
        }

        #[test]
        fn decoding_any_bytes_terminates(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(answer) = StoredResponse::from_bytes(&bytes) {
                prop_assert!(StoredResponse::from_bytes(&answer.to_bytes()).is_ok());
            }
        }
    }
}
