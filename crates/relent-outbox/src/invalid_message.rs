//! Limits of messages and endpoints, and the error for their violation.

use std::fmt;

/// The longest name of a tenant, endpoint, event, topic or order key, in characters as JSON Schema counts them.
pub const MAX_NAME: usize = 256;
/// The largest payload: 1 MiB. Standard Webhooks recommends less than 20 kB.
pub const MAX_PAYLOAD: usize = 1 << 20;
/// The largest number of subscriptions of an endpoint.
pub const MAX_TOPICS: usize = 64;

/// Whether the text is a valid name: 1 to [`MAX_NAME`] characters without NUL, which PostgreSQL cannot store.
pub(crate) fn is_name(text: &str) -> bool {
    // A short byte length implies a short text, without counting.
    let is_short = text.len() <= MAX_NAME || text.chars().take(MAX_NAME + 1).count() <= MAX_NAME;
    !text.is_empty() && is_short && !text.contains('\0')
}

/// The reason that a message or endpoint is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidMessage {
    /// A name is empty, too long, or contains a NUL.
    Name(&'static str),
    /// The content type cannot be sent in a header.
    ContentType,
    /// The payload is too large: its size in bytes.
    Payload(usize),
    /// The text is not a message identifier.
    Id,
    /// The topic of a message contains `*`.
    Topic,
    /// The text is not a pattern to subscribe by, or there are too many of them.
    Pattern,
}

impl fmt::Display for InvalidMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(what) => {
                write!(
                    f,
                    "the {what} has to have 1 to {MAX_NAME} characters, none of them NUL"
                )
            }
            Self::ContentType => write!(
                f,
                "the content type has to have 1 to {MAX_NAME} visible ASCII characters, such as application/json"
            ),
            Self::Payload(length) => write!(
                f,
                "the payload has {length} bytes, and may have {MAX_PAYLOAD}: send a reference to what is larger"
            ),
            Self::Topic => f.write_str(
                "a topic has no * in it, which stands in the patterns that endpoints subscribe by",
            ),
            Self::Pattern => write!(
                f,
                "a subscription is a topic such as order.paid, or * behind a dot at the end as in order.*, or * alone, with \
                 {MAX_NAME} characters at most; an endpoint has {} at most",
                MAX_TOPICS
            ),
            Self::Id => write!(
                f,
                "an identifier of a message has 1 to {MAX_NAME} letters, digits, - and _, such as msg_0192f0c1"
            ),
        }
    }
}

impl std::error::Error for InvalidMessage {}
