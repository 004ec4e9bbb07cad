//! Checks that a response body is whole, and drains refused responses.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Response};
use http_body::Body;
use relent_http::BoxError;
use relent_http::attempt::{Complete, Drain, Proof, drain_time};
use reqwest::ResponseBuilderExt;

use crate::attempt_failure::LastResult;
use crate::read_timeout::BodyReadTimeout;

/// The proof that the body of this response must give; see [`Proof::needed`].
#[inline]
pub(crate) fn proof_of(method: Option<&Method>, response: &reqwest::Response) -> Option<Proof> {
    let (status, version) = (response.status(), response.version());
    Proof::needed(method, status, version, response.headers(), reports_end)
}

/// The response for the caller. Its body fails if its end is not proved, or if it is silent for longer than `read`.
#[inline]
pub(crate) fn checked(
    method: Option<&Method>,
    response: reqwest::Response,
    read: Option<Duration>,
) -> reqwest::Response {
    match (proof_of(method, &response), read) {
        (None, None) => response,
        (Some(proof), None) => with_body(response, |body| Complete::new(body, proof)),
        // There is no body to wait for.
        (None, Some(_)) if response.content_length() == Some(0) => response,
        (None, Some(read)) => with_body(response, |body| BodyReadTimeout::new(body, read)),
        (Some(proof), Some(read)) => with_body(response, |body| {
            BodyReadTimeout::new(Complete::new(body, proof), read)
        }),
    }
}

/// Like [`checked`] for a response from other middleware, whose bodies may not report their end.
#[cfg(feature = "middleware")]
pub(crate) fn checked_by_length(method: &Method, response: reqwest::Response) -> reqwest::Response {
    let (status, version) = (response.status(), response.version());
    match Proof::needed(Some(method), status, version, response.headers(), || false) {
        Some(proof) => with_body(response, |body| Complete::new(body, proof)),
        None => response,
    }
}

#[inline(never)]
fn with_body<B>(
    response: reqwest::Response,
    around: impl FnOnce(reqwest::Body) -> B,
) -> reqwest::Response
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Sync + 'static,
{
    let (head, body) = split(response);
    let body = around(body);
    head.map(|()| reqwest::Body::wrap(body)).into()
}

/// Splits a response into a head, from which it can be rebuilt, and a body.
fn split(response: reqwest::Response) -> (Response<()>, reqwest::Body) {
    // The URL is not a part of the converted head.
    let url = Response::builder().url(response.url().clone());
    let url = url.body(()).unwrap_or_default().into_parts().0.extensions;
    let (mut head, body) = Response::<reqwest::Body>::from(response).into_parts();
    head.extensions.extend(url);
    (Response::from_parts(head, ()), body)
}

/// Rebuilds the response, with a body of the bytes that were read within `time`.
async fn drained(response: reqwest::Response, time: Duration) -> reqwest::Response {
    let (head, body) = split(response);
    let mut drain = pin!(Drain::new(&head, body, reports_end));
    let end = poll_fn(|context| drain.as_mut().poll_end(context));
    let _ = tokio::time::timeout(time, end).await;
    head.map(|()| reqwest::Body::wrap(drain.take())).into()
}

/// Waits for `after`, and meanwhile drains a refused response, which may take longer. Returns it with the bytes read.
/// The next attempt must start within `room`.
pub(crate) async fn drained_while(
    after: Duration,
    room: Option<Duration>,
    last: LastResult,
) -> LastResult {
    let sleep = async {
        // tokio's timer takes a millisecond even for a zero delay.
        if !after.is_zero() {
            tokio::time::sleep(after).await;
        }
    };
    match last {
        LastResult::Refused(response) => {
            let draining = drained(response, drain_time(after, room));
            let ((), response) = tokio::join!(sleep, draining);
            LastResult::Refused(response)
        }
        error => {
            sleep.await;
            error
        }
    }
}

/// Whether reqwest passes on the end of the stream as reported by hyper. It does not if it is built with a feature
/// that decodes bodies, even for bodies that need no decoding (tower-http 0.6).
///
/// Any crate of the program can enable such a feature. If the builder lacks the methods for it, the calls resolve to
/// the trait methods below.
fn reports_end() -> bool {
    use std::any::TypeId;

    /// Returned by the trait methods, if the builder has no such method.
    struct MissingMethod;

    #[allow(unused, reason = "reqwest's own come before these, if it has them")]
    trait Decodes: Sized {
        fn gzip(self, _: bool) -> MissingMethod {
            MissingMethod
        }
        fn brotli(self, _: bool) -> MissingMethod {
            MissingMethod
        }
        fn zstd(self, _: bool) -> MissingMethod {
            MissingMethod
        }
        fn deflate(self, _: bool) -> MissingMethod {
            MissingMethod
        }
    }

    impl Decodes for reqwest::ClientBuilder {}

    fn returned<T: 'static>(_: fn(reqwest::ClientBuilder) -> T) -> TypeId {
        TypeId::of::<T>()
    }

    let cannot = TypeId::of::<MissingMethod>();
    returned(|builder| builder.gzip(true)) == cannot
        && returned(|builder| builder.brotli(true)) == cannot
        && returned(|builder| builder.zstd(true)) == cannot
        && returned(|builder| builder.deflate(true)) == cannot
}
