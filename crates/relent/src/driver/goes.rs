//! Where a session goes: to a destination that it shares, or nowhere in particular.

use std::ops::Deref;

use super::visit::Visit;
use crate::destination::Destination;

/// Where a session goes: [`Nowhere`], or [`To`] a destination. It is part of the type of a
/// [`Driver`](crate::Driver), so that a session without a destination has neither room nor
/// instructions for what it would do there (design rule 10). There are no others.
pub trait Goes {
    /// The destination.
    fn destination(&self) -> Option<&Destination>;

    /// How far it has come there, once it has been there.
    #[doc(hidden)]
    fn visit(&self) -> Option<&Visit>;

    /// Both, to go on.
    #[doc(hidden)]
    fn parts(&mut self) -> Option<(&Destination, &mut Option<Visit>)>;
}

/// A session without a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Nowhere;

impl Goes for Nowhere {
    #[inline]
    fn destination(&self) -> Option<&Destination> {
        None
    }

    #[inline]
    fn visit(&self) -> Option<&Visit> {
        None
    }

    #[inline]
    fn parts(&mut self) -> Option<(&Destination, &mut Option<Visit>)> {
        None
    }
}

/// A session that goes to a destination, if there is one: `D` is a reference to it or a share in it.
pub struct To<D> {
    destination: Option<D>,
    visit: Option<Visit>,
}

impl<D> To<D> {
    pub(crate) const fn new(destination: Option<D>) -> Self {
        Self {
            destination,
            visit: None,
        }
    }
}

impl<D: Deref<Target = Destination>> Goes for To<D> {
    #[inline]
    fn destination(&self) -> Option<&Destination> {
        self.destination.as_deref()
    }

    #[inline]
    fn visit(&self) -> Option<&Visit> {
        self.visit.as_ref()
    }

    #[inline]
    fn parts(&mut self) -> Option<(&Destination, &mut Option<Visit>)> {
        Some((self.destination.as_deref()?, &mut self.visit))
    }
}

impl<D: Deref<Target = Destination>> std::fmt::Debug for To<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("To").field(&self.destination()).finish()
    }
}
