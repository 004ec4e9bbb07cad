//! A sender of webhooks.

use std::sync::Arc;

use relent_http::webhook::Verifier;

/// A sender of webhooks: its messages are told apart from those of others, whatever their identifiers are.
#[derive(Clone, Debug)]
pub struct Sender {
    pub(super) name: Arc<str>,
    pub(super) verifier: Verifier,
}

impl Sender {
    /// A sender of this name, with the keys that it signs by. The name is part of what messages are remembered by: it
    /// had better not change.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>, verifier: Verifier) -> Self {
        let name = name.into();
        Self { name, verifier }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}
