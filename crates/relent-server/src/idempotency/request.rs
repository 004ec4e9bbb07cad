//! Key and fingerprint of a request.

use std::future::poll_fn;
use std::task::Poll;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Uri};
use relent_core::Instant;
use relent_core::idempotency::{ClaimConfig, Fingerprint};
use relent_http::IdempotencyKey;
use relent_http::field::http_date;
use relent_http::headers::IDEMPOTENCY_KEY;
use sha2::{Digest, Sha256};
use tokio::time::{Instant as Now, timeout_at};

use super::limits::{MAX_WAIT, ReadLimits};
use super::multipart;
use super::problems::Rejection;
use super::settings::Settings;
use crate::fair_shares::{Principal, Share};
use crate::overload::WeakSlot;
use crate::quota_refund::QuotaRefund;
use crate::store::Key;
use crate::store::digest::{add, count};

/// The longest key in bytes.
const MAX_KEY_BYTES: usize = 255;

/// The version of the fingerprint, to be increased when its content changes.
pub(crate) const VERSION: u8 = 1;

/// Returns the key; `None` if the layer does not apply to the request.
pub(super) fn key(parts: &Parts, settings: &Settings) -> Result<Option<IdempotencyKey>, Rejection> {
    let safe = [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE];
    if safe.contains(&parts.method) {
        return Ok(None);
    }
    if !parts.headers.contains_key(IDEMPOTENCY_KEY) {
        return match (settings.required)(parts) {
            true => Err(Rejection::KeyMissing),
            false => Ok(None),
        };
    }
    let key = IdempotencyKey::of(&parts.headers).ok_or(Rejection::KeyMalformed)?;
    match key.as_str().len() {
        1..=MAX_KEY_BYTES => Ok(Some(key)),
        _ => Err(Rejection::KeyMalformed),
    }
}

/// Returns the key of the record, and its principal.
pub(super) fn record_key(
    parts: &Parts,
    key: &IdempotencyKey,
    settings: &Settings,
) -> Result<(Key, Principal), Rejection> {
    let principal = (settings.principal)(parts).ok_or(Rejection::NoPrincipal)?;
    let operation = (settings.operation)(parts).unwrap_or_default();
    let method = parts.method.as_str();
    let record = Key::of(&principal, method, &operation, key.as_str());
    Ok((record, principal.into()))
}

/// Returns the URI that the client sent. Within axum's `nest` the URI of the request lacks the prefix, such as the
/// account.
pub(crate) fn uri(parts: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    &parts.uri
}

/// Returns the digest that distinguishes requests with the same key.
pub(super) fn fingerprint(parts: &Parts, body: &[u8], headers: &[HeaderName]) -> Fingerprint {
    let mut digest = Sha256::new();
    digest.update([VERSION]);
    add(&mut digest, parts.method.as_str().as_bytes());
    let uri = uri(parts);
    add(&mut digest, uri.path().as_bytes());
    // Most services ignore the order of the parameters, and some clients change it.
    let mut query: Vec<_> = uri.query().unwrap_or_default().split('&').collect();
    query.sort_unstable();
    count(&mut digest, query.len());
    for pair in query {
        add(&mut digest, pair.as_bytes());
    }
    // Most clients choose another boundary when they repeat a request.
    let mut types = parts.headers.get_all(CONTENT_TYPE).iter();
    let content_type = types.next().map(HeaderValue::as_bytes);
    let content_type = content_type.filter(|_| types.next().is_none());
    let boundary = content_type.and_then(multipart::boundary);
    for name in headers {
        let values = parts.headers.get_all(name).iter();
        let mut values: Vec<_> = values.map(HeaderValue::as_bytes).collect();
        if (name, values.is_empty()) == (&HOST, true) {
            // HTTP/2 sends it as part of the URI.
            values.extend(uri.authority().map(|host| host.as_str().as_bytes()));
        }
        count(&mut digest, values.len());
        for value in values {
            match boundary.clone().filter(|_| *name == CONTENT_TYPE) {
                Some(place) => {
                    add(&mut digest, &value[..place.start]);
                    add(&mut digest, &value[place.end..]);
                }
                None => add(&mut digest, value),
            }
        }
    }
    match boundary.and_then(|place| Some(&content_type?[place])) {
        Some(boundary) => {
            let pieces = multipart::pieces(body, boundary);
            count(&mut digest, pieces.len());
            pieces.iter().for_each(|piece| add(&mut digest, piece));
        }
        None => add(&mut digest, body),
    }
    if parts.uri.path() != uri.path() {
        // An outer layer may have rewritten the path, for example by a header.
        add(&mut digest, parts.uri.path().as_bytes());
    }
    Fingerprint(digest.finalize().into())
}

