//! Rejections by a layer, and the body type of all responses.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Extensions, HeaderMap, Response};
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use relent_http::ErrorResponse;
use relent_http::problem::Problem;

use crate::idempotency::{Execution, Outcome};

pin_project! {
    /// A response body: that of the service, or of a layer that has rejected the request.
    #[derive(Debug)]
    pub struct Body<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProjection]
    #[derive(Debug)]
    enum Kind<B> {
        Served {
            #[pin]
            body: B
        },
        /// `None` if the body is empty or sent.
        Refused {
            bytes: Option<Bytes>
        },
    }
}

impl<B> Body<B> {
    pub(crate) const fn served(body: B) -> Self {
        let kind = Kind::Served { body };
        Self { kind }
    }

    /// Creates the body of a rejection.
    pub(crate) fn refused(bytes: Bytes) -> Self {
        let bytes = Some(bytes).filter(|bytes| !bytes.is_empty());
        let kind = Kind::Refused { bytes };
        Self { kind }
    }
}

impl<B: http_body::Body<Data = Bytes>> http_body::Body for Body<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            KindProjection::Served { body } => body.poll_frame(context),
            KindProjection::Refused { bytes } => Poll::Ready(bytes.take().map(Frame::data).map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Served { body } => body.is_end_stream(),
            Kind::Refused { bytes } => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Served { body } => body.size_hint(),
            Kind::Refused { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
        }
    }
}

/// Returns the response to a request with these headers: a gRPC status for a gRPC call, otherwise a problem, which
/// `more` can extend.
pub(crate) fn refuse<B>(
    request: &HeaderMap,
    error: &ErrorResponse,
    more: impl FnOnce(Problem) -> Problem,
) -> Response<Body<B>> {
    #[cfg(feature = "grpc")]
    if relent_http::grpc::is_grpc(request) {
        return refuse_grpc(error);
    }
    #[cfg(not(feature = "grpc"))]
    let _ = request;
    let mut response = more(error.problem()).into_response();
    error.set(response.headers_mut());
    response.map(|text| Body::refused(text.into()))
}

/// Returns the response to a gRPC call.
#[cfg(feature = "grpc")]
pub(crate) fn refuse_grpc<B>(error: &ErrorResponse) -> Response<Body<B>> {
    error.grpc_head().map(|()| Body::refused(Bytes::new()))
}

/// Sets the outcome for an outer [idempotency layer](crate::idempotency), if there is one: a rejection had no effect,
/// and is not stored.
pub(crate) fn not_applied<B>(request: &Extensions, response: &mut Response<B>) {
    if request.get::<Execution>().is_some() {
        response.extensions_mut().insert(Outcome::NotApplied);
    }
}
