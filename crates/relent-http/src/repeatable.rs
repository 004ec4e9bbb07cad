//! Whether a request may run twice without harm.

use http::{HeaderMap, Method};

use crate::field::trim;
use crate::headers::{IF_MATCH, IF_NONE_MATCH};
use crate::idempotency_key;

/// What classification needs to know of a request. It is read from the request and kept, because
/// many failures have no response to read it from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RequestFacts {
    /// May run twice without harm, by method, key or precondition (design rule 1).
    pub repeatable: bool,
    /// Carries an `Idempotency-Key` that [is one](crate::IdempotencyKey::of).
    pub keyed: bool,
    /// Is a write under a precondition that no longer holds once it has taken effect: a 412 after an
    /// attempt that may have taken effect is perhaps its own doing.
    pub conditional: bool,
}

impl RequestFacts {
    /// Reads them from a request.
    ///
    /// Repeatable are
    /// - GET, HEAD, OPTIONS, TRACE, PUT, DELETE and QUERY;
    /// - any method with an `Idempotency-Key` that [is one](crate::IdempotencyKey::of);
    /// - any method with an `If-Match` that names an entity tag: after the first success the tag is
    ///   another one. `If-Match: *` still holds then, so it does not count;
    /// - any method with `If-None-Match: *`: after the first success there is something.
    ///
    /// ```
    /// use http::{HeaderMap, Method};
    /// use relent_http::RequestFacts;
    ///
    /// let mut headers = HeaderMap::new();
    /// assert!(RequestFacts::of(&Method::PUT, &headers).repeatable);
    /// assert!(!RequestFacts::of(&Method::POST, &headers).repeatable);
    ///
    /// headers.insert("idempotency-key", "8e03978e-40d5-43dd-bc93-6894a57f9324".parse()?);
    /// assert!(RequestFacts::of(&Method::POST, &headers).repeatable);
    /// # Ok::<(), http::header::InvalidHeaderValue>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn of(method: &Method, headers: &HeaderMap) -> Self {
        if headers.is_empty() {
            return Self {
                repeatable: method.is_idempotent(),
                ..Self::default()
            };
        }
        Self::with_fields(method, headers)
    }

    fn with_fields(method: &Method, headers: &HeaderMap) -> Self {
        let keyed = idempotency_key::of(headers).is_some();
        let conditional = !method.is_safe() && is_conditional(headers);
        Self {
            repeatable: keyed || method.is_idempotent() || conditional,
            keyed,
            conditional,
        }
    }
}

fn is_conditional(headers: &HeaderMap) -> bool {
    let values = |name| {
        headers
            .get_all(name)
            .iter()
            .map(|value| trim(value.as_bytes()))
    };
    values(IF_NONE_MATCH).any(|value| value == b"*")
        || values(IF_MATCH).any(|value| !value.is_empty())
            && values(IF_MATCH).all(|value| value != b"*")
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;
    use crate::headers::IDEMPOTENCY_KEY;

    fn of(method: &str, fields: &[(HeaderName, &str)]) -> RequestFacts {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, value.parse().unwrap());
        }
        RequestFacts::of(&Method::from_bytes(method.as_bytes()).unwrap(), &headers)
    }

    #[test]
    fn idempotent_methods_are_repeatable() {
        for method in ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "QUERY"] {
            assert_eq!(
                of(method, &[]),
                RequestFacts {
                    repeatable: true,
                    ..RequestFacts::default()
                },
                "{method}"
            );
        }
        for method in ["POST", "PATCH", "CONNECT", "LOCK", "get"] {
            assert_eq!(of(method, &[]), RequestFacts::default(), "{method}");
        }
    }

    #[test]
    fn a_key_makes_any_method_repeatable() {
        let keyed = RequestFacts {
            repeatable: true,
            keyed: true,
            conditional: false,
        };
        assert_eq!(of("POST", &[(IDEMPOTENCY_KEY, "\"abc\"")]), keyed);
        assert_eq!(of("PATCH", &[(IDEMPOTENCY_KEY, "abc")]), keyed);
        for empty in ["", " ", "\"\""] {
            assert_eq!(
                of("POST", &[(IDEMPOTENCY_KEY, empty)]),
                RequestFacts::default()
            );
        }
    }

    #[test]
    fn a_precondition_that_fails_after_success_makes_any_method_repeatable() {
        assert!(of("PATCH", &[(IF_MATCH, "\"v1\"")]).repeatable);
        assert!(of("POST", &[(IF_MATCH, "\"v1\", \"v2\"")]).repeatable);
        assert!(of("POST", &[(IF_NONE_MATCH, "*")]).repeatable);
    }

    #[test]
    fn a_precondition_of_a_read_says_nothing_about_an_effect() {
        for (method, conditional) in [("GET", false), ("HEAD", false), ("PUT", true)] {
            for field in [(IF_MATCH, "\"v1\""), (IF_NONE_MATCH, "*")] {
                assert_eq!(of(method, &[field]).conditional, conditional, "{method}");
            }
        }
        assert!(!of("PUT", &[]).conditional);
    }

    #[test]
    fn a_precondition_that_still_holds_after_success_does_not() {
        assert!(!of("POST", &[(IF_MATCH, "*")]).repeatable);
        assert!(!of("POST", &[(IF_MATCH, "\"v1\""), (IF_MATCH, "*")]).repeatable);
        assert!(!of("POST", &[(IF_MATCH, "")]).repeatable);
        assert!(!of("POST", &[(IF_NONE_MATCH, "\"v1\"")]).repeatable);
    }
}
