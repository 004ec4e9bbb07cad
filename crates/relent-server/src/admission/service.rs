//! The service that applies the rate limits to one request.

use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::request::Parts;
use http::{HeaderMap, Request, Response};
use pin_project_lite::pin_project;
use relent_core::admission::{Arrival, Rejected};
use relent_http::problem::Problem;
use relent_http::rate_limit::{self, set_rate_limit};
use relent_http::{CallerContext, ErrorResponse};
use tower_service::Service;

use super::quota::Identify;
use super::quota_decision::{
    AppliedQuota, Decision, PendingDecision, QuotaSource, RateLimitRejection, RemainingQuota,
};
#[cfg(feature = "redis")]
use super::redis_limits::SharedHash;
use super::shared::{Limits, Shared};
use crate::observe;
use crate::quota_refund::QuotaRefund;
use crate::refusal::{Body, not_applied, refuse};

/// The service of an [`AdmissionLayer`](super::AdmissionLayer).
///
/// It is always ready. A rejection waits for nothing; an admitted request waits until the service inside is ready.
#[derive(Clone)]
pub struct AdmissionService<I> {
    inner: I,
    shared: Arc<Shared>,
}

impl<I> AdmissionService<I> {
    pub(super) const fn new(inner: I, shared: Arc<Shared>) -> Self {
        Self { inner, shared }
    }
}

impl<I, B, R> Service<Request<B>> for AdmissionService<I>
where
    I: Service<Request<B>, Response = Response<R>> + Clone,
{
    type Response = Response<Body<R>>;
    type Error = I::Error;
    type Future = ResponseFuture<I, B, R>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let shared = Arc::clone(&self.shared);
        let (parts, body) = request.into_parts();
        let (arrival, applied) = shared.ask(&parts);
        let inner = self.inner.clone();
        let request = Request::from_parts(parts, body);
        let waiting = Waiting { inner, request };
        let mut taken_quota = TakenQuota {
            shared: Arc::clone(&shared),
            quota_refund: None,
            cost: arrival.cost,
            taken: QuotaSource::Here,
            applied,
        };
        let state = match &shared.limits {
            Limits::Local(local) => {
                let now = shared.settings.clock.now();
                let decision = local.decision(now, &arrival, &taken_quota.applied);
                State::decided(&shared, decision, waiting, &mut taken_quota)
            }
            #[cfg(feature = "redis")]
            Limits::RedisLimits(fleet) => State::PendingDecision {
                deciding: fleet.decision(
                    &shared.settings.clock,
                    arrival,
                    taken_quota.applied.clone(),
                ),
                waiting: Some(waiting),
            },
        };
        ResponseFuture {
            shared,
            taken_quota,
            state,
        }
    }
}

/// Quota that a request has taken. It is given back if a layer inside rejects the request, or drops it before it
/// starts.
struct TakenQuota {
    shared: Arc<Shared>,
    /// `None` if no quota was taken, or it is settled.
    quota_refund: Option<QuotaRefund>,
    cost: u32,
    taken: QuotaSource,
    applied: Vec<AppliedQuota>,
}

impl TakenQuota {
    /// Called when the request has its response, or is dropped.
    fn settle(&mut self) {
        if self
            .quota_refund
            .take()
            .is_none_or(|quota_refund| !quota_refund.is_refundable())
        {
            return;
        }
        let now = self.shared.settings.clock.now();
        match (&self.shared.limits, self.taken) {
            (Limits::Local(local), _) => local.give_back(now, self.cost, &self.applied),
            #[cfg(feature = "redis")]
            (Limits::RedisLimits(fleet), QuotaSource::Here) => {
                fleet.give_back_locally(now, self.cost, &self.applied);
            }
            #[cfg(feature = "redis")]
            (Limits::RedisLimits(fleet), QuotaSource::Redis) => {
                let (fleet, cost) = (Arc::clone(fleet), self.cost);
                let applied = std::mem::take(&mut self.applied);
                // Nothing waits for the refund. Without a runtime there is no request left to limit, either.
                if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                    runtime.spawn(async move { fleet.give_back(cost, &applied).await });
                }
            }
            #[cfg(feature = "redis")]
            (Limits::RedisLimits(_), QuotaSource::Nowhere) => {}
        }
    }
}

impl Drop for TakenQuota {
    fn drop(&mut self) {
        self.settle();
    }
}

impl Shared {
    /// Reads caller, cost and the quotas that apply from the request.
    fn ask(&self, parts: &Parts) -> (Arrival, Vec<AppliedQuota>) {
        let hash = |identify: &Identify| {
            #[cfg(feature = "redis")]
            if let Limits::RedisLimits(_) = self.limits {
                return hash_by(SharedHash::default(), identify, parts);
            }
            hash_by(self.hashes.build_hasher(), identify, parts)
        };
        let arrival = Arrival {
            caller: self.settings.caller.as_ref().and_then(hash),
            cost: self.settings.cost.as_ref().map_or(1, |cost| cost(parts)),
            ..CallerContext::from_headers(&parts.headers).arrival()
        };
        let applied = self
            .settings
            .quotas
            .iter()
            .enumerate()
            .filter_map(|(quota, each)| {
                let key = match &each.key {
                    None => None,
                    Some(identify) => Some(hash(identify)?),
                };
                Some(AppliedQuota { quota, key })
            });
        (arrival, applied.collect())
    }

