//! The status of a call, as a server wrote it.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use percent_encoding::percent_decode;
use relent_core::{Failure, GrpcCode};

use super::details;
use crate::headers::GRPC_MESSAGE;
use crate::hint::{HintOptions, hint_with_details};

/// How a gRPC call ended.
///
/// ```
/// use relent_http::grpc::Status;
///
/// let mut trailers = http::HeaderMap::new();
/// trailers.insert("grpc-status", "14".parse()?);
/// trailers.insert("grpc-message", "shutting%20down".parse()?);
/// let status = Status::read(&trailers).expect("there is one");
/// assert_eq!(status.to_string(), "grpc unavailable: shutting down");
/// # Ok::<(), http::header::InvalidHeaderValue>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// The number; [`GrpcCode`] names it.
    pub code: u16,
    /// What the server says about it, or nothing.
    pub message: String,
    /// The delay of its `google.rpc.RetryInfo`.
    pub retry_delay: Option<Duration>,
}

impl Status {
    /// Reads it from headers (trailers-only) or trailers; `None` without a `grpc-status`.
    ///
    /// The message is percent-decoded; what is no UTF-8 then is replaced, since a status is never
    /// lost for its text. Malformed details count as none.
    #[must_use]
    pub fn read(fields: &HeaderMap) -> Option<Self> {
        let message = fields
            .get(GRPC_MESSAGE)
            .map_or(&b""[..], http::HeaderValue::as_bytes);
        Some(Self {
            code: super::code(fields)?,
            message: percent_decode(message).decode_utf8_lossy().into_owned(),
            retry_delay: details::delay(fields).unwrap_or_default(),
        })
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        relent_core::Cause::Grpc(self.code).fmt(f)?;
        if self.message.is_empty() {
            return Ok(());
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for Status {}

/// Classifies a status that a client has taken apart already: its number, the metadata that came
/// with it and the bytes of its details. For the errors of tonic, where no layer can be put into the
/// channel:
///
/// ```
/// use relent_core::Kind;
/// use relent_http::grpc::classify_status;
///
/// fn classify(status: &tonic::Status) -> relent_core::Failure {
///     classify_status(status.code() as u16, status.metadata().as_ref(), status.details())
/// }
///
/// assert_eq!(classify(&tonic::Status::unavailable("gone")).kind, Kind::Ambiguous);
/// assert_eq!(classify(&tonic::Status::not_found("gone")).kind, Kind::Permanent);
/// ```
///
/// A code of 0, which is no failure, is read as `UNKNOWN`.
#[must_use]
pub fn classify_status(code: u16, metadata: &HeaderMap, details: &[u8]) -> Failure {
    let code = match code {
        0 => GrpcCode::Unknown.number(),
        code => code,
    };
    let hint = hint_with_details(metadata, SystemTime::now(), &HintOptions::default(), || {
        details::retry_delay(details)
    });
    super::failed(code, hint)
}

#[cfg(test)]
mod tests {
    use relent_core::{Advice, Cause, Hint, HintSource, Kind};

    use super::*;

    fn fields(fields: &[(&'static str, &str)]) -> HeaderMap {
        let fields = fields
            .iter()
            .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()));
        fields.collect()
    }

    #[test]
    fn a_message_is_decoded_and_never_hides_its_status() {
        for (encoded, message) in [
            ("", ""),
            ("all%20well %e2%98%83", "all well \u{2603}"),
            ("100% %zz", "100% %zz"),
            ("%ff", "\u{fffd}"),
        ] {
            let fields = fields(&[("grpc-status", "13"), ("grpc-message", encoded)]);
            let status = Status::read(&fields).unwrap();
            assert_eq!((status.code, &*status.message), (13, message), "{encoded}");
        }
        assert_eq!(Status::read(&fields(&[("grpc-message", "lost")])), None);
    }

    #[test]
    fn a_status_shows_its_name_and_its_message() {
        let shown = |code, message: &str| {
            let status = Status {
                code,
                message: message.to_owned(),
                retry_delay: None,
            };
            status.to_string()
        };
        assert_eq!(shown(8, "no quota"), "grpc resource_exhausted: no quota");
        assert_eq!(shown(77, ""), "grpc 77");
    }

    #[test]
    fn the_details_of_a_status_make_an_exhaustion_throttled() {
        // Status { details: [RetryInfo { retry_delay: 2 s }] }
        let details =
            b"\x1a\x30\x0a\x28type.googleapis.com/google.rpc.RetryInfo\x12\x04\x0a\x02\x08\x02";
        let failure = classify_status(8, &HeaderMap::new(), details);
        assert_eq!(
            (failure.kind, failure.cause),
            (Kind::Throttled, Cause::Grpc(8))
        );
        assert_eq!(failure.hint.delay(), Some(Duration::from_secs(2)));
        assert_eq!(failure.hint.source, HintSource::GrpcRetryInfo);

        let pushback = fields(&[("grpc-retry-pushback-ms", "5")]);
        let failure = classify_status(8, &pushback, details);
        assert_eq!(
            failure.hint.delay(),
            Some(Duration::from_millis(5)),
            "a pushback outranks it"
        );

        let refused = fields(&[("grpc-retry-pushback-ms", "-1")]);
        let failure = classify_status(8, &refused, details);
        assert_eq!(failure.hint.advice, Advice::DoNotRetry);
        assert_eq!(failure.hint.delay(), None);

        let failure = classify_status(8, &HeaderMap::new(), b"\xff");
        assert_eq!(
            failure.hint,
            Hint::NONE.with_malformed(HintSource::GrpcRetryInfo)
        );
        assert_eq!(
            classify_status(0, &HeaderMap::new(), b"").cause,
            Cause::Grpc(2)
        );
    }
}
