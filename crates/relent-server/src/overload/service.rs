//! The service that limits the concurrency of requests.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response};
use relent_core::Criticality;
use relent_core::admission::{Admitted, Arrival, Completion, Rejected};
use relent_http::CallerContext;
use tower_service::Service;

use super::settings::Settings;
use super::slots::{Arrived, HeldSlot, Shared};
use super::{SlotBody, refusal};
use crate::observe;
use crate::quota_refund::QuotaRefund;
use crate::refusal::{Body, not_applied};

/// The service of an [`OverloadLayer`](super::OverloadLayer).
///
/// It is always ready: a request takes a slot first, and then waits for the service inside.
#[derive(Clone)]
pub struct Overload<I> {
    inner: I,
    shared: Arc<Shared>,
    settings: Arc<Settings>,
}

impl<I> Overload<I> {
    pub(super) const fn new(inner: I, shared: Arc<Shared>, settings: Arc<Settings>) -> Self {
        Self {
            inner,
            shared,
            settings,
        }
    }
}

/// The future of [`Overload`].
pub struct OverloadFuture<R, E>(State<R, E>);

type Served<R, E> = Pin<Box<dyn Future<Output = Result<Response<Body<SlotBody<R>>>, E>> + Send>>;

enum State<R, E> {
    Refused(Option<Response<Body<SlotBody<R>>>>),
    Served(Served<R, E>),
}

// Only the boxed future is pinned.
impl<R, E> Unpin for OverloadFuture<R, E> {}

impl<R, E> Future for OverloadFuture<R, E> {
    type Output = Result<Response<Body<SlotBody<R>>>, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Refused(response) => response
                .take()
                .map_or(Poll::Pending, |response| Poll::Ready(Ok(response))),
            State::Served(served) => served.as_mut().poll(context),
        }
    }
}

impl<I, B, R> Service<Request<B>> for Overload<I>
where
    I: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    I::Future: Send,
    I::Error: Send,
    B: Send + 'static,
    R: http_body::Body<Data = Bytes> + Send + 'static,
{
    type Response = Response<Body<SlotBody<R>>>;
    type Error = I::Error;
    type Future = OverloadFuture<R, I::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        if (self.settings.exempt)(&parts) {
            let request = Request::from_parts(parts, body);
            return OverloadFuture(State::Served(Box::pin(serve(
                self.inner.clone(),
                request,
                None,
            ))));
        }
        if let Some(quota_refund) = parts.extensions.get::<QuotaRefund>() {
            quota_refund.waits();
        }
        let refusing = Refusing::of(&parts, self.settings.class(&parts));
        let facts = CallerContext::from_headers(&parts.headers);
        let caller = self.settings.caller(&parts);
        let arrival = arrival(facts, caller, parts.extensions.get());
        let arrived = match self.shared.arrive(arrival, refusing.class) {
            Ok(arrived) => arrived,
            Err(rejected) => {
                let mut response = refusing.answer(&rejected);
                not_applied(&parts.extensions, &mut response);
                return OverloadFuture(State::Refused(Some(response)));
            }
        };
        let (inner, mut request) = (self.inner.clone(), Request::from_parts(parts, body));
        OverloadFuture(State::Served(match arrived {
            Arrived::Served(held) => {
                observe::admitted(refusing.class, Duration::ZERO);
                Box::pin(serve(inner, request, Some(held)))
            }
            Arrived::Waits(mut waiting) => Box::pin(async move {
                let turn = (&mut waiting).await;
                let waited = waiting.waited();
                drop(waiting);
                match turn {
                    Ok(held) => {
                        observe::admitted(refusing.class, waited);
                        // Reduces the deadline by the wait before it is passed on.
                        facts.pass_on(waited, request.headers_mut());
                        serve(inner, request, Some(held)).await
                    }
                    Err(rejected) => {
                        let mut response = refusing.answer(&rejected);
                        not_applied(request.extensions(), &mut response);
                        Ok(response)
                    }
                }
            }),
        }))
    }
}

/// Calls the service, and holds the slot until the response has ended.
async fn serve<I, B, R>(
    mut inner: I,
    mut request: Request<B>,
    held: Option<HeldSlot>,
) -> Result<Response<Body<SlotBody<R>>>, I::Error>
where
    I: Service<Request<B>, Response = Response<R>>,
    R: http_body::Body<Data = Bytes>,
{
    let is_sent = request.method() != Method::HEAD;
    if let Some(held) = &held {
        request.extensions_mut().insert(held.weak_slot());
    }
    let served = async {
        poll_fn(|context| inner.poll_ready(context)).await?;
        if let Some(quota_refund) = request.extensions().get::<QuotaRefund>() {
            quota_refund.begins();
        }
        inner.call(request).await
    };
    match served.await {
        Ok(response) => {
            let (head, body) = response.into_parts();
            let body = Body::served(SlotBody::new(body, &head, is_sent, held));
            Ok(Response::from_parts(head, body))
        }
        Err(error) => {
            if let Some(held) = held {
                held.ended(Completion::Failed);
            }
            Err(error)
        }
    }
}

/// Reads the arrival from the headers. A request in its reserved slot counts as a first attempt, since the server
/// chose its time.
fn arrival(facts: CallerContext, caller: Option<u64>, admitted: Option<&Admitted>) -> Arrival {
    let arrival = Arrival {
        caller,
        ..facts.arrival()
    };
    match admitted {
        Some(Admitted {
            reserved_slot: true,
        }) => Arrival {
            attempt: 1,
            ..arrival
        },
        _ => arrival,
    }
}

/// The data that a rejection needs.
#[derive(Clone, Copy)]
struct Refusing {
    class: Criticality,
    form: refusal::Form,
}

impl Refusing {
    fn of(parts: &Parts, class: Criticality) -> Self {
        Self {
            class,
            form: refusal::Form::of(&parts.headers),
        }
    }

    fn answer<B>(self, rejected: &Rejected) -> Response<Body<B>> {
        observe::shed(self.class, rejected);
        refusal::answer(rejected, self.form)
    }
}

impl<I: fmt::Debug> fmt::Debug for Overload<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overload")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<R, E> fmt::Debug for OverloadFuture<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_refused = matches!(self.0, State::Refused(_));
        f.debug_struct("OverloadFuture")
            .field("is_refused", &is_refused)
            .finish_non_exhaustive()
    }
}
