//! Optimistic concurrency: a change is made only to the version that its client has seen.
//!
//! The third way to make repetitions harmless (R4.9): each version of a resource has an `ETag`, a change names the one
//! it is about by `If-Match`, and a second change of the same version is refused (412). No store is needed: the version is a
//! column of the resource.
//!
//! ```
//! use http::{HeaderMap, HeaderValue};
//! use relent_server::precondition::{EntityTag, PreconditionError, Preconditions};
//!
//! /// `UPDATE carts SET …, version = version + 1 WHERE id = $1 AND version = $2`: how many rows it has changed.
//! fn update(version: u64) -> u64 {
//!     u64::from(version == 7)
//! }
//!
//! fn put(headers: &HeaderMap) -> Result<EntityTag, PreconditionError> {
//!     let version = Preconditions::of(headers)?.version()?;
//!     PreconditionError::unless_changed(update(version))?;
//!     Ok(EntityTag::of_version(version + 1))
//! }
//!
//! let mut headers = HeaderMap::new();
//! assert_eq!(put(&headers), Err(PreconditionError::Required)); // 428
//! headers.insert("if-match", HeaderValue::from_static("\"7\""));
//! assert_eq!(put(&headers)?.to_string(), "\"8\"");
//! headers.insert("if-match", HeaderValue::from_static("\"6\""));
//! assert_eq!(put(&headers), Err(PreconditionError::Failed)); // 412
//! # Ok::<(), PreconditionError>(())
//! ```
//!
//! # Together with idempotency keys
//! A client that gets no answer and repeats its change gets 412, since its own first attempt has made another version
//! of it: it cannot tell that from a change by somebody else. With an `Idempotency-Key` it can. The
//! [layer](crate::idempotency) is outside and the precondition is looked at in the handler, so a repetition gets the
//! first answer, whatever the version is by then. A 412 is an answer, too, and is repeated: whoever has read the
//! new version sends another request, with a new key. Let the layer
//! [compare](crate::idempotency::IdempotencyLayer::compare_header) `If-Match`, and it hears so (422).
//!
//! Sources: RFC 9110 sections 8.8.3 and 13, RFC 6585 section 3.

use std::error::Error;
use std::fmt;

use bytes::Bytes;
use http::header::{IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use relent_core::Hint;
use relent_http::problem::Problem;
use relent_http::set_hint;

/// What a version of a resource is known by (RFC 9110 section 8.8.3).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct EntityTag {
    weak: bool,
    opaque: Vec<u8>,
}

impl EntityTag {
    /// Of a resource with a column that counts its versions: the number, and strong.
    #[must_use]
    pub fn of_version(version: u64) -> Self {
        Self {
            weak: false,
            opaque: version.to_string().into_bytes(),
        }
    }

    /// The tag that a field has: `"7"`, or `W/"7"`. `None` if it is none.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (weak, quoted) = match value.strip_prefix(b"W/") {
            Some(quoted) => (true, quoted),
            None => (false, value),
        };
        let opaque = quoted.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        let valid = opaque
            .iter()
            .all(|&byte| byte > b' ' && byte != b'"' && byte != 0x7f);
        valid.then(|| Self {
            weak,
            opaque: opaque.to_vec(),
        })
    }

    /// For the field `ETag`.
    #[must_use]
    pub fn to_value(&self) -> HeaderValue {
        let weak: &[u8] = if self.weak { b"W/" } else { b"" };
        let value = [weak, b"\"", &self.opaque, b"\""].concat();
        // Each of its bytes may be in a field.
        HeaderValue::from_bytes(&value).unwrap_or(HeaderValue::from_static("\"\""))
    }

    /// Whether both are of one version, byte by byte. A weak tag is like no other, nor like itself.
    #[must_use]
    pub fn is_strongly(&self, other: &Self) -> bool {
        !self.weak && !other.weak && self.opaque == other.opaque
    }

    /// The version, if it is strong and a number.
    fn version(&self) -> Option<u64> {
        let digits = std::str::from_utf8(&self.opaque).ok()?;
        let version = digits.parse().ok()?;
        // Not "+7" nor "007": nobody gave them out.
        (!self.weak && Self::of_version(version) == *self).then_some(version)
    }
}

impl fmt::Display for EntityTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weak = if self.weak { "W/" } else { "" };
        write!(f, "{weak}\"{}\"", String::from_utf8_lossy(&self.opaque))
    }
}

/// What a request says of the version that it is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Preconditions {
    if_match: Option<Tags>,
    if_none_match: Option<Tags>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Tags {
    /// `*`: any version that there is.
    Any,
    These(Vec<EntityTag>),
}

impl Preconditions {
    /// Of the fields `If-Match` and `If-None-Match`.
    ///
    /// # Errors
    /// [`PreconditionError::Malformed`]: what cannot be read cannot be kept to.
    pub fn of(headers: &HeaderMap) -> Result<Self, PreconditionError> {
        Ok(Self {
            if_match: Tags::of(headers, &IF_MATCH)?,
            if_none_match: Tags::of(headers, &IF_NONE_MATCH)?,
        })
    }

