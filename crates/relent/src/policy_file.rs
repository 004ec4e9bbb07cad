//! Policy files: one policy or several, in TOML or JSON.

mod error;

use std::fs::File;
use std::io::Read;

use relent_core::Policy;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor};

pub use error::PolicyFileError;
use error::Syntax;
pub use relent_core::text::nearest;

/// The maximum size of a policy file: 1 MiB.
const MAX_SIZE: usize = 1 << 20;

/// A policy with the metadata of its file.
#[derive(Clone, PartialEq, Debug)]
pub struct NamedPolicy {
    /// The name of the preset, or the `NAME` of `[policies.NAME]`; `None` for a file with a single
    /// policy at the top level.
    pub name: Option<String>,
    /// A description in one sentence.
    pub description: Option<String>,
    /// The document or system that it reproduces.
    pub source: Option<String>,
    /// The policy.
    pub policy: Policy,
}

/// The policies of one file.
///
/// A file contains one policy, with its keys at the top level, or several under `[policies.NAME]`.
/// The format is TOML, or JSON if the first character is `{`.
///
/// ```
/// use relent::policy::PolicyFile;
///
/// let file = PolicyFile::parse(
///     r#"
///     [policies.quick]
///     max_retries = 2
///     backoff.exponential = { initial = "50ms" }
///
///     [policies.slow]
///     max_elapsed = "1h"
///     max_retries = "unlimited"
///     backoff.constant = { delay = "1m" }
///     "#,
/// )?;
/// assert_eq!(file.names().collect::<Vec<_>>(), ["quick", "slow"]);
/// assert_eq!(file.get(Some("quick"))?.policy.max_retries(), Some(2));
///
/// let error = PolicyFile::parse("max_retrys = 3").unwrap_err().to_string();
/// assert!(error.starts_with("unknown key `max_retrys` (line 1, column 1): did you mean `max_retries`?"));
/// # Ok::<(), relent::policy::PolicyFileError>(())
/// ```
///
/// # Keys
/// Every key except `backoff` is optional; the defaults are those of
/// [`Policy::builder`](crate::Policy::builder). An unknown key is an error.
///
/// ```toml
/// description = "every key there is"
/// source = "this page"
/// max_retries = 10          # or "unlimited"
/// max_elapsed = "15m"       # no attempt starts later; "unlimited" if absent, as in the next two
/// deadline = "20m"          # no attempt starts later, and a running attempt is cut off
/// attempt_timeout = "60s"
/// min_attempt_time = "100ms"    # the minimum time for an attempt before a limit
/// final_attempt_before_deadline = true      # shortens the last delay so that one more attempt fits; false if absent
/// max_delay = "32s"         # the cap; or "unlimited"; if absent and delays grow without end: "60s", or the longest written delay
/// ceiling = "before_jitter" # or "after_jitter"
/// jitter = "full"           # none, equal, proportional:0.5, additive:1s, additive:1ms..1s
/// throttled_initial = "2s"  # the first delay after a throttled failure; not for none, slotted, schedule
/// hint = "floor"            # replace, clamp, exact, ignore
/// max_hint = "5m"
/// retry_after_jitter = 1    # Retry-After jitter, as a share of a shared hint; above 0
/// retry_on = ["5xx", 429, "timeout", "network"] # only these; see `Pattern`
/// stop_on = [501]
/// not_processed = [503]     # the server is assumed not to have started
/// assume_repeatable = false
/// retries = "on"            # the operator's switch; "off" ends all retries
/// backoff.exponential = { initial = "1s", factor = 2 }
/// # or one of: backoff = "none"
/// # backoff.constant = { delay = "1s" }
/// # backoff.linear = { initial = "1s", step = "1s" }
/// # backoff.fibonacci = { initial = "1s" }
/// # backoff.decorrelated = { initial = "1s", factor = 3 }
/// # backoff.slotted = { slot = "51.2us", exponent_limit = 10 }
/// # backoff.schedule = { delays = ["1s", "5s", "30s"] }
/// # backoff.elapsed = { initial = "1s", fraction = 0.1 }
/// # backoff.chain = [{ retries = 3, backoff = "none" }, { backoff.constant = { delay = "1s" } }]
///
/// [[rules]]                 # for some failures; the first that matches decides
/// on = [408, "timeout"]
/// max_retries = 1
/// attempt_timeout = "120s"
/// max_delay = "10s"
/// jitter = "none"
/// backoff.constant = { delay = "1s" }
///
/// [budget]                  # in tokens; the values shown are the defaults
/// ratio = 0.1               # deposited by every request
/// success = 0               # by every success
/// initial_tokens = 10       # initial tokens
/// per_second = 0.1          # by time
/// capacity = 100            # the maximum
/// cost = 1                  # of a retry
/// throttled_cost = 1        # of a retry after a throttled failure
/// # timeout_cost = 10       # of a retry after an attempt that timed out; as `cost` if absent
/// min_tokens = 0            # the minimum balance after a retry
/// overload_reserve = 0      # added to the minimum after failures that may be overload; needs a [circuit_breaker]
/// queue_when_exhausted = false   # queues a retry that the budget cannot pay; needs a [circuit_breaker]
/// refund_on_success = false # a success refunds the last cost
/// charge_failures = false   # every failure costs tokens, instead of every retry
///
/// [circuit_breaker]         # queues and probes while the destination is down; the defaults
/// first_probe = "500ms"     # after it goes down; each later delay is 1.5 times the previous one, but a
///                           # high-traffic process probes once per ten requests
/// max_probe = "5s"          # the longest delay between two probes while requests are made
/// max_queue_time = "5m"     # no request is queued for longer
/// max_queue_time_without_deadline = "30s" # no attempt starts later, without a deadline and max_elapsed
/// max_queue_time_without_response = "9s"  # as above, while the destination has never responded
///
/// [rate_limit]              # attempts per second to a destination, first attempts included; none if absent
/// limit = 100               # the maximum; optional if it adapts
/// burst = 10                # immediately after a pause; a tenth of a second's worth if absent
/// adaptive = false          # decreases after a throttled failure, then increases again
///
/// [hedge]                   # a second attempt beside a slow one; none if absent
/// percentile = 0.95         # starts after this percentile of recent success latencies,
/// least = "1ms"             # no earlier than this,
/// most = "10s"              # no later than this,
/// samples = 200             # and not before so many are recorded; ten beyond the percentile if absent
/// # delay = "50ms"          # or after a fixed time
/// max_hedges = 1            # beside one attempt, up to 4
///
/// [throttle]                # adaptive throttling: rejects locally what the destination would reject; none if absent
/// factor = 2                # K: requests allowed per accepted request
/// window = "2m"             # the length of the history that counts
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct PolicyFile {
    policies: Vec<NamedPolicy>,
}

