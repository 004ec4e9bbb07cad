//! The key of a record.

use std::fmt;

use sha2::{Digest, Sha256};

use super::digest::add;

/// The key of a record: a digest of principal, method, operation and idempotency key. The first eight bytes depend
/// only on the principal, so that a store can limit each principal's share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(pub [u8; 32]);

/// Formats the key as hexadecimal digits, for logs and for lookups in the store.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Key {
    /// Returns the key of a request with this `Idempotency-Key`, as the [layer](crate::idempotency::IdempotencyLayer)
    /// computes it, for example for a customer inquiry. `operation` is empty unless the layer [sets
    /// one](crate::idempotency::IdempotencyLayer::operation).
    #[must_use]
    pub fn of(principal: &str, method: &str, operation: &str, idempotency_key: &str) -> Self {
        let mut digest = Sha256::new();
        for part in [principal, method, operation, idempotency_key] {
            add(&mut digest, part.as_bytes());
        }
        Self::of_principal(principal, digest)
    }

    /// Combines the digest with the digest of the principal.
    pub(crate) fn of_principal(principal: &str, digest: Sha256) -> Self {
        let mut whose = Sha256::new();
        add(&mut whose, b"relent principal");
        add(&mut whose, principal.as_bytes());
        let mut key: [u8; 32] = digest.finalize().into();
        key[..8].copy_from_slice(&whose.finalize()[..8]);
        Self(key)
    }

    /// Returns the digest of the principal: the first eight bytes, which all its keys share.
    #[must_use]
    pub const fn principal(&self) -> [u8; 8] {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        [a, b, c, d, e, f, g, h]
    }

    /// Returns the key of a request to another service as 64 hexadecimal digits, as its handler [computes
    /// it](crate::idempotency::Execution::derived_key). Use it to ask that service for the result.
    #[must_use]
    pub fn derived_key(&self, step: &str) -> String {
        let mut digest = Sha256::new();
        add(&mut digest, b"relent derived key");
        add(&mut digest, &self.0);
        add(&mut digest, step.as_bytes());
        let bytes = digest.finalize();
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
