//! `-v`: the heads of requests and responses, without possible credentials.

use http::{HeaderMap, Request, StatusCode, Version};

use super::request::{is_secret, shown};
use crate::console::report;

/// Prints a request that is about to be sent.
pub(super) fn on_request<B>(request: &Request<B>, attempt: u32) {
    let url = shown(&request.uri().to_string());
    line('*', &format!("attempt {attempt}"));
    line('>', &format!("{} {url}", request.method()));
    fields('>', request.headers());
}

/// Prints the request to the target of a redirect.
pub(super) fn on_redirect<B>(request: &Request<B>) {
    let url = shown(&request.uri().to_string());
    line('>', &format!("{} {url}", request.method()));
    fields('>', request.headers());
}

/// Prints the head of a response.
pub(super) fn on_response(version: Version, status: StatusCode, headers: &HeaderMap) {
    line('<', &format!("{version:?} {status}"));
    fields('<', headers);
}

fn fields(mark: char, headers: &HeaderMap) {
    for (name, value) in headers {
        let value = match is_secret(name) || value.is_sensitive() {
            true => "[left out]".into(),
            // A Location can contain credentials.
            false if name == http::header::LOCATION => {
                shown(&String::from_utf8_lossy(value.as_bytes())).into()
            }
            false => String::from_utf8_lossy(value.as_bytes()),
        };
        line(mark, &format!("{name}: {value}"));
    }
    line(mark, "");
}

fn line(mark: char, text: &str) {
    report(&format!("{mark} {text}\n"));
}
