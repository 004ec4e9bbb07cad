//! A value that is borrowed, or held by an `Arc`.

use std::ops::Deref;
use std::sync::Arc;

/// A policy or a destination of a driver.
pub(crate) enum Handle<'p, T> {
    Borrowed(&'p T),
    Shared(Arc<T>),
}

impl<T> Deref for Handle<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        match self {
            Self::Borrowed(value) => value,
            Self::Shared(value) => value,
        }
    }
}
