//! Building blocks of one HTTP attempt, for a transport of your own, such as the tower layer of this crate
//! or the client of `relent-reqwest`.
//!
//! A transport waits, sends, and reports the result. This module does the rest, equally for all transports: it
//! [starts](AttemptStart) each attempt, classifies responses and errors, keeps the request for the next attempt,
//! drains rejected responses, and writes cross-layer headers and spans.

mod request_template;
mod response_classifier;

use http::HeaderMap;
use relent::Attempt;
use relent::clock::Clock;

pub use crate::complete::{Complete, Proof, has_content};
pub use crate::cross_layer::{CrossLayer, CrossLayerCall};
pub use crate::destinations::DestinationSource;
pub use crate::drain::{Drain, MAX_DRAIN_BYTES, MAX_DRAIN_TIME, drain_time};
pub use crate::drained_body::Drained;
pub use crate::observe::{AttemptSpan, MetricLabel, not_retried};
pub use crate::on_attempt::OnAttempt;
pub use crate::replaced_policy::ReplacedPolicy;
pub use crate::replay::{BodyTurns, Upload};
pub use crate::secret::{HeaderNames, REDACTED, is_secret};
pub use crate::unchanged_file::UnchangedFile;
pub use request_template::RequestTemplate;
pub use response_classifier::{ResponseClassifier, apply_concurrent_attempts, apply_inner_summary};

/// Start of one attempt: the same steps for each first, later and hedged attempt of every transport.
///
/// ```
/// use http::{HeaderValue, Request};
/// use relent::Attempt;
/// use relent::clock::StdClock;
/// use relent_http::attempt::{AttemptSpan, AttemptStart, CrossLayerCall, OnAttempt};
///
/// let hook = OnAttempt::new(|attempt, headers| {
///     headers.insert("x-attempt", HeaderValue::from(attempt.number));
/// });
/// let start = AttemptStart {
///     attempt: Attempt::unlimited(2),
///     cross_layer_call: &mut CrossLayerCall::of(None, || StdClock),
///     on_attempt: &hook,
/// };
/// let request = Request::get("http://localhost/").body(())?;
/// let span = |_: &Request<()>| AttemptSpan::of(|| None, 2);
/// let (sent, _) = start.send(request, Request::headers_mut, span, |request| request);
/// assert_eq!(sent.headers()["x-attempt"], "2");
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Debug)]
pub struct AttemptStart<'a, K: Clock> {
    /// The attempt.
    pub attempt: Attempt,
    /// The cross-layer headers of the call.
    pub cross_layer_call: &'a mut CrossLayerCall<K>,
    /// The caller's hook.
    pub on_attempt: &'a OnAttempt,
}

impl<K: Clock> AttemptStart<'_, K> {
    /// Writes the cross-layer headers, starts the span, and calls the hook and `send` within it. The address of the
    /// request must be final.
    #[inline]
    pub fn send<Q, F>(
        self,
        mut request: Q,
        headers: impl Fn(&mut Q) -> &mut HeaderMap,
        span: impl FnOnce(&Q) -> AttemptSpan,
        send: impl FnOnce(Q) -> F,
    ) -> (F, AttemptSpan) {
        let Self {
            attempt,
            cross_layer_call,
            on_attempt,
        } = self;
        cross_layer_call.write_headers(&attempt, headers(&mut request));
        let span = span(&request);
        let entered = span.enter();
        on_attempt.write(&attempt, headers(&mut request));
        let sent = send(request);
        drop(entered);
        (sent, span)
    }
}
