//! Responses that concern one request only, and responses that only a policy treats as failures.

use super::*;

fn keyed() -> Request<Full<Bytes>> {
    request(Method::POST, &[("idempotency-key", "\"k\"")])
}

#[tokio::test]
async fn a_409_after_an_attempt_that_timed_out_is_retried_by_the_backoff() {
    let (layer, clock) = layer(policy().attempt_timeout(SECOND));
    let mock = Mock::new([MockAnswer::Hang, status(409), status(409), status(201)]);
    let result = layer.layer(mock.clone()).oneshot(keyed()).await;
    assert_eq!(ending(&result), (Some(201), 4, None));
    // The timeout of the first attempt, and three delays.
    assert_eq!(clock.sleeps(), [SECOND; 4]);

    let (layer, _) = self::layer(policy());
    let mock = Mock::new([status(409), status(201)]);
    let result = layer.layer(mock.clone()).oneshot(keyed()).await;
    assert_eq!(ending(&result), (Some(409), 1, Some(StopReason::Permanent)));
}

#[tokio::test]
async fn the_layer_retries_a_listed_202_of_a_repeatable_request() {
    let listed = || policy().retry_on([Pattern::from(202)]);
    let soon = || MockAnswer::Status(202, &[("retry-after", "3")], mock::Reply::default());
    let (layer, clock) = layer(listed().retry_after_jitter(0.001));
    let mock = Mock::new([soon(), soon(), status(200)]);
    let result = layer.layer(mock.clone()).oneshot(get()).await;
    assert_eq!(ending(&result), (Some(200), 3, None));
    assert!(clock.sleeps().iter().all(|wait| *wait >= 3 * SECOND));

    let (layer, _) = self::layer(listed());
    let mock = Mock::new([soon(), status(200)]);
    let result = layer.layer(mock.clone()).oneshot(post()).await;
    assert_eq!(
        ending(&result),
        (Some(202), 1, Some(StopReason::NotRepeatable))
    );
}
