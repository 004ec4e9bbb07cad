//! A sender of webhooks.

use std::sync::Arc;

use relent_http::webhook::Verifier;

/// A sender of webhooks. Its messages are distinct from those of other senders, whatever their identifiers.
#[derive(Clone, Debug)]
pub struct Sender {
    pub(super) name: Arc<str>,
    pub(super) verifier: Verifier,
}

impl Sender {
    /// Creates a sender with this name and its keys. The name is part of the record key of its messages, so do not
    /// change it.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>, verifier: Verifier) -> Self {
        let name = name.into();
        Self { name, verifier }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}
