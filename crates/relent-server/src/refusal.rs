//! What a layer answers by itself, and the body of any answer.

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
    /// The body of an answer: that of the service, or of a layer that has refused the request.
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
        /// `None` if it has no bytes, or they are sent.
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

    /// Of a layer that has refused the request.
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

/// The answer to a request with these headers: over gRPC if it is a call of that, else with the problem as
/// its body, to which `more` can add.
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

/// The answer to a gRPC call.
#[cfg(feature = "grpc")]
pub(crate) fn refuse_grpc<B>(error: &ErrorResponse) -> Response<Body<B>> {
    error.grpc_head().map(|()| Body::refused(Bytes::new()))
}

/// Tells an [idempotency layer](crate::idempotency) outside, if the request has come through one, that nothing was done
/// for it: a refusal is no answer to store.
pub(crate) fn not_applied<B>(request: &Extensions, response: &mut Response<B>) {
    if request.get::<Execution>().is_some() {
        response.extensions_mut().insert(Outcome::NotApplied);
    }
}
