//! A wrapper that makes a boxed error of any type an `Error`.

use std::error::Error;
use std::fmt;

/// A boxed error of any type that implements [`Error`]. `Box<dyn Error + Send + Sync>` and
/// `anyhow::Error` do not, so [`GaveUp::into_dyn`](crate::GaveUp::into_dyn) wraps them.
///
/// Display, sources and `Debug` are those of the inner error.
pub struct DynError(Box<dyn Error + Send + Sync>);

impl DynError {
    /// The inner error, for `is` and `downcast_ref`.
    #[must_use]
    pub fn get_ref(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0
    }

    /// The inner error, by value.
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
