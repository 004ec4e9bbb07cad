//! A value that is seldom there.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

/// An `Option` that is nearly always `None`: dropping it is one comparison, which goes into the
/// caller's own code, and dropping the value stays out of the way.
pub(crate) struct Seldom<T>(ManuallyDrop<Option<T>>);

impl<T> Seldom<T> {
    pub(crate) const fn new(value: Option<T>) -> Self {
        Self(ManuallyDrop::new(value))
    }
}

impl<T> Deref for Seldom<T> {
    type Target = Option<T>;

    #[inline]
    fn deref(&self) -> &Option<T> {
        &self.0
    }
}

impl<T> DerefMut for Seldom<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Option<T> {
        &mut self.0
    }
}

impl<T> Drop for Seldom<T> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn what_is_there_is_dropped_once() {
        let value = Rc::new(());
        drop(Seldom::new(Some(value.clone())));
        assert_eq!(Rc::strong_count(&value), 1);
        let mut taken = Seldom::new(Some(value.clone()));
        let out = taken.take();
        drop(taken);
        assert_eq!(Rc::strong_count(&value), 2);
        drop(out);
    }
}