    /// Whether there are any.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.if_match.is_none() && self.if_none_match.is_none()
    }

    /// The same, if there are any: for changes that would overwrite what their client has not seen.
    ///
    /// # Errors
    /// [`PreconditionError::Required`] if there are none.
    pub fn required(self) -> Result<Self, PreconditionError> {
        match self.is_empty() {
            true => Err(PreconditionError::Required),
            false => Ok(self),
        }
    }

    /// Whether a change may be made to the version that there is; `None` if there is no such resource. `If-Match`
    /// compares strongly, `If-None-Match` weakly (RFC 9110 section 13.2.2).
    ///
    /// Look and change in one transaction, or by [`version`](Self::version) in one statement.
    ///
    /// # Errors
    /// [`PreconditionError::Failed`] if it may not.
    pub fn check(&self, current: Option<&EntityTag>) -> Result<(), PreconditionError> {
        let any = |tags: &[EntityTag], alike: fn(&EntityTag, &EntityTag) -> bool| {
            current.is_some_and(|current| tags.iter().any(|tag| alike(tag, current)))
        };
        let matched = match &self.if_match {
            None => true,
            Some(Tags::Any) => current.is_some(),
            Some(Tags::These(tags)) => any(tags, EntityTag::is_strongly),
        };
        let unmatched = match &self.if_none_match {
            None => true,
            Some(Tags::Any) => current.is_none(),
            Some(Tags::These(tags)) => !any(tags, |one, other| one.opaque == other.opaque),
        };
        match matched && unmatched {
            true => Ok(()),
            false => Err(PreconditionError::Failed),
        }
    }

    /// The version that `If-Match` asks for, for `UPDATE … SET version = version + 1 WHERE id = $1 AND version = $2`. An
    /// `If-None-Match` beside it counts as in [`check`](Self::check).
    ///
    /// # Errors
    /// [`PreconditionError::Required`] if `If-Match` names none, and [`PreconditionError::Failed`] if what it names is not
    /// one version of those that are [numbered](EntityTag::of_version) (`*`, a weak tag, several), or is one that
    /// `If-None-Match` excludes.
    pub fn version(&self) -> Result<u64, PreconditionError> {
        match &self.if_match {
            None => Err(PreconditionError::Required),
            Some(Tags::These(tags)) if tags.len() == 1 => {
                let version = tags[0].version().ok_or(PreconditionError::Failed)?;
                self.check(Some(&tags[0]))?;
                Ok(version)
            }
            Some(_) => Err(PreconditionError::Failed),
        }
    }
}

impl Tags {
    fn of(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Self>, PreconditionError> {
        let mut fields = headers.get_all(name).iter().peekable();
        if fields.peek().is_none() {
            return Ok(None);
        }
        let (mut any, mut tags) = (false, Vec::new());
        for field in fields {
            for item in items(field.as_bytes()) {
                match item.trim_ascii() {
                    b"" => {}
                    b"*" => any = true,
                    tag => tags.push(EntityTag::parse(tag).ok_or(PreconditionError::Malformed)?),
                }
            }
        }
        match (any, tags.is_empty()) {
            (true, true) => Ok(Some(Self::Any)),
            (false, false) => Ok(Some(Self::These(tags))),
            _ => Err(PreconditionError::Malformed),
        }
    }
}

/// Between commas, but for those in quotes.
fn items(field: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut quoted = false;
    field.split(move |&byte| {
        quoted ^= byte == b'"';
        byte == b',' && !quoted
    })
}

/// Why a change is not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PreconditionError {
    /// A precondition is no list of entity tags (400).
    Malformed,
    /// There is none, and there has to be (428, RFC 6585 section 3).
    Required,
    /// The resource has another version by now (412).
    Failed,
}

impl PreconditionError {
    /// What an update by [version](Preconditions::version) comes to that has changed so many rows.
    ///
    /// # Errors
    /// [`Failed`](Self::Failed) if it has changed none: the resource has another version, or is gone.
    pub const fn unless_changed(rows: u64) -> Result<(), Self> {
        match rows {
            0 => Err(Self::Failed),
            _ => Ok(()),
        }
    }

    /// The response, as problem+json with a member `code`. It says that a repetition cannot help.
    #[must_use]
    pub fn response(self) -> Response<Bytes> {
        let (status, code) = match self {
            Self::Malformed => (StatusCode::BAD_REQUEST, "precondition-malformed"),
            Self::Required => (StatusCode::PRECONDITION_REQUIRED, "precondition-required"),
            Self::Failed => (StatusCode::PRECONDITION_FAILED, "precondition-failed"),
        };
        let problem = Problem::new(status).detail(self.text());
        // The name is none that RFC 9457 defines, so it is always taken.
        let problem = problem.clone().member("code", code).unwrap_or(problem);
        let mut response = problem.into_response().map(Bytes::from);
        set_hint(response.headers_mut(), &Hint::do_not_retry());
        response
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Malformed => {
                "If-Match and If-None-Match are lists of entity tags in quotes, or *"
            }
            Self::Required => "send If-Match with the ETag of the version that is to be changed",
            Self::Failed => "the resource has another version by now: read it, and decide anew",
        }
    }
}

