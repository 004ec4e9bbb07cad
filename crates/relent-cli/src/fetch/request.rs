//! The request that the arguments of `relent fetch` ask for.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use relent_http::headers::IDEMPOTENCY_KEY;
use relent_http::{Body, IdempotencyKey, KeyForm};
use tempfile::{NamedTempFile, TempPath};

use super::FetchArgs;
use crate::quit::Quit;

/// How much data is kept in memory, in bytes; more is sent from a file.
const MEMORY: u64 = 1 << 20;
/// curl's status for data that cannot be read.
const UNREADABLE: i32 = 26;
const FORM: HeaderValue = HeaderValue::from_static("application/x-www-form-urlencoded");

/// A request, ready to be sent as often as needed.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) request: Request<Body>,
    /// The key of `--idempotency-key`, as a person would give it again.
    pub(crate) key: Option<String>,
    /// Standard input, if it is large; the file is removed when this is dropped.
    _kept: Option<TempPath>,
}

impl Prepared {
    /// Reads the arguments, and standard input if it is asked for.
    ///
    /// # Errors
    /// A usage error for arguments that make no request; [`UNREADABLE`] for data.
    pub(crate) fn from_args(args: &FetchArgs) -> Result<Self, Quit> {
        let mut headers = headers(&args.header).map_err(Quit::usage)?;
        let method = method(args.method.as_deref(), !args.data.is_empty()).map_err(Quit::usage)?;
        let uri = uri(&args.url).map_err(Quit::usage)?;
        let key = args.idempotency_key.as_deref();
        let key = key.map(|key| add_key(key, &mut headers)).transpose();
        let key = key.map_err(Quit::usage)?;
        if !args.data.is_empty() && !headers.contains_key(CONTENT_TYPE) {
            headers.insert(CONTENT_TYPE, FORM);
        }
        let data = data(&args.data).map_err(|message| Quit {
            status: UNREADABLE,
            message,
        })?;
        let mut request = Request::new(data.body);
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        Ok(Self {
            request,
            key,
            _kept: data.kept,
        })
    }

    /// The idempotency key of every attempt, also one that was given by -H.
    pub(crate) fn sent_key(&self) -> Option<String> {
        let sent = self.request.headers().get(IDEMPOTENCY_KEY);
        let sent = || sent.map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned());
        self.key.clone().or_else(sent)
    }
}

fn uri(text: &str) -> Result<Uri, String> {
    let url = match reqwest::Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") => url,
        Ok(url) if text.contains("://") => {
            return Err(format!(
                "{text}: a URL begins with http:// or https://, not {}://",
                url.scheme()
            ));
        }
        // `localhost:8080/x` parses too, as the scheme `localhost`.
        Ok(_) | Err(_) if !text.contains("://") => {
            return Err(format!(
                "{text}: a URL begins with http:// or https://, as in http://{text}"
            ));
        }
        Ok(_) => return Err(format!("{text}: a URL begins with http:// or https://")),
        Err(error) => return Err(format!("{text}: no URL: {error}")),
    };
    let uri = url.as_str().parse();
    uri.map_err(|error| format!("{text}: no URL that can be sent: {error}"))
}

fn method(given: Option<&str>, data: bool) -> Result<Method, String> {
    let Some(given) = given else {
        return Ok(if data { Method::POST } else { Method::GET });
    };
    // Methods know no capitals, people do.
    let known = [
        "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "QUERY",
    ];
    let name = known
        .into_iter()
        .find(|known| known.eq_ignore_ascii_case(given))
        .unwrap_or(given);
    match Method::from_bytes(name.as_bytes()) {
        Ok(Method::CONNECT) => Err("-X CONNECT: a tunnel is nothing to fetch".to_owned()),
        Ok(method) => Ok(method),
        Err(_) => Err(format!(
            "-X {given:?}: no method: use a word such as PUT or DELETE"
        )),
    }
}

fn headers(given: &[String]) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for field in given {
        let wrong = |what: &str| format!("-H {field:?}: {what}");
        let (name, value) = field
            .split_once(':')
            .ok_or_else(|| wrong("a header field is written as 'Name: value'"))?;
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
            wrong("the name before the colon has letters, digits and -, and no space")
        })?;
        if name == CONTENT_LENGTH || name == TRANSFER_ENCODING {
            return Err(wrong("this field follows from -d"));
        }
        let value = HeaderValue::from_str(value.trim_matches([' ', '\t']))
            .or_else(|_| HeaderValue::from_bytes(value.trim_matches([' ', '\t']).as_bytes()))
            .map_err(|_| wrong("a value has no line ends or other control characters"))?;
        headers.append(name, value);
    }
    Ok(headers)
}

/// Adds the key as a string of RFC 9651 and returns it as a person would write it.
fn add_key(given: &str, headers: &mut HeaderMap) -> Result<String, String> {
    if headers.contains_key(IDEMPOTENCY_KEY) {
        return Err("--idempotency-key: -H gives an Idempotency-Key already".to_owned());
    }
    let key = match given {
        "auto" => IdempotencyKey::new(),
        given => given
            .parse()
            .map_err(|error| format!("--idempotency-key {given:?}: {error}; `auto` makes one"))?,
    };
    key.attach(KeyForm::Quoted, headers);
    Ok(key.to_string())
}

#[derive(Default)]
struct Data {
    body: Body,
    kept: Option<TempPath>,
}

