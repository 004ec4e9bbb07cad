//! `grpc-status-details-bin`: reads and writes the `google.rpc.RetryInfo` in the details of a status.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::{HeaderMap, HeaderValue};
use prost::Message;

use crate::field::{Malformed, SECONDS, single};
use crate::headers::GRPC_STATUS_DETAILS_BIN;

/// The longest field that is read, in bytes: longer than header blocks are usually allowed to be.
const MAX_FIELD_BYTES: usize = 64 << 10;

/// With or without padding: gRPC sends none and accepts both.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// `google.rpc.Status` with only the field that is needed; others are skipped.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(message, repeated, tag = "3")]
    details: Vec<Detail>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct Detail {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Delay>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// `google.rpc.Status` with the fields that are written.
#[derive(Clone, PartialEq, Message)]
struct OutgoingStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Detail>,
}

/// The field value of a status with a `google.rpc.RetryInfo`. The message is also in `grpc-message`. If it would
/// make this field too long to be read, it is left out here.
pub(super) fn field(code: u16, message: &str, delay: Duration) -> Option<HeaderValue> {
    // At most 584 years; the protobuf message can hold 10,000.
    let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
    let (seconds, nanos) = (nanos / u64::from(SECONDS), nanos % u64::from(SECONDS));
    let info = RetryInfo {
        retry_delay: Some(Delay {
            seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
            nanos: nanos as i32,
        }),
    };
    let status = |message: &str| OutgoingStatus {
        code: i32::from(code),
        message: message.to_owned(),
        details: vec![Detail {
            type_url: "type.googleapis.com/google.rpc.RetryInfo".to_owned(),
            value: info.encode_to_vec(),
        }],
    };
    let encoded = |message: &str| BASE64.encode(status(message).encode_to_vec());
    let field = Some(encoded(message)).filter(|field| field.len() <= MAX_FIELD_BYTES);
    HeaderValue::try_from(field.unwrap_or_else(|| encoded(""))).ok()
}

/// The delay of the first `google.rpc.RetryInfo` within an encoded `google.rpc.Status`; `None` if
/// there is none.
///
/// # Errors
/// [`Malformed`] if the bytes are no such message or more than 64 KiB, or if the delay is negative.
///
/// ```
/// use std::time::Duration;
/// use relent_http::grpc::retry_delay;
///
/// // Status { details: [RetryInfo { retry_delay: 2 s }] }
/// let details = b"\x1a\x30\x0a\x28type.googleapis.com/google.rpc.RetryInfo\x12\x04\x0a\x02\x08\x02";
/// assert_eq!(retry_delay(details), Ok(Some(Duration::from_secs(2))));
/// ```
pub fn retry_delay(details: &[u8]) -> Result<Option<Duration>, Malformed> {
    if details.len() > MAX_FIELD_BYTES {
        return Err(Malformed);
    }
    let status = Status::decode(details).map_err(|_| Malformed)?;
    let info = status
        .details
        .iter()
        .find(|detail| detail.type_url.rsplit('/').next() == Some("google.rpc.RetryInfo"));
    let Some(info) = info else {
        return Ok(None);
    };
    let info = RetryInfo::decode(&*info.value).map_err(|_| Malformed)?;
    info.retry_delay.map(Delay::read).transpose()
}

/// Like [`retry_delay`], from the headers or trailers of a response.
pub(crate) fn delay(fields: &HeaderMap) -> Result<Option<Duration>, Malformed> {
    let found = single(fields, &GRPC_STATUS_DETAILS_BIN, |value| {
        if value.len() > MAX_FIELD_BYTES {
            return Err(Malformed);
        }
        retry_delay(&BASE64.decode(value).map_err(|_| Malformed)?)
    })?;
    Ok(found.flatten())
}

impl Delay {
    fn read(self) -> Result<Duration, Malformed> {
        let seconds = u64::try_from(self.seconds).map_err(|_| Malformed)?;
        let nanos = u32::try_from(self.nanos).map_err(|_| Malformed)?;
        if nanos >= 1_000_000_000 {
            return Err(Malformed);
        }
        Ok(Duration::new(seconds, nanos))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

    fn status(details: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let details = details
            .iter()
            .map(|(type_url, value)| Detail {
                type_url: (*type_url).to_owned(),
                value: value.clone(),
            })
            .collect();
        // Code and message, which every server sends.
        let mut bytes = b"\x08\x0e\x12\x04gone".to_vec();
        bytes.extend(Status { details }.encode_to_vec());
        bytes
    }

    fn info(seconds: i64, nanos: i32) -> Vec<u8> {
        let retry_delay = Some(Delay { seconds, nanos });
        RetryInfo { retry_delay }.encode_to_vec()
    }

    #[test]
    fn the_delay_is_found_among_other_details() {
        let details = status(&[
            (
                "type.googleapis.com/google.rpc.QuotaFailure",
                vec![0xff, 0xff],
            ),
            (RETRY_INFO, info(1, 500_000_000)),
            (RETRY_INFO, info(9, 0)),
        ]);
        assert_eq!(
            retry_delay(&details),
            Ok(Some(Duration::from_millis(1_500)))
        );
        assert_eq!(retry_delay(&status(&[])), Ok(None));
        assert_eq!(retry_delay(b""), Ok(None));
        let unset = status(&[(RETRY_INFO, Vec::new())]);
        assert_eq!(
            retry_delay(&unset),
            Ok(None),
            "a RetryInfo may leave it open"
        );
    }

    #[test]
    fn an_invalid_retry_info_delay_is_malformed() {
        for (seconds, nanos) in [(-1, 0), (0, -1), (0, 1_000_000_000)] {
            let details = status(&[(RETRY_INFO, info(seconds, nanos))]);
            assert_eq!(retry_delay(&details), Err(Malformed), "{seconds} {nanos}");
        }
        let cut = status(&[(RETRY_INFO, vec![0x0a, 0x7f])]);
        assert_eq!(retry_delay(&cut), Err(Malformed));
        assert_eq!(retry_delay(&vec![0; MAX_FIELD_BYTES + 1]), Err(Malformed));
        let longest = status(&[(RETRY_INFO, info(i64::MAX, 0))]);
        assert_eq!(
            retry_delay(&longest),
            Ok(Some(Duration::from_secs(i64::MAX as u64)))
        );
    }

    #[test]
    fn the_field_is_read_with_and_without_padding() {
        let mut fields = HeaderMap::new();
        assert_eq!(delay(&fields), Ok(None));
        let padded = base64::prelude::BASE64_STANDARD.encode(status(&[(RETRY_INFO, info(3, 0))]));
        for text in [padded.trim_end_matches('='), &padded] {
            fields.insert(
                GRPC_STATUS_DETAILS_BIN,
                HeaderValue::from_str(text).unwrap(),
            );
            assert_eq!(delay(&fields), Ok(Some(Duration::from_secs(3))), "{text}");
        }
        assert!(padded.ends_with('='), "the test needs a padding");
        fields.insert(GRPC_STATUS_DETAILS_BIN, HeaderValue::from_static("~~"));
        assert_eq!(delay(&fields), Err(Malformed));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = retry_delay(&bytes);
        }

        #[test]
        fn a_retry_info_delay_is_read_as_written(seconds in 0..i64::MAX, nanos in 0..1_000_000_000i32) {
            let details = status(&[(RETRY_INFO, info(seconds, nanos))]);
            let expected = Duration::new(seconds as u64, nanos as u32);
            prop_assert_eq!(retry_delay(&details), Ok(Some(expected)));
        }
    }
}
