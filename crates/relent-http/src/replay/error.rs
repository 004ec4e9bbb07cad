//! Why a body is not sent, or not sent again.

use std::error::Error;
use std::fmt;

/// The error of bodies and services of any kind.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The body cannot be sent again: it was too long to be kept, it failed, or the server answered
/// before it was read to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotReplayable;

impl fmt::Display for NotReplayable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body of the request cannot be sent again")
    }
}

impl Error for NotReplayable {}

/// The error of a body whose content a later attempt has taken over, or which has failed before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superseded;

impl fmt::Display for Superseded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the rest of this body is no longer to be sent")
    }
}

impl Error for Superseded {}
