//! The replayed response of a duplicate.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response};

use super::body::Body;
use crate::observe;
use crate::store::StoredResponse;

/// Marks a response as that of an earlier request with the same key.
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Stored with the response: the `traceparent` of its request. It is never sent to clients.
const ORIGINAL_TRACE: HeaderName = HeaderName::from_static("relent-original-traceparent");

impl StoredResponse {
    /// Adds the `traceparent` of the request.
    #[must_use]
    pub(super) fn with_trace(mut self, trace: Option<HeaderValue>) -> Self {
        if let Some(trace) = trace {
            self.headers.insert(ORIGINAL_TRACE, trace);
        }
        self
    }

    /// Returns the response for a duplicate, with `Idempotent-Replayed: true`; `None` if the body was not stored.
    #[must_use]
    pub fn replay<B>(self) -> Option<Response<Body<B>>> {
        let trailers = self.trailers.clone();
        let response = self.replay_whole()?;
        Some(response.map(|body| Body::with_trailers(body, trailers)))
    }

    /// Like `replay`, without trailers.
    pub(crate) fn replay_whole(self) -> Option<Response<Bytes>> {
        let mut response = Response::new(self.body?);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        let trace = response.headers_mut().remove(ORIGINAL_TRACE);
        observe::replayed(trace.as_ref().and_then(|trace| trace.to_str().ok()));
        let replayed = HeaderValue::from_static("true");
        response.headers_mut().insert(REPLAYED, replayed);
        Some(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hop_by_hop_and_transient_fields_are_not_replayed() {
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
            .header("retry-after", "30")
            .header("retry-after-ms", "30000")
            .header("x-ratelimit-remaining", "3")
            .header("content-length", "5")
            .body(())
            .unwrap();
        let (head, ()) = response.into_parts();
        let answer = StoredResponse::new(&head, Some(Bytes::from_static(b"paid\n")), None);
        let replayed = answer.replay::<String>().unwrap();
        assert_eq!(replayed.status(), 201);
        let links: Vec<_> = replayed.headers().get_all("link").iter().collect();
        assert_eq!(links, ["<a>", "<b>"]);
        let mut names: Vec<_> = replayed.headers().keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        let kept = [
            "etag",
            "idempotent-replayed",
            "link",
            "location",
            "retry-after",
            "retry-after-ms",
        ];
        assert_eq!(names, kept);
    }

    #[test]
    fn a_response_without_its_stored_body_is_not_replayed() {
        let (head, ()) = Response::new(()).into_parts();
        assert!(
            StoredResponse::new(&head, None, None)
                .replay::<String>()
                .is_none()
        );
    }
}
