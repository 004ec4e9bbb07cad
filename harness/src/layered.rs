//! The service of a scenario behind the layers of `relent-server`, in an axum service.
//!
//! The overload layer provides the queue and the load shedder: it serves as many requests concurrently as the
//! scenario has workers, queues the others, and sheds by the same target. The handler is the rest of the scenario.

use std::sync::Arc;

use axum::body::Body;
use axum::{Extension, Router};
use relent_server::ServerLayer;
use relent_server::idempotency::IdempotencyLayer;
use relent_server::overload::{ConcurrencyConfig, ConcurrencyLimiterConfig, OverloadLayer};
use relent_server::store::Memory;
use relent_sim::{Effect, Scenario};

use crate::desk::{HttpService, Noted};

/// The scenario for the handler, without the parts that the layers provide.
pub(crate) fn without_layers(scenario: &Scenario) -> Scenario {
    let mut without_layers = scenario.clone();
    without_layers.service.shedder = None;
    without_layers.service.queue = None;
    without_layers
}

/// The service.
///
/// # Errors
/// The scenario has no load shedder, so the layers would add one that is not simulated.
pub(crate) fn app(scenario: &Scenario, desk: &Arc<HttpService>) -> Result<Router, String> {
    let shedder = scenario.service.shedder.as_ref().ok_or(
        "the layers shed, so the scenario has to: such as --set service.shedder.target=20ms",
    )?;
    let slots = ConcurrencyLimiterConfig {
        concurrency: ConcurrencyConfig::fixed(scenario.service.workers),
        shedder: shedder.into(),
        ..ConcurrencyLimiterConfig::DEFAULT
    };
    let overload = OverloadLayer::new(&slots).map_err(|error| error.to_string())?;
    let keyed = IdempotencyLayer::anonymous(Memory::new());
    let desk = Arc::clone(desk);
    let handler = move |Extension(noted): Extension<Noted>| {
        let desk = Arc::clone(&desk);
        async move { desk.answer(noted).await.map(Body::new) }
    };
    let app = Router::new().fallback(handler);
    Ok(app.layer(ServerLayer::new(keyed).overload(overload)))
}

/// The periods in which the process is dead: restarts of the service, which rejects in them without the layers.
pub(crate) fn deaths(scenario: &Scenario, layers: bool) -> Vec<(u64, u64)> {
    let restarts = scenario.outages.iter().enumerate();
    let restarts: Vec<usize> = restarts
        .filter(|(_, outage)| outage.effect == Effect::Restart)
        .map(|(number, _)| number)
        .collect();
    let mut deaths: Vec<(u64, u64)> = scenario
        .spans()
        .filter(|span| layers && restarts.contains(&span.outage))
        .map(|span| (span.at, span.end))
        .collect();
    deaths.sort_unstable();
    deaths
}
