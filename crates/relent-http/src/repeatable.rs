//! Whether a request may safely run twice.

use http::{HeaderMap, Method};

use crate::field::trim;
use crate::headers::{IF_MATCH, IF_NONE_MATCH};
use crate::idempotency_key;

/// Properties of a request that classification needs. They are read once and kept, because many failures have no
/// response.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RequestInfo {
    /// The request may safely run twice, by method, key or precondition.
    pub repeatable: bool,
    /// The request carries a valid `Idempotency-Key` (see [`IdempotencyKey::of`](crate::IdempotencyKey::of)).
    pub keyed: bool,
    /// The request is a write under a precondition that its own success makes false. A 412 after an attempt that may
    /// have taken effect may therefore be caused by that attempt.
    pub conditional: bool,
}

impl RequestInfo {
    /// Reads the facts of a request from its method and headers.
    ///
    /// Repeatable requests are:
    /// - GET, HEAD, OPTIONS, TRACE, PUT, DELETE and QUERY;
    /// - any method with a valid `Idempotency-Key` (see [`IdempotencyKey::of`](crate::IdempotencyKey::of));
    /// - any method with an `If-Match` that names an entity tag: the first success changes the tag.
    ///   `If-Match: *` still holds after a success, so it does not count;
    /// - any method with `If-None-Match: *`: after the first success the resource exists.
    ///
    /// ```
    /// use http::{HeaderMap, Method};
    /// use relent_http::RequestInfo;
    ///
    /// let mut headers = HeaderMap::new();
    /// assert!(RequestInfo::of(&Method::PUT, &headers).repeatable);
    /// assert!(!RequestInfo::of(&Method::POST, &headers).repeatable);
    ///
    /// headers.insert("idempotency-key", "8e03978e-40d5-43dd-bc93-6894a57f9324".parse()?);
    /// assert!(RequestInfo::of(&Method::POST, &headers).repeatable);
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

    fn of(method: &str, fields: &[(HeaderName, &str)]) -> RequestInfo {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, value.parse().unwrap());
        }
        RequestInfo::of(&Method::from_bytes(method.as_bytes()).unwrap(), &headers)
    }

    #[test]
    fn idempotent_methods_are_repeatable() {
        for method in ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "QUERY"] {
            assert_eq!(
                of(method, &[]),
                RequestInfo {
                    repeatable: true,
                    ..RequestInfo::default()
                },
                "{method}"
            );
        }
        for method in ["POST", "PATCH", "CONNECT", "LOCK", "get"] {
            assert_eq!(of(method, &[]), RequestInfo::default(), "{method}");
        }
    }

    #[test]
    fn a_key_makes_any_method_repeatable() {
        let keyed = RequestInfo {
            repeatable: true,
            keyed: true,
            conditional: false,
        };
        assert_eq!(of("POST", &[(IDEMPOTENCY_KEY, "\"abc\"")]), keyed);
        assert_eq!(of("PATCH", &[(IDEMPOTENCY_KEY, "abc")]), keyed);
        for empty in ["", " ", "\"\""] {
            assert_eq!(
                of("POST", &[(IDEMPOTENCY_KEY, empty)]),
                RequestInfo::default()
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
    fn a_precondition_on_a_safe_method_is_not_conditional() {
        for (method, conditional) in [("GET", false), ("HEAD", false), ("PUT", true)] {
            for field in [(IF_MATCH, "\"v1\""), (IF_NONE_MATCH, "*")] {
                assert_eq!(of(method, &[field]).conditional, conditional, "{method}");
            }
        }
        assert!(!of("PUT", &[]).conditional);
    }

    #[test]
    fn a_precondition_that_holds_after_success_is_not_repeatable() {
        assert!(!of("POST", &[(IF_MATCH, "*")]).repeatable);
        assert!(!of("POST", &[(IF_MATCH, "\"v1\""), (IF_MATCH, "*")]).repeatable);
        assert!(!of("POST", &[(IF_MATCH, "")]).repeatable);
        assert!(!of("POST", &[(IF_NONE_MATCH, "\"v1\"")]).repeatable);
    }
}