/// Memory counted for each request besides its body: head, future, and buffers of the connection.
pub(crate) const REQUEST_OVERHEAD_BYTES: usize = 16 << 10;

/// Reads the body, and counts its bytes in `buffered`. While the body is still to arrive, the request holds no slot.
/// It waits for one again when the body is complete.
pub(crate) async fn read<B>(
    parts: &Parts,
    body: B,
    limits: ReadLimits,
    buffered: &mut Share,
) -> Result<Bytes, Rejection>
where
    B: http_body::Body<Data = Bytes>,
{
    let announced = parts.headers.get(CONTENT_LENGTH);
    let announced = announced.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limits.bytes as u64) {
        return Err(Rejection::TooLarge);
    }
    let slot = parts.extensions.get().and_then(WeakSlot::hold);
    let deadline = Now::now() + limits.total.min(MAX_WAIT);
    let mut body = std::pin::pin!(body);
    let mut whole = BytesMut::new();
    while !body.is_end_stream() {
        let idle = Now::now() + limits.idle.min(MAX_WAIT);
        let frame = poll_fn(|context| {
            let frame = body.as_mut().poll_frame(context);
            if let (Poll::Pending, Some(slot)) = (&frame, &slot) {
                slot.release();
            }
            frame
        });
        let frame = timeout_at(deadline.min(idle), frame).await;
        let Some(frame) = frame.map_err(|_| Rejection::BodyTooSlow)? else {
            break;
        };
        let frame = frame.map_err(|_| Rejection::BodyFailed)?;
        if let Ok(data) = frame.into_data() {
            if data.len() > limits.bytes - whole.len() {
                return Err(Rejection::TooLarge);
            }
            if !buffered.grow(data.len()) {
                return Err(Rejection::Busy);
            }
            whole.extend_from_slice(&data);
        }
    }
    if announced.is_some_and(|length| length > whole.len() as u64) {
        return Err(Rejection::BodyFailed);
    }
    if let Some(slot) = slot {
        let quota_refund = parts.extensions.get().cloned();
        let taken = QuotaRefund::during(quota_refund, slot.take_again()).await;
        taken.map_err(Rejection::NoSlot)?;
    }
    Ok(whole.freeze())
}

/// Checks that the record of the request cannot have expired.
pub(super) fn is_remembered(
    parts: &Parts,
    now: SystemTime,
    config: &ClaimConfig,
) -> Result<(), Rejection> {
    let mut sent = parts.headers.get_all("repeatability-first-sent").iter();
    let Some(first) = sent.next() else {
        return Ok(());
    };
    let date = http_date(first.as_bytes(), now).map_err(|_| Rejection::FirstSentMalformed)?;
    if sent.next().is_some() {
        return Err(Rejection::FirstSentMalformed);
    }
    let since_epoch = |time: SystemTime| {
        let passed = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Instant::ORIGIN.saturating_add(passed)
    };
    match config.may_have_expired(since_epoch(date), since_epoch(now)) {
        true => Err(Rejection::Forgotten),
        false => Ok(()),
    }
}

