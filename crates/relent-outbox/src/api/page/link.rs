//! Links within the page.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// A part of a path or a query.
pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// The page of an endpoint.
pub(super) fn page_of(tenant: &str, name: &str) -> String {
    format!("/endpoints/{}?tenant={}", encoded(name), encoded(tenant))
}
