//! What is kept of a response.

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

use super::Body;

/// Tells that an answer is that of an earlier request with the same key.
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The answer to the first request with a key, for its duplicates: the status, the header fields in their
/// order with all their values, the body if it was not too long, and its trailers.
///
/// Fields of one connection or one moment are left out: `Connection` and what goes with it, `Date`,
/// `Set-Cookie`, `Content-Length` (which is made anew), rate limits and the identities of traces.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub headers: HeaderMap,
    /// The body; `None` if it was longer than may be kept.
    pub body: Option<Bytes>,
    /// What came after the body.
    pub trailers: Option<HeaderMap>,
}

/// Of one connection or one moment.
const LEFT_OUT: [&str; 21] = [
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
    "retry-after",
    "retry-after-ms",
    "traceparent",
    "tracestate",
    "x-request-id",
    "x-trace-id",
    "idempotent-replayed",
];

impl Answer {
    /// Of a response with this head and this body.
    #[must_use]
    pub fn new(head: &Parts, body: Option<Bytes>, trailers: Option<HeaderMap>) -> Self {
        let named = |value: &HeaderValue| {
            let names = value.to_str().unwrap_or_default().to_ascii_lowercase();
            names
                .split(',')
                .map(|name| name.trim().to_owned())
                .collect::<Vec<_>>()
        };
        // What `Connection` names is of the connection, too.
        let hop: Vec<_> = head
            .headers
            .get_all(header::CONNECTION)
            .iter()
            .flat_map(named)
            .collect();
        let left_out = |name: &str| {
            LEFT_OUT.contains(&name)
                || name.starts_with("x-ratelimit-")
                || hop.iter().any(|hop| hop == name)
        };
        let headers = head.headers.iter();
        let headers = headers
            .filter(|(name, _)| !left_out(name.as_str()))
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

    /// The response that a duplicate gets, with `Idempotent-Replayed: true`; `None` if the body is not
    /// there.
    #[must_use]
    pub fn replay<B>(self) -> Option<Response<Body<B>>> {
        let body = Body::with_trailers(self.body?, self.trailers);
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        let replayed = HeaderValue::from_static("true");
        response.headers_mut().insert(REPLAYED, replayed);
        Some(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_one_connection_or_one_moment_is_not_replayed() {
        let response = Response::builder()
            .status(201)
            .header("location", "/payments/1")
            .header("link", "<a>")
            .header("link", "<b>")
            .header("etag", "\"1\"")
            .header("connection", "close, X-Hop")
            .header("x-hop", "1")
            .header("date", "Sun, 06 Nov 1994 08:49:37 GMT")
            .header("set-cookie", "session=1")
            .header("x-ratelimit-remaining", "3")
            .header("content-length", "5")
            .body(())
            .unwrap();
        let (head, ()) = response.into_parts();
        let answer = Answer::new(&head, Some(Bytes::from_static(b"paid\n")), None);
        let replayed = answer.replay::<String>().unwrap();
        assert_eq!(replayed.status(), 201);
        let links: Vec<_> = replayed.headers().get_all("link").iter().collect();
        assert_eq!(links, ["<a>", "<b>"]);
        let mut names: Vec<_> = replayed.headers().keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["etag", "idempotent-replayed", "link", "location"]);
    }

    #[test]
    fn an_answer_whose_body_is_not_kept_is_never_replayed_without_it() {
        let (head, ()) = Response::new(()).into_parts();
        assert!(Answer::new(&head, None, None).replay::<String>().is_none());
    }
}
