//! Asking for the rest of a response that was cut short (RFC 9110 §13.1.5 and §14).
//!
//! Bytes of two representations must never be mixed. So an answer is believed only if it comes from the
//! same URL, repeats the validator and tells the range that was asked for.

use http::header::{CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, IF_RANGE, RANGE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use relent_http::field::trim;
use reqwest::Url;

use crate::resumable::{Resumable, bare, number, only, strong_validator};

/// What has arrived of a representation, and where the rest of it is.
#[derive(Debug)]
pub(crate) struct Partial {
    of: Of,
    pub(crate) received: u64,
    /// The address asked in this call that led to this response. `None` for bytes of an earlier call:
    /// where the address leads today is found out by asking it.
    asked: Option<Url>,
}

/// Whose bytes they are.
#[derive(Debug)]
enum Of {
    /// The representation's that this names.
    Named(Resumable),
    /// The caller's word has to do. The total is known once a response has told it.
    Vouched { total: Option<u64> },
}

/// What an answer to the request for the rest is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// The rest, up to this position, exclusively.
    Rest(u64),
    /// Nothing is missing.
    Complete,
    /// Something else, or not provably the rest.
    Other,
}

impl Partial {
    /// Nothing as yet of the response to a request for `asked`.
    pub(crate) const fn begun(of: Resumable, asked: Option<Url>) -> Self {
        Self {
            of: Of::Named(of),
            received: 0,
            asked,
        }
    }

    /// These first bytes, from an earlier call, of what `of` names.
    pub(crate) const fn earlier(of: Resumable, received: u64) -> Self {
        Self {
            of: Of::Named(of),
            received,
            asked: None,
        }
    }

    /// These first bytes, from an earlier call, on the caller's word. The length of all of it is known
    /// if a response has told it.
    pub(crate) const fn vouched(received: u64, total: Option<u64>) -> Self {
        Self {
            of: Of::Vouched { total },
            received,
            asked: None,
        }
    }

    /// What names it.
    pub(crate) const fn resumable(&self) -> Option<&Resumable> {
        match &self.of {
            Of::Named(resumable) => Some(resumable),
            Of::Vouched { .. } => None,
        }
    }

    /// The length of all of it, if it is known.
    pub(crate) const fn total(&self) -> Option<u64> {
        match &self.of {
            Of::Named(resumable) => resumable.total,
            Of::Vouched { total } => *total,
        }
    }

    /// Turns a request for the whole into one for the rest. `false` if it is addressed elsewhere: it
    /// is left as it was.
    ///
    /// If redirects led to the response in this call, the final URL is asked: that is where the
    /// representation is, whatever the first address leads to by now. Credentials go to no other
    /// origin than the one they were for, as in any redirect.
    pub(crate) fn ask(&self, request: &mut reqwest::Request) -> bool {
        let validator = match (&self.of, &self.asked) {
            (Of::Vouched { .. }, _) => None,
            (Of::Named(_), Some(asked)) if asked != request.url() => return false,
            (Of::Named(of), asked) => {
                if asked.is_some() {
                    direct(request, &of.url);
                }
                Some(&of.validator)
            }
        };
        let Ok(range) = HeaderValue::try_from(format!("bytes={}-", self.received)) else {
            return false;
        };
        let headers = request.headers_mut();
        headers.insert(RANGE, range);
        if let Some(validator) = validator {
            headers.insert(IF_RANGE, validator.clone());
        }
        true
    }

    /// Whether the final URL was asked, and not the first one.
    pub(crate) fn is_direct_to(&self, url: &Url) -> bool {
        match (&self.of, &self.asked) {
            (Of::Named(of), Some(asked)) => of.is_from(url) && !of.is_from(asked),
            _ => false,
        }
    }

    /// The rest has come, to a request for `asked`.
    pub(crate) fn goes_on(&mut self, asked: Option<Url>) {
        self.asked = asked;
    }

