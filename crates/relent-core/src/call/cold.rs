//! An optional value that is rarely present.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};

/// An `Option` that is nearly always `None`. Dropping `None` is one inlined comparison; dropping the
/// value is out of line.
///
/// ```
/// use relent_core::call::Cold;
///
/// let mut trace: Cold<Box<u64>> = Cold::new(None);
/// assert_eq!(*trace.get_or_insert_default(), Box::new(0));
/// ```
pub struct Cold<T>(ManuallyDrop<Option<T>>);

impl<T> Cold<T> {
    /// Wraps this value.
    #[inline]
    #[must_use]
    pub const fn new(value: Option<T>) -> Self {
        Self(ManuallyDrop::new(value))
    }
}

impl<T> Deref for Cold<T> {
    type Target = Option<T>;

    #[inline]
    fn deref(&self) -> &Option<T> {
        &self.0
    }
}

impl<T> DerefMut for Cold<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Option<T> {
        &mut self.0
    }
}

impl<T> Drop for Cold<T> {
    #[inline]
    fn drop(&mut self) {
        if self.0.is_some() {
            release(&mut self.0);
        }
    }
}

#[cold]
#[inline(never)]
fn release<T>(value: &mut Option<T>) {
    *value = None;
}

impl<T> Default for Cold<T> {
    fn default() -> Self {
        Self::new(None)
    }
}

impl<T: fmt::Debug> fmt::Debug for Cold<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::rc::Rc;

    #[test]
    fn a_cold_value_is_dropped_once() {
        let value = Rc::new(());
        drop(Cold::new(Some(value.clone())));
        assert_eq!(Rc::strong_count(&value), 1);
        let mut taken = Cold::new(Some(value.clone()));
        let out = taken.take();
        drop(taken);
        assert_eq!(Rc::strong_count(&value), 2);
        drop(out);
    }
}
