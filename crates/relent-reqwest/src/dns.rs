//! Resolver for reqwest that distinguishes an unknown name from a failed look-up.
//!
//! The resolvers of the standard library and of tokio also call `getaddrinfo`, but keep only the text of its error.

use dns_lookup::{AddrInfo, AddrInfoHints, LookupError, LookupErrorKind, SockType, getaddrinfo};
use relent_core::Network;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Resolver that calls the system's `getaddrinfo` on tokio's blocking threads.
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
    // Without a socket type, every address is returned once per type.
    let hints = AddrInfoHints {
        socktype: SockType::Stream.into(),
        ..AddrInfoHints::default()
    };
    // Addresses that are neither IPv4 nor IPv6 are skipped.
    Ok(getaddrinfo(Some(name), None, Some(hints))?
        .flatten()
        .collect())
}

/// Classifies a failed look-up.
pub(crate) fn network(error: &LookupError) -> Network {
    match error.kind() {
        LookupErrorKind::Again
        | LookupErrorKind::Memory
        | LookupErrorKind::System
        | LookupErrorKind::IO => Network::Dns,
        _ => Network::NameNotFound,
    }
}
