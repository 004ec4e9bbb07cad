//! Digests of several parts.

use sha2::{Digest, Sha256};

/// Adds a part with its length, so that different lists of parts never have the same bytes.
pub(crate) fn add(digest: &mut Sha256, part: &[u8]) {
    count(digest, part.len());
    digest.update(part);
}

pub(crate) fn count(digest: &mut Sha256, count: usize) {
    digest.update((count as u64).to_be_bytes());
}