    fn refusal<R>(&self, request: &HeaderMap, refused: RateLimitRejection) -> Response<Body<R>> {
        match refused {
            RateLimitRejection::Limits(rejected) => {
                let violated = match rejected {
                    Rejected::Limited { limiter, .. } | Rejected::TooCostly { limiter } => {
                        self.settings.quotas.get(limiter)
                    }
                    _ => None,
                };
                observe::rate_rejected(&rejected, violated.map(|quota| &quota.name));
                let name = |problem: Problem| match violated {
                    // RFC 9457 does not define this name, so `member` accepts it.
                    Some(quota) => problem
                        .clone()
                        .member("violated-policies", [&*quota.name].as_slice())
                        .unwrap_or(problem),
                    None => problem,
                };
                refuse(request, &ErrorResponse::rejected(&rejected), name)
            }
            #[cfg(feature = "redis")]
            RateLimitRejection::RedisDown => {
                observe::rate_limits_down();
                refuse(request, &super::redis_limits::redis_down(), |problem| {
                    problem
                })
            }
        }
    }

    /// Sets `RateLimit` and `RateLimit-Policy` for the quotas that apply.
    fn set_rate_limit_fields(&self, headers: &mut HeaderMap, left: &[RemainingQuota]) {
        if left.is_empty() {
            return;
        }
        let quotas: Vec<_> = left
            .iter()
            .filter_map(|left| {
                let quota = self.settings.quotas.get(left.quota)?;
                let (available, until) = (left.available, left.until);
                Some(rate_limit::Quota::left(
                    &quota.name,
                    &quota.config,
                    available,
                    until,
                ))
            })
            .collect();
        // The names are validated by `Quota::new`.
        let _ = set_rate_limit(headers, &quotas);
    }
}

fn hash_by(mut hasher: impl Hasher, identify: &Identify, parts: &Parts) -> Option<u64> {
    identify(parts, &mut hasher).then(|| hasher.finish())
}

/// A request that is not served yet, and its service.
#[derive(Debug)]
struct Waiting<I, B> {
    inner: I,
    request: Request<B>,
}

pin_project! {
    /// The future of [`AdmissionService`].
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<I, B, R>
    where
        I: Service<Request<B>>,
    {
        shared: Arc<Shared>,
        taken_quota: TakenQuota,
        #[pin]
        state: State<I, B, R, I::Future>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<I, B, R, F> {
        /// Waits for the decision of the limits.
        PendingDecision {
            deciding: PendingDecision,
            waiting: Option<Waiting<I, B>>,
        },
        /// Waits until the service is ready.
        Admitted {
            waiting: Option<Waiting<I, B>>,
            left: Vec<RemainingQuota>,
        },
        Serving {
            #[pin]
            serving: F,
            left: Vec<RemainingQuota>,
        },
        RateLimitRejection {
            response: Option<Response<Body<R>>>,
        },
    }
}

impl<I, B, R, F> State<I, B, R, F> {
    fn decided(
        shared: &Shared,
        decision: Decision,
        mut waiting: Waiting<I, B>,
        taken_quota: &mut TakenQuota,
    ) -> Self {
        let left = decision.left;
        match decision.verdict {
            Ok(admitted) => {
                observe::rate_admitted(admitted);
                if !taken_quota.applied.is_empty() {
                    let extensions = waiting.request.extensions_mut();
                    let quota_refund: &QuotaRefund = extensions.get_or_insert_default();
                    (taken_quota.quota_refund, taken_quota.taken) =
                        (Some(quota_refund.clone()), decision.taken);
                }
                if admitted.reserved_slot {
                    waiting.request.extensions_mut().insert(admitted);
                }
                let waiting = Some(waiting);
                Self::Admitted { waiting, left }
            }
            Err(refused) => {
                let mut response = shared.refusal(waiting.request.headers(), refused);
                shared.set_rate_limit_fields(response.headers_mut(), &left);
                not_applied(waiting.request.extensions(), &mut response);
                let response = Some(response);
                Self::RateLimitRejection { response }
            }
        }
    }
}

impl<I, B, R> Future for ResponseFuture<I, B, R>
where
    I: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<Body<R>>, I::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                StateProjection::PendingDecision { deciding, waiting } => {
                    let decision = ready!(deciding.as_mut().poll(context));
                    match waiting.take() {
                        Some(waiting) => {
                            State::decided(this.shared, decision, waiting, this.taken_quota)
                        }
                        None => return Poll::Pending,
                    }
                }
                StateProjection::Admitted { waiting, left } => {
                    if let Some(waiting) = waiting {
                        ready!(waiting.inner.poll_ready(context))?;
                    }
                    match waiting.take() {
                        Some(Waiting { mut inner, request }) => {
                            if let Some(quota_refund) = &this.taken_quota.quota_refund {
                                quota_refund.hand_on();
                            }
                            State::Serving {
                                serving: inner.call(request),
                                left: std::mem::take(left),
                            }
                        }
                        None => return Poll::Pending,
                    }
                }
                StateProjection::Serving { serving, left } => {
                    let served = ready!(serving.poll(context));
                    this.taken_quota.settle();
                    let mut response = served?;
                    this.shared
                        .set_rate_limit_fields(response.headers_mut(), left);
                    return Poll::Ready(Ok(response.map(Body::served)));
                }
                // A future is not polled after it has completed.
                StateProjection::RateLimitRejection { response } => {
                    return response
                        .take()
                        .map_or(Poll::Pending, |response| Poll::Ready(Ok(response)));
                }
            };
            this.state.set(next);
        }
    }
}

impl<I, B, R> fmt::Debug for ResponseFuture<I, B, R>
where
    I: Service<Request<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

impl<I: fmt::Debug> fmt::Debug for AdmissionService<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmissionService")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}
