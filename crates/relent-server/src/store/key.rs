//! What a record is found by.

use std::fmt;

use sha2::{Digest, Sha256};

use super::digest::add;

/// What a record is found by: a digest of principal, method, operation and idempotency key. Its first eight bytes are of
/// the principal alone, so that a store can share out what it has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(pub [u8; 32]);

/// In hexadecimal digits, for logs and for who looks in the store.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Key {
    /// The key of a request with this `Idempotency-Key`, as the [layer](crate::idempotency::IdempotencyLayer) makes it:
    /// to look for what a customer asks about. `operation` is empty unless the layer was
    /// [given one](crate::idempotency::IdempotencyLayer::operation).
    #[must_use]
    pub fn of(principal: &str, method: &str, operation: &str, idempotency_key: &str) -> Self {
        let mut digest = Sha256::new();
        for part in [principal, method, operation, idempotency_key] {
            add(&mut digest, part.as_bytes());
        }
        Self::of_principal(principal, digest)
    }

    /// This digest, of a principal.
    pub(crate) fn of_principal(principal: &str, digest: Sha256) -> Self {
        let mut whose = Sha256::new();
        add(&mut whose, b"relent principal");
        add(&mut whose, principal.as_bytes());
        let mut key: [u8; 32] = digest.finalize().into();
        key[..8].copy_from_slice(&whose.finalize()[..8]);
        Self(key)
    }

    /// Whose it is: the first eight bytes, which all keys of a principal have in common.
    #[must_use]
    pub const fn principal(&self) -> [u8; 8] {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        [a, b, c, d, e, f, g, h]
    }

    /// The key of a request to another service, in 64 hexadecimal digits, as its handler
    /// [has it](crate::idempotency::Execution::derived_key): to ask that service what has come of it.
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
