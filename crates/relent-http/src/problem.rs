//! Problem details (RFC 9457): the cause of a failed request, as JSON.

use std::borrow::Cow;
use std::fmt;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use serde_json::Value;

/// Problem type for [`Problem::kind`]: a quota is used up
/// (draft-ietf-httpapi-ratelimit-headers-11).
pub const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// Problem type for [`Problem::kind`]: the service has less capacity than normal
/// (draft-ietf-httpapi-ratelimit-headers-11).
pub const TEMPORARY_REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// The members that RFC 9457 defines.
const STANDARD: [&str; 5] = ["type", "title", "status", "detail", "instance"];

/// Problem details, written as `application/problem+json`.
///
/// ```
/// use http::StatusCode;
/// use relent_http::problem::{Problem, QUOTA_EXCEEDED};
///
/// let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS)
///     .kind(QUOTA_EXCEEDED, "the quota is used up")
///     .detail("100 requests a minute")
///     .member("violated-policies", ["per-minute"].as_slice())?;
/// let response = problem.into_response();
/// assert_eq!(response.status(), 429);
/// assert_eq!(response.headers()["content-type"], "application/problem+json");
/// assert!(response.body().ends_with(r#""violated-policies":["per-minute"]}"#));
/// # Ok::<(), relent_http::problem::InvalidMember>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    status: StatusCode,
    kind: Option<(Cow<'static, str>, Cow<'static, str>)>,
    detail: Option<Cow<'static, str>>,
    instance: Option<Cow<'static, str>>,
    members: Vec<(Cow<'static, str>, Value)>,
}

impl Problem {
    /// Creates the problem of this status: type `about:blank`, with the reason phrase of the status as its
    /// title.
    #[must_use]
    pub const fn new(status: StatusCode) -> Self {
        Self {
            status,
            kind: None,
            detail: None,
            instance: None,
            members: Vec::new(),
        }
    }

    /// Sets the type, a URI, and the title, a short text that is the same for all problems
    /// of the type.
    #[must_use]
    pub fn kind(
        mut self,
        uri: impl Into<Cow<'static, str>>,
        title: impl Into<Cow<'static, str>>,
    ) -> Self {
        self.kind = Some((uri.into(), title.into()));
        self
    }

    /// Sets the explanation of this occurrence.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Sets a URI for this occurrence.
    #[must_use]
    pub fn instance(mut self, uri: impl Into<Cow<'static, str>>) -> Self {
        self.instance = Some(uri.into());
        self
    }

    /// Adds an extension member; one of the same name is replaced.
    ///
    /// # Errors
    /// [`InvalidMember`] for an empty name, and for the name of a member that RFC 9457 defines.
    pub fn member(
        mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Value>,
    ) -> Result<Self, InvalidMember> {
        let (name, value) = (name.into(), value.into());
        if name.is_empty() || STANDARD.contains(&&*name) {
            return Err(InvalidMember {
                name: name.into_owned(),
            });
        }
        self.members.retain(|(other, _)| *other != name);
        self.members.push((name, value));
        Ok(self)
    }

    /// Formats the JSON object: the members of RFC 9457 in its order, then the extensions in order of insertion.
    #[must_use]
    pub fn to_json(&self) -> String {
        let (kind, title) = match &self.kind {
            Some((kind, title)) => (&**kind, Some(&**title)),
            None => ("about:blank", self.status.canonical_reason()),
        };
        let standard = [
            ("type", Some(Value::from(kind))),
            ("title", title.map(Value::from)),
            ("status", Some(Value::from(self.status.as_u16()))),
            ("detail", self.detail.as_deref().map(Value::from)),
            ("instance", self.instance.as_deref().map(Value::from)),
        ];
        let standard = standard
            .iter()
            .filter_map(|(name, value)| Some((*name, value.as_ref()?)));
        let extensions = self.members.iter().map(|(name, value)| (&**name, value));
        // Not a map of serde_json: any crate may turn on the feature that changes its order.
        let members: Vec<String> = standard
            .chain(extensions)
            .map(|(name, value)| format!("{}:{value}", Value::from(name)))
            .collect();
        format!("{{{}}}", members.join(","))
    }

    /// Builds the response with status, content type, and the JSON object as its body.
    #[must_use]
    pub fn into_response(self) -> Response<String> {
        let mut response = Response::new(self.to_json());
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, PROBLEM_JSON);
        response
    }
}

/// Error: the name of an extension member is empty or defined by RFC 9457.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvalidMember {
    name: String,
}

impl fmt::Display for InvalidMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} cannot be the name of an extension member of a problem: it has to be other than empty and than {}",
            self.name,
            STANDARD.join(", ")
        )
    }
}

impl std::error::Error for InvalidMember {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(problem: &Problem) -> Value {
        serde_json::from_str(&problem.to_json()).unwrap()
    }

    #[test]
    fn a_status_alone_is_a_problem() {
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            problem.to_json(),
            r#"{"type":"about:blank","title":"Service Unavailable","status":503}"#
        );
        let unknown = Problem::new(StatusCode::from_u16(799).unwrap());
        assert_eq!(unknown.to_json(), r#"{"type":"about:blank","status":799}"#);
    }

    #[test]
    fn a_problem_member_cannot_use_a_standard_name() {
        for name in ["", "type", "title", "status", "detail", "instance"] {
            let error = Problem::new(StatusCode::OK).member(name, true).unwrap_err();
            assert!(error.to_string().contains("instance"), "{error}");
        }
        let twice = Problem::new(StatusCode::OK)
            .member("a", 1)
            .unwrap()
            .member("a", 2);
        assert_eq!(read(&twice.unwrap())["a"], 2, "once, and the last");
    }

    proptest! {
        #[test]
        fn a_written_problem_is_read_back(
            status in 100..1000_u16, kind: Option<(String, String)>, detail: Option<String>,
            instance: Option<String>, number: u64, texts: Vec<String>, text: String, key: String,
        ) {
            let mut problem = Problem::new(StatusCode::from_u16(status).unwrap());
            let mut expected = json!({ "status": status });
            let blank = problem.status.canonical_reason();
            match &kind {
                Some((uri, title)) => {
                    problem = problem.kind(uri.clone(), title.clone());
                    expected["type"] = json!(uri);
                    expected["title"] = json!(title);
                }
                None => {
                    expected["type"] = json!("about:blank");
                    if let Some(title) = blank {
                        expected["title"] = json!(title);
                    }
                }
            }
            if let Some(detail) = detail {
                problem = problem.detail(detail.clone());
                expected["detail"] = json!(detail);
            }
            if let Some(instance) = instance {
                problem = problem.instance(instance.clone());
                expected["instance"] = json!(instance);
            }
            let borrowed: Vec<&str> = texts.iter().map(String::as_str).collect();
            problem = problem.member("number", number).unwrap();
            problem = problem.member("texts", borrowed.as_slice()).unwrap();
            expected["number"] = json!(number);
            expected["texts"] = json!(texts);
            if let Ok(with) = problem.clone().member(format!("x{key}"), text.clone()) {
                problem = with;
                expected[format!("x{key}")] = json!(text);
            }
            prop_assert_eq!(read(&problem), expected);
        }
    }
}
