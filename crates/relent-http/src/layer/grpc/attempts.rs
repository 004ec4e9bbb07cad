//! One attempt of a gRPC call: the headers of its request, and the classification of its response.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::response::Parts;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use relent::Attempt;
use relent::clock::Clock;
use relent_core::{Failure, Network};
use tower_service::Service;

use crate::grpc::{
    First, Head, Peek, Peeked, classify_head, classify_trailers, set_previous_attempts, timeout,
};
use crate::hint::HintOptions;
use crate::layer::MapBody;
use crate::no_retry_mark::marked;
use crate::replay::{BoxError, ReadProgress, ReplayBody};

/// Response extension for the retry layer: the classification of a gRPC response.
#[derive(Clone, Copy, Debug)]
pub(in crate::layer) struct Classified(pub(in crate::layer) Option<Failure>);

/// The error of a response whose headers have arrived: the server has started the call, whatever the
/// error claims. By gRFC A6 such a call is committed, and its `REFUSED_STREAM` does not prove that it was not
/// processed.
#[derive(Debug)]
pub(in crate::layer) struct AfterHead(pub(in crate::layer) BoxError);

impl fmt::Display for AfterHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for AfterHead {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// Service for single attempts, inside a [`GrpcRetryService`](super::GrpcRetryService).
#[derive(Clone)]
pub struct GrpcAttempts<S, K, M> {
    service: S,
    map: M,
    clock: K,
    hints: HintOptions,
    peeks: bool,
}

impl<S, K, M> GrpcAttempts<S, K, M> {
    pub(super) const fn new(service: S, map: M, clock: K, hints: HintOptions, peeks: bool) -> Self {
        Self {
            service,
            map,
            clock,
            hints,
            peeks,
        }
    }
}

impl<S, B, R, K, M> Service<Request<ReplayBody<B>>> for GrpcAttempts<S, K, M>
where
    S: Service<Request<M::Body>, Response = Response<R>, Error: Into<BoxError>>,
    B: Body<Error: Into<BoxError>>,
    R: Body<Error: Into<BoxError>> + Unpin,
    K: Clock + Clone,
    M: MapBody<B>,
{
    type Response = Response<Peeked<R>>;
    type Error = BoxError;
    type Future = AttemptFuture<S::Future, B, R, K>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.service.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<ReplayBody<B>>) -> Self::Future {
        if let Some(attempt) = request.extensions().get::<Attempt>().copied() {
            let headers = request.headers_mut();
            set_previous_attempts(headers, attempt.number);
            if let Some(remaining) = attempt.remaining {
                timeout::lower(headers, remaining);
            }
        }
        let (head, body) = request.into_parts();
        let sent = body.read_progress();
        let request = Request::from_parts(head, self.map.map_body(body));
        AttemptFuture {
            clock: self.clock.clone(),
            hints: self.hints,
            peeks: self.peeks,
            sent,
            state: State::Calling {
                call: self.service.call(request),
            },
        }
    }
}

impl<S, K, M> fmt::Debug for GrpcAttempts<S, K, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcAttempts").finish_non_exhaustive()
    }
}

pin_project! {
    /// The future of one gRPC attempt.
    #[must_use = "futures do nothing unless awaited"]
    pub struct AttemptFuture<F, B, R, K> {
        clock: K,
        hints: HintOptions,
        peeks: bool,
        sent: ReadProgress<B>,
        #[pin]
        state: State<F, R>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F, R> {
        Calling {
            #[pin]
            call: F,
        },
        Peeking {
            // `None` after completion.
            head: Option<Parts>,
            #[pin]
            peek: Peek<R>,
        },
    }
}

impl<F, B, R, E, K> Future for AttemptFuture<F, B, R, K>
where
    F: Future<Output = Result<Response<R>, E>>,
    E: Into<BoxError>,
    B: Body<Error: Into<BoxError>>,
    R: Body<Error: Into<BoxError>> + Unpin,
    K: Clock,
{
    type Output = Result<Response<Peeked<R>>, BoxError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StateProjection::Calling { call } => {
                    let response = match ready!(call.poll(context)) {
                        Ok(response) => response,
                        Err(error) => return Poll::Ready(Err(error.into())),
                    };
                    let (mut head, body) = response.into_parts();
                    let now = this.clock.wall();
                    let failure = match classify_head(head.status, &head.headers, now, this.hints) {
                        Head::Open if *this.peeks && this.sent.is_whole() => {
                            this.state.set(State::Peeking {
                                head: Some(head),
                                peek: Peek::new(body),
                            });
                            continue;
                        }
                        // The server may be waiting for the caller, so do not wait for its first message.
                        Head::Open => None,
                        Head::Over(failure) => failure,
                    };
                    head.extensions.insert(Classified(failure));
                    return Poll::Ready(Ok(Response::from_parts(head, Peeked::unseen(body))));
                }
                StateProjection::Peeking { head, peek } => {
                    let body = ready!(peek.poll(context));
                    let failure = match body.first() {
                        First::Trailers(trailers) => {
                            classify_trailers(trailers, this.clock.wall(), this.hints)
                        }
                        First::End => Some(Failure::network(Network::Truncated)),
                        First::Message | First::Unseen | First::Error(_) => None,
                    };
                    let body = match body.into_error() {
                        Ok(body) => body,
                        Err(error) => return Poll::Ready(Err(AfterHead(error.into()).into())),
                    };
                    let Some(mut head) = head.take() else {
                        return Poll::Pending;
                    };
                    let failure = failure.map(|failure| marked(failure, &head.headers));
                    head.extensions.insert(Classified(failure));
                    return Poll::Ready(Ok(Response::from_parts(head, body)));
                }
            }
        }
    }
}

impl<F, B, R, K> fmt::Debug for AttemptFuture<F, B, R, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptFuture").finish_non_exhaustive()
    }
}
