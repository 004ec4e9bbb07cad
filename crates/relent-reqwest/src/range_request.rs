//! Requests for the rest of a response that was cut short (RFC 9110 §13.1.5 and §14).
//!
//! Bytes of two representations must never be mixed. A response is therefore accepted only if it comes from the same
//! resource, repeats the validator and begins at the right position. If no validator can prove that, the caller may
//! declare that the representation does not change, as with `curl -C -`. Every request of a download uses
//! [`Partial::answered`], whether it is the first or a retry.

use http::header::{CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_RANGE, LAST_MODIFIED, RANGE};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use relent_http::field::trim;
use reqwest::Url;

use crate::resumable::{
    Resumable, codings, is_strong_tag, length, number, only, opaque, strong_validator,
    without_fragment_and_user,
};
use crate::secret::remove_credentials;

/// State of the requests for the rest within one download.
#[derive(Default, Debug)]
pub(crate) struct RangeState {
    /// The caller declares that the representation does not change.
    pub(crate) declared_unchanged: bool,
    /// Requests go to the first URL, because the final one has refused or has not responded.
    pub(crate) first_url: bool,
    /// `Range` is sent without `If-Range`, because a server ignores it beside `If-Range`. Some content delivery
    /// networks do so.
    without_if_range: bool,
    /// Each server sends its own validator for the same representation, so none proves anything.
    validators_vary: bool,
    /// A 416 did not state the total length, so the received bytes may be all.
    pub(crate) perhaps_complete: Option<PerhapsComplete>,
}

/// Received bytes that may be the whole representation.
#[derive(Debug)]
pub(crate) struct PerhapsComplete {
    received: u64,
    /// The validator of these bytes, if it is known.
    validator: Option<HeaderValue>,
    /// Their content codings; `None` if unknown.
    codings: Option<Vec<HeaderValue>>,
}

impl PerhapsComplete {
    /// Whether the whole in this response is what was received.
    pub(crate) fn is_proven_by(&self, head: &Response<()>) -> bool {
        let headers = head.headers();
        let has_validator = |ours| Some(ours) == strong_validator(headers);
        head.status() == StatusCode::OK
            && length(headers) == Some(self.received)
            && self.validator.as_ref().is_none_or(has_validator)
            && *self.codings.as_deref().unwrap_or_default() == *codings(headers)
    }
}

/// The received part of a representation, and the place of the rest.
#[derive(Debug)]
pub(crate) struct Partial {
    of: PartIdentity,
    pub(crate) received: u64,
    /// The content codings of the received bytes; `None` if unknown, for bytes of an earlier call without a validator.
    codings: Option<Vec<HeaderValue>>,
    /// The URL requested in this call that led to this response. `None` for bytes of an earlier call: a request shows
    /// where the URL leads now.
    asked: Option<Url>,
    /// The validator of the last response of this attempt, if that response did not contain the rest.
    other: Option<HeaderValue>,
}

/// The identity of the representation.
#[derive(Debug)]
enum PartIdentity {
    /// A validator identifies the representation.
    Named(Resumable),
    /// Only the caller's declaration identifies it. URL and total are known once a response states them.
    Stated {
        url: Option<Url>,
        total: Option<u64>,
    },
}

/// Meaning of a response to the request for the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RestResponse {
    /// The rest, up to this position (exclusive).
    Rest(u64),
    /// Nothing is missing.
    Complete,
    /// Not the rest, but the same request without `If-Range` can return it.
    Again,
    /// Another content, or not provably the rest.
    Other,
}

/// Comparison of the validator of a response with the known one.
enum ValidatorMatch {
    Same,
    /// Another validator, possibly because another server sent it.
    Another(HeaderValue),
    Unproven,
}

impl Partial {
    /// Starts a part with no bytes, of the response `head` from `url` to a request for `asked`. `None` if its rest
    /// cannot be requested.
    pub(crate) fn begun<B>(
        method: &Method,
        url: &Url,
        head: &Response<B>,
        asked: Option<Url>,
        range_state: &RangeState,
    ) -> Option<Self> {
        let stated = || PartIdentity::Stated {
            url: Some(without_fragment_and_user(url)),
            total: length(head.headers()),
        };
        let of = match Resumable::of(method, url, head, range_state.declared_unchanged) {
            Some(of) if !range_state.validators_vary => PartIdentity::Named(of),
            _ if range_state.declared_unchanged => {
                Resumable::allows_ranges(method, head).then(stated)?
            }
            _ => return None,
        };
        Some(Self {
            of,
            received: 0,
            codings: Some(codings(head.headers())),
            asked,
            other: None,
        })
    }

    /// The first bytes of `of`, from an earlier call.
    pub(crate) const fn earlier(of: Resumable, received: u64) -> Self {
        Self {
            of: PartIdentity::Named(of),
            received,
            codings: Some(Vec::new()),
            asked: None,
            other: None,
        }
    }

    /// The first bytes from an earlier call, by the caller's declaration. `total` is the total length, if a response
    /// stated it.
    pub(crate) const fn stated(received: u64, total: Option<u64>) -> Self {
        Self {
            of: PartIdentity::Stated { url: None, total },
            received,
            codings: None,
            asked: None,
            other: None,
        }
    }

    /// The identity for the sink, if a validator proves it: not that of an encoded body.
    pub(crate) fn resumable(&self) -> Option<&Resumable> {
        let is_plain = self.codings.as_ref().is_none_or(Vec::is_empty);
        self.named().filter(|_| is_plain)
    }

