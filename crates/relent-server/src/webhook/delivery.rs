//! What a handler knows of the delivery that it handles.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

/// One delivery of a message, whose signature was good: in the extensions of its request.
#[derive(Clone)]
pub struct Delivery {
    pub(super) sender: Arc<str>,
    pub(super) id: Arc<str>,
    pub(super) at: SystemTime,
    pub(super) body: Bytes,
}

impl Delivery {
    /// The name of the [sender](super::Sender) that has signed it.
    #[must_use]
    pub fn sender(&self) -> &str {
        &self.sender
    }

    /// The `webhook-id`: the same in every delivery of the message.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The `webhook-timestamp`: when this attempt to deliver it was made, by the sender's clock and to the second.
    #[must_use]
    pub const fn at(&self) -> SystemTime {
        self.at
    }

    /// The bytes that are signed. The request has them as its body, too.
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
