//! A policy that is replaced while calls run.

use std::sync::Arc;

use relent::{Destination, Policy, StopReason};
use relent_http::{Override, RetryLayer};
use tower::{Layer, ServiceExt};

use super::mock::{Mock, MockAnswer, status};
use super::{SECOND, ending, get, layer, policy};

const EXHAUSTED: Option<StopReason> = Some(StopReason::RetriesExhausted);

/// The policy without retries.
fn off() -> Policy {
    policy().build().unwrap().without_retries()
}

#[tokio::test]
async fn a_replaced_policy_applies_to_later_calls_of_all_clones() {
    let (layer, _) = layer(policy());
    let mock = Mock::new([status(503)]);
    // An existing service, and a later one of a clone.
    let service = layer.layer(mock.clone());
    let clone = layer.clone();
    layer.set_policy(off());
    for service in [service, clone.layer(mock.clone())] {
        let result = service.oneshot(get()).await;
        assert_eq!(ending(&result), (Some(503), 1, EXHAUSTED));
    }
    // An override of a request takes precedence.
    let mut request = get();
    let own = policy().max_retries(1).build().unwrap();
    request.extensions_mut().insert(Override::new().policy(own));
    let result = layer.layer(mock.clone()).oneshot(request).await;
    assert_eq!(ending(&result), (Some(503), 2, EXHAUSTED));
    // Retries can be enabled again.
    layer.set_policy(policy().max_retries(2).build().unwrap());
    let result = layer.layer(mock).oneshot(get()).await;
    assert_eq!(ending(&result), (Some(503), 3, EXHAUSTED));
}

#[tokio::test(start_paused = true)]
async fn a_running_layer_call_keeps_its_policy_when_it_is_replaced() {
    let layer = RetryLayer::new(policy().build().unwrap());
    let mock = Mock::new([status(503)]);
    let call = layer.layer(mock.clone()).oneshot(get());
    let reload = async {
        tokio::time::sleep(SECOND / 2).await;
        layer.set_policy(off());
    };
    let (result, ()) = tokio::join!(call, reload);
    assert_eq!(ending(&result), (Some(503), 4, EXHAUSTED));
}

#[tokio::test(start_paused = true)]
async fn a_replaced_policy_hedges_and_changes_the_destination() {
    let there = Arc::new(Destination::new(policy().build().unwrap()));
    let layer = RetryLayer::new(policy().build().unwrap()).destination(there.clone());
    let service = layer.layer(Mock::new([MockAnswer::Hang, status(200)]));
    let hedge = relent::policy::HedgeConfig::after(SECOND);
    layer.set_policy(policy().hedge(hedge).build().unwrap());
    let response = service.oneshot(get()).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(there.policy().hedge().is_some());
}

/// The clone keeps its policy when the policy of others is replaced.
#[tokio::test]
async fn a_clone_with_a_destination_of_its_own_has_a_policy_of_its_own() {
    let (layer, _) = layer(policy());
    layer.set_policy(policy().max_retries(1).build().unwrap());
    let there = Arc::new(Destination::new(policy().build().unwrap()));
    let other = layer.clone().destination(there);
    layer.set_policy(off());
    let mock = Mock::new([status(503)]);
    let result = other.layer(mock.clone()).oneshot(get()).await;
    assert_eq!(ending(&result), (Some(503), 2, EXHAUSTED));
    let result = layer.layer(mock).oneshot(get()).await;
    assert_eq!(ending(&result), (Some(503), 1, EXHAUSTED));
}
