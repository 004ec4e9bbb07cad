//! The body that a service takes.

use crate::replay::ReplayBody;

/// Makes the body that a service takes out of the body of an attempt. Closures do.
pub trait MapBody<B> {
    /// What the service takes.
    type Body;

    /// Makes it.
    fn map_body(&self, body: ReplayBody<B>) -> Self::Body;
}

impl<B, O, F: Fn(ReplayBody<B>) -> O> MapBody<B> for F {
    type Body = O;

    fn map_body(&self, body: ReplayBody<B>) -> O {
        self(body)
    }
}

/// The service takes [`ReplayBody`], as those do that take any body.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unchanged;

impl<B> MapBody<B> for Unchanged {
    type Body = ReplayBody<B>;

    #[inline]
    fn map_body(&self, body: ReplayBody<B>) -> ReplayBody<B> {
        body
    }
}
