//! The functions of a layer that read criticality, caller and exemption from a request.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use http::request::Parts;
use relent_core::Criticality;
use relent_http::CallerContext;

use crate::admission::Identify;

type Classify = Arc<dyn Fn(&Parts) -> Option<Criticality> + Send + Sync>;

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) criticality: Classify,
    pub(super) exempt: Arc<dyn Fn(&Parts) -> bool + Send + Sync>,
    pub(super) caller: Option<Identify>,
    pub(super) hashes: RandomState,
    pub(super) header: Header,
}

/// How far the header `relent-criticality` is trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Header {
    Lowers,
    Trusted,
    Ignored,
}

impl Settings {
    pub(super) fn class(&self, parts: &Parts) -> Criticality {
        let own = (self.criticality)(parts).unwrap_or_default();
        match (self.header, CallerContext::criticality(&parts.headers)) {
            (Header::Lowers, Some(told)) => own.max(told),
            (Header::Trusted, Some(told)) => told,
            (Header::Ignored, _) | (_, None) => own,
        }
    }

    pub(super) fn caller(&self, parts: &Parts) -> Option<u64> {
        let mut hasher = self.hashes.build_hasher();
        (self.caller.as_ref()?)(parts, &mut hasher).then(|| hasher.finish())
    }
}
