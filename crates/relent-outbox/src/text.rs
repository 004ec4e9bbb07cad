//! Sanitizing of untrusted text for storage and display.

/// Whether the character changes the writing direction (`Bidi_Control` of Unicode), which can disguise a line.
const fn is_bidi_control(character: char) -> bool {
    matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// Replaces each character that changes the writing direction by its escape, such as `\u{202e}`.
///
/// ```
/// use relent_outbox::text::escape_bidi;
///
/// assert_eq!(escape_bidi("paid \u{202e}100"), "paid \\u{202e}100");
/// ```
#[must_use]
pub fn escape_bidi(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match is_bidi_control(character) {
            true => escaped.extend(character.escape_unicode()),
            false => escaped.push(character),
        }
    }
    escaped
}

/// Applies [`escape_bidi`] to the text of an HTML page. Tags stay unchanged, such as form values that are sent back.
#[cfg(feature = "api")]
pub(crate) fn escape_bidi_in_page(page: &str) -> String {
    let mut escaped = String::with_capacity(page.len());
    // Attribute values contain `<` and `>` only as references.
    for (at, part) in page.split('<').enumerate() {
        if at == 0 {
            escaped.push_str(&escape_bidi(part));
            continue;
        }
        let (tag, text) = part.split_once('>').unwrap_or((part, ""));
        escaped.push('<');
        escaped.push_str(tag);
        if part.len() > tag.len() {
            escaped.push('>');
        }
        escaped.push_str(&escape_bidi(text));
    }
    escaped
}

/// Returns the beginning of a text, at most `most` bytes, safe to show and to store: PostgreSQL stores no NUL.
///
/// ```
/// use relent_outbox::text::printable;
///
/// assert_eq!(printable("two\nlines\0", 100), "two lines\u{fffd}");
/// assert_eq!(printable("long", 2), "lo");
/// ```
#[must_use]
pub fn printable(text: &str, most: usize) -> String {
    let mut kept = String::with_capacity(text.len().min(most));
    for character in text.chars() {
        let before = kept.len();
        match character {
            '\n' | '\t' => kept.push(' '),
            character if is_bidi_control(character) => kept.extend(character.escape_unicode()),
            character if character.is_control() => kept.push(char::REPLACEMENT_CHARACTER),
            character => kept.push(character),
        }
        if kept.len() > most {
            kept.truncate(before);
            break;
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bidi_control_characters_are_escaped() {
        for character in "\u{61c}\u{200e}\u{200f}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}".chars() {
            let number = format!("a{}b", character.escape_unicode());
            let text = format!("a{character}b");
            assert_eq!(escape_bidi(&text), number);
            assert_eq!(printable(&text, 100), number);
        }
        // Right-to-left script without control characters stays.
        assert_eq!(escape_bidi("שלום"), "שלום");
        assert_eq!(
            printable("aa\u{202e}", 5),
            "aa",
            "no part of a number is kept"
        );
    }

    #[cfg(feature = "api")]
    #[test]
    fn a_page_escapes_bidi_in_text_but_not_in_form_values() {
        let page = "a\u{202e}<p class=x>b\u{202e}</p><input value=\"c\u{202e}\">d";
        assert_eq!(
            escape_bidi_in_page(page),
            "a\\u{202e}<p class=x>b\\u{202e}</p><input value=\"c\u{202e}\">d"
        );
        assert_eq!(escape_bidi_in_page("<p"), "<p");
        assert_eq!(escape_bidi_in_page("<p>"), "<p>");
    }
}