impl PolicyFile {
    /// The JSON Schema of a policy file, for editors. `relent policy schema` prints it.
    ///
    /// It has all keys with their ranges and defaults. Contradictions between two keys are found by
    /// [`parse`](Self::parse) only.
    pub const SCHEMA: &str = include_str!("policy_file/schema.json");

    /// Parses the text of a policy file.
    ///
    /// # Errors
    /// A text above 1 MiB, invalid TOML or JSON, unknown or missing keys, invalid values, and
    /// policies that contradict themselves. The error shows the line.
    pub fn parse(text: &str) -> Result<Self, PolicyFileError> {
        if text.len() > MAX_SIZE {
            return Err(PolicyFileError::too_large(MAX_SIZE));
        }
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let syntax = if text.trim_start().starts_with('{') {
            Syntax::Json
        } else {
            Syntax::Toml
        };
        let policies = match read::<Outline>(text, syntax)?.policies {
            None => vec![NamedPolicy::new(
                None,
                read::<Policy>(text, syntax)?,
                read::<PolicyMetadata>(text, syntax)?,
            )],
            Some(_) => {
                let policies = read::<PoliciesByName<Policy>>(text, syntax)?.policies.0;
                let about = read::<MetadataByName>(text, syntax)?.policies.0;
                policies
                    .into_iter()
                    .zip(about)
                    .map(|((name, policy), (_, about))| NamedPolicy::new(Some(name), policy, about))
                    .collect()
            }
        };
        Ok(Self { policies })
    }

