//! Signing keys of endpoints, encrypted or by reference.

use std::env;
use std::error::Error;
use std::fmt;
use std::ops::ControlFlow;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use chacha20poly1305::aead::{Aead, Generate, KeyInit, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use relent_http::webhook::{Signer, SigningKey};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::endpoint::Endpoint;
use crate::store::Store;

/// The environment variable with the key that encrypts other keys: 32 bytes in base64.
pub const KEY_VARIABLE: &str = "RELENT_OUTBOX_KEY";

/// The process that reads the variable of a reference, in error messages.
pub(crate) const THIS_PROCESS: &str = "`relent deliver serve`, and restart it";

const ENCRYPTED: &str = "encrypted:v1:";
pub(crate) const REFERENCE: &str = "env:";
/// The associated data of a store's key check. No tenant and endpoint have this encoding.
const KEY_CHECK_OWNER: &[u8] = b"key check";

/// Reads the signing keys of endpoints. Each key is stored in one of two forms:
///
/// - `env:NAME`: the key is in this environment variable of each worker;
/// - `encrypted:v1:…`: the key is encrypted with the operator's key (XChaCha20-Poly1305). It can be decrypted only for the
///   tenant and the endpoint that it was encrypted for.
///
/// The key itself is written `whsec_…` or `whsk_…`: see [`relent_http::webhook`].
///
/// ```
/// use relent_outbox::endpoint::Endpoint;
/// use relent_outbox::secrets::Secrets;
///
/// let secrets = Secrets::with_key("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")?;
/// let mut endpoint = Endpoint::new("shop", "https://shop.example/notify").tenant("acme");
/// let encrypted = secrets.encrypt("acme", "shop", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")?;
/// endpoint.secrets = vec![encrypted];
/// assert!(secrets.signing(&endpoint)?.is_some());
/// endpoint.name = "another".to_owned();
/// assert!(secrets.signing(&endpoint).is_err());
/// # Ok::<(), relent_outbox::secrets::SecretError>(())
/// ```
#[derive(Clone, Default)]
pub struct Secrets {
    cipher: Option<XChaCha20Poly1305>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_key = self.cipher.is_some();
        f.debug_struct("Secrets")
            .field("has_key", &has_key)
            .finish()
    }
}

/// The keys that sign attempts for an endpoint.
#[derive(Clone)]
pub struct Signing {
    pub(crate) signer: Signer,
    keys: usize,
    /// Each [form](forms) in which a response could echo the keys, to redact it.
    pub(crate) texts: Vec<Zeroizing<String>>,
}

impl fmt::Debug for Signing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signing").field("keys", &self.keys).finish()
    }
}

impl Secrets {
    /// Uses the key in [`KEY_VARIABLE`]. If it is not set, nothing can be encrypted or decrypted, but references work.
    ///
    /// # Errors
    /// If the variable is set to anything but 32 bytes in base64.
    pub fn from_env() -> Result<Self, SecretError> {
        match env::var(KEY_VARIABLE) {
            Ok(key) => Self::with_key(&Zeroizing::new(key)),
            Err(env::VarError::NotPresent) => Ok(Self::default()),
            Err(env::VarError::NotUnicode(_)) => Err(SecretError::Key),
        }
    }

    /// Uses this key: 32 bytes in base64, such as the output of `openssl rand -base64 32`.
    ///
    /// # Errors
    /// If the key has another form.
    pub fn with_key(key: &str) -> Result<Self, SecretError> {
        let bytes = STANDARD.decode(key.trim()).map_err(|_| SecretError::Key)?;
        let bytes = Zeroizing::new(bytes);
        let key: &Key = bytes.as_slice().try_into().map_err(|_| SecretError::Key)?;
        Ok(Self {
            cipher: Some(XChaCha20Poly1305::new(key)),
        })
    }

    /// Converts a signing key to its stored form for this endpoint. A reference, or a key already encrypted for it,
    /// stays unchanged.
    ///
    /// # Errors
    /// If the text is not a signing key, or there is no key to encrypt it with.
    pub fn encrypt(
        &self,
        tenant: &str,
        endpoint: &str,
        secret: &str,
    ) -> Result<String, SecretError> {
        let owner = owner(tenant, endpoint);
        if let Some(kept) = self.kept(&owner, secret)? {
            return Ok(kept);
        }
        if secret.parse::<SigningKey>().is_err() {
            return Err(SecretError::NoSigningKey);
        }
        self.encrypt_text(&owner, secret)
    }

