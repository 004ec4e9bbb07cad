//! The request of `relent fetch`, built from its arguments.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, IF_RANGE, RANGE, REFERER,
    TRANSFER_ENCODING, USER_AGENT,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use relent_http::headers::IDEMPOTENCY_KEY;
use relent_reqwest::{Body, IdempotencyKey, KeyForm};
use reqwest::Url;
use tempfile::TempPath;

use super::args::FetchArgs;
use super::data;
use crate::exit_status::ExitError;

/// curl's status for data that cannot be read.
const UNREADABLE: i32 = 26;
const FORM: HeaderValue = HeaderValue::from_static("application/x-www-form-urlencoded");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A request that can be sent repeatedly.
pub(crate) struct Prepared {
    pub(crate) request: Request<Body>,
    /// The key of `--idempotency-key`, in the form of the option.
    pub(crate) key: Option<String>,
    /// The temporary file with large data, which is removed when this is dropped.
    _kept: Option<TempPath>,
}

/// The head of a request, before its data is read.
pub(crate) struct RequestHead {
    url: Url,
    method: Method,
    headers: HeaderMap,
    key: Option<String>,
}

impl RequestHead {
    /// Builds the head from the arguments, without reading data.
    ///
    /// # Errors
    /// The arguments do not make a valid request.
    pub(crate) fn from_args(args: &FetchArgs) -> Result<Self, String> {
        let mut headers = headers(&args.header)?;
        if args.continues() && (headers.contains_key(RANGE) || headers.contains_key(IF_RANGE)) {
            return Err(
                "-C requests the missing bytes itself: leave out -H 'Range: …' and -H 'If-Range: …'"
                    .to_owned(),
            );
        }
        let mut url = url(&args.url)?;
        log_in(args.user.as_deref(), &mut url, &mut headers)?;
        for (option, name, value) in [
            ("-A", USER_AGENT, &args.user_agent),
            ("-e", REFERER, &args.referer),
        ] {
            if let Some(value) = value {
                let value = HeaderValue::from_str(value)
                    .map_err(|_| format!("{option}: a value has no control characters"))?;
                headers.insert(name, value);
            }
        }
        data::check_form(&args.form)?;
        if !args.form.is_empty() {
            data::form_type(&headers)?;
        }
        let key = args.idempotency_key.as_deref();
        let key = key.map(|key| add_key(key, &mut headers)).transpose()?;
        if args.data.is_json() {
            headers.entry(CONTENT_TYPE).or_insert(JSON);
            headers.entry(ACCEPT).or_insert(JSON);
        } else if !args.data.is_empty() && !args.get {
            headers.entry(CONTENT_TYPE).or_insert(FORM);
        }
        if let Some(name) = args.upload_file.as_deref().and_then(Path::file_name)
            && url.path().ends_with('/')
            && name != "-"
        {
            let name = utf8_percent_encode(&name.to_string_lossy(), NON_ALPHANUMERIC).to_string();
            // Dots are kept, as in `file.txt`.
            let path = format!("{}{}", url.path(), name.replace("%2E", "."));
            url.set_path(&path);
        }
        let default_method = if args.head {
            Method::HEAD
        } else if args.upload_file.is_some() {
            Method::PUT
        } else if args.form.is_empty() && (args.data.is_empty() || args.get) {
            Method::GET
        } else {
            Method::POST
        };
        Ok(Self {
            method: method(args.method.as_deref(), default_method)?,
            url,
            headers,
            key,
        })
    }

    /// The URL, without user and password.
    pub(crate) fn url(&self) -> &Url {
        &self.url
    }

    /// The method.
    pub(crate) fn method(&self) -> &Method {
        &self.method
    }

    /// Reads the data, from standard input if requested. Can be dropped at any time, without leaving a
    /// file behind.
    ///
    /// # Errors
    /// [`UNREADABLE`] for data, or a usage error for data that makes no valid request.
    pub(crate) async fn with_data(mut self, args: &FetchArgs) -> Result<Prepared, ExitError> {
        let unreadable = |message| ExitError {
            status: UNREADABLE,
            message,
        };
        if args.get && !args.data.is_empty() {
            let query = args.data.query(args.max_buffer).await.map_err(unreadable)?;
            let query = match self.url.query() {
                Some(first) if !first.is_empty() => format!("{first}&{query}"),
                _ => query,
            };
            self.url.set_query(Some(&query));
        }
        let sent = if let Some(path) = &args.upload_file {
            data::upload(path, args.max_buffer).await
        } else if args.form.is_empty() {
            match args.get {
                true => Ok(data::RequestBody::default()),
                false => args.data.read(args.max_buffer).await,
            }
        } else {
            data::form(&args.form, &mut self.headers, args.max_buffer).await
        };
        let sent = sent.map_err(unreadable)?;
        let uri: Uri = self.url.as_str().parse().map_err(|error| {
            ExitError::usage(format!(
                "{}: not a valid request URL: {error}",
                shown(self.url.as_str())
            ))
        })?;
        let mut request = Request::new(sent.body);
        *request.method_mut() = self.method;
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers;
        Ok(Prepared {
            request,
            key: self.key,
            _kept: sent.kept,
        })
    }
}

