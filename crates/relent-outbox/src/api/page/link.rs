//! Links within the page.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// Percent-encodes a part of a path or query.
pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// The URL of an endpoint's page.
pub(super) fn page_of(tenant: &str, name: &str) -> String {
    format!("/endpoints/{}?tenant={}", encoded(name), encoded(tenant))
}
