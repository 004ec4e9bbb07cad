//! Redaction of credentials in requests that are shown.

use std::fmt;

use http::HeaderMap;

/// Replacement for a secret, as in the semantic conventions.
pub const REDACTED: &str = "REDACTED";

/// Parameters whose values are secret, in lower case. The first seven are those of the semantic conventions
/// (signed URLs of AWS, Azure and Google); the others are where RFC 6749, RFC 6750 and common
/// services put a credential.
const SECRET: [&str; 20] = [
    "awsaccesskeyid",
    "signature",
    "sig",
    "x-amz-credential",
    "x-amz-security-token",
    "x-amz-signature",
    "x-goog-signature",
    "access_token",
    "api-key",
    "api_key",
    "apikey",
    "auth",
    "client_secret",
    "code",
    "key",
    "password",
    "refresh_token",
    "secret",
    "token",
    "x-goog-credential",
];

/// Whether the value of this parameter is secret. A percent-encoded name counts as secret, since it may hide a
/// known one.
#[must_use]
pub fn is_secret(name: &str) -> bool {
    name.contains('%')
        || SECRET
            .iter()
            .any(|secret| name.eq_ignore_ascii_case(secret))
}

/// Shows header fields by their names only, since any value can be a credential.
pub struct HeaderNames<'a>(pub &'a HeaderMap);

impl fmt::Debug for HeaderNames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_secret_name_is_written_in_lower_case() {
        for name in SECRET {
            assert_eq!(name, name.to_ascii_lowercase());
        }
    }
}