impl Prepared {
    /// Whether the data is too long to be in memory, so that it is read from a file.
    pub(crate) fn sends_file(&self) -> bool {
        let length = self.request.body().len();
        length.is_some_and(|length| length > data::MAX_DATA_MEMORY_BYTES)
    }

    /// The idempotency key of every attempt, also one from -H.
    pub(crate) fn sent_key(&self) -> Option<String> {
        let sent = self.request.headers().get(IDEMPOTENCY_KEY);
        let sent = || sent.map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned());
        self.key.clone().or_else(sent)
    }
}

/// Removes possible credentials from an address for display, also if it is not a valid URL.
pub(crate) fn shown(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").map_or(("", text), |(scheme, rest)| {
        (&text[..scheme.len() + "://".len()], rest)
    });
    let rest = rest.split_once('#').map_or(rest, |(rest, _)| rest);
    // A password may contain any character, so everything up to the last @ can belong to it.
    let (user, rest) = match rest.rsplit_once('@') {
        Some((_, rest)) => ("…@", rest),
        None => ("", rest),
    };
    match rest.split_once('?') {
        Some((rest, _)) => format!("{scheme}{user}{rest}?…"),
        None => format!("{scheme}{user}{rest}"),
    }
}

fn url(text: &str) -> Result<Url, String> {
    let seen = shown(text);
    let begins = "a URL begins with http:// or https://";
    match Url::parse(text) {
        _ if text.is_empty() => Err("the URL is empty".to_owned()),
        Ok(url) if matches!(url.scheme(), "http" | "https") => Ok(url),
        Ok(url) if text.contains("://") => {
            Err(format!("{seen}: {begins}, not {}://", url.scheme()))
        }
        // `localhost:8080/x` parses too, as the scheme `localhost`.
        Ok(_) | Err(_) if !text.contains("://") => {
            Err(format!("{seen}: {begins}, as in http://{seen}"))
        }
        Ok(_) => Err(format!("{seen}: {begins}")),
        Err(error) => Err(format!("{seen}: no URL: {error}")),
    }
}

/// Moves user and password, of the option or else of the URL, to the Authorization field.
fn log_in(user: Option<&str>, url: &mut Url, headers: &mut HeaderMap) -> Result<(), String> {
    let decoded = |text: &str| percent_decode_str(text).collect::<Vec<u8>>();
    let of_url = (!url.username().is_empty() || url.password().is_some()).then(|| {
        let password = decoded(url.password().unwrap_or_default());
        [&decoded(url.username())[..], b":", &password].concat()
    });
    // This cannot fail, because an http or https URL has a host.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    let of_option = match user {
        Some(user) if !user.contains(':') => {
            return Err("-u: use USER:PASSWORD; relent does not prompt for a password".to_owned());
        }
        user => user.map(|user| user.as_bytes().to_vec()),
    };
    let Some(user) = of_option.or(of_url) else {
        return Ok(());
    };
    let mut value = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(user)))
        .map_err(|_| "-u: invalid user or password".to_owned())?;
    value.set_sensitive(true);
    headers.entry(AUTHORIZATION).or_insert(value);
    Ok(())
}

fn method(given: Option<&str>, default_method: Method) -> Result<Method, String> {
    let Some(given) = given else {
        return Ok(default_method);
    };
    // Methods are case-sensitive; known ones are accepted in any case.
    let known = [
        "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "QUERY",
    ];
    let name = known
        .into_iter()
        .find(|known| known.eq_ignore_ascii_case(given))
        .unwrap_or(given);
    match Method::from_bytes(name.as_bytes()) {
        Ok(Method::CONNECT) => Err("-X CONNECT: a tunnel cannot be fetched".to_owned()),
        Ok(method) => Ok(method),
        Err(_) => Err(format!(
            "-X {given:?}: not a method: use a word such as PUT or DELETE"
        )),
    }
}