    /// Returns the text if it is already in the stored form for this owner; `None` if it must be encrypted.
    pub(crate) fn kept(&self, owner: &[u8], text: &str) -> Result<Option<String>, SecretError> {
        if let Some(name) = text.strip_prefix(REFERENCE) {
            return match is_variable(name) {
                true => Ok(Some(text.to_owned())),
                false => Err(SecretError::Reference),
            };
        }
        if text.starts_with(ENCRYPTED) {
            self.open_text(owner, text)?;
            return Ok(Some(text.to_owned()));
        }
        Ok(None)
    }

    /// Encrypts a text for this owner alone.
    pub(crate) fn encrypt_text(&self, owner: &[u8], text: &str) -> Result<String, SecretError> {
        let cipher = self.cipher.as_ref().ok_or(SecretError::NoKey)?;
        let nonce = XNonce::try_generate().map_err(|_| SecretError::NoRandomness)?;
        let payload = Payload {
            msg: text.as_bytes(),
            aad: owner,
        };
        let encrypted = cipher
            .encrypt(&nonce, payload)
            .map_err(|_| SecretError::NoSigningKey)?;
        let mut bytes = nonce.to_vec();
        bytes.extend(encrypted);
        Ok(format!("{ENCRYPTED}{}", STANDARD.encode(bytes)))
    }

    /// Returns all keys that sign attempts for this endpoint, the newest first. `None` if it has none.
    ///
    /// # Errors
    /// If any of them is unavailable: nothing is sent rather than a request without its signature.
    pub fn signing(&self, endpoint: &Endpoint) -> Result<Option<Signing>, SecretError> {
        let mut signing: Option<Signing> = None;
        for kept in &endpoint.secrets {
            let text = self.open(&endpoint.tenant, &endpoint.name, kept)?;
            let key: SigningKey = text.parse().map_err(|_| SecretError::NoSigningKey)?;
            signing = Some(match signing {
                None => Signing {
                    signer: Signer::new(key),
                    keys: 1,
                    texts: forms(&text),
                },
                Some(Signing {
                    signer,
                    keys,
                    mut texts,
                }) => {
                    texts.extend(forms(&text));
                    Signing {
                        signer: signer.also(key),
                        keys: keys + 1,
                        texts,
                    }
                }
            });
        }
        Ok(signing)
    }

    /// Returns the [fingerprint] of each signing key of an endpoint, in their order; `None` if a key is unavailable.
    #[must_use]
    pub fn fingerprints(&self, endpoint: &Endpoint) -> Vec<Option<String>> {
        let kept = endpoint.secrets.iter();
        let opened = kept.map(|kept| self.open(&endpoint.tenant, &endpoint.name, kept).ok());
        opened.map(|text| Some(fingerprint(&text?))).collect()
    }

    /// Whether an endpoint has this signing key, which may also be a reference.
    #[cfg(feature = "api")]
    pub(crate) fn has_key(&self, endpoint: &Endpoint, secret: &str) -> bool {
        endpoint.secrets.iter().any(|kept| {
            let opened = || self.open(&endpoint.tenant, &endpoint.name, kept);
            kept == secret
                || !kept.starts_with(REFERENCE) && opened().is_ok_and(|text| *text == secret)
        })
    }

    fn open(
        &self,
        tenant: &str,
        endpoint: &str,
        kept: &str,
    ) -> Result<Zeroizing<String>, SecretError> {
        self.open_text(&owner(tenant, endpoint), kept)
    }

    /// Returns the stored text of this owner.
    pub(crate) fn open_text(
        &self,
        owner: &[u8],
        kept: &str,
    ) -> Result<Zeroizing<String>, SecretError> {
        if let Some(name) = kept.strip_prefix(REFERENCE) {
            let absent = || SecretError::Absent(name.to_owned());
            let value = is_variable(name).then(|| env::var(name).ok()).flatten();
            let value = Zeroizing::new(value.ok_or_else(absent)?);
            return Ok(Zeroizing::new(value.trim().to_owned()));
        }
        self.decrypt(owner, kept)
    }

