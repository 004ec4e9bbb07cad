//! What an attempt over HTTP is made of: for those who write a transport, as the tower layer of this crate
//! and the client of `relent-reqwest` are.
//!
//! A transport sleeps, sends, and says how it ended. What a response or an error means, what is kept of
//! a request for the next attempt, what is read of a refused response, and what is told to servers and in
//! spans is here, so that it is the same in all of them.

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
