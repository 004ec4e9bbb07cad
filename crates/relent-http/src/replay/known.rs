//! Bodies whose content is known.

use std::any::Any;

use bytes::Bytes;
use http_body_util::{Empty, Full};

use super::Content;

/// Makes a body of the same content again, from its beginning.
///
/// [`ByType`] knows the common types. For others use a closure. It gets the body that the caller
/// sent, before any of it is read, and may clone it, or open its file
/// again.
///
/// ```
/// use bytes::Bytes;
/// use http_body_util::Full;
/// use relent_http::body::Reopen;
///
/// let cloned = |body: &Full<Bytes>| Some(body.clone());
/// assert!(cloned.reopen(&mut Full::from("content")).is_some());
/// ```
pub trait Reopen<B> {
    /// Makes the content again; `None` if it is not known, so that the body is kept while it streams.
    ///
    /// `body` may be replaced by one of the same content.
    fn reopen(&self, body: &mut B) -> Option<B>;
}

impl<B, F: Fn(&B) -> Option<B>> Reopen<B> for F {
    fn reopen(&self, body: &mut B) -> Option<B> {
        self(body)
    }
}

/// Knows [`Content`], [`Full`] and [`Empty`] of `Bytes`, and `String`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ByType;

impl<B: 'static> Reopen<B> for ByType {
    #[inline]
    fn reopen(&self, body: &mut B) -> Option<B> {
        if let Some(body) = (&*body as &dyn Any).downcast_ref::<Content>() {
            return same(body.restarted());
        }
        None.or_else(|| cloned::<B, Full<Bytes>>(body))
            .or_else(|| cloned::<B, Empty<Bytes>>(body))
            .or_else(|| cloned::<B, String>(body))
    }
}

/// Clones a body whose type is `K`.
#[inline]
fn cloned<B: 'static, K: Clone + 'static>(body: &B) -> Option<B> {
    same((body as &dyn Any).downcast_ref::<K>()?.clone())
}

/// Converts a value to `B` if that is its type.
#[inline]
fn same<B: 'static, K: 'static>(known: K) -> Option<B> {
    let mut known = Some(known);
    (&mut known as &mut dyn Any)
        .downcast_mut::<Option<B>>()?
        .take()
}