    fn decrypt(&self, owner: &[u8], kept: &str) -> Result<Zeroizing<String>, SecretError> {
        let text = kept.strip_prefix(ENCRYPTED).ok_or(SecretError::Form)?;
        let bytes = STANDARD.decode(text).map_err(|_| SecretError::Form)?;
        let (nonce, encrypted) = bytes.split_at_checked(24).ok_or(SecretError::Form)?;
        let nonce: &XNonce = nonce.try_into().map_err(|_| SecretError::Form)?;
        let cipher = self.cipher.as_ref().ok_or(SecretError::NoKey)?;
        let payload = Payload {
            msg: encrypted,
            aad: owner,
        };
        let opened = cipher
            .decrypt(nonce, payload)
            .map_err(|_| SecretError::OtherKey)?;
        // On an error the decrypted bytes are dropped without zeroizing. Only a holder of the key can produce such
        // bytes.
        let text = String::from_utf8(opened).map_err(|_| SecretError::OtherKey)?;
        Ok(Zeroizing::new(text))
    }
}

/// Returns the fingerprint of a signing key: the first 8 hexadecimal digits of the SHA-256 digest of its text. It tells
/// keys apart without showing them.
///
/// ```
/// use relent_outbox::secrets::fingerprint;
///
/// assert_eq!(fingerprint("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), "96ad2ccd");
/// ```
#[must_use]
pub fn fingerprint(key: &str) -> String {
    hex(&Sha256::digest(key.trim())[..4])
}

