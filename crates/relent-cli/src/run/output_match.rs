//! A search for a regular expression in bytes that arrive in pieces, in bounded memory.

use regex::bytes::Regex;

/// The length of the longest match that is certainly found, in bytes.
const MAX_MATCH_BYTES: usize = 1 << 20;

/// The bytes of context on either side of a position for `^`, `$` and `\b`: the longest UTF-8
/// character.
const CONTEXT_BYTES: usize = 4;

/// Searches one stream of output for a regular expression.
///
/// The borders between pieces do not matter: the stream is searched in overlapping windows of
/// 2 MiB, so every match of at most 1 MiB is found and a longer one may be missed. Anchors mean the
/// start and the end of the whole stream.
///
/// At most 2 MiB and one piece are held, and a byte is searched at most twice.
#[derive(Debug)]
pub(crate) struct OutputMatch {
    regex: Regex,
    window: Vec<u8>,
    /// The start of the search in `window`; the bytes before it are context.
    start: usize,
    matched: bool,
}

impl OutputMatch {
    pub(crate) fn new(regex: Regex) -> Self {
        Self {
            regex,
            window: Vec::new(),
            start: 0,
            matched: false,
        }
    }

    /// Takes the next piece of the stream.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.matched {
            return;
        }
        self.window.extend_from_slice(bytes);
        if self.window.len() < 2 * MAX_MATCH_BYTES {
            return;
        }
        // A match at the end of the window may be an anchor that matches only because the window ends
        // there. The next window, which overlaps this one, decides.
        let certain = self.window.len() - CONTEXT_BYTES;
        self.matched = self
            .regex
            .shortest_match_at(&self.window, self.start)
            .is_some_and(|end| end <= certain);
        if self.matched {
            self.window = Vec::new();
        } else {
            self.window
                .drain(..self.window.len() - MAX_MATCH_BYTES - CONTEXT_BYTES);
            self.start = CONTEXT_BYTES;
        }
    }

    /// Whether the stream, which ends here, contains a match.
    pub(crate) fn finish(self) -> bool {
        self.matched || self.regex.is_match_at(&self.window, self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(regex: &str, pieces: &[&[u8]]) -> bool {
        let mut output = OutputMatch::new(Regex::new(regex).unwrap());
        for piece in pieces {
            output.push(piece);
        }
        output.finish()
    }

    #[test]
    fn a_match_may_lie_across_pieces() {
        assert!(found(
            "connection reset",
            &[b"error: conn", b"ection", b" reset by peer\n"]
        ));
        assert!(!found("connection reset", &[b"conn", b"ected, reset\n"]));
        assert!(found("^$", &[]));
        assert!(!found("x", &[]));
    }

    #[test]
    fn bytes_that_are_not_utf8_are_searched_too() {
        assert!(found("bad", &[b"\xff\xfe ba", b"d\x00"]));
        assert!(found(r"(?-u)\xff\xfe", &[b"\xff", b"\xfe"]));
    }

    #[test]
    fn a_match_is_found_at_any_position_of_a_long_stream() {
        let filler = vec![b'.'; 3 * MAX_MATCH_BYTES - 5];
        for after in [0, 10, 5 * MAX_MATCH_BYTES] {
            let after = vec![b'.'; after];
            assert!(found(
                "temporary failure",
                &[&filler, b"temporary f", b"ailure", &after]
            ));
            assert!(found(
                "(?s)temporary.*",
                &[&filler, b"temp", b"orary", &after]
            ));
        }
    }

    #[test]
    fn anchors_mean_the_ends_of_the_stream_and_not_of_a_window() {
        let long = vec![b'a'; 5 * MAX_MATCH_BYTES + 3];
        assert!(!found("b$", &[b"b", &long]));
        assert!(!found("^b", &[&long, b"b", &long]));
        assert!(!found(r"aaa$", &[&long, b"b"]));
        assert!(!found(r"^\n", &[&long, b"\n"]));
        assert!(found(r"ab\z", &[&long, b"b"]));
        assert!(found(r"\Aaa", &[&long]));
        assert!(!found(r"\baab", &[&long, b"b"]));
        assert!(found(r"(?m)^b$", &[&long, b"\n", b"b\n", &long]));
        assert!(!found(r"(?m)^b$", &[&long, b"b\n", &long]));
    }

    proptest! {
        #[test]
        fn a_regex_matches_pieces_like_the_whole_output(
            text in proptest::collection::vec(proptest::sample::select(b"ab\n ".to_vec()), 0..40),
            cut in 0usize..40,
        ) {
            let cut = cut.min(text.len());
            for regex in ["a+b", "^a", "b$", r"(?m)^ab$", r"\bab\b", "aa|bb"] {
                let whole = Regex::new(regex).unwrap().is_match(&text);
                prop_assert_eq!(found(regex, &[&text[..cut], &text[cut..]]), whole);
            }
        }
    }
}
