//! A quota and its key.

use std::error::Error;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use http::HeaderMap;
use http::request::Parts;
use relent_core::PolicyError;
use relent_core::admission::{Limiter, LimiterConfig};
use relent_http::rate_limit::{self, InvalidQuotaName, set_rate_limit};

/// Writes the identity of a caller or key to the hasher; returns `false` if the request has none.
pub(crate) type Identify = Arc<dyn Fn(&Parts, &mut dyn Hasher) -> bool + Send + Sync>;

/// The default number of keys that a quota remembers.
const MAX_KEYS: u32 = 65_536;

/// A named rate limit: for all requests together, or for each account, address and the like.
///
/// ```
/// use std::time::Duration;
/// use relent_core::admission::LimiterConfig;
/// use relent_server::admission::Quota;
///
/// #[derive(Clone, Hash)]
/// struct Account(u64);
///
/// let second = Duration::from_secs(1);
/// // A thousand per second in all, with bursts of up to a hundred.
/// let config = LimiterConfig { burst: 100, ..LimiterConfig::new(1000, second) };
/// let service = Quota::new("service", config)?;
/// // Ten per second for each account.
/// let account = Quota::new("account", LimiterConfig::new(10, second))?
///     .key(|request| request.extensions.get::<Account>().cloned());
/// # Ok::<(), relent_server::admission::InvalidQuota>(())
/// ```
#[derive(Clone)]
pub struct Quota {
    pub(super) name: Arc<str>,
    pub(super) config: LimiterConfig,
    /// A full limiter, as a template.
    pub(super) limiter: Limiter,
    pub(super) key: Option<Identify>,
    pub(super) max_keys: u32,
}

impl Quota {
    /// Creates a quota for all requests together. Its name appears in `RateLimit`, in `RateLimit-Policy` and in the
    /// problem of a rejected request. It consists of ASCII characters from the space to `~`.
    ///
    /// The [`burst`](LimiterConfig::burst) is the number of requests that may come together after a pause. By default
    /// it is the number of requests in one second, and at least 2:
    ///
    /// ```
    /// use std::time::Duration;
    /// use relent_server::admission::LimiterConfig;
    ///
    /// assert_eq!(LimiterConfig::new(100, Duration::from_secs(1)).burst, 100);
    /// let minute = Duration::from_secs(60);
    /// assert_eq!(LimiterConfig::new(100, minute).burst, 2);
    /// // A hundred requests per minute, which may come together after a pause of a minute.
    /// let config = LimiterConfig { burst: 100, ..LimiterConfig::new(100, minute) };
    /// # assert_eq!(config.rate, 100);
    /// ```
    ///
    /// # Errors
    /// The name has other characters, or the configuration is inconsistent: see [`Limiter::new`].
    pub fn new(name: &str, config: LimiterConfig) -> Result<Self, InvalidQuota> {
        let quota = rate_limit::Quota::new(name, 0, 0);
        set_rate_limit(&mut HeaderMap::new(), &[quota]).map_err(InvalidQuota::Name)?;
        Ok(Self {
            name: Arc::from(name),
            limiter: Limiter::new(&config).map_err(InvalidQuota::Config)?,
            config,
            key: None,
            max_keys: MAX_KEYS,
        })
    }

    /// Applies the limit to each key separately. `key` reads it from the request, such as the account that the
    /// authentication layer stored in the extensions. If it returns `None`, the quota does not apply.
    ///
    /// A client that can choose its key at will is not limited.
    #[must_use]
    pub fn key<K: Hash>(
        mut self,
        key: impl Fn(&Parts) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        self.key = Some(identify(key));
        self
    }

    /// Sets the number of keys that are remembered: 65 536 by default, at about 200 bytes each, and at least 1. Keys
    /// whose limiter is full again are evicted first. For the case that all are in use, see
    /// [`KeyedLimiter`](relent_core::admission::KeyedLimiter). In Redis keys expire on their own, and there is no limit.
    #[must_use]
    pub const fn max_keys(mut self, keys: u32) -> Self {
        self.max_keys = keys;
        self
    }
}

#[cfg(feature = "redis")]
impl Quota {
    /// Returns the quota with this configuration, or unchanged if the configuration is inconsistent.
    pub(super) fn with_config(&self, config: LimiterConfig) -> Self {
        match Limiter::new(&config) {
            Ok(limiter) => Self {
                config,
                limiter,
                ..self.clone()
            },
            Err(_) => self.clone(),
        }
    }
}

pub(crate) fn identify<K: Hash>(
    read: impl Fn(&Parts) -> Option<K> + Send + Sync + 'static,
) -> Identify {
    Arc::new(move |parts, mut hasher| match read(parts) {
        Some(key) => {
            key.hash(&mut hasher);
            true
        }
        None => false,
    })
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quota")
            .field("name", &self.name)
            .field("config", &self.config)
            .field("keyed", &self.key.is_some())
            .finish_non_exhaustive()
    }
}

/// The reason why a quota is invalid.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum InvalidQuota {
    /// The name cannot be sent in a header.
    Name(InvalidQuotaName),
    /// The configuration of the limit is inconsistent.
    Config(PolicyError),
}

impl fmt::Display for InvalidQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(error) => error.fmt(f),
            Self::Config(error) => error.fmt(f),
        }
    }
}

impl Error for InvalidQuota {}
