//! The causes of an error.

use std::error::Error;

/// A cause of an error.
pub type Source<'e> = &'e (dyn Error + 'static);
