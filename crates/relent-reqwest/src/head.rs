//! Heads of responses whose bodies go elsewhere.

use http::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE};
use http::{Response, StatusCode};
use reqwest::ResponseBuilderExt;

/// The head of a response, without its body.
pub(crate) fn head_of(response: &reqwest::Response) -> Response<()> {
    let url = Response::builder().url(response.url().clone());
    let mut head = url.body(()).unwrap_or_default();
    *head.status_mut() = response.status();
    *head.version_mut() = response.version();
    *head.headers_mut() = response.headers().clone();
    head
}

/// The head of a response that has brought the last part of a body, as that of the whole body, of this
/// length: who asked for the whole has it, and need not know in how many parts it came.
pub(crate) fn of_the_whole(mut head: Response<()>, length: u64) -> Response<()> {
    if head.status() == StatusCode::RANGE_NOT_SATISFIABLE {
        // Its own content said that nothing is missing.
        head.headers_mut().remove(CONTENT_TYPE);
    }
    *head.status_mut() = StatusCode::OK;
    let headers = head.headers_mut();
    headers.remove(CONTENT_RANGE);
    headers.insert(CONTENT_LENGTH, length.into());
    head
}