fn data(given: &[String]) -> Result<Data, String> {
    if let [only] = given
        && let Some(name) = only.strip_prefix('@')
        && name != "-"
        && std::fs::metadata(name).is_ok_and(|file| file.is_file() && file.len() > MEMORY)
    {
        return Ok(Data {
            body: Body::file(name).map_err(|error| unreadable(only, &error))?,
            kept: None,
        });
    }
    let mut all = Kept::default();
    for (index, part) in given.iter().enumerate() {
        let joined = if index > 0 {
            all.append(&mut &b"&"[..])
        } else {
            Ok(())
        };
        joined
            .and_then(|()| match part.strip_prefix('@') {
                None => all.append(&mut part.as_bytes()),
                Some("-") => all.append(&mut io::stdin().lock()),
                Some(name) => all.append(&mut File::open(Path::new(name))?),
            })
            .map_err(|error| unreadable(part, &error))?;
    }
    all.finish()
        .map_err(|error| format!("-d: the data cannot be kept: {error}"))
}

fn unreadable(part: &str, error: &io::Error) -> String {
    format!("-d {part}: cannot be read: {error}")
}

/// Data that is read once: in memory, or in a file if there is much of it.
#[derive(Default)]
struct Kept {
    memory: Vec<u8>,
    file: Option<NamedTempFile>,
}

impl Kept {
    fn append(&mut self, from: &mut impl Read) -> io::Result<()> {
        if self.file.is_none() {
            let room = MEMORY.saturating_sub(self.memory.len() as u64);
            from.take(room).read_to_end(&mut self.memory)?;
            if (self.memory.len() as u64) < MEMORY {
                return Ok(());
            }
            let mut file = NamedTempFile::with_prefix("relent-data-")?;
            file.write_all(&self.memory)?;
            self.file = Some(file);
        }
        if let Some(file) = &mut self.file {
            io::copy(from, file)?;
        }
        Ok(())
    }

    fn finish(self) -> io::Result<Data> {
        let Some(file) = self.file else {
            return Ok(Data {
                body: Body::from(self.memory),
                ..Data::default()
            });
        };
        let path = file.into_temp_path();
        Ok(Data {
            body: Body::file(path.to_path_buf())?,
            kept: Some(path),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_url_that_cannot_be_fetched_is_explained() {
        for (url, says) in [
            ("example.com/x", "as in http://example.com/x"),
            ("localhost:8080", "as in http://localhost:8080"),
            ("ftp://example.com", "not ftp://"),
            ("http://", "no URL: empty host"),
            ("http://a b/", "no URL: invalid"),
            ("http://h:99999/", "no URL: invalid port"),
            ("", "begins with http://"),
        ] {
            let error = uri(url).unwrap_err();
            assert!(error.contains(says), "{url}: {error}");
        }
        assert_eq!(
            uri("HTTP://Example.com/a b").unwrap(),
            "http://example.com/a%20b"
        );
    }

    #[test]
    fn data_makes_a_post_unless_a_method_is_given() {
        assert_eq!(method(None, false), Ok(Method::GET));
        assert_eq!(method(None, true), Ok(Method::POST));
        assert_eq!(method(Some("put"), true), Ok(Method::PUT));
        assert_eq!(method(Some("Purge"), false).unwrap().as_str(), "Purge");
        for wrong in ["", "G T", "CONNECT", "ö"] {
            assert!(method(Some(wrong), false).is_err(), "{wrong}");
        }
    }

    #[test]
    fn header_fields_are_taken_as_written() {
        let given = ["A:1", "a:  2 ", "B: x: y", "C:"].map(str::to_owned);
        let headers = headers(&given).unwrap();
        assert_eq!(headers.get_all("a").iter().collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(headers["b"], "x: y");
        assert_eq!(headers["c"], "");
        for wrong in [
            "A",
            "",
            ": x",
            "a b: c",
            "A: x\r\nB: y",
            "content-length: 3",
            "Transfer-Encoding: chunked",
        ] {
            assert!(super::headers(&[wrong.to_owned()]).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_key_is_sent_in_quotes_once() {
        for (given, sent) in [("k 1", "\"k 1\""), ("\"k\"", "\"k\"")] {
            let mut headers = HeaderMap::new();
            add_key(given, &mut headers).unwrap();
            assert_eq!(headers[IDEMPOTENCY_KEY], sent);
            assert!(
                add_key(given, &mut headers).is_err(),
                "there is one already"
            );
        }
        for wrong in ["", "\"\"", "a\"b", "\\", "\u{7f}", "ö", "a\nb"] {
            assert!(add_key(wrong, &mut HeaderMap::new()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_new_key_is_another_each_time() {
        let new = || add_key("auto", &mut HeaderMap::new()).unwrap();
        assert_ne!(new(), new());
    }

    #[test]
    fn much_data_is_kept_in_a_file() {
        for (length, in_file) in [
            (0, false),
            (MEMORY - 1, false),
            (MEMORY, true),
            (3 * MEMORY, true),
        ] {
            let mut kept = Kept::default();
            kept.append(&mut io::repeat(7).take(length)).unwrap();
            let data = kept.finish().unwrap();
            assert_eq!(
                (data.body.len(), data.kept.is_some()),
                (Some(length), in_file)
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_request_or_an_explained_error(text in ".{0,20}") {
            for parsed in [
                uri(&text).map(|_| ()),
                method(Some(&text), false).map(|_| ()),
                headers(std::slice::from_ref(&text)).map(|_| ()),
                add_key(&text, &mut HeaderMap::new()).map(|_| ()),
            ] {
                if let Err(error) = parsed {
                    prop_assert!(!error.is_empty());
                }
            }
        }
    }
}