/// Whether the text has the form of a [fingerprint]: 8 hexadecimal digits in lower case.
#[must_use]
pub fn is_fingerprint(text: &str) -> bool {
    let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == 8 && text.bytes().all(is_digit)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The forms in which a response could echo a signing key, the longest first: as written, without prefix or padding, in
/// URL-safe base64, escaped for a URL or for JSON, and its bytes in hexadecimal.
fn forms(text: &str) -> Vec<Zeroizing<String>> {
    let body = text.split_once('_').map_or(text, |(_, body)| body);
    let body = body.trim_end_matches('=');
    let mut forms = vec![text.to_owned(), body.to_owned()];
    forms.push(body.replace('+', "-").replace('/', "_"));
    for text in [text, body] {
        forms.push(text.replace('/', "\\/"));
        let escaped = text.replace('+', "%2B").replace('/', "%2F");
        let escaped = escaped.replace('=', "%3D");
        forms.push(escaped.replace("%2B", "%2b").replace("%2F", "%2f"));
        forms.push(escaped);
    }
    if let Ok(bytes) = STANDARD_NO_PAD.decode(body) {
        let bytes = Zeroizing::new(bytes);
        let hex = hex(&bytes);
        forms.push(hex.to_uppercase());
        forms.push(hex);
        if let Ok(text) = std::str::from_utf8(&bytes) {
            forms.push(text.to_owned());
        }
    }
    forms.retain(|form| !form.is_empty());
    forms.sort_unstable_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
    forms.dedup();
    forms.into_iter().map(Zeroizing::new).collect()
}

/// The plain text of a store's key check.
const KEY_CHECK_TEXT: &str = "relent-outbox";
/// The number of tries to replace a key check while other processes replace it.
const MAX_TRIES: usize = 16;
/// The number of endpoints read per query.
const PAGE_SIZE: usize = 500;

impl Secrets {
    /// Checks that the key decrypts the secrets in this store, before anything is sent. A store without encrypted
    /// secrets adopts the key.
    ///
    /// # Errors
    /// [`KeyError`] if another key has encrypted the stored secrets, or the store fails.
    pub async fn check<S: Store>(&self, store: &S) -> Result<(), KeyError<S::Error>> {
        for _ in 0..MAX_TRIES {
            let kept = store.key_check().await.map_err(KeyError::Store)?;
            if kept.as_deref().is_some_and(|kept| self.is_key_of(kept)) {
                return Ok(());
            }
            let (encrypted, opens) = self.find_encrypted(store).await?;
            match encrypted {
                // A store without a key check may have some keys that were registered again with the current key.
                Some(_) if kept.is_none() && opens => {}
                Some(endpoint) if self.cipher.is_none() => {
                    return Err(KeyError::Missing { endpoint });
                }
                Some(endpoint) => return Err(KeyError::Other { endpoint }),
                None if self.cipher.is_none() => return Ok(()),
                None => {}
            }
            if self.replace_check(store, kept).await? {
                return Ok(());
            }
        }
        Err(KeyError::Secret(SecretError::OtherKey))
    }

    /// Makes the key that of the store, whichever key encrypted the stored secrets. If it does not decrypt the secrets
    /// of an endpoint, the endpoint's messages are held until it is registered again.
    ///
    /// # Errors
    /// If there is no key, or the store fails.
    pub async fn take_over<S: Store>(&self, store: &S) -> Result<(), KeyError<S::Error>> {
        for _ in 0..MAX_TRIES {
            let kept = store.key_check().await.map_err(KeyError::Store)?;
            if self.replace_check(store, kept).await? {
                return Ok(());
            }
        }
        Err(KeyError::Secret(SecretError::OtherKey))
    }

    async fn replace_check<S: Store>(
        &self,
        store: &S,
        kept: Option<String>,
    ) -> Result<bool, KeyError<S::Error>> {
        let new = self
            .encrypt_text(KEY_CHECK_OWNER, KEY_CHECK_TEXT)
            .map_err(KeyError::Secret)?;
        let replaced = store.replace_key_check(new, kept).await;
        replaced.map_err(KeyError::Store)
    }

    fn is_key_of(&self, kept: &str) -> bool {
        let opened = self.decrypt(KEY_CHECK_OWNER, kept);
        opened.is_ok_and(|text| text.as_str() == KEY_CHECK_TEXT)
    }

    /// Returns an endpoint with an encrypted secret, and whether the key decrypts any of them.
    async fn find_encrypted<S: Store>(
        &self,
        store: &S,
    ) -> Result<(Option<String>, bool), KeyError<S::Error>> {
        let (mut found, mut is_decrypted) = (None, false);
        let visit = |endpoint: &Endpoint| {
            for (owner, kept) in encrypted(endpoint) {
                if self.open_text(&owner, kept).is_ok() {
                    (found, is_decrypted) = (Some(endpoint.name.clone()), true);
                    return ControlFlow::Break(());
                }
                // Name the first endpoint whose secret it does not decrypt.
                found.get_or_insert_with(|| endpoint.name.clone());
            }
            ControlFlow::Continue(())
        };
        each_endpoint(store, visit).await.map_err(KeyError::Store)?;
        Ok((found, is_decrypted))
    }
}

impl Secrets {
    /// Lists the endpoints, by tenant and name, with an encrypted signing key or header value that this key does not
    /// decrypt: these must be registered again.
    ///
    /// # Errors
    /// The store fails.
    pub async fn unreadable<S: Store>(&self, store: &S) -> Result<Vec<(String, String)>, S::Error> {
        let mut unreadable = Vec::new();
        let visit = |endpoint: &Endpoint| {
            if encrypted(endpoint).any(|(owner, kept)| self.open_text(&owner, kept).is_err()) {
                unreadable.push((endpoint.tenant.clone(), endpoint.name.clone()));
            }
            ControlFlow::Continue(())
        };
        each_endpoint(store, visit).await?;
        Ok(unreadable)
    }
}

/// Visits all endpoints, page by page, until `visit` breaks.
async fn each_endpoint<S: Store>(
    store: &S,
    mut visit: impl FnMut(&Endpoint) -> ControlFlow<()>,
) -> Result<(), S::Error> {
    let mut after = None;
    loop {
        let page = store.endpoints(after.take(), PAGE_SIZE).await?;
        for status in &page {
            if visit(&status.endpoint).is_break() {
                return Ok(());
            }
        }
        let last = page.last().filter(|_| page.len() == PAGE_SIZE);
        let Some(last) = last.map(|status| &status.endpoint) else {
            return Ok(());
        };
        after = Some((last.tenant.clone(), last.name.clone()));
    }
}

/// The encrypted secrets of an endpoint, each with its owner.
fn encrypted(endpoint: &Endpoint) -> impl Iterator<Item = (Vec<u8>, &String)> {
    let Endpoint { tenant, name, .. } = endpoint;
    let keys = endpoint.secrets.iter();
    let keys = keys.map(move |kept| (owner(tenant, name), kept));
    let fields = endpoint.headers.iter();
    let fields = fields.map(move |(field, kept)| (header_owner(tenant, name, field), kept));
    keys.chain(fields)
        .filter(|(_, kept)| kept.starts_with(ENCRYPTED))
}

/// The reason that a worker must not start with this key.
#[derive(Debug)]
#[non_exhaustive]
pub enum KeyError<E> {
    /// The store has encrypted secrets, and there is no key.
    Missing {
        /// An endpoint with such a secret.
        endpoint: String,
    },
    /// Another key has encrypted the secrets.
    Other {
        /// An endpoint whose secret cannot be decrypted.
        endpoint: String,
    },
    /// The key cannot be used.
    Secret(SecretError),
    /// The store fails.
    Store(E),
}

impl<E: fmt::Display> fmt::Display for KeyError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { endpoint } => write!(
                f,
                "the store has encrypted signing keys, such as that of the endpoint {endpoint:?}, and there is no encryption \
                 key: give the key that encrypted them, from your copy of it"
            ),
            Self::Other { endpoint } => write!(
                f,
                "it does not decrypt the signing keys in the store, such as that of the endpoint {endpoint:?}: give the key that \
                 encrypted them, from your copy of it"
            ),
            Self::Secret(error) => error.fmt(f),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl<E: Error> Error for KeyError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // `Display` already includes the text of the store's error.
        match self {
            Self::Store(error) => error.source(),
            _ => None,
        }
    }
}

fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The associated data of an owner. Length prefixes make it unique.
pub(crate) fn owner(tenant: &str, endpoint: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + tenant.len() + endpoint.len());
    for part in [tenant, endpoint] {
        bytes.extend((part.len() as u64).to_le_bytes());
        bytes.extend(part.as_bytes());
    }
    bytes
}

/// The associated data of a header value. It differs from that of signing keys and of other fields.
pub(crate) fn header_owner(tenant: &str, endpoint: &str, name: &str) -> Vec<u8> {
    let mut owner = owner(tenant, endpoint);
    owner.extend(b"header ");
    owner.extend(name.as_bytes());
    owner
}

/// The reason that a signing key is unavailable. It never contains the key.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SecretError {
    /// The operator's key is not 32 bytes in base64.
    Key,
    /// There is no operator's key.
    NoKey,
    /// It was encrypted with another key or for another endpoint, or was changed.
    OtherKey,
    /// It is neither a reference nor encrypted.
    Form,
    /// The reference names no valid variable.
    Reference,
    /// The variable of this name is not set.
    Absent(String),
    /// The text is not a signing key.
    NoSigningKey,
    /// The system provides no randomness.
    NoRandomness,
}

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key => write!(
                f,
                "{KEY_VARIABLE} has to be 32 bytes in base64, such as `openssl rand -base64 32` writes"
            ),
            Self::NoKey => write!(
                f,
                "a signing key is stored encrypted, which needs {KEY_VARIABLE}; without it, put the signing key into an environment \
                 variable and register env:NAME"
            ),
            Self::OtherKey => write!(
                f,
                "the signing key was encrypted with another {KEY_VARIABLE} or for another endpoint: register it again"
            ),
            Self::Form => write!(
                f,
                "a signing key is stored as env:NAME or encrypted ({ENCRYPTED}…), never as plain text: register it again"
            ),
            Self::Reference => f.write_str(
                "a reference is env: and the name of a variable: letters, digits and _"
            ),
            Self::Absent(name) => write!(
                f,
                "the signing key env:{name} is not set: set that variable in the environment of {THIS_PROCESS}"
            ),
            Self::NoSigningKey => f.write_str(
                "a signing key is written whsec_ and base64 of 24 to 64 bytes, or whsk_ and base64 of an Ed25519 key; `relent deliver new-key` makes a whsec_ key",
            ),
            Self::NoRandomness => f.write_str("the system gives no randomness to encrypt with: try again"),
        }
    }
}