fn headers(given: &[String]) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (index, field) in given.iter().enumerate() {
        // A rejected field can contain a credential, so the message does not repeat it.
        let (name, value) = field.split_once(':').ok_or_else(|| {
            format!(
                "-H, number {}: a header field is written as 'Name: value'",
                index + 1
            )
        })?;
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
            format!(
                "-H, number {}: the name before the colon has letters, digits and -, and no space",
                index + 1
            )
        })?;
        let wrong = |what: &str| format!("-H {name}: {what}");
        if name == CONTENT_LENGTH || name == TRANSFER_ENCODING {
            return Err(wrong("relent sets this field from the data"));
        }
        let value = value.trim_matches([' ', '\t']);
        let mut value = HeaderValue::from_str(value)
            .or_else(|_| HeaderValue::from_bytes(value.as_bytes()))
            .map_err(|_| wrong("a value has no line ends or other control characters"))?;
        value.set_sensitive(is_secret(&name));
        headers.append(name, value);
    }
    Ok(headers)
}

/// Whether a field with this name can contain a credential.
pub(crate) fn is_secret(name: &HeaderName) -> bool {
    const PARTS: [&str; 9] = [
        "auth",
        "cookie",
        "credential",
        "key",
        "passw",
        "secret",
        "session",
        "signature",
        "token",
    ];
    *name != IDEMPOTENCY_KEY && PARTS.iter().any(|part| name.as_str().contains(part))
}

/// Adds the key as a string of RFC 9651, and returns it in the form of the option.
fn add_key(given: &str, headers: &mut HeaderMap) -> Result<String, String> {
    if headers.contains_key(IDEMPOTENCY_KEY) {
        return Err("--idempotency-key: -H already has an Idempotency-Key".to_owned());
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
            ("", "the URL is empty"),
        ] {
            let error = super::url(url).unwrap_err();
            assert!(error.contains(says), "{url}: {error}");
        }
        assert_eq!(
            url("HTTP://Example.com/a b").unwrap().as_str(),
            "http://example.com/a%20b"
        );
    }

    #[test]
    fn known_methods_are_accepted_in_any_case() {
        assert_eq!(method(None, Method::GET), Ok(Method::GET));
        assert_eq!(method(Some("put"), Method::POST), Ok(Method::PUT));
        assert_eq!(
            method(Some("Purge"), Method::GET).unwrap().as_str(),
            "Purge"
        );
        for wrong in ["", "G T", "CONNECT", "ö"] {
            assert!(method(Some(wrong), Method::GET).is_err(), "{wrong}");
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
    fn an_idempotency_key_is_sent_in_quotes_and_only_once() {
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
    fn each_generated_idempotency_key_is_unique() {
        let new = || add_key("auto", &mut HeaderMap::new()).unwrap();
        assert_ne!(new(), new());
    }

    #[test]
    fn no_credential_is_shown() {
        for (text, seen) in [
            (
                "http://user:hunter2@host/x?q=hunter2#hunter2",
                "http://…@host/x?…",
            ),
            ("http://user:hun/ter@2@host/", "http://…@host/"),
            ("user:hunter2@host", "…@host"),
            ("http://host/x", "http://host/x"),
        ] {
            assert_eq!(shown(text), seen);
        }
        for text in [
            "http://user:hunter2@host:99999/",
            "user:hunter2@host",
            "ftp://user:hunter2@host/",
            "http://user:hunt/er2@host/?hunter2",
        ] {
            let error = url(text).unwrap_err();
            assert!(!error.contains("hunt"), "{error}");
        }
        for field in ["Authorization: hunter2\r\n", "hunter2", "hun ter2: hunter2"] {
            let error = headers(&[field.to_owned()]).unwrap_err();
            assert!(!error.contains("ter2"), "{error}");
        }
        let given = [
            "Authorization: hunter2",
            "X-Api-Key: hunter2",
            "Cookie: hunter2",
        ];
        let debug = format!("{:?}", headers(&given.map(str::to_owned)).unwrap());
        assert!(!debug.contains("hunter2"), "{debug}");
    }

    #[test]
    fn user_and_password_of_a_url_are_sent_and_removed_from_it() {
        let mut address = url("http://us%20er:p%3Ass@host/x").unwrap();
        let mut headers = HeaderMap::new();
        log_in(None, &mut address, &mut headers).unwrap();
        assert_eq!(address.as_str(), "http://host/x");
        assert_eq!(headers[AUTHORIZATION], "Basic dXMgZXI6cDpzcw==");
        headers.clear();
        log_in(
            Some("a:b"),
            &mut url("http://c:d@host/").unwrap(),
            &mut headers,
        )
        .unwrap();
        assert_eq!(headers[AUTHORIZATION], "Basic YTpi");
        assert!(log_in(Some("a"), &mut address, &mut headers).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_a_request_or_an_explained_error(text in ".{0,20}") {
            for parsed in [
                url(&text).map(|_| ()),
                method(Some(&text), Method::GET).map(|_| ()),
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
