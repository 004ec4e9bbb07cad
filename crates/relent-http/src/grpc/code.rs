//! The number of the status of a gRPC call.

use http::HeaderMap;
use relent_core::GrpcCode;

use crate::field::{digits, trim};
use crate::headers::GRPC_STATUS;

/// The number of the status in these headers or trailers. One that cannot be read is
/// [`GrpcCode::Unknown`], as in every gRPC client; one above 16 is left as it is.
///
/// ```
/// let mut trailers = http::HeaderMap::new();
/// assert_eq!(relent_http::grpc::code(&trailers), None);
/// trailers.insert("grpc-status", "14".parse()?);
/// assert_eq!(relent_http::grpc::code(&trailers), Some(14));
/// # Ok::<(), http::header::InvalidHeaderValue>(())
/// ```
#[must_use]
pub fn code(fields: &HeaderMap) -> Option<u16> {
    let number = digits(trim(fields.get(GRPC_STATUS)?.as_bytes()));
    let number = number.ok().and_then(|number| u16::try_from(number).ok());
    Some(number.unwrap_or(GrpcCode::Unknown.number()))
}