    /// The identity with a strong validator, if there is one.
    const fn named(&self) -> Option<&Resumable> {
        match &self.of {
            PartIdentity::Named(resumable) => Some(resumable),
            PartIdentity::Stated { .. } => None,
        }
    }

    /// The total length in bytes, if it is known.
    pub(crate) const fn total(&self) -> Option<u64> {
        match &self.of {
            PartIdentity::Named(resumable) => resumable.total,
            PartIdentity::Stated { total, .. } => *total,
        }
    }

    /// The final URL, if it is known.
    const fn url(&self) -> Option<&Url> {
        match &self.of {
            PartIdentity::Named(resumable) => Some(&resumable.url),
            PartIdentity::Stated { url, .. } => url.as_ref(),
        }
    }

    /// Starts another attempt.
    pub(crate) fn begin_attempt(&mut self) {
        self.other = None;
    }

    /// Turns a request for the whole into one for the rest. Returns `false`, and does not change the request, if its
    /// URL differs from that of the part.
    ///
    /// If redirects led to the response in this call, the request goes to the final URL. The representation is there,
    /// even if the first URL leads elsewhere by now. Once the final URL has refused, as an expired signed URL does,
    /// the request goes to the first URL. As with any redirect, credentials are not sent to another origin.
    pub(crate) fn ask(&self, range_state: &RangeState, request: &mut reqwest::Request) -> bool {
        let rerouted = |asked: &Url| asked != request.url();
        if self.asked.as_ref().is_some_and(rerouted) {
            return false;
        }
        let Ok(range) = HeaderValue::try_from(format!("bytes={}-", self.received)) else {
            return false;
        };
        if let (Some(_), Some(url), false) = (&self.asked, self.url(), range_state.first_url) {
            redirect_to(request, url);
        }
        let headers = request.headers_mut();
        headers.insert(RANGE, range);
        if let Some(of) = self.if_range_identity(range_state) {
            headers.insert(IF_RANGE, of.validator.clone());
        }
        true
    }

    /// The identity in `If-Range`, if that header is sent.
    const fn if_range_identity(&self, range_state: &RangeState) -> Option<&Resumable> {
        match range_state.without_if_range {
            true => None,
            false => self.named(),
        }
    }

    /// Whether the request goes to another origin than the first URL.
    pub(crate) fn uses_another_origin(&self, range_state: &RangeState) -> bool {
        match (&self.asked, self.url()) {
            (Some(asked), Some(url)) => !range_state.first_url && url.origin() != asked.origin(),
            _ => false,
        }
    }

    /// Whether the request goes to the final URL instead of the first one.
    pub(crate) fn uses_final_url(&self, range_state: &RangeState) -> bool {
        match (&self.asked, self.url()) {
            (Some(asked), Some(url)) => {
                !range_state.first_url && *url != without_fragment_and_user(asked)
            }
            _ => false,
        }
    }

    /// Continues with the rest, which came in response to a request for `asked`.
    pub(crate) fn continue_from(&mut self, asked: Option<Url>) {
        self.asked = asked;
    }

    /// Evaluates the response from `url`. Stores what it reveals about the representation and the server.
    pub(crate) fn answered<B>(
        &mut self,
        range_state: &mut RangeState,
        url: &Url,
        head: &Response<B>,
    ) -> RestResponse {
        let headers = head.headers();
        let range = || only(headers, &CONTENT_RANGE).map(HeaderValue::as_bytes);
        match head.status() {
            StatusCode::RANGE_NOT_SATISFIABLE
                if range().and_then(unsatisfied) == Some(self.received)
                    && self.can_be_at(range_state, url, Some(self.received)) =>
            {
                match self.compare_validator(range_state, headers) {
                    ValidatorMatch::Same => RestResponse::Complete,
                    ValidatorMatch::Another(_) | ValidatorMatch::Unproven => RestResponse::Other,
                }
            }
            StatusCode::PARTIAL_CONTENT
                if self.has_same_codings(range_state, headers) && !is_multipart(headers) =>
            {
                match range().and_then(|range| content_range(range, self.total())) {
                    Some(range)
                        if range.first == self.received
                            && self.can_be_at(range_state, url, Some(range.total)) =>
                    {
                        self.part(range_state, url, headers, range)
                    }
                    _ => RestResponse::Other,
                }
            }
            StatusCode::OK
                if Resumable::allows_ranges(&Method::GET, head)
                    && self.has_same_codings(range_state, headers) =>
            {
                self.whole(range_state, url, headers)
            }
            _ => RestResponse::Other,
        }
    }

    /// Evaluates a 206 that begins at the right position.
    fn part(
        &mut self,
        range_state: &mut RangeState,
        url: &Url,
        headers: &HeaderMap,
        range: ContentRange,
    ) -> RestResponse {
        let ours = self.named().map(|of| of.validator.clone());
        let others = match self.compare_validator(range_state, headers) {
            ValidatorMatch::Unproven => return RestResponse::Other,
            // One response of this attempt had another validator, and this one has ours.
            ValidatorMatch::Same => self.other.take().is_some_and(|other| Some(other) != ours),
            ValidatorMatch::Another(theirs) => match self.other.replace(theirs.clone()) {
                None => {
                    range_state.without_if_range = true;
                    return RestResponse::Again;
                }
                // Two responses agree: the representation has changed.
                Some(before) if before == theirs => return RestResponse::Other,
                Some(_) => true,
            },
        };
        range_state.validators_vary |= others;
        self.other = None;
        self.store_identity(range_state, url, headers, range.total);
        RestResponse::Rest(range.last + 1)
    }

