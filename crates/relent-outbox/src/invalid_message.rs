//! What messages and endpoints may have, and the error that says it.

use std::fmt;

/// The longest name of a tenant, an endpoint, an event, a topic or an order, in characters: as JSON Schema counts them.
pub const MAX_NAME: usize = 256;
/// The most that a message may hold: 1 MiB. Standard Webhooks asks for less than 20 kB.
pub const MAX_PAYLOAD: usize = 1 << 20;
/// The most subscriptions of an endpoint.
pub const MAX_TOPICS: usize = 64;

/// Whether this is the name of anything: 1 to [`MAX_NAME`] characters, none of them NUL, of which PostgreSQL keeps none.
pub(crate) fn is_name(text: &str) -> bool {
    // No character has more than four bytes.
    let is_short = text.len() <= MAX_NAME || text.chars().take(MAX_NAME + 1).count() <= MAX_NAME;
    !text.is_empty() && is_short && !text.contains('\0')
}

/// Why something is no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidMessage {
    /// A name is empty or too long.
    Name(&'static str),
    /// The content type cannot stand in a header.
    ContentType,
    /// The payload has so many bytes.
    Payload(usize),
    /// Not an identifier of a message.
    Id,
    /// The topic of a message has a `*` in it.
    Topic,
    /// Nothing that an endpoint can subscribe by.
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
