//! The status codes of gRPC and their names.

use core::fmt;
use core::str::FromStr;

/// A gRPC status code
/// ([statuscodes.md](https://github.com/grpc/grpc/blob/master/doc/statuscodes.md)).
///
/// ```
/// use relent_core::{Cause, GrpcCode};
///
/// assert_eq!(GrpcCode::from_number(14), Some(GrpcCode::Unavailable));
/// assert_eq!("UNAVAILABLE".parse(), Ok(GrpcCode::Unavailable));
/// assert_eq!(Cause::from(GrpcCode::Unavailable).to_string(), "grpc unavailable");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum GrpcCode {
    /// Success.
    Ok = 0,
    /// Cancelled, typically by the caller.
    Cancelled = 1,
    /// An unknown error.
    Unknown = 2,
    /// The arguments are invalid, regardless of the server's state.
    InvalidArgument = 3,
    /// The deadline of the call expired; it may have taken effect.
    DeadlineExceeded = 4,
    /// The requested entity does not exist.
    NotFound = 5,
    /// The entity to create already exists.
    AlreadyExists = 6,
    /// The caller is authenticated, but not permitted.
    PermissionDenied = 7,
    /// A quota, memory or a size limit is exhausted.
    ResourceExhausted = 8,
    /// The server's state must change first.
    FailedPrecondition = 9,
    /// A conflict with another client: repeat the whole read-modify-write.
    Aborted = 10,
    /// Beyond the valid range.
    OutOfRange = 11,
    /// The server does not implement this method.
    Unimplemented = 12,
    /// An internal error of the server or the transport.
    Internal = 13,
    /// The service is currently unavailable; the call may have been processed.
    Unavailable = 14,
    /// Unrecoverable data loss.
    DataLoss = 15,
    /// The caller is not authenticated.
    Unauthenticated = 16,
}

impl GrpcCode {
    /// Every code, in the order of their numbers.
    pub const ALL: [Self; 17] = [
        Self::Ok,
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// The code with this number; `None` above 16.
    #[must_use]
    pub const fn from_number(number: u16) -> Option<Self> {
        if (number as usize) < Self::ALL.len() {
            Some(Self::ALL[number as usize])
        } else {
            None
        }
    }

    /// The number on the wire, from 0 to 16.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// The name in traces and policy files, such as `unavailable`: gRPC's name in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown",
            Self::InvalidArgument => "invalid_argument",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::PermissionDenied => "permission_denied",
            Self::ResourceExhausted => "resource_exhausted",
            Self::FailedPrecondition => "failed_precondition",
            Self::Aborted => "aborted",
            Self::OutOfRange => "out_of_range",
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
            Self::DataLoss => "data_loss",
            Self::Unauthenticated => "unauthenticated",
        }
    }
}

impl fmt::Display for GrpcCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error of a text that is not the name of a gRPC status code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrpcCodeError;

impl fmt::Display for GrpcCodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no gRPC status code has this name: use one of ")?;
        for (index, code) in GrpcCode::ALL.iter().enumerate() {
            let before = if index == 0 { "" } else { ", " };
            write!(f, "{before}{code}")?;
        }
        f.write_str(", or a number from 0 to 16")
    }
}

impl core::error::Error for GrpcCodeError {}

/// Parses a name, in lower or upper case.
impl FromStr for GrpcCode {
    type Err = GrpcCodeError;

    fn from_str(text: &str) -> Result<Self, GrpcCodeError> {
        Self::ALL
            .into_iter()
            .find(|code| text.eq_ignore_ascii_case(code.name()))
            .ok_or(GrpcCodeError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn every_code_is_found_by_its_number_and_its_name() {
        for (number, code) in (0..).zip(GrpcCode::ALL) {
            assert_eq!(code.number(), number);
            assert_eq!(GrpcCode::from_number(number), Some(code));
            assert_eq!(code.to_string().parse(), Ok(code));
            assert_eq!(code.name().to_uppercase().parse(), Ok(code));
        }
        assert_eq!(GrpcCode::from_number(17), None);
        assert_eq!(GrpcCode::from_number(u16::MAX), None);
    }

    #[test]
    fn the_error_for_an_unknown_grpc_code_lists_the_known_ones() {
        let error = "UNAVAILABEL".parse::<GrpcCode>().unwrap_err().to_string();
        assert!(error.contains("resource_exhausted"), "{error}");
        assert!(error.contains("0 to 16"), "{error}");
    }
}