    /// Evaluates a 200 to a request for the rest. A server ignores `Range` if the representation has changed. Some
    /// servers ignore it beside `If-Range`; others have other validators.
    fn whole(
        &mut self,
        range_state: &mut RangeState,
        url: &Url,
        headers: &HeaderMap,
    ) -> RestResponse {
        let Some(of) = self.if_range_identity(range_state) else {
            return RestResponse::Other;
        };
        if !self.can_be_at(range_state, url, length(headers)) {
            return RestResponse::Other;
        }
        self.other = match self.compare_validator(range_state, headers) {
            ValidatorMatch::Unproven => return RestResponse::Other,
            ValidatorMatch::Same => Some(of.validator.clone()),
            ValidatorMatch::Another(theirs) => Some(theirs),
        };
        range_state.without_if_range = true;
        RestResponse::Again
    }

    /// Whether a response from `url` can be of the same representation with `total` bytes.
    fn can_be_at(&self, range_state: &RangeState, url: &Url, total: Option<u64>) -> bool {
        let same_total = match (self.total(), total) {
            (Some(known), Some(total)) => known == total,
            _ => true,
        };
        let states = range_state.declared_unchanged;
        let same_url = |of: &Resumable| of.can_be_at(url, total, states);
        same_total && self.named().is_none_or(same_url)
    }

    /// The received bytes, if they may be all although this 416 does not state the total length. Only the caller's
    /// declaration makes the whole of a later response the same representation.
    pub(crate) fn perhaps_complete(
        &self,
        range_state: &RangeState,
        head: &Response<()>,
    ) -> Option<PerhapsComplete> {
        let is_possible = range_state.declared_unchanged
            && head.status() == StatusCode::RANGE_NOT_SATISFIABLE
            && !head.headers().contains_key(CONTENT_RANGE)
            && self.total().is_none_or(|total| total == self.received);
        is_possible.then(|| PerhapsComplete {
            received: self.received,
            validator: self.named().map(|of| of.validator.clone()),
            codings: self.codings.clone(),
        })
    }

    /// Whether these are the content codings of the received bytes. Without the caller's declaration only a body that
    /// is not encoded can be resumed.
    fn has_same_codings(&self, range_state: &RangeState, headers: &HeaderMap) -> bool {
        let theirs = codings(headers);
        match &self.codings {
            _ if !range_state.declared_unchanged => theirs.is_empty(),
            Some(ours) => *ours == theirs,
            None => true,
        }
    }

    /// Compares the validator. Without the caller's declaration it must be present and the same.
    fn compare_validator(&self, range_state: &RangeState, headers: &HeaderMap) -> ValidatorMatch {
        let PartIdentity::Named(of) = &self.of else {
            return ValidatorMatch::Same;
        };
        if of.is_named_by(headers) {
            return ValidatorMatch::Same;
        }
        if !range_state.declared_unchanged {
            return ValidatorMatch::Unproven;
        }
        let name = match is_strong_tag(&of.validator) {
            true => &ETAG,
            false => &LAST_MODIFIED,
        };
        match only(headers, name) {
            Some(theirs) if opaque(theirs) != of.validator.as_bytes() => {
                ValidatorMatch::Another(theirs.clone())
            }
            _ => ValidatorMatch::Same,
        }
    }

    /// Stores the identity from a 206. Bytes of an earlier call get its validator, if it has one.
    fn store_identity(
        &mut self,
        range_state: &RangeState,
        url: &Url,
        headers: &HeaderMap,
        total: u64,
    ) {
        let (url, total) = (without_fragment_and_user(url), Some(total));
        self.codings = Some(codings(headers));
        let validator = match &self.of {
            _ if range_state.validators_vary => None,
            PartIdentity::Named(of) => Some(&of.validator),
            PartIdentity::Stated { url: None, .. } => strong_validator(headers),
            // The first response of this call had no validator.
            PartIdentity::Stated { .. } => None,
        };
        self.of = match validator.cloned() {
            Some(validator) => PartIdentity::Named(Resumable {
                url,
                validator,
                total,
            }),
            None => PartIdentity::Stated {
                url: Some(url),
                total,
            },
        };
    }

    /// Whether all of it has arrived. Always `true` if the length is unknown.
    pub(crate) fn is_complete(&self) -> bool {
        self.total().is_none_or(|total| total == self.received)
    }
}

/// Whether a request has a range of the caller's own.
pub(crate) fn has_own_range(request: &HeaderMap) -> bool {
    request.contains_key(RANGE) || request.contains_key(IF_RANGE)
}

/// Changes the URL of a request, as a redirect would.
fn redirect_to(request: &mut reqwest::Request, to: &Url) {
    if request.url().origin() != to.origin() {
        remove_credentials(request.headers_mut());
    }
    *request.url_mut() = to.clone();
}

/// Whether the body contains several ranges, each with its own head (RFC 9110 §14.6).
fn is_multipart(headers: &HeaderMap) -> bool {
    const KIND: &[u8] = b"multipart/byteranges";
    headers.get_all(CONTENT_TYPE).iter().any(|value| {
        let kind = trim(value.as_bytes()).get(..KIND.len());
        kind.is_some_and(|kind| kind.eq_ignore_ascii_case(KIND))
    })
}

