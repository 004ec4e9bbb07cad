//! The gRPC status of a call, as the server sent it.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode, utf8_percent_encode};
use relent_core::{Failure, GrpcCode};

use super::details;
use crate::headers::{GRPC_MESSAGE, GRPC_STATUS, GRPC_STATUS_DETAILS_BIN};
use crate::hint::{HintOptions, hint_with_details};

/// The status of a completed gRPC call.
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
    /// The status number; [`GrpcCode`] names it.
    pub code: u16,
    /// The message of the server; may be empty.
    pub message: String,
    /// The delay of the `google.rpc.RetryInfo` in its details.
    pub retry_delay: Option<Duration>,
}

impl Status {
    /// Reads the status from headers (trailers-only) or trailers; `None` without a `grpc-status`.
    ///
    /// The message is percent-decoded. Invalid UTF-8 is replaced, so that a bad message never hides the status.
    /// Malformed details count as absent.
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

    /// Writes the status to trailers, or to the headers of a response without messages, replacing an existing
    /// one: `grpc-status`, `grpc-message`, and with a delay `grpc-status-details-bin`.
    ///
    /// Delays are exact, up to 584 years. Clients that follow gRFC A6 obey
    /// [`set_pushback`](super::set_pushback) instead: write both.
    ///
    /// ```
    /// use std::time::Duration;
    /// use relent_core::GrpcCode;
    /// use relent_http::grpc::Status;
    ///
    /// let status = Status {
    ///     code: GrpcCode::ResourceExhausted.number(),
    ///     message: "100% used".to_owned(),
    ///     retry_delay: Some(Duration::from_millis(20)),
    /// };
    /// let mut trailers = http::HeaderMap::new();
    /// status.set(&mut trailers);
    /// assert_eq!(trailers["grpc-message"], "100%25%20used");
    /// assert_eq!(Status::read(&trailers), Some(status));
    /// ```
    pub fn set(&self, fields: &mut HeaderMap) {
        fields.insert(GRPC_STATUS, HeaderValue::from(self.code));
        let message = utf8_percent_encode(&self.message, MESSAGE_ESCAPES).to_string();
        let message = HeaderValue::try_from(message).ok();
        let delay = self.retry_delay;
        let details = delay.and_then(|delay| details::field(self.code, &self.message, delay));
        for (name, value) in [
            (GRPC_MESSAGE, message.filter(|message| !message.is_empty())),
            (GRPC_STATUS_DETAILS_BIN, details),
        ] {
            match value {
                Some(value) => fields.insert(name, value),
                None => fields.remove(name),
            };
        }
    }
}

/// Characters to percent-encode in `grpc-message` besides non-ASCII. The space is included because fields are
/// trimmed at both ends.
const MESSAGE_ESCAPES: &AsciiSet = &CONTROLS.add(b'%').add(b' ');

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

/// Classifies a gRPC status that a client has already parsed: its number, its metadata, and the bytes of its
/// details. Use it for the errors of tonic, where no layer can be added to the channel:
///
/// ```
/// use relent_core::FailureKind;
/// use relent_http::grpc::classify_status;
///
/// fn classify(status: &tonic::Status) -> relent_core::Failure {
///     classify_status(status.code() as u16, status.metadata().as_ref(), status.details())
/// }
///
/// assert_eq!(classify(&tonic::Status::unavailable("gone")).kind, FailureKind::Ambiguous);
/// assert_eq!(classify(&tonic::Status::not_found("gone")).kind, FailureKind::Permanent);
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
    use proptest::prelude::*;
    use relent_core::{Advice, Cause, FailureKind, Hint};

    use super::*;
    use crate::hint::source;

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
    fn retry_info_in_the_details_makes_an_exhaustion_throttled() {
        // Status { details: [RetryInfo { retry_delay: 2 s }] }
        let details =
            b"\x1a\x30\x0a\x28type.googleapis.com/google.rpc.RetryInfo\x12\x04\x0a\x02\x08\x02";
        let failure = classify_status(8, &HeaderMap::new(), details);
        assert_eq!(
            (failure.kind, failure.cause),
            (FailureKind::Throttled, Cause::Grpc(8))
        );
        assert_eq!(failure.hint.delay(), Some(Duration::from_secs(2)));
        assert_eq!(failure.hint.source, source::GRPC_RETRY_INFO);

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
            Hint::NONE.with_malformed(source::GRPC_RETRY_INFO)
        );
        assert_eq!(
            classify_status(0, &HeaderMap::new(), b"").cause,
            Cause::Grpc(2)
        );
    }

    proptest! {
        #[test]
        fn a_written_grpc_status_is_read_back(
            code: u16, message in prop_oneof![any::<String>(), " [a-z%]{1,9} "],
            retry_delay in prop::option::of(prop_oneof![
                Just(Duration::ZERO), Just(Duration::from_nanos(1)), any::<u64>().prop_map(Duration::from_nanos),
            ]),
            length in prop_oneof![9 => Just(1), 1 => Just(100_000_usize)],
        ) {
            let message = message.repeat((length / message.len().max(1)).max(1));
            let status = Status { code, message, retry_delay };
            let mut fields = HeaderMap::new();
            Status { code: 3, message: "old".to_owned(), retry_delay: Some(Duration::MAX) }.set(&mut fields);
            status.set(&mut fields);
            prop_assert_eq!(Status::read(&fields), Some(status));
        }
    }

    #[test]
    fn a_grpc_retry_delay_too_large_saturates() {
        let mut fields = HeaderMap::new();
        let status = |retry_delay| Status {
            code: 8,
            message: String::new(),
            retry_delay: Some(retry_delay),
        };
        status(Duration::MAX).set(&mut fields);
        let longest = Duration::from_nanos(u64::MAX);
        assert_eq!(Status::read(&fields), Some(status(longest)));
    }
}
