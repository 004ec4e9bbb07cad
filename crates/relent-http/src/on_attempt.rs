//! The caller's hook that writes headers of each attempt.

use std::fmt;
use std::sync::Arc;

use http::HeaderMap;
use relent::Attempt;

/// Hook that is called for each attempt before it is sent, within its span. `None` does nothing.
#[derive(Clone, Default)]
pub struct OnAttempt(Option<Arc<Hook>>);

type Hook = dyn Fn(&Attempt, &mut HeaderMap) + Send + Sync;

impl OnAttempt {
    /// Creates a hook from a function.
    pub fn new(hook: impl Fn(&Attempt, &mut HeaderMap) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    /// Calls the hook for this attempt.
    #[inline]
    pub(crate) fn write(&self, attempt: &Attempt, headers: &mut HeaderMap) {
        if let Some(hook) = &self.0 {
            hook(attempt, headers);
        }
    }
}

impl fmt::Debug for OnAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnAttempt").field(&self.0.is_some()).finish()
    }
}