    /// What this answer from `url` is. Learns what it tells of the representation.
    pub(crate) fn answered<B>(&mut self, url: &Url, head: &Response<B>) -> Answer {
        let headers = head.headers();
        let range = || only(headers, &CONTENT_RANGE).map(HeaderValue::as_bytes);
        if let Of::Named(of) = &self.of
            && !(of.is_from(url) && of.is_named_by(headers))
        {
            return Answer::Other;
        }
        let same_total = |total| self.total().is_none_or(|known| known == total);
        match head.status() {
            StatusCode::RANGE_NOT_SATISFIABLE
                if range().and_then(unsatisfied) == Some(self.received)
                    && same_total(self.received) =>
            {
                Answer::Complete
            }
            StatusCode::PARTIAL_CONTENT
                if !headers.contains_key(CONTENT_ENCODING) && !is_multipart(headers) =>
            {
                match range().and_then(content_range) {
                    Some(range) if range.first == self.received && same_total(range.total) => {
                        self.learn(url, headers, range.total);
                        Answer::Rest(range.last + 1)
                    }
                    _ => Answer::Other,
                }
            }
            _ => Answer::Other,
        }
    }

    /// What was only vouched for is named from here on, if the answer has a name.
    fn learn(&mut self, url: &Url, headers: &HeaderMap, total: u64) {
        match &mut self.of {
            Of::Named(of) => of.total = Some(total),
            Of::Vouched { total: known } => match strong_validator(headers) {
                Some(validator) => {
                    self.of = Of::Named(Resumable {
                        url: bare(url),
                        validator: validator.clone(),
                        total: Some(total),
                    });
                }
                None => *known = Some(total),
            },
        }
    }

    /// Whether all of it has arrived; so it has if the length was never told.
    pub(crate) fn is_complete(&self) -> bool {
        self.total().is_none_or(|total| total == self.received)
    }
}

/// Whether a request has a range of the caller's own.
pub(crate) fn has_own_range(request: &HeaderMap) -> bool {
    request.contains_key(RANGE) || request.contains_key(IF_RANGE)
}

/// Sends a request elsewhere, as a redirect would.
fn direct(request: &mut reqwest::Request, to: &Url) {
    if request.url().origin() != to.origin() {
        use http::header::{AUTHORIZATION, COOKIE, HOST, PROXY_AUTHORIZATION, WWW_AUTHENTICATE};
        for name in [
            AUTHORIZATION,
            COOKIE,
            HOST,
            PROXY_AUTHORIZATION,
            WWW_AUTHENTICATE,
        ] {
            request.headers_mut().remove(name);
        }
    }
    *request.url_mut() = to.clone();
}

/// Whether the body has several ranges, each with a head of its own (RFC 9110 §14.6).
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

/// `bytes 0-499/1234`. An unknown total (`*`) is not accepted: nothing would tell when the
/// representation is complete, or that it is the same one.
fn content_range(value: &[u8]) -> Option<ContentRange> {
    let value = trim(value);
    let unit = value.get(..6)?;
    if !unit.eq_ignore_ascii_case(b"bytes ") {
        return None;
    }
    let (range, total) = split(trim(&value[6..]), b'/')?;
    let (first, last) = split(range, b'-')?;
    let (first, last, total) = (number(first)?, number(last)?, number(total)?);
    (first <= last && last < total).then_some(ContentRange { first, last, total })
}

