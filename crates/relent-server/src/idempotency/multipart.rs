//! Multipart bodies without their boundary: most clients choose another one for each request.

use std::iter::once;
use std::ops::Range;

/// The place of the boundary in a `Content-Type`; `None` if that is no multipart type.
pub(super) fn boundary(content_type: &[u8]) -> Option<Range<usize>> {
    const KIND: &[u8] = b"multipart/";
    let kind = content_type.get(..KIND.len())?;
    if !kind.eq_ignore_ascii_case(KIND) {
        return None;
    }
    let end_of = |from: usize, ends: &[u8]| {
        let length = content_type[from..]
            .iter()
            .position(|byte| ends.contains(byte));
        length.map_or(content_type.len(), |length| from + length)
    };
    let mut at = end_of(KIND.len(), b";");
    while at < content_type.len() {
        let name = at + 1..end_of(at + 1, b"=;");
        if content_type.get(name.end) != Some(&b'=') {
            at = name.end;
            continue;
        }
        let first = name.end + 1;
        let value = match content_type.get(first) {
            Some(b'"') => first + 1..end_of(first + 1, b"\""),
            _ => first..end_of(first, b"; \t"),
        };
        at = end_of(value.end, b";");
        if content_type[name]
            .trim_ascii()
            .eq_ignore_ascii_case(b"boundary")
        {
            return (!value.is_empty()).then_some(value);
        }
    }
    None
}

/// The pieces of a multipart body between its delimiters.
pub(super) fn pieces<'a>(body: &'a [u8], boundary: &[u8]) -> Vec<&'a [u8]> {
    let lines = body.windows(2).enumerate();
    let lines = lines.filter_map(|(at, bytes)| (bytes == b"\r\n").then_some(at + 2));
    let (mut pieces, mut from) = (Vec::new(), 0);
    for line in once(0).chain(lines) {
        let rest = body[line..].strip_prefix(b"--");
        if let Some(rest) = rest.and_then(|rest| rest.strip_prefix(boundary)) {
            pieces.push(&body[from..line]);
            from = body.len() - rest.len();
        }
    }
    pieces.push(&body[from..]);
    pieces
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(content_type: &str) -> Option<&str> {
        boundary(content_type.as_bytes()).map(|place| &content_type[place])
    }

    #[test]
    fn a_boundary_is_found_in_multipart_types_only() {
        for (content_type, expected) in [
            ("multipart/form-data; boundary=x1", Some("x1")),
            (
                "Multipart/Mixed;charset=a;BOUNDARY=\"x; 1\"; b=c",
                Some("x; 1"),
            ),
            (
                "multipart/form-data; a=\"; boundary=no\"; boundary=x",
                Some("x"),
            ),
            ("multipart/form-data; boundary=x ; b=c", Some("x")),
            ("multipart/form-data; boundary=", None),
            ("multipart/form-data; boundary", None),
            ("multipart/form-data; a; boundary=x", Some("x")),
            ("multipart/form-data;", None),
            ("multipart/form-data; not-boundary=x", None),
            ("multipart/form-data", None),
            ("text/plain; boundary=x", None),
            ("", None),
        ] {
            assert_eq!(found(content_type), expected, "{content_type}");
        }
    }

    #[test]
    fn a_body_is_split_at_its_delimiters() {
        let body = b"--x\r\nA: b\r\n\r\n1 --x\r\n--x--\r\n";
        let expected: [&[u8]; 3] = [b"", b"\r\nA: b\r\n\r\n1 --x\r\n", b"--\r\n"];
        assert_eq!(pieces(body, b"x"), expected);
        assert_eq!(pieces(b"", b"x"), [b""]);
        assert_eq!(pieces(b"text", b"x"), [b"text"]);
    }

    proptest! {
        #[test]
        fn no_content_type_and_no_body_panics(content_type: Vec<u8>, parameters in "[;=\" a]{0,20}", body in "[-x\r\n]{0,30}") {
            let _ = boundary(&content_type);
            let _ = boundary(format!("multipart/{parameters}").as_bytes());
            let joined = pieces(body.as_bytes(), b"x").join(&b"--x"[..]);
            prop_assert_eq!(joined, body.as_bytes());
        }
    }
}
