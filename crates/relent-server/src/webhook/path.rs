//! Canonical paths: an endpoint has one path, however it is encoded.

use std::fmt::Write;

/// Removes redundant percent-encoding (RFC 3986, section 6.2.2.2, and beyond, as routers decode parameter values):
/// `/%61:` and `/a%3A` become `/a:`. Slash, percent sign and non-ASCII bytes stay encoded.
pub(super) fn canonical(path: &str) -> String {
    let mut written = String::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, after @ ..] = rest {
        let decoded = match rest {
            [b'%', high, low, after @ ..] => hex(*high)
                .zip(hex(*low))
                .map(|(high, low)| (16 * high + low, after)),
            _ => None,
        };
        let (byte, is_plain);
        (byte, is_plain, rest) = match decoded {
            Some((byte, after)) => (byte, byte != b'/' && byte != b'%', after),
            None => (*first, *first != b'%', after),
        };
        if byte.is_ascii() && is_plain {
            written.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(written, "%{byte:02X}");
        }
    }
    written
}

fn hex(digit: u8) -> Option<u8> {
    let digit = char::from(digit).to_digit(16)?;
    u8::try_from(digit).ok()
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[test]
    fn equal_paths_have_one_canonical_form_and_different_paths_differ() {
        for (path, form) in [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/%61%3a%20", "/a: "),
            ("/a%2fb", "/a%2Fb"),
            ("/%252F", "/%252F"),
            ("/%25", "/%25"),
            ("/%", "/%25"),
            ("/%6", "/%256"),
            ("/%zz", "/%25zz"),
            ("/é", "/%C3%A9"),
            ("/%c3%a9", "/%C3%A9"),
        ] {
            assert_eq!(canonical(path), form);
        }
    }
}
