//! The outcome of an attempt, and the result of a call.

use std::error::Error;

use http::Response;
use relent::clock::Clock;
use relent::{GaveUp, Summary};
use relent_core::{Cause, Failure, Policy, Repeatable};
#[cfg(feature = "grpc")]
use relent_core::{FailureKind, Network};

use super::body::ResponseBody;
use super::config::{CallDriver, ClassifyError, Config};
use super::error::ServiceError;
use crate::attempt::{RequestTemplate, ResponseClassifier, apply_inner_summary};
use crate::grpc::in_view_of_key;
use crate::network;
use crate::no_retry_mark::given_up;
use crate::repeatable::RequestInfo;
use crate::replay::UnfinishedUpload;

/// The outcome of an attempt.
pub(super) type AttemptResult<R> = Result<Response<R>, ServiceError>;

/// The result of a call.
pub(super) type Output<R> = Result<Response<ResponseBody<R>>, GaveUp<ServiceError>>;

/// A failed attempt: its outcome, whether its connection is still busy with the request, and, in a race, the
/// request body that it is still sending.
pub(super) struct Ended<R> {
    pub(super) outcome: AttemptResult<R>,
    pub(super) busy: bool,
    pub(super) sending: UnfinishedUpload,
}

/// The classification by the gRPC layer, if there is one.
#[inline]
fn verdict<R>(response: &Response<R>) -> Option<Option<Failure>> {
    #[cfg(feature = "grpc")]
    if let Some(super::grpc::Classified(failure)) = response.extensions().get() {
        return Some(*failure);
    }
    #[cfg(not(feature = "grpc"))]
    let _ = response;
    None
}

/// The classification settings of a call.
#[inline]
fn classifier_of<'a, K: Clock, M, N>(
    config: &'a Config<K, M, N>,
    policy: &'a Policy,
) -> ResponseClassifier<'a> {
    let hints = &config.hints;
    ResponseClassifier { policy, hints }
}

/// Whether a response is certainly no failure by this policy, whatever the request facts.
#[inline]
pub(super) fn is_certain_success<R, K: Clock, M, N>(
    response: &Response<R>,
    config: &Config<K, M, N>,
    policy: &Policy,
) -> bool {
    let classification = classifier_of(config, policy);
    classification.is_certain_success(response.status(), response.headers())
        && verdict(response).is_none()
}

/// The failure of a response, if it is one.
#[inline]
pub(super) fn classification<R, K: Clock, M, N>(
    response: &Response<R>,
    facts: RequestInfo,
    config: &Config<K, M, N>,
    driver: &CallDriver<K>,
) -> Option<Failure> {
    if is_certain_success(response, config, driver.policy()) {
        return None;
    }
    let (headers, extensions) = (response.headers(), response.extensions());
    if let Some(verdict) = verdict(response) {
        let failure = in_view_of_key(verdict?, facts);
        return Some(apply_inner_summary(failure, extensions));
    }
    let (classification, now) = (
        classifier_of(config, driver.policy()),
        driver.clock().wall(),
    );
    classification.failure(response.status(), headers, extensions, facts, now)
}

/// The error of an attempt, and its failure.
pub(super) fn of_error(error: ServiceError, classify: ClassifyError) -> (ServiceError, Failure) {
    let error = match error {
        ServiceError::Service(error) => error,
        error => return (error, Failure::ambiguous().cause(Cause::Timeout)),
    };
    #[cfg(feature = "grpc")]
    let error = match error.downcast::<super::grpc::AfterHead>() {
        Ok(after) => {
            let mut failure = classified(&*after.0, classify);
            if failure.kind == FailureKind::NotProcessed {
                failure = Failure::network(Network::Reset);
            }
            return (ServiceError::Service(after.0), failure);
        }
        Err(error) => error,
    };
    let failure = classified(&*error, classify);
    (ServiceError::Service(error), failure)
}

/// Whatever the classifier: a failure that was given up below is not repeated above.
fn classified(error: &(dyn Error + 'static), classify: ClassifyError) -> Failure {
    let failure = classify(error);
    match network::given_up(error) {
        Some(reason) => given_up(failure, reason),
        None => failure,
    }
}

#[cold]
pub(super) fn with<R>(summary: Summary, mut response: Response<R>) -> Response<R> {
    response.extensions_mut().insert(summary);
    response
}

/// The request facts, read on first use.
pub(super) fn known<K: Clock>(
    facts: &mut Option<RequestInfo>,
    template: Option<&RequestTemplate>,
    driver: &mut CallDriver<K>,
) -> RequestInfo {
    *facts.get_or_insert_with(|| {
        let facts = template.map_or_else(RequestInfo::default, RequestTemplate::facts);
        driver.set_repeatable(Repeatable::known(facts.repeatable));
        facts
    })
}