/// A satisfied range of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ContentRange {
    first: u64,
    /// Inclusive, and below `total`.
    last: u64,
    total: u64,
}

/// Parses `bytes 0-499/1234`. A total that the server does not know (`*`) is that of the first response, if that is
/// `known`; otherwise the range is rejected, because nothing would show when the representation is complete.
fn content_range(value: &[u8], known: Option<u64>) -> Option<ContentRange> {
    let value = trim(value);
    let unit = value.get(..6)?;
    if !unit.eq_ignore_ascii_case(b"bytes ") {
        return None;
    }
    let (range, total) = split(trim(&value[6..]), b'/')?;
    let (first, last) = split(range, b'-')?;
    let total = match total {
        b"*" => known,
        total => number(total),
    };
    let (first, last, total) = (number(first)?, number(last)?, total?);
    (first <= last && last < total).then_some(ContentRange { first, last, total })
}

/// Parses the total of `bytes */1234`.
fn unsatisfied(value: &[u8]) -> Option<u64> {
    let value = trim(value);
    let unit = value.get(..6)?;
    if !unit.eq_ignore_ascii_case(b"bytes ") {
        return None;
    }
    let (range, total) = split(trim(&value[6..]), b'/')?;
    if range != b"*" {
        return None;
    }
    number(total)
}

