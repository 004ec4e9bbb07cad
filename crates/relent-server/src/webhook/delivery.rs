//! The delivery of a message, for its handler.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

/// A verified delivery of a message, in the extensions of its request.
#[derive(Clone)]
pub struct Delivery {
    pub(super) sender: Arc<str>,
    pub(super) id: Arc<str>,
    pub(super) at: SystemTime,
    pub(super) body: Bytes,
}

impl Delivery {
    /// Returns the name of the [sender](super::Sender) that signed it.
    #[must_use]
    pub fn sender(&self) -> &str {
        &self.sender
    }

    /// Returns the `webhook-id`, which is equal in every delivery of the message.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the `webhook-timestamp`: the time of this delivery attempt by the sender's clock, to the second.
    #[must_use]
    pub const fn at(&self) -> SystemTime {
        self.at
    }

    /// Returns the signed bytes, which are also the body of the request.
    #[must_use]
    pub const fn body(&self) -> &Bytes {
        &self.body
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("sender", &self.sender)
            .field("id", &self.id)
            .field("at", &self.at)
            .field("bytes", &self.body.len())
            .finish()
    }
}
