//! The values of options that only `relent deliver` has.

use std::net::SocketAddr;
use std::num::NonZeroU32;

use crate::options::digits;

/// A number of things, of which there is one at least.
pub(super) fn count(text: &str) -> Result<NonZeroU32, String> {
    digits::<u32>(text)
        .and_then(NonZeroU32::new)
        .ok_or_else(|| format!("use a whole number from 1 to {}", u32::MAX))
}

/// Where to listen.
pub(super) fn listen_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "use an IP address and a port up to 65535, such as 127.0.0.1:8480 or [::1]:8480".to_owned()
    })
}