impl Error for SecretError {}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use http::HeaderMap;
    use relent_http::webhook::{Verifier, VerifyingKey};

    use super::*;

    const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const NEW: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const OLD: &str = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    fn endpoint(kept: &[String]) -> Endpoint {
        let mut endpoint = Endpoint::new("shop", "https://shop.example/").tenant("acme");
        endpoint.secrets = kept.to_vec();
        endpoint
    }

    #[test]
    fn an_encrypted_signing_key_is_valid_only_for_its_endpoint() {
        let secrets = Secrets::with_key(KEY).unwrap();
        let kept = [NEW, OLD].map(|key| secrets.encrypt("acme", "shop", key).unwrap());
        let signing = secrets.signing(&endpoint(&kept)).unwrap().unwrap();
        let mut headers = HeaderMap::new();
        let now = SystemTime::now();
        signing
            .signer
            .sign("msg_1", now, b"{}", &mut headers)
            .unwrap();
        for key in [NEW, OLD] {
            let verifier = Verifier::new([key.parse::<VerifyingKey>().unwrap()]);
            assert!(verifier.verify(&headers, b"{}", now).is_ok());
        }
        for (tenant, name) in [
            ("acme", "shop2"),
            ("acm", "eshop"),
            ("", "shop"),
            ("acmes", "hop"),
        ] {
            let mut other = endpoint(&kept);
            (other.tenant, other.name) = (tenant.to_owned(), name.to_owned());
            assert_eq!(secrets.signing(&other).unwrap_err(), SecretError::OtherKey);
        }
    }

    #[test]
    fn encryption_of_keys_is_randomized_and_detects_changes() {
        let secrets = Secrets::with_key(KEY).unwrap();
        let encrypted = secrets.encrypt("", "shop", NEW).unwrap();
        assert_ne!(encrypted, secrets.encrypt("", "shop", NEW).unwrap());
        assert_eq!(
            secrets.encrypt("", "shop", &encrypted).unwrap(),
            encrypted,
            "it stays as it is"
        );
        let bytes = STANDARD
            .decode(encrypted.strip_prefix(ENCRYPTED).unwrap())
            .unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let kept = format!("{ENCRYPTED}{}", STANDARD.encode(changed));
            assert!(secrets.open("", "shop", &kept).is_err(), "{at}");
        }
        let other = Secrets::with_key(&STANDARD.encode([7; 32])).unwrap();
        assert_eq!(
            other.open("", "shop", &encrypted).unwrap_err(),
            SecretError::OtherKey
        );
    }

    #[test]
    fn an_unavailable_signing_key_is_an_error() {
        let secrets = Secrets::default();
        for (kept, error) in [
            (
                "env:RELENT_NO_SUCH_VARIABLE",
                SecretError::Absent("RELENT_NO_SUCH_VARIABLE".to_owned()),
            ),
            ("env:PATH", SecretError::NoSigningKey),
            (NEW, SecretError::Form),
            ("encrypted:v1:AAAA", SecretError::Form),
            (
                "encrypted:v1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
                SecretError::NoKey,
            ),
            ("", SecretError::Form),
        ] {
            assert_eq!(
                secrets.signing(&endpoint(&[kept.to_owned()])).unwrap_err(),
                error,
                "{kept}"
            );
        }
        assert!(secrets.signing(&endpoint(&[])).unwrap().is_none());
        assert_eq!(secrets.encrypt("", "shop", NEW), Err(SecretError::NoKey));
        assert_eq!(
            secrets.encrypt("", "shop", "env:"),
            Err(SecretError::Reference)
        );
        assert_eq!(
            secrets.encrypt("", "shop", "env:SHOP_KEY").unwrap(),
            "env:SHOP_KEY"
        );
        for key in ["", "AAAA", &STANDARD.encode([0; 33]), "not base64"] {
            assert_eq!(Secrets::with_key(key).unwrap_err(), SecretError::Key);
        }
    }

    #[test]
    fn a_signing_key_is_redacted_in_each_form_a_response_could_echo() {
        let key = "whsec_+/KQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw+w==";
        let secrets = Secrets::with_key(KEY).unwrap();
        let kept = [secrets.encrypt("acme", "shop", key).unwrap()];
        let signing = secrets.signing(&endpoint(&kept)).unwrap().unwrap();
        for form in [
            "whsec_+/KQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw+w==",
            "whsec_+/KQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw+w",
            "+/KQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw+w==",
            "+/KQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw+w",
            "-_KQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw-w",
            "+\\/KQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw+w==",
            "%2B%2FKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw%2Bw%3D%3D",
            "%2b%2fKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw%2bw",
            "fbf290f6bf06298aab4f08d43c3f082cf648a362da2da4b0fb",
            "FBF290F6BF06298AAB4F08D43C3F082CF648A362DA2DA4B0FB",
        ] {
            for before in ["", "your key: ", "\"key\":\""] {
                let body = format!("{before}{form}\" is wrong");
                let kept = crate::acknowledgement::excerpt(body.as_bytes(), &signing.texts);
                assert!(kept.contains("[redacted]"), "{form}: {kept}");
                for part in ["KQ9r8GKY", "f290f6bf", "F290F6BF"] {
                    assert!(!kept.contains(part), "{form}: {kept}");
                }
            }
        }
    }

    #[test]
    fn debug_output_of_secrets_contains_no_key() {
        let secrets = Secrets::with_key(KEY).unwrap();
        let kept = [secrets.encrypt("acme", "shop", NEW).unwrap()];
        let signing = secrets.signing(&endpoint(&kept)).unwrap();
        let shown = format!("{secrets:?} {signing:?} {kept:?}");
        assert!(
            !shown.contains("MfKQ9r8G") && !shown.contains("AAECAwQF"),
            "{shown}"
        );
        let refused = secrets.encrypt("acme", "shop", "whsec_short").unwrap_err();
        assert!(!refused.to_string().contains("short"));
    }
}
