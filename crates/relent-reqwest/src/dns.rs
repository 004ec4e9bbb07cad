//! A resolver for reqwest whose errors tell a name that does not exist from a look-up that failed.
//!
//! The resolvers of the standard library and of tokio ask `getaddrinfo` too, but keep of its answer
//! only a text in the system's words.

use dns_lookup::{AddrInfo, AddrInfoHints, LookupError, LookupErrorKind, SockType, getaddrinfo};
use relent_core::Network;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Looks names up with the system's `getaddrinfo`, on tokio's threads for blocking work.
///
/// ```
/// use std::sync::Arc;
/// use relent_reqwest::dns::Resolver;
///
/// let client = reqwest::Client::builder().dns_resolver(Arc::new(Resolver)).build()?;
/// # Ok::<(), reqwest::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Resolver;

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::task::spawn_blocking(move || look_up(name.as_str())).await??;
            let addresses: Addrs = Box::new(found.into_iter().map(|address| address.sockaddr));
            Ok(addresses)
        })
    }
}

fn look_up(name: &str) -> Result<Vec<AddrInfo>, LookupError> {
    // Without a type of socket, every address is found once for each type.
    let hints = AddrInfoHints {
        socktype: SockType::Stream.into(),
        ..AddrInfoHints::default()
    };
    // An address of a family that is neither IPv4 nor IPv6 is of no use and left out.
    Ok(getaddrinfo(Some(name), None, Some(hints))?
        .flatten()
        .collect())
}

/// What a failed look-up says about the name.
pub(crate) fn network(error: &LookupError) -> Network {
    match error.kind() {
        LookupErrorKind::Again
        | LookupErrorKind::Memory
        | LookupErrorKind::System
        | LookupErrorKind::IO => Network::Dns,
        _ => Network::NameNotFound,
    }
}
