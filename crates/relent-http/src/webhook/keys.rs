//! Webhook keys: text formats and signature algorithms.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use ed25519_dalek::Signer as _;
use hmac::digest::KeyInit;
use hmac::{Hmac, Mac};
use sha2::Sha256;

const SECRET: &str = "whsec_";
const PRIVATE: &str = "whsk_";
const PUBLIC: &str = "whpk_";

/// Users paste keys with and without the padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Key of a sender; see [`webhook`](super) for its text formats.
#[derive(Clone)]
pub struct SigningKey(Signing);

#[derive(Clone)]
enum Signing {
    Secret(Hmac<Sha256>),
    Pair(Box<ed25519_dalek::SigningKey>),
}

/// Key of a receiver; see [`webhook`](super) for its text formats.
#[derive(Clone)]
pub struct VerifyingKey(Verifying);

#[derive(Clone)]
enum Verifying {
    Secret(Hmac<Sha256>),
    Public(Box<ed25519_dalek::VerifyingKey>),
}

impl SigningKey {
    /// The key with which a receiver verifies signatures of this one. For a shared secret it is the secret itself.
    #[must_use]
    pub fn verifying_key(&self) -> VerifyingKey {
        VerifyingKey(match &self.0 {
            Signing::Secret(mac) => Verifying::Secret(mac.clone()),
            Signing::Pair(pair) => Verifying::Public(Box::new(pair.verifying_key())),
        })
    }

    pub(super) const fn version(&self) -> &'static str {
        match self.0 {
            Signing::Secret(_) => "v1",
            Signing::Pair(_) => "v1a",
        }
    }

    pub(super) fn sign(&self, prefix: &[u8], body: &[u8]) -> Vec<u8> {
        match &self.0 {
            Signing::Secret(mac) => {
                let mac = mac.clone().chain_update(prefix).chain_update(body);
                mac.finalize().into_bytes().to_vec()
            }
            Signing::Pair(pair) => pair.sign(&[prefix, body].concat()).to_bytes().to_vec(),
        }
    }
}

impl VerifyingKey {
    pub(super) const fn version(&self) -> &'static str {
        match self.0 {
            Verifying::Secret(_) => "v1",
            Verifying::Public(_) => "v1a",
        }
    }

    /// Whether any of these signatures is valid. For a shared secret, the body is hashed once for all of them.
    pub(super) fn verifies<'s>(
        &self,
        prefix: &[u8],
        body: &[u8],
        mut signatures: impl Iterator<Item = &'s [u8]>,
    ) -> bool {
        match &self.0 {
            Verifying::Secret(mac) => {
                let mac = mac.clone().chain_update(prefix).chain_update(body);
                // Compares in constant time.
                signatures.any(|signature| mac.clone().verify_slice(signature).is_ok())
            }
            Verifying::Public(key) => {
                let message = [prefix, body].concat();
                signatures
                    .filter_map(|signature| ed25519_dalek::Signature::from_slice(signature).ok())
                    .any(|signature| key.verify_strict(&message, &signature).is_ok())
            }
        }
    }
}

/// Decodes the bytes after the prefix.
fn bytes(text: &str) -> Result<Vec<u8>, InvalidWebhookKey> {
    BASE64.decode(text).map_err(|_| InvalidWebhookKey::Base64)
}

fn secret(text: &str) -> Result<Hmac<Sha256>, InvalidWebhookKey> {
    let bytes = bytes(text)?;
    let found = bytes.len();
    let fits = (24..=64).contains(&found);
    fits.then(|| Hmac::new_from_slice(&bytes).ok())
        .flatten()
        .ok_or(InvalidWebhookKey::Length { found })
}

impl FromStr for SigningKey {
    type Err = InvalidWebhookKey;

    fn from_str(text: &str) -> Result<Self, InvalidWebhookKey> {
        if let Some(text) = text.strip_prefix(SECRET) {
            return Ok(Self(Signing::Secret(secret(text)?)));
        }
        let Some(text) = text.strip_prefix(PRIVATE) else {
            return Err(match text.starts_with(PUBLIC) {
                true => InvalidWebhookKey::Public,
                false => InvalidWebhookKey::Prefix,
            });
        };
        let bytes = bytes(text)?;
        let found = bytes.len();
        let pair = if let Ok(seed) = <&[u8; 32]>::try_from(bytes.as_slice()) {
            ed25519_dalek::SigningKey::from_bytes(seed)
        } else if let Ok(pair) = <&[u8; 64]>::try_from(bytes.as_slice()) {
            // Rejects a public key of another seed: signing with such a pair would reveal the seed.
            ed25519_dalek::SigningKey::from_keypair_bytes(pair)
                .map_err(|_| InvalidWebhookKey::Mismatch)?
        } else {
            return Err(InvalidWebhookKey::Length { found });
        };
        Ok(Self(Signing::Pair(Box::new(pair))))
    }
}

impl FromStr for VerifyingKey {
    type Err = InvalidWebhookKey;

    fn from_str(text: &str) -> Result<Self, InvalidWebhookKey> {
        if let Some(text) = text.strip_prefix(SECRET) {
            return Ok(Self(Verifying::Secret(secret(text)?)));
        }
        let Some(text) = text.strip_prefix(PUBLIC) else {
            return Err(match text.starts_with(PRIVATE) {
                true => InvalidWebhookKey::Private,
                false => InvalidWebhookKey::Prefix,
            });
        };
        let bytes = bytes(text)?;
        let found = bytes.len();
        let key = <&[u8; 32]>::try_from(bytes.as_slice())
            .map_err(|_| InvalidWebhookKey::Length { found })?;
        let key = ed25519_dalek::VerifyingKey::from_bytes(key)
            .ok()
            .filter(|key| !key.is_weak())
            .ok_or(InvalidWebhookKey::Mismatch)?;
        Ok(Self(Verifying::Public(Box::new(key))))
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.version())
    }
}

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerifyingKey({})", self.version())
    }
}

/// Error: a text is not a valid webhook key. It never contains the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidWebhookKey {
    /// The text begins with none of the known prefixes.
    Prefix,
    /// The text is a public key, but a sender needs its private one.
    Public,
    /// The text is a private key, but a receiver needs only the public one.
    Private,
    /// The part after the prefix is not base64.
    Base64,
    /// The key has too few bytes, or too many.
    Length {
        /// The number of bytes found.
        found: usize,
    },
    /// The bytes are no valid Ed25519 key: not a point of the curve, a weak one, or a public key that does not belong
    /// to the private key.
    Mismatch,
}

impl fmt::Display for InvalidWebhookKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix => write!(
                f,
                "the key of a webhook begins with {SECRET} (a secret), {PRIVATE} (a private key) or {PUBLIC} (its \
                 public key)"
            ),
            Self::Public => write!(
                f,
                "this is a public key ({PUBLIC}): a sender signs with {PRIVATE} or {SECRET}"
            ),
            Self::Private => write!(
                f,
                "this is a private key ({PRIVATE}): a receiver verifies with the public one, {PUBLIC}; a private key \
                 stays with the sender"
            ),
            Self::Base64 => f.write_str("what follows the prefix of the key is not base64"),
            Self::Length { found } => write!(
                f,
                "the key has {found} bytes: {SECRET} takes 24 to 64, {PRIVATE} 32 or 64, {PUBLIC} 32"
            ),
            Self::Mismatch => f.write_str(
                "these bytes are no key of Ed25519, or its two halves do not belong together",
            ),
        }
    }
}

impl std::error::Error for InvalidWebhookKey {}
