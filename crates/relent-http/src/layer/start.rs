//! Start of a call, and of its first attempt unless the destination holds it.

use std::sync::Arc;

use http::{Request, Response};
use http_body::Body;
use relent::Attempt;
use relent::clock::{Clock, Sleeper};
use relent::driver::NextStep;
use relent::timer::Timer;
use relent_core::{Failure, Policy, Repeatable};
use tower_service::Service;

use super::attempt::{AttemptExtras, AttemptRequest, Sender};
use super::future::ResponseFuture;
use super::readiness::{Reserve, release_readiness};
use super::state::{CallExtras, State};
use super::{CallDriver, Config, MapBody, Override, Resends};
use crate::attempt::RequestTemplate;
use crate::repeatable::RequestInfo;
use crate::replay::{BoxError, Reopen};

/// State of a call before its first attempt.
struct OpenedCall<B, R, K: Clock> {
    driver: CallDriver<K>,
    /// The request facts, if they must be known already.
    facts: Option<RequestInfo>,
    /// There is no retry.
    once: bool,
    extras: Option<Box<CallExtras<B, R, K>>>,
}

impl<S, B, R, K, M, N> ResponseFuture<S, B, R, K, M, N>
where
    S: Service<Request<M::Body>, Response = Response<R>, Error: Into<BoxError>> + Clone,
    B: Body<Error: Into<BoxError>>,
    R: Body<Error: Into<BoxError>>,
    K: Sleeper + Clone,
    M: MapBody<B>,
    N: Reopen<B>,
{
    /// Calls the service, which must be ready.
    #[inline]
    pub(super) fn start(
        service: &mut S,
        config: &Arc<Config<K, M, N>>,
        mut request: Request<B>,
    ) -> Self {
        let replaced = config.replaced.get();
        let policy = replaced.as_ref().unwrap_or(&config.policy);
        let once = policy.max_retries() == Some(0);
        let plain = config.plain && policy.hedge().is_none();
        let opening = if plain && request.extensions().is_empty() && !once {
            let driver = config.driver(request.uri(), policy, Repeatable::Unknown);
            OpenedCall {
                driver: driver.start(),
                // They can still be read from the kept head.
                facts: None,
                once,
                extras: None,
            }
        } else {
            Self::open(config, policy, &mut request)
        };
        let OpenedCall {
            mut driver,
            facts,
            once,
            mut extras,
        } = opening;
        let next = driver.enter(None);
        let is_held = !matches!(next, NextStep::Start(_));
        let template = (is_held || !once).then(|| RequestTemplate::of(&request));
        // The request is split late, and rebuilt where it is passed on: it is large, and each move
        // in between would be a copy.
        let (parts, body) = request.into_parts();
        let (replay, body) = config.replay(&parts.headers, body, once);
        let state = if let NextStep::Start(permit) = next {
            let hedge = extras.as_ref().and_then(|extras| extras.hedge.clone());
            let request = AttemptRequest {
                request: Request::from_parts(parts, body),
                is_numbered: hedge.is_some(),
            };
            let sender = Sender {
                service,
                config,
                extras: extras.as_mut().map(|extras| &mut extras.of_attempts),
            };
            State::start(sender, &mut driver, permit, hedge, request)
        } else {
            let extras = extras.get_or_insert_default();
            (extras.once, extras.first) = (once, Some(body));
            // Other calls may use the readiness while this one waits.
            release_readiness(service);
            State::Reserving {
                reserve: Reserve::Permit,
                failure: Failure::not_processed(),
            }
        };
        Self {
            state,
            config: config.clone(),
            service: service.clone(),
            template,
            replay,
            facts,
            driver,
            timer: Timer::new(),
            extras,
        }
    }

    /// Prepares a call that needs more than the plain path; `policy` is the current policy of the layer.
    #[inline(never)]
    fn open(
        config: &Config<K, M, N>,
        policy: &Arc<Policy>,
        request: &mut Request<B>,
    ) -> OpenedCall<B, R, K> {
        let mut overrides: Option<Override> = request.extensions_mut().remove();
        // An `Attempt` of an outer layer does not apply here.
        request.extensions_mut().remove::<Attempt>();
        config.obey_deadline(policy, request, &mut overrides);
        let overrides = overrides.unwrap_or_default();
        let facts = RequestInfo::of(request.method(), request.headers());
        let policy = overrides.policy.as_ref().unwrap_or(policy);
        let known = Repeatable::known(facts.repeatable);
        let repeatable = overrides.repeatable.map_or(known, Repeatable::from);
        let driver = config.driver(request.uri(), policy, repeatable);
        let once = overrides.no_retry || policy.max_retries() == Some(0);
        let may_hedge = !once && repeatable.is_allowed_by(policy);
        let mut driver = config.with_extras(driver);
        if config.fails_fast || overrides.fails_fast {
            driver = driver.fail_fast();
        }
        let driver = driver.start();
        // A shared destination exists, so it can keep the state of any policy.
        let of_policy = || driver.hedge().ok().flatten();
        let hedge = match overrides.hedge {
            _ if !may_hedge => None,
            Some(said) => said,
            None => of_policy(),
        };
        let max_retries = if once { Some(0) } else { policy.max_retries() };
        let of_attempts = config.attempt_extras(max_retries);
        let extras = (hedge.is_some() || of_attempts.is_some()).then(|| {
            Box::new(CallExtras {
                hedge,
                of_attempts: of_attempts.unwrap_or_default(),
                ..CallExtras::default()
            })
        });
        OpenedCall {
            driver,
            facts: Some(facts),
            once,
            extras,
        }
    }
}

impl<K: Clock + Clone, M, N> Config<K, M, N> {
    /// What the attempts of a call with so many retries need; `None` for nothing.
    fn attempt_extras(&self, max_retries: Option<u32>) -> Option<AttemptExtras<K>> {
        let is_needed = self.cross.is_some() || self.counts_resends || self.upstreams.is_some();
        is_needed.then(|| AttemptExtras {
            cross_layer_call: self.cross_layer_call(),
            resends: self.counts_resends.then(|| Resends::new(max_retries)),
            previous: None,
        })
    }
}
