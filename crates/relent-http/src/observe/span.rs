//! The tracing span of an attempt.

use std::fmt;

use http::header::HOST;
use http::{HeaderMap, Method, StatusCode, Uri};
use relent_core::{Cause, Failure, GrpcCode};
use tracing::Span;
use tracing::field::{Empty, display};

use super::url::{self, Redacted};

/// The span of one attempt, until the head of its response has arrived. If dropped earlier, it
/// records that the attempt was cancelled.
#[derive(Debug)]
pub struct AttemptSpan {
    span: Span,
    ended: bool,
}

impl AttemptSpan {
    /// Starts the span of the attempt with this number; the first is 1.
    #[inline]
    #[must_use]
    pub fn start(method: &Method, uri: &Uri, headers: &HeaderMap, number: u32) -> Self {
        // Without a subscriber this costs one comparison.
        let span = if tracing::level_enabled!(tracing::Level::INFO) {
            begin(method, uri, headers, number)
        } else {
            Span::none()
        };
        Self { span, ended: false }
    }

    /// Starts the span of a request that is read only if a subscriber is enabled. If `request` returns `None`,
    /// there is no span.
    #[inline]
    pub fn of<'m>(request: impl FnOnce() -> Option<(&'m Method, Uri)>, number: u32) -> Self {
        let span = if tracing::level_enabled!(tracing::Level::INFO)
            && let Some((method, uri)) = request()
        {
            // The URI has an authority, so no `Host` is needed.
            begin(method, &uri, &HeaderMap::new(), number)
        } else {
            Span::none()
        };
        Self { span, ended: false }
    }

    /// Enters the span until the guard is dropped: events of the attempt then belong to the span.
    #[inline]
    #[must_use]
    pub fn enter(&self) -> impl Sized {
        self.span.enter()
    }

    /// Records a response, which may be a failure.
    #[inline]
    pub fn answered(&mut self, status: StatusCode, failure: Option<&Failure>) {
        self.ended = true;
        if !self.span.is_disabled() {
            self.span
                .record("http.response.status_code", i64::from(status.as_u16()));
            if let Some(failure) = failure {
                self.failed(failure);
            }
        }
    }

    /// Records a failure.
    #[inline]
    pub fn failed(&mut self, failure: &Failure) {
        self.ended = true;
        if !self.span.is_disabled() {
            self.error(&ErrorType(failure.cause));
        }
    }

    #[cold]
    fn error(&self, kind: &dyn fmt::Display) {
        self.span.record("error.type", display(kind));
        self.span.record("otel.status_code", "ERROR");
    }
}

impl Drop for AttemptSpan {
    #[inline]
    fn drop(&mut self) {
        if !self.ended && !self.span.is_disabled() {
            self.error(&"cancelled");
        }
    }
}

/// Warns that a service failed to become ready for an attempt. The error is omitted: it may contain secrets.
#[cfg(feature = "tower")]
#[cold]
pub(crate) fn not_ready() {
    tracing::warn!(target: "relent_http", "the service failed to become ready for the next attempt");
}

/// Numbers are recorded as `i64`: tracing-opentelemetry converts unsigned ones to text, and OpenTelemetry has only
/// signed ones.
#[cold]
fn begin(method: &Method, uri: &Uri, headers: &HeaderMap, number: u32) -> Span {
    let authority = match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => headers.get(HOST).and_then(|host| host.to_str().ok()),
    };
    let known = is_known(method);
    tracing::info_span!(
        target: "relent_http",
        "http.client.request",
        // Read by tracing-opentelemetry: the span is named by its method.
        otel.name = if known { method.as_str() } else { "HTTP" },
        otel.kind = "client",
        otel.status_code = Empty,
        http.request.method = if known { method.as_str() } else { "_OTHER" },
        http.request.method_original = (!known).then(|| method.as_str()),
        http.request.resend_count = (number > 1).then(|| i64::from(number - 1)),
        server.address = authority.map(url::host),
        server.port = url::port(uri, authority).map(i64::from),
        url.full = %Redacted { uri, authority },
        http.response.status_code = Empty,
        error.type = Empty,
    )
}

/// Whether the conventions define the method: those of RFC 9110, PATCH (RFC 5789) and QUERY
/// (draft-ietf-httpbis-safe-method-w-body). Others are unbounded, and each would be a new span name.
fn is_known(method: &Method) -> bool {
    matches!(
        method.as_str(),
        "GET"
            | "HEAD"
            | "POST"
            | "PUT"
            | "DELETE"
            | "CONNECT"
            | "OPTIONS"
            | "TRACE"
            | "PATCH"
            | "QUERY"
    )
}

/// The value of `error.type`: a status as it is, otherwise a word.
struct ErrorType(Cause);

impl fmt::Display for ErrorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Cause::Status(status) => write!(f, "{status}"),
            Cause::Grpc(number) => match GrpcCode::from_number(number) {
                Some(code) => f.write_str(code.name()),
                None => write!(f, "{number}"),
            },
            Cause::Timeout => f.write_str("timeout"),
            Cause::Network(network) => f.write_str(network.name()),
            // The value that the conventions define for other errors.
            Cause::Error
            | Cause::Exit(_)
            | Cause::Signal(_)
            | Cause::Output
            | Cause::Pending
            | Cause::Conflict => f.write_str("_OTHER"),
        }
    }
}
