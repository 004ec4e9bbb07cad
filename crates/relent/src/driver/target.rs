//! The target of a driver's attempts: a shared destination, or none.

use std::ops::Deref;

use std::sync::Arc;

use relent_core::Policy;
use relent_core::call::{DestinationSlot, DestinationState};

use crate::destination::{Destination, LockedState};

/// The target of a [`Driver`](crate::driver::Driver)'s attempts: [`ToDestination`],
/// [`NoDestination`], or [`ByDestination`], which includes the policy. Sealed. It is part of the
/// driver's type, so that a driver without a destination has no memory or code for one.
pub trait Target: sealed::Sealed {
    /// The state of a call at the destination.
    #[doc(hidden)]
    type DestinationSlot: DestinationSlot;

    /// The destination.
    fn destination(&self) -> Option<&Destination>;

    /// The policy of the destination, which replaces the caller's.
    #[doc(hidden)]
    #[inline]
    fn policy(&self) -> Option<&Policy> {
        None
    }

    /// The core's part of the destination.
    #[doc(hidden)]
    #[inline]
    fn shared(&self) -> Option<&relent_core::destination::Destination<LockedState>> {
        self.destination().map(|destination| &destination.core)
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::NoDestination {}
    impl<D> Sealed for super::ToDestination<D> {}
    impl Sealed for super::ByDestination<'_> {}
}

/// No shared destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NoDestination;

impl Target for NoDestination {
    type DestinationSlot = ();

    #[inline]
    fn destination(&self) -> Option<&Destination> {
        None
    }
}

/// A shared destination, if there is one; `D` is a reference or an `Arc`.
pub struct ToDestination<D>(Option<D>);

impl<D> ToDestination<D> {
    pub(crate) const fn new(destination: Option<D>) -> Self {
        Self(destination)
    }
}

impl<D: Deref<Target = Destination>> Target for ToDestination<D> {
    type DestinationSlot = Option<DestinationState>;

    #[inline]
    fn destination(&self) -> Option<&Destination> {
        self.0.as_deref()
    }
}

/// A destination with the policy that it had when the call started: see [`Destination::retry`].
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
    type DestinationSlot = Option<DestinationState>;

    #[inline]
    fn destination(&self) -> Option<&Destination> {
        Some(self.destination)
    }

    #[inline]
    fn policy(&self) -> Option<&Policy> {
        Some(&self.policy)
    }
}

/// A [`Target`] whose policy the caller provides, so that the destination can be replaced: all but
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
