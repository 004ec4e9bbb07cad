//! Idempotency keys: the name under which a server recognises duplicates of a request.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue};
use relent_core::Random;
use sfv::{BareItem, Item, Parser};

use crate::field::trim;
use crate::headers::IDEMPOTENCY_KEY;

/// A key for `Idempotency-Key`: one per logical request, shared by all its attempts.
///
/// It makes any method repeatable, provided that the server supports the field. Other servers do not
/// recognise duplicates.
///
/// ```
/// use http::HeaderMap;
/// use relent_http::{IdempotencyKey, KeyForm};
///
/// let key: IdempotencyKey = "order-17".parse()?;
/// assert_eq!(key.header_value(KeyForm::Quoted), "\"order-17\"");
/// assert_eq!(key.header_value(KeyForm::Bare), "order-17");
/// # Ok::<(), relent_http::InvalidKey>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct IdempotencyKey(String);

/// How the field value encodes a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum KeyForm {
    /// As a string in quotes (draft-ietf-httpapi-idempotency-key-header, RFC 9651 §3.3.3). The
    /// default.
    #[default]
    Quoted,
    /// Without quotes, for servers older than the draft (Stripe, Square).
    Bare,
}

/// Error: a text is not a valid key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidKey {
    /// The key is empty.
    Empty,
    /// The key has a character that a string of RFC 9651 cannot contain without an escape.
    Character(char),
}

impl fmt::Display for InvalidKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a key is not empty"),
            Self::Character(found) => write!(
                f,
                "{found:?} is in the key: a key is of printable ASCII, without quotes and backslashes \
                 unless it is in quotes and they are escaped by a backslash"
            ),
        }
    }
}

impl std::error::Error for InvalidKey {}

impl IdempotencyKey {
    /// Creates a UUIDv7 from the current time and the system's random source.
    #[cfg(feature = "attempt")]
    #[must_use]
    #[allow(
        clippy::new_without_default,
        reason = "two defaults would not be equal"
    )]
    pub fn new() -> Self {
        Self(uuid::Uuid::now_v7().to_string())
    }

    /// Creates a UUIDv7 (RFC 9562 §5.7) from this instant and 74 random bits. A key is only as unique as its
    /// random source.
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use relent_core::FixedRandom;
    /// use relent_http::IdempotencyKey;
    ///
    /// let instant = UNIX_EPOCH + Duration::from_millis(0x0188_1c1c_1c1c);
    /// let key = IdempotencyKey::from_random(instant, &mut FixedRandom::at(0.0));
    /// assert_eq!(key.as_str(), "01881c1c-1c1c-7000-8000-000000000000");
    /// ```
    #[must_use]
    pub fn from_random(now: SystemTime, random: &mut (impl Random + ?Sized)) -> Self {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&random.next_u64().to_be_bytes());
        bytes[8..].copy_from_slice(&random.next_u64().to_be_bytes()[..2]);
        let uuid = uuid::Builder::from_unix_timestamp_millis(millis, &bytes).into_uuid();
        Self(uuid.to_string())
    }

    /// Reads the key of a request, in either form: a string of RFC 9651, with escapes decoded and
    /// parameters ignored, or a bare value of printable ASCII that does not begin with a quote.
    ///
    /// `None` if the field is absent, empty, neither of the two forms, or occurs more than once. The field
    /// is a single item (draft-ietf-httpapi-idempotency-key-header §2.1). Several lines, even equal ones, are
    /// malformed (RFC 9651 §4.2), and a server may take any of them.
    ///
    /// ```
    /// use http::HeaderMap;
    /// use relent_http::IdempotencyKey;
    ///
    /// let mut headers = HeaderMap::new();
    /// headers.insert("idempotency-key", "\"order-17\"".parse()?);
    /// let key = IdempotencyKey::of(&headers);
    /// assert_eq!(key.as_ref().map(IdempotencyKey::as_str), Some("order-17"));
    /// # Ok::<(), http::header::InvalidHeaderValue>(())
    /// ```
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        of(headers).map(|key| Self(key.into_owned()))
    }

    /// The key, without quotes.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value of the field.
    #[must_use]
    pub fn header_value(&self, form: KeyForm) -> HeaderValue {
        let value = match form {
            KeyForm::Quoted => HeaderValue::try_from(quoted(&self.0)),
            KeyForm::Bare => HeaderValue::try_from(&self.0),
        };
        // A key consists of printable ASCII, so it always is a header value.
        value.unwrap_or(HeaderValue::from_static(""))
    }

    /// Writes the key to these headers, replacing an existing one.
    pub fn attach(&self, form: KeyForm, headers: &mut HeaderMap) {
        headers.insert(IDEMPOTENCY_KEY, self.header_value(form));
    }
}