/// Returns the `traceparent` of the request, for its duplicates (W3C Trace Context, version 00). Only the feature
/// `tracing` uses it.
pub(super) fn trace(parts: &Parts) -> Option<HeaderValue> {
    const LENGTH: usize = 55;
    let trace = parts.headers.get("traceparent");
    trace
        .filter(|trace| cfg!(feature = "tracing") && trace.len() == LENGTH)
        .cloned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::Request;

    use super::*;

    fn print(uri: &str, headers: &[(&str, &str)], body: &str) -> Fingerprint {
        let mut request = Request::post(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        fingerprint(&parts, body.as_bytes(), &[http::header::CONTENT_TYPE])
    }

    #[test]
    fn a_request_older_than_the_retention_is_rejected() {
        let config = ClaimConfig::DEFAULT;
        // Sun, 06 Nov 1994 08:49:37 GMT.
        let sent = 784_111_777;
        let check = |dates: &[&str], now: u64| {
            let mut request = Request::post("/");
            for date in dates {
                request = request.header("repeatability-first-sent", *date);
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            is_remembered(&parts, UNIX_EPOCH + Duration::from_secs(now), &config)
        };
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        let keep = config.retention.as_secs();
        assert_eq!(check(&[], sent + 10 * keep), Ok(()));
        // Includes a client clock that is ahead.
        for age in [0, keep - 1] {
            assert_eq!(check(&[date], sent + age), Ok(()));
            assert_eq!(check(&[date], sent - age), Ok(()));
        }
        for age in [keep, 10 * keep] {
            assert_eq!(check(&[date], sent + age), Err(Rejection::Forgotten));
        }
        for malformed in [&["yesterday"][..], &[""], &["784111777"], &[date, date]] {
            assert_eq!(check(malformed, sent), Err(Rejection::FirstSentMalformed));
        }
    }

    #[test]
    fn a_repeated_form_may_have_another_boundary() {
        let form = |boundary: &str, value: &str| {
            let body = format!(
                "--{boundary}\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n{value}\r\n--{boundary}--\r\n"
            );
            let kind = format!("multipart/form-data; boundary={boundary}");
            print("/", &[("content-type", &kind)], &body)
        };
        let usual = form("x1", "1");
        assert_eq!(form("another", "1"), usual);
        assert_ne!(form("x1", "2"), usual);
        // Text that only looks like a form.
        let text = |boundary: &str| {
            print(
                "/",
                &[("content-type", "text/plain; boundary=x1")],
                &format!("--{boundary}"),
            )
        };
        assert_ne!(text("x1"), text("x2"));
    }

    #[test]
    fn a_compared_host_is_that_of_http_1_and_of_http_2() {
        let print = |uri: &str, host: Option<&str>| {
            let request = Request::post(uri);
            let request = host
                .into_iter()
                .fold(request, |request, host| request.header(HOST, host));
            let (parts, ()) = request.body(()).unwrap().into_parts();
            fingerprint(&parts, b"", &[HOST])
        };
        let usual = print("/pay", Some("a.shop"));
        assert_eq!(print("https://a.shop/pay", None), usual);
        assert_ne!(print("https://b.shop/pay", None), usual);
        assert_ne!(print("/pay", Some("b.shop")), usual);
    }

    #[test]
    fn a_fingerprint_depends_on_the_request_and_not_its_transport() {
        let usual = print("/pay?a=1&b=2", &[("content-type", "text/plain")], "5");
        let same = [
            print("/pay?b=2&a=1", &[("content-type", "text/plain")], "5"),
            print(
                "http://host/pay?a=1&b=2",
                &[("content-type", "text/plain"), ("relent-attempt", "2")],
                "5",
            ),
        ];
        assert_eq!(same, [usual; 2]);
        let others = [
            print("/pay?a=1&b=2", &[("content-type", "text/plain")], "6"),
            print("/pay?a=1&b=3", &[("content-type", "text/plain")], "5"),
            print("/pay?a=1", &[("content-type", "text/plain")], "5"),
            print("/pays?a=1&b=2", &[("content-type", "text/plain")], "5"),
            print("/pay?a=1&b=2", &[("content-type", "text/html")], "5"),
            print("/pay?a=1&b=2", &[], "5"),
            // Different parts with the same concatenation.
            print("/pay?a=1&b=2", &[], "text/plain5"),
        ];
        for (place, other) in others.iter().enumerate() {
            assert_ne!(*other, usual, "{place}");
            assert_eq!(others.iter().filter(|each| *each == other).count(), 1);
        }
    }
}
