//! Where the attempts of a driver go: to a destination that callers share, or to none.

use std::ops::Deref;

use std::sync::Arc;

use relent_core::{Entered, Place, Policy};

use crate::destination::{Destination, Locked};

/// Where the attempts of a [`Driver`](crate::driver::Driver) go: [`ToDestination`], or [`NoDestination`]. It is
/// part of the driver's type, so that a driver without a destination has neither room nor instructions
/// for what it would do there (design rule 10). [`ByDestination`] is one whose policy comes with it. There
/// are no others.
pub trait Target: sealed::Sealed {
    /// The room for where a call stands there.
    #[doc(hidden)]
    type Place: Place;

    /// The destination.
    fn destination(&self) -> Option<&Destination>;

    /// The policy that comes with it, in place of one that the caller gives.
    #[doc(hidden)]
    #[inline]
    fn policy(&self) -> Option<&Policy> {
        None
    }

    /// The same, as the core knows it.
    #[doc(hidden)]
    #[inline]
    fn shared(&self) -> Option<&relent_core::Destination<Locked>> {
        self.destination().map(|destination| &destination.core)
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::NoDestination {}
    impl<D> Sealed for super::ToDestination<D> {}
    impl Sealed for super::ByDestination<'_> {}
}

/// There is no destination that callers share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NoDestination;

impl Target for NoDestination {
    type Place = ();

    #[inline]
    fn destination(&self) -> Option<&Destination> {
        None
    }
}

/// A destination that callers share, if there is one: `D` is a reference to it or a share in it.
pub struct ToDestination<D>(Option<D>);

impl<D> ToDestination<D> {
    pub(crate) const fn new(destination: Option<D>) -> Self {
        Self(destination)
    }
}

impl<D: Deref<Target = Destination>> Target for ToDestination<D> {
    type Place = Option<Entered>;

    #[inline]
    fn destination(&self) -> Option<&Destination> {
        self.0.as_deref()
    }
}

/// A destination together with the policy that it had when the call was made: see
/// [`Destination::retry`].
#[derive(Debug)]
pub struct ByDestination<'d> {
    destination: &'d Destination,
    policy: Arc<Policy>,
}

impl<'d> ByDestination<'d> {
    pub(crate) fn new(destination: &'d Destination) -> Self {
        Self {
            destination,
            policy: destination.policy(),
        }
    }
}

impl Target for ByDestination<'_> {
    type Place = Option<Entered>;

    #[inline]
    fn destination(&self) -> Option<&Destination> {
        Some(self.destination)
    }

    #[inline]
    fn policy(&self) -> Option<&Policy> {
        Some(&self.policy)
    }
}

/// A [`Target`] whose policy its caller gives, and so may give it another destination: all but
/// [`ByDestination`].
#[diagnostic::on_unimplemented(
    message = "a call that was made by its destination cannot go to another",
    note = "make it by the other destination, or by `retry(policy, ..).destination(..)`"
)]
pub trait PolicyOfCaller: Target {}

impl PolicyOfCaller for NoDestination {}
impl<D: Deref<Target = Destination>> PolicyOfCaller for ToDestination<D> {}

impl<D: Deref<Target = Destination>> std::fmt::Debug for ToDestination<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ToDestination")
            .field(&self.destination())
            .finish()
    }
}
