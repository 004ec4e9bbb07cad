//! Building blocks of one HTTP attempt, for a transport of your own, such as the tower layer of this crate
//! or the client of `relent-reqwest`.
//!
//! A transport waits, sends, and reports the result. This module does the rest, equally for all transports: it
//! classifies responses and errors, keeps the request for the next attempt, drains rejected responses, and writes
//! cross-layer headers and spans.

mod request_template;
mod response_classifier;

pub use crate::complete::{Complete, Proof, has_content};
pub use crate::cross_layer::{CrossLayer, CrossLayerCall};
pub use crate::destinations::DestinationSource;
pub use crate::drain::{Drain, MAX_DRAIN_BYTES, MAX_DRAIN_TIME, drain_time};
pub use crate::drained::Drained;
pub use crate::observe::{AttemptSpan, MetricLabel, not_retried};
pub use crate::on_attempt::OnAttempt;
pub use crate::replaced_policy::ReplacedPolicy;
pub use crate::replay::{BodyTurns, Upload};
pub use crate::secret::{HeaderNames, REDACTED, is_secret};
pub use crate::unchanged::UnchangedFile;
pub use request_template::RequestTemplate;
pub use response_classifier::{ResponseClassifier, apply_concurrent_attempts, apply_inner_summary};
