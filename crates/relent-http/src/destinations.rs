//! Which requests share a budget, a gate and a cooldown: those to one host, unless said otherwise.

use std::sync::Arc;

#[cfg(feature = "tower")]
use http::{Uri, uri::Authority};
use relent::{Destination, Destinations};
use relent_core::Policy;

/// Where the shared state of a request is found.
#[derive(Clone, Debug)]
pub(crate) enum There {
    ByHost(Arc<Destinations>),
    One(Arc<Destination>),
}

impl There {
    pub(crate) fn by_host(policy: &Arc<Policy>) -> Self {
        Self::ByHost(Arc::new(Destinations::new(Arc::clone(policy))))
    }

    /// The destination at this host, with its port.
    pub(crate) fn of(&self, host: &str) -> Arc<Destination> {
        match self {
            Self::ByHost(destinations) => destinations.of(host),
            Self::One(destination) => Arc::clone(destination),
        }
    }
}

/// What tells destinations apart: host and port, as the address says them.
#[cfg(feature = "tower")]
pub(crate) fn host(uri: &Uri) -> &str {
    uri.authority().map_or("", Authority::as_str)
}
