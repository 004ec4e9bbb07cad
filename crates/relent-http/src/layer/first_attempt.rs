//! Start of a call: its first attempt, unless the destination holds it.

use std::sync::Arc;

use http::{Request, Response};
use http_body::Body;
use relent::Attempt;
use relent::clock::{Clock, Sleeper};
use relent::driver::NextStep;
use relent::timer::Timer;
use relent_core::{Failure, Policy, Repeatable};
use tower_service::Service;

use super::future::{Extras, Limit, ResponseFuture, State, begin};
use super::outcome::span_of;
use super::readiness::{Reserve, release_readiness};
use super::{CallDriver, Config, MapBody, Override};
use crate::attempt::RequestTemplate;
use crate::repeatable::RequestInfo;
use crate::replay::{BoxError, Reopen};

/// State of a call before its first attempt.
struct Opening<B, R, K: Clock> {
    driver: CallDriver<K>,
    /// The request facts, if they must be known already.
    facts: Option<RequestInfo>,
    /// There is no retry.
    once: bool,
    extras: Option<Box<Extras<B, R, K>>>,
}

impl<B, R, K: Clock> Opening<B, R, K> {
    #[inline]
    fn is_hedged(&self) -> bool {
        matches!(&self.extras, Some(extras) if extras.hedge.is_some())
    }
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
        let mut opening = if plain && request.extensions().is_empty() && !once {
            let driver = config.driver(request.uri(), policy, Repeatable::Unknown);
            Opening {
                driver: driver.start(),
                // They can still be read from the kept head.
                facts: None,
                once,
                extras: None,
            }
        } else {
            Self::open(config, policy, &mut request)
        };
        let untimed = match opening.is_hedged() {
            true => None,
            false => opening.driver.begin_untimed(),
        };
        let (first, limit) = match untimed {
            Some(number) => (Attempt::unlimited(number), Limit::Never),
            None => match opening.driver.enter(None) {
                NextStep::Start(leave) if !opening.is_hedged() => begin(&mut opening.driver, leave),
                next => return Self::start_apart(service, config, request, opening, next),
            },
        };
        let template = (!opening.once).then(|| RequestTemplate::of(&request));
        config.route(&mut request, 1);
        let span = span_of(&request, 1);
        if let Some(extras) = &mut opening.extras {
            extras
                .cross_layer_call
                .write_headers(&first, request.headers_mut());
        }
        // The request is split late, and rebuilt where it is passed on: it is large, and each move
        // in between would be a copy.
        let (mut parts, body) = request.into_parts();
        let (replay, body) = config.replay(&parts.headers, body, opening.once);
        let entered = span.enter();
        config.on_attempt.write(&first, &mut parts.headers);
        let attempt = service.call(Request::from_parts(parts, config.map.map_body(body)));
        drop(entered);
        Self {
            state: State::Running {
                attempt,
                limit,
                span,
            },
            config: config.clone(),
            service: service.clone(),
            template,
            replay,
            facts: opening.facts,
            driver: opening.driver,
            timer: Timer::new(),
            extras: opening.extras,
        }
    }

    /// Starts a call that is hedged or that the destination holds, in the same way as a later attempt.
    #[inline(never)]
    fn start_apart(
        service: &mut S,
        config: &Arc<Config<K, M, N>>,
        request: Request<B>,
        opening: Opening<B, R, K>,
        next: NextStep,
    ) -> Self {
        let template = RequestTemplate::of(&request);
        let (parts, body) = request.into_parts();
        let (replay, body) = config.replay(&parts.headers, body, opening.once);
        let mut driver = opening.driver;
        let mut extras = opening.extras.unwrap_or_default();
        extras.once = opening.once;
        let state = if let NextStep::Start(leave) = next {
            extras.start(service, config, &mut driver, leave, &template, body)
        } else {
            extras.first = Some(body);
            // Other calls may use the readiness while this one waits.
            release_readiness(service);
            State::Reserving {
                reserve: Reserve::Leave,
                failure: Failure::not_processed(),
            }
        };
        Self {
            config: config.clone(),
            service: service.clone(),
            template: Some(template),
            replay,
            facts: opening.facts,
            driver,
            timer: Timer::new(),
            extras: Some(extras),
            state,
        }
    }

    /// Prepares a call that needs more than the plain path; `policy` is the current policy of the layer.
    #[inline(never)]
    fn open(
        config: &Config<K, M, N>,
        policy: &Arc<Policy>,
        request: &mut Request<B>,
    ) -> Opening<B, R, K> {
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
        let driver = config.with_extras(driver).start();
        // A shared destination exists, so it can keep the state of any policy.
        let of_policy = || driver.hedge().ok().flatten();
        let hedge = match overrides.hedge {
            _ if !may_hedge => None,
            Some(said) => said,
            None => of_policy(),
        };
        let extras = (hedge.is_some() || config.cross.is_some()).then(|| {
            Box::new(Extras {
                hedge,
                cross_layer_call: config.cross_layer_call(),
                ..Extras::default()
            })
        });
        Opening {
            driver,
            facts: Some(facts),
            once,
            extras,
        }
    }
}
