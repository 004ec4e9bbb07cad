//! Conversion to the body type that a service takes.

use crate::replay::ReplayBody;

/// Converts the body of an attempt to the body type that a service takes. Closures implement it.
pub trait MapBody<B> {
    /// The body type that the service takes.
    type Body;

    /// Converts the body of one attempt.
    fn map_body(&self, body: ReplayBody<B>) -> Self::Body;
}

impl<B, O, F: Fn(ReplayBody<B>) -> O> MapBody<B> for F {
    type Body = O;

    fn map_body(&self, body: ReplayBody<B>) -> O {
        self(body)
    }
}

/// Passes [`ReplayBody`] on, for services that take any body.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unchanged;

impl<B> MapBody<B> for Unchanged {
    type Body = ReplayBody<B>;

    #[inline]
    fn map_body(&self, body: ReplayBody<B>) -> ReplayBody<B> {
        body
    }
}