impl fmt::Display for PreconditionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl Error for PreconditionError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(fields: &[(&str, &str)]) -> Result<Preconditions, PreconditionError> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        Preconditions::of(&headers)
    }

    /// Fields, and what they hold for.
    type Case<'a> = (&'a [(&'a str, &'a str)], [bool; 3]);

    fn tag(text: &str) -> EntityTag {
        EntityTag::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_change_is_made_to_the_version_that_its_client_has_seen_only() {
        let (seven, weak) = (tag("\"7\""), tag("W/\"7\""));
        // The precondition, and whether it holds for version 7, weak version 7, and no resource.
        let cases: [Case<'_>; 11] = [
            (&[], [true, true, true]),
            (&[("if-match", "\"7\"")], [true, false, false]),
            (&[("if-match", "\"6\", ,\"7\" ")], [true, false, false]),
            (
                &[("if-match", "\"6\""), ("if-match", "\"7\"")],
                [true, false, false],
            ),
            (&[("if-match", "\"6\"")], [false, false, false]),
            // A weak tag never matches.
            (&[("if-match", "W/\"7\"")], [false, false, false]),
            (&[("if-match", "*")], [true, true, false]),
            (&[("if-none-match", "*")], [false, false, true]),
            (&[("if-none-match", "\"7\"")], [false, false, true]),
            (&[("if-none-match", "\"6,7\"")], [true, true, true]),
            (
                &[("if-match", "\"7\""), ("if-none-match", "\"7\"")],
                [false, false, false],
            ),
        ];
        for (fields, holds) in cases {
            let preconditions = of(fields).unwrap();
            let got = [Some(&seven), Some(&weak), None]
                .map(|current| preconditions.check(current).is_ok());
            assert_eq!(got, holds, "{fields:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused_and_not_left_out() {
        for value in [
            "",
            ",",
            "7",
            "\"7",
            "\"7\" \"8\"",
            "*, \"7\"",
            "w/\"7\"",
            "\"a b\"",
        ] {
            for name in ["if-match", "if-none-match"] {
                assert_eq!(
                    of(&[(name, value)]),
                    Err(PreconditionError::Malformed),
                    "{value}"
                );
            }
        }
    }

    #[test]
    fn a_version_is_one_number() {
        assert_eq!(of(&[("if-match", "\"7\"")]).unwrap().version(), Ok(7));
        let none = of(&[("if-none-match", "*")]).unwrap();
        assert_eq!(none.version(), Err(PreconditionError::Required));
        for value in ["W/\"7\"", "\"07\"", "\"+7\"", "\"\"", "\"7\", \"8\"", "*"] {
            let several = of(&[("if-match", value)]).unwrap();
            assert_eq!(several.version(), Err(PreconditionError::Failed), "{value}");
        }
    }

    #[test]
    fn a_version_that_if_none_match_excludes_is_not_changed() {
        for (excluded, version) in [
            ("*", None),
            ("\"7\"", None),
            ("W/\"7\"", None),
            ("\"6\", \"7\"", None),
            ("\"6\"", Some(7)),
            ("\"6,7\"", Some(7)),
        ] {
            let both = of(&[("if-match", "\"7\""), ("if-none-match", excluded)]).unwrap();
            let expected = version.ok_or(PreconditionError::Failed);
            assert_eq!(both.version(), expected, "{excluded}");
            // One rule for both ways.
            let seven = EntityTag::of_version(7);
            assert_eq!(
                both.check(Some(&seven)).is_ok(),
                version.is_some(),
                "{excluded}"
            );
        }
    }

    #[test]
    fn each_refusal_has_its_status() {
        for (error, status) in [
            (PreconditionError::Malformed, 400),
            (PreconditionError::Required, 428),
            (PreconditionError::Failed, 412),
        ] {
            let response = error.response();
            assert_eq!(response.status(), status);
            assert_eq!(
                response.headers()["content-type"],
                "application/problem+json"
            );
        }
        assert_eq!(
            of(&[]).unwrap().required(),
            Err(PreconditionError::Required)
        );
    }

    proptest! {
        #[test]
        fn a_tag_is_read_back_as_it_was_written(weak: bool, opaque in prop::collection::vec(0x21_u8..=0xff, 0..9)) {
            let opaque: Vec<_> = opaque.into_iter().filter(|byte| ![b'"', 0x7f].contains(byte)).collect();
            let tag = EntityTag { weak, opaque };
            prop_assert_eq!(EntityTag::parse(tag.to_value().as_bytes()), Some(tag));
        }

        #[test]
        fn whatever_the_field_is_reading_it_ends(value in prop::collection::vec(0x20_u8..=0xff, 0..30)) {
            let mut headers = HeaderMap::new();
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                headers.insert(IF_MATCH, value);
            }
            if let Ok(preconditions) = Preconditions::of(&headers) {
                let checked = preconditions.check(Some(&EntityTag::of_version(7)));
                prop_assert!(checked.is_err() || preconditions.version().is_ok_and(|version| version == 7) || preconditions.version().is_err());
            }
        }
    }
}
