//! Errors of bodies that cannot be sent, or not sent again.

use std::error::Error;
use std::fmt;

/// Boxed error of bodies and services of any kind.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Error: the body cannot be sent again. It was too long to be kept, it failed, or the server responded
/// before it was read to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotReplayable;

impl fmt::Display for NotReplayable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body of the request cannot be sent again")
    }
}

impl Error for NotReplayable {}

/// Error of a body whose content a later attempt has taken over, or which has failed before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superseded;

impl fmt::Display for Superseded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the rest of this body is no longer to be sent")
    }
}

impl Error for Superseded {}
