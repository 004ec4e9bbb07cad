//! A quota, and whom it is for.

use std::error::Error;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use http::HeaderMap;
use http::request::Parts;
use relent_core::{Limiter, LimiterConfig, PolicyError};
use relent_http::rate_limit::{self, InvalidQuotaName, set_rate_limit};

/// Feeds what identifies somebody to a hasher; `false` if nothing does.
pub(crate) type Identify = Arc<dyn Fn(&Parts, &mut dyn Hasher) -> bool + Send + Sync>;

/// So many keys a quota remembers by default.
const MAX_KEYS: u32 = 65_536;

/// A limit with a name: for all requests together, or for each account, address and the like.
///
/// ```
/// use std::time::Duration;
/// use relent_core::LimiterConfig;
/// use relent_server::admission::Quota;
///
/// #[derive(Clone, Hash)]
/// struct Account(u64);
///
/// let second = Duration::from_secs(1);
/// // A thousand per second in all, a hundred at once.
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
    /// One that has admitted nothing.
    pub(super) limiter: Limiter,
    pub(super) key: Option<Identify>,
    pub(super) max_keys: u32,
}

impl Quota {
    /// A quota for all requests together. Its name stands in the fields `RateLimit` and `RateLimit-Policy`, and in
    /// the problem that a refused request gets: characters of ASCII from the space to `~`.
    ///
    /// `LimiterConfig::new(100, Duration::from_secs(1))` is a hundred requests a second, of which all may come at once
    /// after a pause; `burst` says otherwise.
    ///
    /// # Errors
    /// A name with other characters, and a config that does not fit together: see [`Limiter::new`].
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

    /// The same for each key that this function reads from a request, such as the account that whoever has
    /// authenticated it has left there. Where it returns `None` the quota does not count.
    ///
    /// Whoever can choose the key at will is not limited by it.
    #[must_use]
    pub fn key<K: Hash>(
        mut self,
        key: impl Fn(&Parts) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        self.key = Some(identify(key));
        self
    }

    /// How many keys are remembered: 65 536 by default, at about 200 bytes each, and at least 1. What is full
    /// again is forgotten first; what happens when all are in use is said at
    /// [`KeyedLimiter`](relent_core::KeyedLimiter). In Redis keys expire by themselves, and there is no limit.
    #[must_use]
    pub const fn max_keys(mut self, keys: u32) -> Self {
        self.max_keys = keys;
        self
    }
}

#[cfg(feature = "redis")]
impl Quota {
    /// The same with this config, if it fits together.
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

/// Why there is no such quota.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum InvalidQuota {
    /// Its name cannot stand in a header.
    Name(InvalidQuotaName),
    /// Its limit does not fit together.
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