    /// The names of the policies, in the order of the file; none if it contains a single policy at
    /// the top level.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.policies
            .iter()
            .filter_map(|policy| policy.name.as_deref())
    }

    /// All policies, in the order of the file.
    #[must_use]
    pub fn policies(&self) -> &[NamedPolicy] {
        &self.policies
    }

    /// The policy of this name; without a name, the only policy.
    ///
    /// # Errors
    /// If there is no such policy, or no name was given and there are several; the error lists
    /// their names.
    pub fn get(&self, name: Option<&str>) -> Result<&NamedPolicy, PolicyFileError> {
        match (name, self.policies.as_slice()) {
            (None, [only]) => Ok(only),
            (None, _) => Err(PolicyFileError::ambiguous(self.names())),
            (Some(name), policies) => policies
                .iter()
                .find(|policy| policy.name.as_deref() == Some(name))
                .ok_or_else(|| PolicyFileError::no_such_policy(name, self.names())),
        }
    }
}

impl NamedPolicy {
    fn new(name: Option<String>, policy: Policy, about: PolicyMetadata) -> Self {
        Self {
            name,
            description: about.description,
            source: about.source,
            policy,
        }
    }
}

/// Reads the text of a file, unless it is too large for a policy.
pub(crate) fn read_text(file: File) -> Result<String, PolicyFileError> {
    let mut bytes = Vec::new();
    // Read one byte more than allowed, to detect a file that is too large.
    file.take(MAX_SIZE as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(PolicyFileError::io)?;
    if bytes.len() > MAX_SIZE {
        return Err(PolicyFileError::too_large(MAX_SIZE));
    }
    String::from_utf8(bytes).map_err(|error| PolicyFileError::not_text(&error))
}

fn read<T: DeserializeOwned>(text: &str, syntax: Syntax) -> Result<T, PolicyFileError> {
    match syntax {
        Syntax::Toml => toml::from_str(text).map_err(|error| PolicyFileError::toml(text, &error)),
        Syntax::Json => {
            serde_json::from_str(text).map_err(|error| PolicyFileError::json(text, &error))
        }
    }
}

/// Distinguishes the two kinds of file before either is parsed.
#[derive(Deserialize)]
struct Outline {
    policies: Option<IgnoredAny>,
}

/// The keys that [`Policy`] accepts and discards.
#[derive(Deserialize)]
struct PolicyMetadata {
    description: Option<String>,
    source: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PoliciesByName<T> {
    policies: OrderedTable<T>,
}

/// [`PoliciesByName`] after validation.
#[derive(Deserialize)]
struct MetadataByName {
    policies: OrderedTable<PolicyMetadata>,
}

/// A table in the order of the file. A JSON object with a duplicate name is an error; a map would
/// silently keep the last.
struct OrderedTable<T>(Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OrderedTable<T> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Table<T>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Table<T> {
            type Value = OrderedTable<T>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("policies by name, as in [policies.NAME]")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OrderedTable<T>, A::Error> {
                let mut seen = std::collections::HashSet::new();
                let mut list = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    // `FILE#NAME` could not select it.
                    if name.is_empty() || name.contains('#') {
                        return Err(serde::de::Error::custom(format_args!(
                            "{name:?} cannot name a policy: a name is not empty and has no '#'"
                        )));
                    }
                    if !seen.insert(name.clone()) {
                        return Err(serde::de::Error::custom(format_args!(
                            "the policy {name:?} stands here twice"
                        )));
                    }
                    list.push((name, map.next_value()?));
                }
                if list.is_empty() {
                    return Err(serde::de::Error::custom(
                        "there is no policy here: write one under [policies.NAME]",
                    ));
                }
                Ok(OrderedTable(list))
            }
        }

        from.deserialize_map(Table(std::marker::PhantomData))
    }
}

#[cfg(test)]
#[path = "policy_file/tests.rs"]
mod tests;
