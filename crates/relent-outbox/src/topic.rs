//! Topics of events, and the patterns by which endpoints subscribe to them.
//!
//! A pattern is one of three: a topic, such as `order.paid`; a topic followed by `.*`, such as `order.*`, which covers
//! all topics that begin with `order.`, but not `order` itself; or `*`, which covers every topic.
//!
//! ```
//! use relent_outbox::topic;
//!
//! assert_eq!(topic::patterns("order.paid.eu"), ["order.paid.eu", "order.paid.*", "order.*", "*"]);
//! assert!(topic::check_pattern("order.*").is_ok());
//! assert!(topic::check_pattern("*.paid").is_err());
//! ```

use crate::invalid_message::{InvalidMessage, is_name};

/// The topic of messages that [test](crate::message::NewMessage::test) an endpoint.
pub const TEST: &str = "relent.test";

/// Returns the patterns that cover this topic, the narrowest first.
#[must_use]
pub fn patterns(topic: &str) -> Vec<String> {
    let mut patterns = vec![topic.to_owned()];
    for (end, _) in topic.rmatch_indices('.') {
        patterns.push(format!("{}.*", &topic[..end]));
    }
    patterns.push("*".to_owned());
    patterns
}

/// Returns the common prefix of the topics that this pattern covers; `None` if it covers a single topic.
#[must_use]
pub fn prefix(pattern: &str) -> Option<&str> {
    let prefix = pattern.strip_suffix('*')?;
    (prefix.is_empty() || prefix.ends_with('.')).then_some(prefix)
}

/// Checks the topic of a message, which may be empty.
///
/// # Errors
/// [`InvalidMessage`] if it is too long, or contains `*` or NUL.
pub fn check(topic: &str) -> Result<(), InvalidMessage> {
    match is_name(topic) || topic.is_empty() {
        true if topic.contains('*') => Err(InvalidMessage::Topic),
        true => Ok(()),
        false => Err(InvalidMessage::Name("topic")),
    }
}

/// Checks a pattern by which an endpoint subscribes.
///
/// # Errors
/// [`InvalidMessage`] if it is not a valid topic, or contains `*` except alone or at its end after a dot.
pub fn check_pattern(pattern: &str) -> Result<(), InvalidMessage> {
    let topic = prefix(pattern).unwrap_or(pattern);
    match is_name(pattern) && !topic.contains('*') {
        true => Ok(()),
        false => Err(InvalidMessage::Pattern),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_pattern_is_a_topic_or_ends_with_dot_star() {
        for pattern in [
            "a",
            "a.b",
            "*",
            "a.*",
            "a.b.*",
            "Bestellung.\u{fc}.*",
            "a..*",
        ] {
            assert_eq!(check_pattern(pattern), Ok(()), "{pattern}");
        }
        for wrong in [
            "",
            "a*",
            "*.a",
            "a.*.b",
            "**",
            "a.**",
            "a\0",
            &"a".repeat(257),
        ] {
            assert!(check_pattern(wrong).is_err(), "{wrong}");
        }
        assert_eq!(check("a.*"), Err(InvalidMessage::Topic));
        assert_eq!(check(""), Ok(()));
    }

    proptest! {
        #[test]
        fn a_topic_has_exactly_the_patterns_that_cover_it(topic in "[ab.]{1,8}", pattern in "[ab.]{0,4}[.]?[*]?") {
            prop_assume!(check_pattern(&pattern).is_ok());
            let covers = match prefix(&pattern) {
                Some(prefix) => topic.starts_with(prefix),
                None => topic == pattern,
            };
            prop_assert_eq!(patterns(&topic).contains(&pattern), covers);
        }
    }
}