impl FromStr for IdempotencyKey {
    type Err = InvalidKey;

    /// Parses a key as a person writes it, without quotes or as a quoted string of RFC 9651.
    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        if let Some(key) = string(text) {
            return match &*key {
                "" => Err(InvalidKey::Empty),
                key => Ok(Self(key.to_owned())),
            };
        }
        let inner = text
            .strip_prefix('"')
            .and_then(|text| text.strip_suffix('"'));
        let bare = inner.unwrap_or(text);
        if bare.is_empty() {
            return Err(InvalidKey::Empty);
        }
        match bare.chars().find(|found| !is_plain(*found)) {
            Some(found) => Err(InvalidKey::Character(found)),
            None => Ok(Self(bare.to_owned())),
        }
    }
}

/// The non-empty key in these headers: see [`IdempotencyKey::of`].
pub(crate) fn of(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let value = trim(values.next()?.as_bytes());
    if values.next().is_some() {
        return None;
    }
    let text = std::str::from_utf8(value).ok()?;
    let key = if text.starts_with('"') {
        string(text)?
    } else {
        let printable = text.chars().all(|found| matches!(found, ' '..='~'));
        printable.then_some(Cow::Borrowed(text))?
    };
    (!key.is_empty()).then_some(key)
}

/// Decodes a string of RFC 9651; parameters are ignored.
fn string(text: &str) -> Option<Cow<'_, str>> {
    let inner = text.strip_prefix('"')?;
    // Most strings have no escapes and need no parser.
    if let Some(inner) = inner.strip_suffix('"')
        && inner.chars().all(is_plain)
    {
        return Some(Cow::Borrowed(inner));
    }
    let item: Item = Parser::new(text).parse().ok()?;
    match item.bare_item {
        BareItem::String(string) => Some(Cow::Owned(string.into())),
        _ => None,
    }
}

/// Encodes a key as a string of RFC 9651.
fn quoted(key: &str) -> String {
    let mut quoted = String::with_capacity(key.len() + 2);
    quoted.push('"');
    for character in key.chars() {
        if !is_plain(character) {
            quoted.push('\\');
        }
        quoted.push(character);
    }
    quoted.push('"');
    quoted
}

/// Whether a string of RFC 9651 contains this character without an escape.
const fn is_plain(character: char) -> bool {
    matches!(character, ' '..='~') && !matches!(character, '"' | '\\')
}

impl TryFrom<&str> for IdempotencyKey {
    type Error = InvalidKey;

    fn try_from(text: &str) -> Result<Self, InvalidKey> {
        text.parse()
    }
}

impl TryFrom<String> for IdempotencyKey {
    type Error = InvalidKey;

    fn try_from(text: String) -> Result<Self, InvalidKey> {
        text.parse()
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use proptest::prelude::*;
    use relent_core::FixedRandom;

    use super::*;
    use crate::RequestInfo;

    #[test]
    fn a_key_may_be_given_in_quotes() {
        let key: IdempotencyKey = "\"k 1\"".parse().unwrap();
        assert_eq!(key, "k 1".parse().unwrap());
        assert_eq!(key.header_value(KeyForm::Quoted), "\"k 1\"");
    }

    fn of(values: &[&str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IDEMPOTENCY_KEY, value.parse().unwrap());
        }
        let key = IdempotencyKey::of(&headers);
        // A valid key, and nothing else, makes a POST repeatable.
        let facts = RequestInfo::of(&Method::POST, &headers);
        assert_eq!(
            (facts.keyed, facts.repeatable),
            (key.is_some(), key.is_some())
        );
        key.map(|key| key.0)
    }

