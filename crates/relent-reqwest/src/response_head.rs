//! Heads of responses without their bodies.

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

/// Turns the head of the response with the last part into that of the whole body, of this length. A caller that
/// requested the whole does not see in how many parts it arrived.
pub(crate) fn head_of_whole(mut head: Response<()>, length: u64) -> Response<()> {
    if head.status() == StatusCode::RANGE_NOT_SATISFIABLE {
        // The type of the error text of the 416, not of the body.
        head.headers_mut().remove(CONTENT_TYPE);
    }
    *head.status_mut() = StatusCode::OK;
    let headers = head.headers_mut();
    headers.remove(CONTENT_RANGE);
    headers.insert(CONTENT_LENGTH, length.into());
    head
}
