//! Reads the number of a gRPC status.

use http::HeaderMap;
use relent_core::GrpcCode;

use crate::field::{digits, trim};
use crate::headers::GRPC_STATUS;

/// Reads the number of the gRPC status from headers or trailers. An unreadable one is
/// [`GrpcCode::Unknown`], as in every gRPC client; one above 16 is returned as it is.
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
