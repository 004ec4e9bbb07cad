//! An error of any type as an error that can be the cause of others.

use std::error::Error;
use std::fmt;

/// An error of any type that is itself an [`Error`]. `Box<dyn Error + Send + Sync>` and
/// `anyhow::Error` are not, so [`GaveUp::into_dyn`](crate::GaveUp::into_dyn) puts them into this.
///
/// Its text, its sources and its `Debug` output are those of the error within.
pub struct DynError(Box<dyn Error + Send + Sync>);

impl DynError {
    /// The error within, for `is` and `downcast_ref`.
    #[must_use]
    pub fn get_ref(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0
    }

    /// The error within, by value.
    #[must_use]
    pub fn into_inner(self) -> Box<dyn Error + Send + Sync> {
        self.0
    }
}

impl From<Box<dyn Error + Send + Sync>> for DynError {
    fn from(error: Box<dyn Error + Send + Sync>) -> Self {
        Self(error)
    }
}

impl fmt::Display for DynError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for DynError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Error for DynError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}
