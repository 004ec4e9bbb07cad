//! Optimistic concurrency control: a change applies only to the version that its client has seen.
//!
//! Each version of a resource has an `ETag`, and a change names its version by `If-Match`. A second change of the
//! same version is rejected with 412, so a duplicate has no effect. No store is needed: the version is a column of
//! the resource.
//!
//! ```
//! use http::{HeaderMap, HeaderValue};
//! use relent_server::precondition::{EntityTag, PreconditionError, Preconditions};
//!
//! // `UPDATE carts SET …, version = version + 1 WHERE id = $1 AND version = $2`, and the number of changed rows.
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
//! If a client gets no response and repeats its change, it gets 412, since its first attempt has created another
//! version. It cannot tell that from a change by another client. With an `Idempotency-Key` it can: the
//! [layer](crate::idempotency) is outside, and the handler checks the precondition. So a duplicate gets the first
//! response, whatever the version is by then.
//!
//! A 412 is stored and replayed, too: a client that has read the new version must send a new key. If the layer
//! [compares](crate::idempotency::IdempotencyLayer::compare_header) `If-Match`, the old key with a new version gets
//! 422.
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

/// The identifier of a version of a resource (RFC 9110 section 8.8.3).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct EntityTag {
    weak: bool,
    opaque: Vec<u8>,
}

impl EntityTag {
    /// Creates the strong tag of a version number, for a resource with a version column.
    #[must_use]
    pub fn of_version(version: u64) -> Self {
        Self {
            weak: false,
            opaque: version.to_string().into_bytes(),
        }
    }

    /// Parses a tag of a header field: `"7"`, or `W/"7"`. Returns `None` if it is malformed.
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

    /// Returns the value for the field `ETag`.
    #[must_use]
    pub fn to_value(&self) -> HeaderValue {
        let weak: &[u8] = if self.weak { b"W/" } else { b"" };
        let value = [weak, b"\"", &self.opaque, b"\""].concat();
        // Each byte was checked by `parse`, or is a digit.
        HeaderValue::from_bytes(&value).unwrap_or(HeaderValue::from_static("\"\""))
    }

    /// Returns whether both tags are strong and equal byte by byte. A weak tag does not match even itself.
    #[must_use]
    pub fn is_strongly(&self, other: &Self) -> bool {
        !self.weak && !other.weak && self.opaque == other.opaque
    }

    /// Returns the version, if the tag is strong and a number.
    fn version(&self) -> Option<u64> {
        let digits = std::str::from_utf8(&self.opaque).ok()?;
        let version = digits.parse().ok()?;
        // `of_version` does not create "+7" or "007".
        (!self.weak && Self::of_version(version) == *self).then_some(version)
    }
}

impl fmt::Display for EntityTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weak = if self.weak { "W/" } else { "" };
        write!(f, "{weak}\"{}\"", String::from_utf8_lossy(&self.opaque))
    }
}

/// The preconditions of a request: `If-Match` and `If-None-Match`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Preconditions {
    if_match: Option<Tags>,
    if_none_match: Option<Tags>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Tags {
    /// `*`: any existing version.
    Any,
    These(Vec<EntityTag>),
}

impl Preconditions {
    /// Reads `If-Match` and `If-None-Match`.
    ///
    /// # Errors
    /// [`PreconditionError::Malformed`] if a field cannot be parsed.
    pub fn of(headers: &HeaderMap) -> Result<Self, PreconditionError> {
        Ok(Self {
            if_match: Tags::of(headers, &IF_MATCH)?,
            if_none_match: Tags::of(headers, &IF_NONE_MATCH)?,
        })
    }