/// The total of `bytes */1234`.
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

    use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, DATE, ETAG, LAST_MODIFIED};
    use http::{HeaderName, Method};

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
        Resumable::of(&Method::GET, &url(), &head(200, fields))
    }

    /// 40 bytes of 100.
    fn begun() -> Partial {
        begun_by(&[TAG, LENGTH])
    }

    fn begun_by(fields: &[(&str, &str)]) -> Partial {
        let mut partial = Partial::begun(of(fields).unwrap(), Some(url()));
        partial.received = 40;
        partial
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
    fn anything_else_is_not() {
        assert_eq!(of(&[LENGTH]), None);
        for tag in ["W/\"v1\"", "v1", "\"v1", "\"", "\"a\"b\"", "\"a b\"", ""] {
            assert_eq!(of(&[("etag", tag), LENGTH]), None, "{tag}");
        }
        assert_eq!(of(&[TAG, ("etag", "\"v2\"")]), None);
        assert_eq!(of(&[TAG, ("content-encoding", "gzip")]), None);
        assert_eq!(of(&[TAG, ("accept-ranges", "none")]), None);
        for status in [201, 203, 206, 404] {
            let head = head(status, &[TAG, LENGTH]);
            assert_eq!(Resumable::of(&Method::GET, &url(), &head), None);
        }
        let head = head(200, &[TAG, LENGTH]);
        assert_eq!(Resumable::of(&Method::POST, &url(), &head), None);
        for name in ["range", "if-range"] {
            let ranged = request("http://localhost/", &[(name, "bytes=5-")]);
            assert!(has_own_range(ranged.headers()));
        }
    }

    /// RFC 9110 §8.8.2.2 and §13.1.5.
    #[test]
    fn a_date_is_a_strong_validator_only_when_it_is_a_minute_old_and_there_is_no_tag() {
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
    fn what_was_stored_is_read_back() {
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
    fn the_rest_is_asked_for_under_the_validator() {
        let mut asked = request("http://localhost/large", &[]);
        assert!(begun().ask(&mut asked));
        assert_eq!(asked.headers()[RANGE], "bytes=40-");
        assert_eq!(asked.headers()[IF_RANGE], "\"v1\"");

        let mut asked = request("http://localhost/large", &[]);
        assert!(begun_by(&[MODIFIED, DATE_AFTER]).ask(&mut asked));
        assert_eq!(asked.headers()[IF_RANGE], MODIFIED.1);

        let mut asked = request("http://localhost/large", &[]);
        assert!(Partial::vouched(40, None).ask(&mut asked));
        assert_eq!(asked.headers()[RANGE], "bytes=40-");
        assert!(!asked.headers().contains_key(IF_RANGE));
    }

    #[test]
    fn the_rest_is_asked_of_the_url_that_a_redirect_led_to_without_what_is_for_another_origin() {
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
            let mut partial = Partial::begun(of(&[TAG]).unwrap(), Some(first_url));
            partial.received = 40;
            let mut asked = request(first, &secrets);
            assert!(partial.ask(&mut asked));
            assert_eq!(asked.url(), &url());
            assert_eq!(asked.headers().len(), kept + 2, "{first}");
            assert!(partial.is_direct_to(&url()));

            let mut elsewhere = request("http://localhost/fallback", &secrets);
            assert!(!partial.ask(&mut elsewhere), "rerouted");
            assert_eq!(elsewhere.headers().len(), 4);
        }
        assert!(!begun().is_direct_to(&url()));
    }

    #[test]
    fn an_answer_continues_only_with_the_same_url_validator_start_and_total() {
        let range = |value| ("content-range", value);
        let after = |fields: &[_]| begun().answered(&url(), &head(206, fields));
        assert_eq!(after(&[TAG, range("bytes 40-99/100")]), Answer::Rest(100));
        assert_eq!(
            after(&[TAG, range("bytes 40-59/100")]),
            Answer::Rest(60),
            "a part of the rest continues too"
        );
        for wrong in [
            "bytes 41-99/100",
            "bytes 0-99/100",
            "bytes 40-99/101",
            "bytes 40-99/*",
            "bytes 40-100/100",
            "bytes 40-39/100",
            "bytes */100",
            "items 40-99/100",
            "bytes 40-/100",
            "bytes=40-99/100",
            "bytes +40-99/100",
            "",
        ] {
            assert_eq!(after(&[TAG, range(wrong)]), Answer::Other, "{wrong}");
        }
        let right = range("bytes 40-99/100");
        assert_eq!(after(&[right]), Answer::Other, "no tag");
        assert_eq!(after(&[("etag", "\"v2\""), right]), Answer::Other);
        assert_eq!(after(&[("etag", "W/\"v1\""), right]), Answer::Other);
        assert_eq!(after(&[TAG, right, right]), Answer::Other, "two ranges");
        assert_eq!(after(&[TAG]), Answer::Other, "no range");
        let several = ("content-type", "Multipart/ByteRanges; boundary=x");
        assert_eq!(after(&[TAG, right, several]), Answer::Other);
        assert_eq!(
            after(&[TAG, right, ("content-encoding", "gzip")]),
            Answer::Other
        );
        let ok = begun().answered(&url(), &head(200, &[TAG, right]));
        assert_eq!(ok, Answer::Other);
        let other = Url::parse("http://localhost/other").unwrap();
        let elsewhere = begun().answered(&other, &head(206, &[TAG, right]));
        assert_eq!(elsewhere, Answer::Other, "another URL");

        let mut dated = begun_by(&[MODIFIED, DATE_AFTER, LENGTH]);
        assert_eq!(
            dated.answered(&url(), &head(206, &[right])),
            Answer::Other,
            "no date"
        );
        assert_eq!(
            dated.answered(&url(), &head(206, &[MODIFIED, right])),
            Answer::Rest(100)
        );
    }

    #[test]
    fn what_is_complete_already_is_so_only_under_the_same_validator() {
        let none_left = ("content-range", "bytes */40");
        let mut all = begun_by(&[TAG, ("content-length", "40")]);
        let answered = all.answered(&url(), &head(416, &[TAG, none_left]));
        assert_eq!(answered, Answer::Complete);
        assert_eq!(
            all.answered(&url(), &head(416, &[none_left])),
            Answer::Other
        );
        let answered = begun().answered(&url(), &head(416, &[TAG, none_left]));
        assert_eq!(answered, Answer::Other, "40 of 100");
        let mut vouched = Partial::vouched(40, None);
        assert_eq!(
            vouched.answered(&url(), &head(416, &[none_left])),
            Answer::Complete
        );
    }

    #[test]
    fn an_unknown_total_is_learned() {
        let mut begun = begun_by(&[TAG]);
        let part = |range| head(206, &[TAG, ("content-range", range)]);
        let answered = begun.answered(&url(), &part("bytes 40-59/100"));
        assert_eq!(answered, Answer::Rest(60));
        begun.received = 60;
        assert!(!begun.is_complete());
        let answered = begun.answered(&url(), &part("bytes 60-99/200"));
        assert_eq!(answered, Answer::Other);
        let answered = begun.answered(&url(), &part("bytes 60-99/100"));
        assert_eq!(answered, Answer::Rest(100));
        begun.received = 100;
        assert!(begun.is_complete());
    }

    #[test]
    fn what_is_vouched_for_is_named_by_the_first_answer() {
        let mut vouched = Partial::vouched(40, None);
        let part = |tag, range| head(206, &[("etag", tag), ("content-range", range)]);
        let answered = vouched.answered(&url(), &part("\"v1\"", "bytes 0-59/100"));
        assert_eq!(answered, Answer::Other, "another start");
        let answered = vouched.answered(&url(), &part("\"v1\"", "bytes 40-59/100"));
        assert_eq!(answered, Answer::Rest(60));
        vouched.received = 60;
        assert_eq!(vouched.resumable(), of(&[TAG, LENGTH]).as_ref());
        let answered = vouched.answered(&url(), &part("\"v2\"", "bytes 60-99/100"));
        assert_eq!(answered, Answer::Other, "another tag");
    }

    #[test]
    fn what_is_vouched_for_is_as_long_as_the_response_of_the_earlier_call_said() {
        let mut vouched = Partial::vouched(40, Some(100));
        let range = |range| [("content-range", range)];
        let answered = vouched.answered(&url(), &head(206, &range("bytes 40-101/102")));
        assert_eq!(answered, Answer::Other, "another length");
        let answered = vouched.answered(&url(), &head(416, &range("bytes */40")));
        assert_eq!(answered, Answer::Other, "60 bytes are missing");
        let answered = vouched.answered(&url(), &head(206, &range("bytes 40-99/100")));
        assert_eq!(answered, Answer::Rest(100));
    }

    /// What a field can hold: anything, and what is almost right.
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
            let _ = content_range(&value);
        }

        /// Whatever a server says of what it sends: no panic, what it names can be stored and read back,
        /// and the rest begins where it should.
        #[test]
        fn any_head_names_what_is_read_back_or_nothing(
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
            if let Some(of) = Resumable::of(&Method::GET, &url(), &head) {
                prop_assert_eq!(status, 200);
                match of.validator() {
                    // An entity tag beyond ASCII is not to be stored.
                    "" => prop_assert!(Resumable::new(of.url(), "", of.total()).is_err()),
                    stored => prop_assert_eq!(Resumable::new(of.url(), stored, of.total()), Ok(of.clone())),
                }
            }
            match begun().answered(&url(), &head) {
                Answer::Rest(end) => {
                    prop_assert_eq!(status, 206);
                    prop_assert!((41..=100).contains(&end));
                    prop_assert_eq!(only(head.headers(), &ETAG).unwrap(), TAG.1);
                }
                Answer::Complete => prop_assert!(false, "40 of 100"),
                Answer::Other => {}
            }
        }

        #[test]
        fn every_satisfied_range_is_read_back(first in 0..1_u64 << 40, more in 0..1_u64 << 40, rest in 1..1_u64 << 40) {
            let (last, total) = (first + more, first + more + rest);
            let value = format!("bytes {first}-{last}/{total}");
            prop_assert_eq!(content_range(value.as_bytes()), Some(ContentRange { first, last, total }));
        }
    }
}
