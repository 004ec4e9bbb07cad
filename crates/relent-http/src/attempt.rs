//! Building blocks of one HTTP attempt, for a transport of your own, such as the tower layer of this crate
//! or the client of `relent-reqwest`.
//!
//! A transport waits, sends, and reports the result. This module does the rest, equally for all transports: it
//! classifies responses and errors, keeps the request for the next attempt, drains rejected responses, and writes
//! cross-layer headers and spans.

mod judge;
mod request_template;

pub use crate::complete::{Complete, Proof, has_content};
pub use crate::cross_layer::{CrossLayer, Telling};
pub use crate::destinations::DestinationSource;
pub use crate::drain::{BYTES, Drain, TIME, patience};
pub use crate::drained::Drained;
pub use crate::observe::{AttemptSpan, Named, not_retried};
pub use crate::on_attempt::OnAttempt;
pub use crate::replaced_policy::ReplacedPolicy;
pub use crate::replay::{Turns, Upload};
pub use crate::secret::{Names, REDACTED, is_secret};
pub use crate::unchanged::UnchangedFile;
pub use judge::{Judge, in_view_of_below, in_view_of_others};
pub use request_template::RequestTemplate;