    /// Returns whether the request has no preconditions.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.if_match.is_none() && self.if_none_match.is_none()
    }

    /// Returns the preconditions, and requires that there are any. Use it for changes that could overwrite a version
    /// that the client has not seen.
    ///
    /// # Errors
    /// [`PreconditionError::Required`] if there are none.
    pub fn required(self) -> Result<Self, PreconditionError> {
        match self.is_empty() {
            true => Err(PreconditionError::Required),
            false => Ok(self),
        }
    }

    /// Checks whether a change may apply to the `current` version; `None` means that the resource does not exist.
    /// `If-Match` compares strongly, `If-None-Match` weakly (RFC 9110 section 13.2.2).
    ///
    /// Check and change in one transaction, or by [`version`](Self::version) in one statement.
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

    /// Returns the version that `If-Match` names, for
    /// `UPDATE … SET version = version + 1 WHERE id = $1 AND version = $2`. An `If-None-Match` counts as in
    /// [`check`](Self::check).
    ///
    /// # Errors
    /// [`PreconditionError::Required`] without `If-Match`. [`PreconditionError::Failed`] if it is not exactly one
    /// [numbered](EntityTag::of_version) version (`*`, a weak tag, several), or if `If-None-Match` excludes that
    /// version.
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

/// Splits at commas outside quotes.
fn items(field: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut quoted = false;
    field.split(move |&byte| {
        quoted ^= byte == b'"';
        byte == b',' && !quoted
    })
}

/// The reason why a change is rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PreconditionError {
    /// A precondition is not a list of entity tags (400).
    Malformed,
    /// The request has no precondition, and needs one (428, RFC 6585 section 3).
    Required,
    /// The resource has another version by now (412).
    Failed,
}

impl PreconditionError {
    /// Converts the number of rows that an update by [version](Preconditions::version) has changed.
    ///
    /// # Errors
    /// [`Failed`](Self::Failed) if it is 0: the resource has another version, or is gone.
    pub const fn unless_changed(rows: u64) -> Result<(), Self> {
        match rows {
            0 => Err(Self::Failed),
            _ => Ok(()),
        }
    }

    /// Returns the response: problem+json with a member `code`, marked as not retryable.
    #[must_use]
    pub fn response(self) -> Response<Bytes> {
        let (status, code) = match self {
            Self::Malformed => (StatusCode::BAD_REQUEST, "precondition-malformed"),
            Self::Required => (StatusCode::PRECONDITION_REQUIRED, "precondition-required"),
            Self::Failed => (StatusCode::PRECONDITION_FAILED, "precondition-failed"),
        };
        let problem = Problem::new(status).detail(self.text());
        // RFC 9457 does not define this name, so `member` accepts it.
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
            Self::Failed => "the resource has another version: read it, and decide again",
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

    /// Header fields, and whether the precondition holds in each of three cases.
    type Case<'a> = (&'a [(&'a str, &'a str)], [bool; 3]);

    fn tag(text: &str) -> EntityTag {
        EntityTag::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_change_applies_only_to_the_version_the_client_has_seen() {
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
    fn a_malformed_precondition_is_an_error() {
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
    fn if_match_names_exactly_one_version_number() {
        assert_eq!(of(&[("if-match", "\"7\"")]).unwrap().version(), Ok(7));
        let none = of(&[("if-none-match", "*")]).unwrap();
        assert_eq!(none.version(), Err(PreconditionError::Required));
        for value in ["W/\"7\"", "\"07\"", "\"+7\"", "\"\"", "\"7\", \"8\"", "*"] {
            let several = of(&[("if-match", value)]).unwrap();
            assert_eq!(several.version(), Err(PreconditionError::Failed), "{value}");
        }
    }

    #[test]
    fn if_none_match_excludes_its_versions_from_a_change() {
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
            // `check` and `version` must agree.
            let seven = EntityTag::of_version(7);
            assert_eq!(
                both.check(Some(&seven)).is_ok(),
                version.is_some(),
                "{excluded}"
            );
        }
    }

    #[test]
    fn each_precondition_error_has_its_status() {
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
        fn entity_tags_round_trip(weak: bool, opaque in prop::collection::vec(0x21_u8..=0xff, 0..9)) {
            let opaque: Vec<_> = opaque.into_iter().filter(|byte| ![b'"', 0x7f].contains(byte)).collect();
            let tag = EntityTag { weak, opaque };
            prop_assert_eq!(EntityTag::parse(tag.to_value().as_bytes()), Some(tag));
        }

        #[test]
        fn parsing_any_precondition_terminates(value in prop::collection::vec(0x20_u8..=0xff, 0..30)) {
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