    #[test]
    fn escapes_and_parameters_of_a_structured_field_are_read() {
        for (value, key) in [
            (r#""a\"b""#, r#"a"b"#),
            (r#""a\"b";p=1"#, r#"a"b"#),
            (r#""a\\b""#, r"a\b"),
            (r#""k";p=1;q="x\"""#, "k"),
            (r#"  "k"; p "#, "k"),
            (r#""k""#, "k"),
            // A bare value is not a structured field: it is taken literally.
            ("k;p=1", "k;p=1"),
            (r#"a"b\"#, r#"a"b\"#),
        ] {
            assert_eq!(of(&[value]).as_deref(), Some(key), "{value}");
        }
        for malformed in [
            "\"",
            "\"\"",
            "\"k",
            r#""k\""#,
            r#""a\b""#,
            r#""a"b""#,
            r#""a" "b""#,
            r#""a", "b""#,
            "\"k\";",
            "\"\";p=1",
            "",
        ] {
            assert_eq!(of(&[malformed]), None, "{malformed}");
        }
        let read: IdempotencyKey = r#""a\"b";p=1"#.parse().unwrap();
        assert_eq!(read.as_str(), r#"a"b"#);
        assert_eq!(read.header_value(KeyForm::Quoted), r#""a\"b""#);
        assert_eq!(read.header_value(KeyForm::Bare), r#"a"b"#);
    }

    #[test]
    fn more_than_one_key_field_is_ignored() {
        assert_eq!(of(&["\"a\"", "\"b\""]), None);
        assert_eq!(of(&["a", "b"]), None);
        // By the draft the field is one item, so two that are alike are malformed too.
        assert_eq!(of(&["\"a\"", "\"a\""]), None);
        assert_eq!(of(&["", "a"]), None);
    }

    #[test]
    fn a_key_with_invalid_characters_is_rejected() {
        for (text, found) in [
            ("a\"b", '"'),
            ("\\", '\\'),
            ("\u{7f}", '\u{7f}'),
            ("ö", 'ö'),
            ("a\nb", '\n'),
        ] {
            let parsed = text.parse::<IdempotencyKey>();
            assert_eq!(parsed, Err(InvalidKey::Character(found)), "{text:?}");
        }
        for empty in ["", "\"\""] {
            assert_eq!(empty.parse::<IdempotencyKey>(), Err(InvalidKey::Empty));
        }
        assert_eq!(
            "\"".parse::<IdempotencyKey>(),
            Err(InvalidKey::Character('"'))
        );
    }

    #[test]
    fn a_generated_key_is_a_uuid_v7_with_its_time() {
        let now = UNIX_EPOCH + Duration::from_millis(0x0123_4567_89ab);
        for point in [0.0, 0.5, 1.0] {
            let key = IdempotencyKey::from_random(now, &mut FixedRandom::at(point));
            let uuid = uuid::Uuid::parse_str(key.as_str()).unwrap();
            assert_eq!(uuid.get_version_num(), 7);
            assert_eq!(uuid.get_variant(), uuid::Variant::RFC4122);
            assert!(key.as_str().starts_with("01234567-89ab-7"), "{key}");
        }
        let before = UNIX_EPOCH - Duration::from_secs(1);
        let key = IdempotencyKey::from_random(before, &mut FixedRandom::at(0.0));
        assert!(key.as_str().starts_with("00000000-0000-7"), "{key}");
    }

    proptest! {
        #[test]
        fn a_key_is_read_back_from_either_form(text in "[ !#-\\[\\]-~]{1,40}") {
            let key: IdempotencyKey = text.parse().unwrap();
            for form in [KeyForm::Quoted, KeyForm::Bare] {
                let mut headers = HeaderMap::new();
                key.attach(form, &mut headers);
                key.attach(form, &mut headers);
                prop_assert_eq!(headers.len(), 1);
                // Spaces around a bare key belong to the field.
                if form == KeyForm::Quoted || text.trim() == text {
                    prop_assert_eq!(IdempotencyKey::of(&headers), Some(key.clone()));
                    prop_assert!(RequestInfo::of(&Method::POST, &headers).keyed);
                }
            }
        }

        #[test]
        fn a_key_with_quotes_and_backslashes_is_read_back(text in "[ -~]{1,20}") {
            let written: IdempotencyKey = quoted(&text).parse().unwrap();
            prop_assert_eq!(written.as_str(), &text);
            let mut headers = HeaderMap::new();
            written.attach(KeyForm::Quoted, &mut headers);
            prop_assert_eq!(IdempotencyKey::of(&headers), Some(written));
        }

        #[test]
        fn no_bytes_panic(value: Vec<u8>) {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                let headers: HeaderMap = [(IDEMPOTENCY_KEY, value)].into_iter().collect();
                let _ = IdempotencyKey::of(&headers);
            }
        }

        #[test]
        fn different_randomness_makes_different_keys(one: u64, two: u64) {
            struct Once(u64);
            impl Random for Once {
                fn next_u64(&mut self) -> u64 {
                    self.0
                }
            }
            let made = |bits| IdempotencyKey::from_random(UNIX_EPOCH, &mut Once(bits));
            // The variant replaces two bits. The version's bits are drawn again.
            let same = (one ^ two) & !(0b11 << 46) == 0;
            prop_assert_eq!(made(one) == made(two), same);
        }
    }
}