fn split(value: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let index = value.iter().position(|byte| *byte == at)?;
    Some((&value[..index], &value[index + 1..]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use http::HeaderName;
    use http::header::{ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, DATE};

    use super::*;
    use crate::resumable::NotResumable;

    const TAG: (&str, &str) = ("etag", "\"v1\"");
    const LENGTH: (&str, &str) = ("content-length", "100");
    const MODIFIED: (&str, &str) = ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT");
    const DATE_AFTER: (&str, &str) = ("date", "Sun, 06 Nov 1994 09:49:37 GMT");

    fn head(status: u16, fields: &[(&str, &str)]) -> Response<()> {
        let mut response = Response::builder().status(status);
        for (name, value) in fields {
            response = response.header(*name, *value);
        }
        response.body(()).unwrap()
    }

    fn url() -> Url {
        Url::parse("http://localhost/large").unwrap()
    }

    fn of(fields: &[(&str, &str)]) -> Option<Resumable> {
        Resumable::of(&Method::GET, &url(), &head(200, fields), false)
    }

    /// 40 bytes of 100.
    fn begun() -> Partial {
        begun_by(&[TAG, LENGTH])
    }

    fn begun_by(fields: &[(&str, &str)]) -> Partial {
        begun_from(&url(), fields, &RangeState::default()).unwrap()
    }

    /// 40 bytes, after a request for this URL.
    fn begun_from(
        asked: &Url,
        fields: &[(&str, &str)],
        range_state: &RangeState,
    ) -> Option<Partial> {
        let head = head(200, fields);
        let mut partial = Partial::begun(
            &Method::GET,
            &url(),
            &head,
            Some(asked.clone()),
            range_state,
        )?;
        partial.received = 40;
        Some(partial)
    }

    const fn unchanged() -> RangeState {
        RangeState {
            declared_unchanged: true,
            first_url: false,
            without_if_range: false,
            validators_vary: false,
            perhaps_complete: None,
        }
    }

    /// Evaluates a response from `url` without a declaration of the caller.
    fn answer(partial: &mut Partial, url: &Url, head: &Response<()>) -> RestResponse {
        partial.answered(&mut RangeState::default(), url, head)
    }

    fn request(address: &str, fields: &[(&str, &str)]) -> reqwest::Request {
        let mut request = reqwest::Request::new(Method::GET, Url::parse(address).unwrap());
        for (name, value) in fields {
            let name = HeaderName::try_from(*name).unwrap();
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        request
    }

    #[test]
    fn a_plain_200_with_a_strong_validator_can_be_resumed() {
        assert!(of(&[TAG, LENGTH]).is_some());
        assert!(of(&[TAG]).is_some(), "the length may be unknown");
        assert!(of(&[TAG, ("accept-ranges", "bytes")]).is_some());
        assert!(of(&[MODIFIED, DATE_AFTER, LENGTH]).is_some());
    }

    #[test]
    fn other_responses_cannot_be_resumed() {
        assert_eq!(of(&[LENGTH]), None);
        for tag in ["W/\"v1\"", "v1", "\"v1", "\"", "\"a\"b\"", "\"a b\"", ""] {
            assert_eq!(of(&[("etag", tag), LENGTH]), None, "{tag}");
        }
        assert_eq!(of(&[TAG, ("etag", "\"v2\"")]), None);
        assert_eq!(of(&[TAG, ("content-encoding", "gzip")]), None);
        assert_eq!(of(&[TAG, ("accept-ranges", "none")]), None);
        for status in [201, 203, 206, 404] {
            let head = head(status, &[TAG, LENGTH]);
            assert_eq!(Resumable::of(&Method::GET, &url(), &head, true), None);
        }
        let head = head(200, &[TAG, LENGTH]);
        assert_eq!(Resumable::of(&Method::POST, &url(), &head, true), None);
        for name in ["range", "if-range"] {
            let ranged = request("http://localhost/", &[(name, "bytes=5-")]);
            assert!(has_own_range(ranged.headers()));
        }
    }

    /// RFC 9110 §8.8.2.2 and §13.1.5.
    #[test]
    fn a_date_is_strong_if_a_minute_old_and_without_a_tag() {
        for date in [
            "Sun, 06 Nov 1994 08:50:36 GMT",
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:40:00 GMT",
            "Sunday, 06-Nov-94 09:49:37 GMT",
            "now",
        ] {
            assert_eq!(of(&[MODIFIED, ("date", date)]), None, "{date}");
        }
        assert!(of(&[MODIFIED, ("date", "Sun, 06 Nov 1994 08:50:37 GMT")]).is_some());
        assert_eq!(of(&[MODIFIED]), None, "no date to compare it with");
        assert_eq!(of(&[MODIFIED, DATE_AFTER, ("etag", "W/\"v1\"")]), None);
        let tagged = of(&[MODIFIED, DATE_AFTER, TAG]).unwrap();
        assert_eq!(tagged.validator(), "\"v1\"");
    }

    #[test]
    fn a_stored_resumable_is_read_back() {
        for fields in [&[TAG, LENGTH][..], &[TAG], &[MODIFIED, DATE_AFTER]] {
            let of = of(fields).unwrap();
            assert_eq!(Resumable::new(of.url(), of.validator(), of.total()), Ok(of));
        }
        let new = |url, validator| Resumable::new(url, validator, None);
        assert_eq!(new("large", "\"v1\""), Err(NotResumable::Url));
        for validator in ["", "v1", "W/\"v1\"", "\"a\nb\"", "1994-11-06", "\""] {
            let error = Err(NotResumable::Validator);
            assert_eq!(new("http://localhost/", validator), error, "{validator}");
        }
        let secret = new(
            "http://name:secret@localhost/?signature=secret#part",
            "\"v1\"",
        )
        .unwrap();
        assert!(!format!("{secret:?}").contains("secret"), "{secret:?}");
        assert_eq!(secret.url(), "http://localhost/?signature=secret");
    }

    #[test]
    fn the_rest_is_requested_with_if_range() {
        let mut asked = request("http://localhost/large", &[]);
        assert!(begun().ask(&RangeState::default(), &mut asked));
        assert_eq!(asked.headers()[RANGE], "bytes=40-");
        assert_eq!(asked.headers()[IF_RANGE], "\"v1\"");

        let mut asked = request("http://localhost/large", &[]);
        assert!(begun_by(&[MODIFIED, DATE_AFTER]).ask(&RangeState::default(), &mut asked));
        assert_eq!(asked.headers()[IF_RANGE], MODIFIED.1);

        let mut asked = request("http://localhost/large", &[]);
        assert!(Partial::stated(40, None).ask(&RangeState::default(), &mut asked));
        assert_eq!(asked.headers()[RANGE], "bytes=40-");
        assert!(!asked.headers().contains_key(IF_RANGE));
    }

    #[test]
    fn the_rest_is_requested_at_the_final_url_without_foreign_credentials() {
        let secrets = [
            ("authorization", "a"),
            ("cookie", "b"),
            ("host", "c"),
            ("accept", "d"),
        ];
        for (first, kept) in [
            ("http://localhost/latest", 4),
            ("https://localhost/latest", 1),
        ] {
            let first_url = Url::parse(first).unwrap();
            let mut range_state = RangeState::default();
            let partial = begun_from(&first_url, &[TAG], &range_state).unwrap();
            let mut asked = request(first, &secrets);
            assert!(partial.ask(&range_state, &mut asked));
            assert_eq!(asked.url(), &url());
            assert_eq!(asked.headers().len(), kept + 2, "{first}");
            assert!(partial.uses_final_url(&range_state));

            let mut elsewhere = request("http://localhost/fallback", &secrets);
            assert!(!partial.ask(&range_state, &mut elsewhere), "rerouted");
            assert_eq!(elsewhere.headers().len(), 4);

            range_state.first_url = true;
            let mut asked = request(first, &secrets);
            assert!(partial.ask(&range_state, &mut asked));
            assert_eq!((asked.url(), asked.headers().len()), (&first_url, 4 + 2));
            assert!(!partial.uses_final_url(&range_state));
        }
        assert!(!begun().uses_final_url(&RangeState::default()));
    }

    #[test]
    fn a_206_continues_only_with_same_url_validator_start_and_total() {
        let range = |value| ("content-range", value);
        let after = |fields: &[_]| answer(&mut begun(), &url(), &head(206, fields));
        assert_eq!(
            after(&[TAG, range("bytes 40-99/100")]),
            RestResponse::Rest(100)
        );
        assert_eq!(
            after(&[TAG, range("bytes 40-59/100")]),
            RestResponse::Rest(60),
            "a part of the rest continues too"
        );
        for wrong in [
            "bytes 41-99/100",
            "bytes 0-99/100",
            "bytes 40-99/101",
            "bytes 40-100/100",
            "bytes 40-39/100",
            "bytes */100",
            "items 40-99/100",
            "bytes 40-/100",
            "bytes=40-99/100",
            "bytes +40-99/100",
            "",
        ] {
            assert_eq!(after(&[TAG, range(wrong)]), RestResponse::Other, "{wrong}");
        }
        assert_eq!(
            after(&[TAG, range("bytes 40-99/*")]),
            RestResponse::Rest(100),
            "the first response has stated the total"
        );
        let unstated = head(206, &[TAG, range("bytes 40-99/*")]);
        assert_eq!(
            answer(&mut begun_by(&[TAG]), &url(), &unstated),
            RestResponse::Other
        );
        let right = range("bytes 40-99/100");
        assert_eq!(after(&[right]), RestResponse::Other, "no tag");
        assert_eq!(after(&[("etag", "\"v2\""), right]), RestResponse::Other);
        assert_eq!(after(&[("etag", "W/\"v1\""), right]), RestResponse::Other);
        assert_eq!(
            after(&[TAG, right, right]),
            RestResponse::Other,
            "two ranges"
        );
        assert_eq!(after(&[TAG]), RestResponse::Other, "no range");
        let several = ("content-type", "Multipart/ByteRanges; boundary=x");
        assert_eq!(after(&[TAG, right, several]), RestResponse::Other);
        assert_eq!(
            after(&[TAG, right, ("content-encoding", "gzip")]),
            RestResponse::Other
        );
        let other = Url::parse("http://localhost/other").unwrap();
        let elsewhere = answer(&mut begun(), &other, &head(206, &[TAG, right]));
        assert_eq!(elsewhere, RestResponse::Other, "another URL");

        let mut dated = begun_by(&[MODIFIED, DATE_AFTER, LENGTH]);
        assert_eq!(
            answer(&mut dated, &url(), &head(206, &[right])),
            RestResponse::Other,
            "no date"
        );
        assert_eq!(
            answer(&mut dated, &url(), &head(206, &[MODIFIED, right])),
            RestResponse::Rest(100)
        );
    }

    #[test]
    fn a_416_completes_a_download_only_with_the_same_validator() {
        let none_left = ("content-range", "bytes */40");
        let mut all = begun_by(&[TAG, ("content-length", "40")]);
        let complete = head(416, &[TAG, none_left]);
        assert_eq!(answer(&mut all, &url(), &complete), RestResponse::Complete);
        let unnamed = head(416, &[none_left]);
        assert_eq!(answer(&mut all, &url(), &unnamed), RestResponse::Other);
        let answered = answer(&mut begun(), &url(), &complete);
        assert_eq!(answered, RestResponse::Other, "40 of 100");
        for mut partial in [Partial::stated(40, None), all] {
            let answered = partial.answered(&mut unchanged(), &url(), &unnamed);
            assert_eq!(answered, RestResponse::Complete);
        }
    }

    #[test]
    fn an_unknown_total_is_taken_from_the_first_206() {
        let mut begun = begun_by(&[TAG]);
        let part = |range| head(206, &[TAG, ("content-range", range)]);
        let answered = answer(&mut begun, &url(), &part("bytes 40-59/100"));
        assert_eq!(answered, RestResponse::Rest(60));
        begun.received = 60;
        assert!(!begun.is_complete());
        let answered = answer(&mut begun, &url(), &part("bytes 60-99/200"));
        assert_eq!(answered, RestResponse::Other);
        let answered = answer(&mut begun, &url(), &part("bytes 60-99/100"));
        assert_eq!(answered, RestResponse::Rest(100));
        begun.received = 100;
        assert!(begun.is_complete());
    }

    #[test]
    fn unchecked_bytes_get_the_validator_of_the_first_response() {
        let (mut stated, mut range_state) = (Partial::stated(40, None), unchanged());
        let mut answered = |stated: &mut Partial, tag, range| {
            let part = head(206, &[("etag", tag), ("content-range", range)]);
            stated.answered(&mut range_state, &url(), &part)
        };
        let other_start = answered(&mut stated, TAG.1, "bytes 0-59/100");
        assert_eq!(other_start, RestResponse::Other);
        let rest = answered(&mut stated, TAG.1, "bytes 40-59/100");
        assert_eq!(rest, RestResponse::Rest(60));
        stated.received = 60;
        assert_eq!(stated.resumable(), of(&[TAG, LENGTH]).as_ref());
        let changed = [RestResponse::Again, RestResponse::Other];
        for answer in changed {
            let other_tag = answered(&mut stated, "\"v2\"", "bytes 60-99/100");
            assert_eq!(other_tag, answer);
        }
    }

    /// A signed URL has a different query each time.
    #[test]
    fn only_the_url_query_may_differ_with_the_same_total() {
        let part = |total: u64| {
            let range = format!("bytes 40-{}/{total}", total - 1);
            head(206, &[TAG, ("content-range", &range)])
        };
        let rest = part(100);
        let signed = Url::parse("http://localhost/large?signature=2").unwrap();
        let mut continued = begun();
        assert_eq!(
            answer(&mut continued, &signed, &rest),
            RestResponse::Rest(100)
        );
        assert_eq!(continued.url(), Some(&signed), "the first one may expire");
        for elsewhere in [
            "http://localhost/other?signature=2",
            "http://localhost:81/large?signature=2",
            "https://localhost/large?signature=2",
            "http://other/large?signature=2",
        ] {
            let url = Url::parse(elsewhere).unwrap();
            let answered = answer(&mut begun(), &url, &rest);
            assert_eq!(answered, RestResponse::Other, "{elsewhere}");
            // The caller declares it unchanged: a mirror with the same total and validator has the rest.
            let declared = |part| begun().answered(&mut unchanged(), &url, part);
            assert_eq!(declared(&rest), RestResponse::Rest(100), "{elsewhere}");
            assert_eq!(declared(&part(101)), RestResponse::Other, "{elsewhere}");
        }
        assert_eq!(
            answer(&mut begun(), &signed, &part(101)),
            RestResponse::Other
        );
        // Nothing to compare the total with.
        assert_eq!(
            answer(&mut begun_by(&[TAG]), &signed, &rest),
            RestResponse::Other
        );
        let stated = begun_by(&[TAG]).answered(&mut unchanged(), &signed, &rest);
        assert_eq!(stated, RestResponse::Rest(100));
    }

    #[test]
    fn without_a_strong_validator_only_assume_unchanged_resumes() {
        let recent = [("date", MODIFIED.1), MODIFIED, LENGTH];
        let weak = [("etag", "W/\"v1\""), LENGTH];
        for fields in [&[LENGTH][..], &[], &weak, &recent, &[MODIFIED, LENGTH]] {
            assert!(begun_from(&url(), fields, &RangeState::default()).is_none());
            let mut range_state = unchanged();
            let mut partial = begun_from(&url(), fields, &range_state).unwrap();
            let mut asked = request("http://localhost/large", &[]);
            assert!(partial.ask(&range_state, &mut asked));
            assert_eq!(asked.headers()[RANGE], "bytes=40-");
            assert!(!asked.headers().contains_key(IF_RANGE));
            let part = head(206, &[("content-range", "bytes 40-99/100")]);
            let answered = partial.answered(&mut range_state, &url(), &part);
            assert_eq!(answered, RestResponse::Rest(100), "{fields:?}");
        }
        let none = [LENGTH, ("accept-ranges", "none")];
        assert!(begun_from(&url(), &none, &unchanged()).is_none());
    }

    #[test]
    fn received_bytes_are_the_whole_after_a_416_only_as_declared_and_by_the_same_validator() {
        let refused = head(416, &[]);
        let all = |state: &RangeState| {
            let begun = begun_from(&url(), &[TAG, ("content-length", "40")], state)?;
            begun.perhaps_complete(state, &refused)
        };
        assert!(all(&RangeState::default()).is_none());
        let all = all(&unchanged()).unwrap();
        let whole = ("content-length", "40");
        for (fields, is_same) in [
            (&[TAG, whole][..], true),
            (&[("etag", "\"v2\""), whole], false),
            (&[whole], false),
            (&[TAG, ("content-length", "41")], false),
            (&[TAG, whole, ("content-encoding", "gzip")], false),
        ] {
            assert_eq!(all.is_proven_by(&head(200, fields)), is_same, "{fields:?}");
        }
        assert!(!all.is_proven_by(&head(206, &[TAG, whole])));
    }

    #[test]
    fn an_encoded_body_is_resumed_only_as_declared_and_with_the_same_coding() {
        let gzip = ("content-encoding", "gzip");
        let identity = ("content-encoding", "Identity");
        let begins = [TAG, LENGTH, gzip];
        assert!(begun_from(&url(), &begins, &RangeState::default()).is_none());
        let part = ("content-range", "bytes 40-99/100");
        for (first, then, expected) in [
            (gzip, gzip, RestResponse::Rest(100)),
            (identity, part, RestResponse::Rest(100)),
            (gzip, ("content-encoding", "br"), RestResponse::Other),
            (gzip, identity, RestResponse::Other),
            (identity, gzip, RestResponse::Other),
        ] {
            let mut begun = begun_from(&url(), &[TAG, LENGTH, first], &unchanged()).unwrap();
            let mut fields = vec![TAG, part];
            fields.extend((then != part).then_some(then));
            let answered = begun.answered(&mut unchanged(), &url(), &head(206, &fields));
            assert_eq!(answered, expected, "{first:?}, then {then:?}");
        }
        // Of bytes of an earlier call, the caller declares the coding, too.
        let rest = head(206, &[TAG, part, gzip]);
        let answered = Partial::stated(40, None).answered(&mut unchanged(), &url(), &rest);
        assert_eq!(answered, RestResponse::Rest(100));
        assert_eq!(answer(&mut begun(), &url(), &rest), RestResponse::Other);
    }

    #[test]
    fn if_range_is_dropped_after_a_200_with_the_same_validator() {
        let whole = head(200, &[TAG, LENGTH]);
        for range_state in [RangeState::default(), unchanged()] {
            let (mut partial, mut range_state) = (begun(), range_state);
            let answered = partial.answered(&mut range_state, &url(), &whole);
            assert_eq!(answered, RestResponse::Again);
            let mut asked = request("http://localhost/large", &[]);
            assert!(partial.ask(&range_state, &mut asked));
            assert_eq!(asked.headers()[RANGE], "bytes=40-");
            assert!(!asked.headers().contains_key(IF_RANGE));
            let answered = partial.answered(&mut range_state, &url(), &whole);
            assert_eq!(answered, RestResponse::Other, "it knows no ranges");
        }
        let changed = head(200, &[("etag", "\"v2\""), LENGTH]);
        assert_eq!(answer(&mut begun(), &url(), &changed), RestResponse::Other);
        let longer = head(200, &[TAG, ("content-length", "101")]);
        assert_eq!(answer(&mut begun(), &url(), &longer), RestResponse::Other);
        // Without the condition the tag of the response is the proof.
        let mut range_state = RangeState {
            without_if_range: true,
            ..RangeState::default()
        };
        let range = ("content-range", "bytes 40-99/100");
        for (tag, expected) in [
            (TAG.1, RestResponse::Rest(100)),
            ("\"v2\"", RestResponse::Other),
        ] {
            let part = head(206, &[("etag", tag), range]);
            assert_eq!(begun().answered(&mut range_state, &url(), &part), expected);
        }
    }

    /// Tags of the responses of one attempt, and the result with the caller's declaration.
    #[test]
    fn different_tags_within_one_attempt_count_as_per_server_tags() {
        let part = ("content-range", "bytes 40-99/100");
        for (answers, expected) in [
            // The representation has changed.
            (&[(200, "\"v2\""), (206, "\"v2\"")][..], RestResponse::Other),
            (&[(206, "\"v2\""), (206, "\"v2\"")], RestResponse::Other),
            // Each server has its own tag.
            (&[(200, "\"v2\""), (206, "\"v3\"")], RestResponse::Rest(100)),
            (&[(206, "\"v2\""), (206, "\"v3\"")], RestResponse::Rest(100)),
            (&[(200, "\"v2\""), (206, TAG.1)], RestResponse::Rest(100)),
            (&[(200, TAG.1), (206, "\"v2\"")], RestResponse::Rest(100)),
            // A weak form of the same tag.
            (&[(206, "W/\"v1\"")], RestResponse::Rest(100)),
            (
                &[(200, "W/\"v1\""), (206, "W/\"v1\"")],
                RestResponse::Rest(100),
            ),
        ] {
            let (mut partial, mut range_state) = (begun(), unchanged());
            for (index, (status, tag)) in answers.iter().enumerate() {
                let length = match status {
                    200 => LENGTH,
                    _ => ("content-length", "60"),
                };
                let head = head(*status, &[("etag", tag), length, part]);
                let answered = partial.answered(&mut range_state, &url(), &head);
                let last = index + 1 == answers.len();
                let expected = if last { expected } else { RestResponse::Again };
                assert_eq!(answered, expected, "{answers:?}");
            }
            let varies = expected != RestResponse::Other && !answers[0].1.starts_with("W/");
            assert_eq!(range_state.validators_vary, varies, "{answers:?}");
            assert_eq!(partial.resumable().is_none(), varies, "{answers:?}");
        }
    }

    #[test]
    fn unchecked_bytes_require_the_stated_total_length() {
        let mut stated = Partial::stated(40, Some(100));
        let mut answered = |status, range| {
            let head = head(status, &[("content-range", range)]);
            stated.answered(&mut unchanged(), &url(), &head)
        };
        let longer = answered(206, "bytes 40-101/102");
        assert_eq!(longer, RestResponse::Other, "another length");
        let shorter = answered(416, "bytes */40");
        assert_eq!(shorter, RestResponse::Other, "60 bytes are missing");
        let rest = answered(206, "bytes 40-99/100");
        assert_eq!(rest, RestResponse::Rest(100));
    }

    /// A field value: any bytes, or an almost valid value.
    fn value() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..30),
            "(W/)?\"[ -~]{0,3}\"".prop_map(String::into_bytes),
            "bytes (40|4[0-9])-[0-9]{1,3}/(100|[0-9*]{1,3})".prop_map(String::into_bytes),
            prop::sample::select(vec![
                "\"v1\"",
                "100",
                MODIFIED.1,
                DATE_AFTER.1,
                "bytes",
                "gzip"
            ])
            .prop_map(|value| value.as_bytes().to_vec()),
        ]
    }

    proptest! {
        #[test]
        fn no_bytes_panic(value: Vec<u8>) {
            let _ = content_range(&value, Some(100));
        }

        /// For any response head: no panic, its identity can be stored and read back, and the rest begins at the right
        /// position.
        #[test]
        fn a_resumable_of_any_response_head_can_be_stored(
            fields in prop::collection::vec((0..7usize, value()), 0..6),
            status in prop::sample::select(vec![200, 206, 416, 304]),
        ) {
            let mut head = head(status, &[]);
            for (name, value) in fields {
                let name = [ETAG, LAST_MODIFIED, DATE, CONTENT_LENGTH, CONTENT_RANGE,
                    CONTENT_ENCODING, ACCEPT_RANGES][name].clone();
                if let Ok(value) = HeaderValue::from_bytes(&value) {
                    head.headers_mut().append(name, value);
                }
            }
            if let Some(of) = Resumable::of(&Method::GET, &url(), &head, false) {
                prop_assert_eq!(status, 200);
                match of.validator() {
                    // A non-ASCII entity tag cannot be stored.
                    "" => prop_assert!(Resumable::new(of.url(), "", of.total()).is_err()),
                    stored => prop_assert_eq!(Resumable::new(of.url(), stored, of.total()), Ok(of.clone())),
                }
            }
            match answer(&mut begun(), &url(), &head) {
                RestResponse::Again => prop_assert_eq!(status, 200),
                RestResponse::Rest(end) => {
                    prop_assert_eq!(status, 206);
                    prop_assert!((41..=100).contains(&end));
                    prop_assert_eq!(only(head.headers(), &ETAG).unwrap(), TAG.1);
                }
                RestResponse::Complete => prop_assert!(false, "40 of 100"),
                RestResponse::Other => {}
            }
        }

        #[test]
        fn every_valid_content_range_is_parsed(first in 0..1_u64 << 40, more in 0..1_u64 << 40, rest in 1..1_u64 << 40) {
            let (last, total) = (first + more, first + more + rest);
            let value = format!("bytes {first}-{last}/{total}");
            prop_assert_eq!(content_range(value.as_bytes(), None), Some(ContentRange { first, last, total }));
        }
    }
}
