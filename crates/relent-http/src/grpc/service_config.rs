//! Imports retry policies from a gRPC service configuration.

mod error;
mod json;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use relent_core::destination::{Budget, MAX_HEDGES};
use relent_core::{
    Backoff, BudgetConfig, GrpcCode, HedgeConfig, HintMode, Jitter, Pattern, Policy,
};

pub use error::ServiceConfigError;
use json::Node;

/// Default limit of `maxAttempts` (gRFC A6).
const MAX_ATTEMPTS: u32 = 5;

/// The retry settings of a gRPC service configuration (gRFC
/// [A6](https://github.com/grpc/proposal/blob/master/A6-client-retries.md)): a policy for each
/// method, and the retry throttling of the server.
///
/// | in the configuration | here |
/// |---|---|
/// | `methodConfig[].name` | [`method`](Self::method) finds the method, else its service, else the default `{}` |
/// | `retryPolicy.maxAttempts` | `max_retries + 1`; from 2, and above 5 counts as 5 |
/// | `initialBackoff`, `maxBackoff`, `backoffMultiplier` | backoff and `max_delay`, with a jitter of ±20 % |
/// | `retryableStatusCodes` | `retry_on`, by name or number. `UNAVAILABLE` includes network failures, and `DEADLINE_EXCEEDED` attempt timeouts, as in gRPC |
/// | a pushback | `hint = "exact"` |
/// | `hedgingPolicy` | `hedge`, in a policy that retries `nonFatalStatusCodes` immediately, up to `maxAttempts`. After a pushback there are no more hedges; if all attempts fail, the client waits for it |
/// | `timeout` | `deadline` |
/// | `retryThrottling` | [`budget`](Self::budget), for one server name. Of `tokenRatio` three decimal places count, the rest is ignored |
///
/// A method without `retryPolicy` is not retried. Other keys, such as `loadBalancingConfig`, are
/// ignored. Within `methodConfig` and `retryThrottling` a key that a service configuration does not have is an error.
///
/// A service configuration lists the statuses to retry, but not whether a method may run twice.
/// Declare that with [`repeatable`](Self::repeatable). Any other method is repeated only after a failure that
/// cannot have taken effect.
///
/// ```
/// use relent_http::grpc::ServiceConfig;
///
/// let config = ServiceConfig::from_json(r#"{
///     "methodConfig": [{
///         "name": [{ "service": "shop.Orders", "method": "Get" }],
///         "retryPolicy": {
///             "maxAttempts": 4,
///             "initialBackoff": "0.1s",
///             "maxBackoff": "1s",
///             "backoffMultiplier": 2,
///             "retryableStatusCodes": ["UNAVAILABLE"]
///         }
///     }],
///     "retryThrottling": { "maxTokens": 10, "tokenRatio": 0.1 }
/// }"#)?
/// .repeatable(["shop.Orders/Get"]);
///
/// let get = config.method("/shop.Orders/Get").expect("it is configured");
/// assert_eq!(get.policy().max_retries(), Some(3));
/// assert!(config.is_repeatable("/shop.Orders/Get"));
/// assert!(config.method("/shop.Orders/Place").is_none());
/// # Ok::<(), relent_http::grpc::ServiceConfigError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ServiceConfig {
    methods: HashMap<String, MethodConfig>,
    /// Declarations by method and by service.
    repeatable: HashMap<String, bool>,
    budget: Option<BudgetConfig>,
}

/// The retry settings of one method.
#[derive(Clone, Debug)]
pub struct MethodConfig {
    policy: Arc<Policy>,
    hedging: Option<Hedging>,
}

impl MethodConfig {
    /// The retry policy of the method; its budget is shared by the whole server.
    #[must_use]
    pub const fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// The hedging settings as they were read, if the method is hedged.
    #[must_use]
    pub const fn hedging(&self) -> Option<&Hedging> {
        self.hedging.as_ref()
    }
}

/// `hedgingPolicy`: the call is sent again before the first attempt has failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hedging {
    /// The maximum number of attempts, the first included; from 2 to 5.
    pub max_attempts: u32,
    /// The time between attempts; zero sends all concurrently.
    pub delay: Duration,
    /// Statuses after which the other attempts may still succeed.
    pub non_fatal: Vec<GrpcCode>,
}

impl Hedging {
    /// `None` if the limit on `maxAttempts` does not allow a hedge.
    fn config(&self) -> Option<HedgeConfig> {
        let hedges = (self.max_attempts - 1).min(MAX_HEDGES);
        (hedges > 0).then(|| HedgeConfig::after(self.delay).max_hedges(hedges))
    }
}

impl ServiceConfig {
    /// Reads the JSON of a service configuration.
    ///
    /// # Errors
    /// [`ServiceConfigError`] if the text is no JSON, or gRFC A6 does not allow it.
    pub fn from_json(text: &str) -> Result<Self, ServiceConfigError> {
        Self::from_json_up_to(text, MAX_ATTEMPTS)
    }

    /// Like [`from_json`](Self::from_json), with a limit other than 5 for `maxAttempts`; a higher value counts as it.
    ///
    /// # Errors
    /// As [`from_json`](Self::from_json).
    pub fn from_json_up_to(text: &str, max_attempts: u32) -> Result<Self, ServiceConfigError> {
        let value = serde_json::from_str(text).map_err(|error| ServiceConfigError {
            path: String::new(),
            problem: format!("this is no JSON: {error}"),
        })?;
        let root = Node::root(&value);
        let mut config = Self::default();
        if let Some(methods) = root.get("methodConfig")? {
            for method in methods.elements()? {
                config.add(&method, max_attempts)?;
            }
        }
        if let Some(throttling) = root.get("retryThrottling")? {
            let budget = budget(&throttling)?;
            Budget::new(&budget).map_err(|error| throttling.error(error.to_string()))?;
            config.budget = Some(budget);
        }
        Ok(config)
    }

    /// Declares that these methods may safely run twice: `"shop.Orders/Get"`, or
    /// `"shop.Orders"` for all methods of a service.
    #[must_use]
    pub fn repeatable(mut self, methods: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let methods = methods.into_iter().map(|name| (name.into(), true));
        self.repeatable.extend(methods);
        self
    }

    /// Declares that these methods may not run twice. This overrides the declaration of their service and
    /// the policy's assumption about all calls.
    ///
    /// ```
    /// use relent_http::grpc::ServiceConfig;
    ///
    /// let config = ServiceConfig::default().repeatable(["shop.Orders"]);
    /// let config = config.not_repeatable(["shop.Orders/Pay"]);
    /// assert!(config.is_repeatable("/shop.Orders/Get"));
    /// assert!(!config.is_repeatable("/shop.Orders/Pay"));
    /// ```
    #[must_use]
    pub fn not_repeatable(mut self, methods: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let methods = methods.into_iter().map(|name| (name.into(), false));
        self.repeatable.extend(methods);
        self
    }

    /// Whether the method with this path, such as `/shop.Orders/Get`, is declared repeatable.
    #[must_use]
    pub fn is_repeatable(&self, path: &str) -> bool {
        self.declared(path) == Some(true)
    }

    /// The declaration for the method with this path, else for its service.
    pub(crate) fn declared(&self, path: &str) -> Option<bool> {
        let name = path.strip_prefix('/').unwrap_or(path);
        let service = name.rsplit_once('/').map_or(name, |(service, _)| service);
        let said = |name| self.repeatable.get(name).copied();
        said(name).or_else(|| said(service))
    }

    /// The settings of the method with this path, such as `/shop.Orders/Get`: its own entry, else
    /// that of its service, else the default; `None` if there is none.
    #[must_use]
    pub fn method(&self, path: &str) -> Option<&MethodConfig> {
        let name = path.strip_prefix('/').unwrap_or(path);
        let service = name.rsplit_once('/').map_or(name, |(service, _)| service);
        [name, service, ""]
            .into_iter()
            .find_map(|name| self.methods.get(name))
    }

    /// The retry throttling of the server, if configured: one budget for the retries of all its methods.
    #[must_use]
    pub const fn budget(&self) -> Option<&BudgetConfig> {
        self.budget.as_ref()
    }

    /// Creates the budget for one server name, if throttling is configured. Share it among all callers.
    #[must_use]
    pub fn new_budget(&self) -> Option<Budget> {
        // `from_json` has validated it.
        self.budget
            .as_ref()
            .and_then(|config| Budget::new(config).ok())
    }

    fn add(&mut self, entry: &Node<'_>, max_attempts: u32) -> Result<(), ServiceConfigError> {
        entry.only(&METHOD_KEYS)?;
        let timeout = entry.get("timeout")?;
        let retry = entry.get("retryPolicy")?;
        let hedging = entry.get("hedgingPolicy")?;
        if let (Some(_), Some(hedging)) = (&retry, &hedging) {
            return Err(hedging.error("a method has a retryPolicy or a hedgingPolicy, not both"));
        }
        let hedging = hedging
            .map(|hedging| hedging_policy(&hedging, max_attempts))
            .transpose()?;
        let mut policy = match (retry, &hedging) {
            (Some(retry), _) => retry_policy(&retry, max_attempts)?,
            (None, Some(hedging)) => policy_after_hedges(hedging),
            (None, None) => Policy::builder(Backoff::None).max_retries(0),
        };
        if let Some(timeout) = &timeout {
            policy = policy.deadline(timeout.duration_above_zero()?);
        }
        if let Some(hedge) = hedging.as_ref().and_then(Hedging::config) {
            policy = policy.hedge(hedge);
        }
        let policy = policy
            .build()
            .map_err(|error| entry.error(error.to_string()))?;
        let method = MethodConfig {
            policy: Arc::new(policy),
            hedging,
        };
        let Some(names) = entry.get("name")? else {
            return Ok(());
        };
        for name in names.elements()? {
            let key = method_name(&name)?;
            if self.methods.insert(key, method.clone()).is_some() {
                return Err(name.error("this method has an entry already: name each once"));
            }
        }
        Ok(())
    }
}

/// The keys of an entry of `methodConfig`, of which some are ignored.
const METHOD_KEYS: [&str; 7] = [
    "name",
    "waitForReady",
    "timeout",
    "maxRequestMessageBytes",
    "maxResponseMessageBytes",
    "retryPolicy",
    "hedgingPolicy",
];

/// The key of a method: `service/method`, `service`, or empty for the default.
fn method_name(name: &Node<'_>) -> Result<String, ServiceConfigError> {
    name.only(&["service", "method"])?;
    let text = |key| -> Result<String, ServiceConfigError> {
        let text = name.get(key)?.map(|text| text.text()).transpose()?;
        Ok(text.unwrap_or_default().to_owned())
    };
    let (service, method) = (text("service")?, text("method")?);
    match (&*service, &*method) {
        ("", "") => Ok(String::new()),
        ("", _) => Err(name.error("a method needs its service beside it")),
        (_, "") => Ok(service),
        _ => Ok(format!("{service}/{method}")),
    }
}

fn retry_policy(
    node: &Node<'_>,
    max_attempts: u32,
) -> Result<relent_core::PolicyBuilder, ServiceConfigError> {
    node.only(&[
        "maxAttempts",
        "initialBackoff",
        "maxBackoff",
        "backoffMultiplier",
        "retryableStatusCodes",
    ])?;
    let attempts = attempts(node, max_attempts)?;
    let initial = node.required("initialBackoff")?.duration_above_zero()?;
    let longest = node.required("maxBackoff")?.duration_above_zero()?;
    let multiplier = node
        .required("backoffMultiplier")?
        .number_above_zero("a number above 0, such as 1.6")?;
    let codes = codes(&node.required("retryableStatusCodes")?)?;

    let retries = attempts - 1;
    let backoff = if multiplier >= 1.0 {
        Backoff::Exponential {
            initial: initial.min(longest),
            factor: multiplier,
        }
    } else {
        // Delays that shrink: list them, since they are few and known.
        Backoff::schedule((0..retries).map(|retry| {
            let factor = multiplier.powf(f64::from(retry));
            Duration::try_from_secs_f64(initial.as_secs_f64() * factor)
                .map_or(longest, |wait| wait.min(longest))
        }))
    };
    let builder = Policy::builder(backoff)
        .jitter(Jitter::Proportional(0.2))
        .max_retries(retries)
        .hint(HintMode::Exact)
        .retry_on(codes.into_iter().flat_map(patterns));
    Ok(if multiplier >= 1.0 {
        builder.max_delay(longest)
    } else {
        builder
    })
}

fn hedging_policy(node: &Node<'_>, max_attempts: u32) -> Result<Hedging, ServiceConfigError> {
    node.only(&["maxAttempts", "hedgingDelay", "nonFatalStatusCodes"])?;
    let delay = node.get("hedgingDelay")?;
    let non_fatal = node.get("nonFatalStatusCodes")?;
    Ok(Hedging {
        max_attempts: attempts(node, max_attempts)?,
        delay: delay.map_or(Ok(Duration::ZERO), |delay| delay.duration())?,
        non_fatal: non_fatal.map_or(Ok(Vec::new()), |listed| codes(&listed))?,
    })
}

/// The policy after all running attempts have failed: the next attempt starts immediately.
fn policy_after_hedges(hedging: &Hedging) -> relent_core::PolicyBuilder {
    Policy::builder(Backoff::None)
        .max_retries(hedging.max_attempts - 1)
        .hint(HintMode::Exact)
        .retry_on(hedging.non_fatal.iter().copied().flat_map(patterns))
}

fn budget(node: &Node<'_>) -> Result<BudgetConfig, ServiceConfigError> {
    const TOKENS: &str = "a number of tokens above 0, at most 1000";
    const RATIO: &str = "a number from 0.001 to 1000";
    node.only(&["maxTokens", "tokenRatio"])?;
    let within = |key, least: f64, accepted: &str| -> Result<f64, ServiceConfigError> {
        let node = node.required(key)?;
        let number = node.number_above_zero(accepted)?;
        // A budget counts thousandths.
        if (least..=1000.0).contains(&number) {
            Ok(number)
        } else {
            Err(node.wrong(accepted))
        }
    };
    let tokens = within("maxTokens", 0.002, TOKENS)?;
    Ok(BudgetConfig {
        ratio: 0.0,
        success: to_thousandths(within("tokenRatio", 0.001, RATIO)?),
        initial_tokens: tokens,
        per_second: 0.0,
        capacity: tokens,
        min_tokens: tokens / 2.0,
        charge_failures: true,
        ..BudgetConfig::DEFAULT
    })
}

/// Truncates after the third decimal place: "any decimal places after the third are ignored" (gRFC
/// A6). Works on the decimal digits, since 0.29 · 1000 is less than 290.
fn to_thousandths(ratio: f64) -> f64 {
    let digits = ratio.to_string();
    let cut = match digits.split_once('.') {
        Some((whole, parts)) if parts.len() > 3 => digits.get(..whole.len() + 4),
        _ => None,
    };
    cut.and_then(|cut| cut.parse().ok()).unwrap_or(ratio)
}

fn attempts(node: &Node<'_>, max_attempts: u32) -> Result<u32, ServiceConfigError> {
    const ACCEPTED: &str = "a whole number from 2 up";
    let node = node.required("maxAttempts")?;
    let attempts = node.number_above_zero(ACCEPTED)?;
    if attempts < 2.0 || attempts.fract() != 0.0 {
        return Err(node.wrong(ACCEPTED));
    }
    // The cast saturates.
    Ok((attempts as u32).min(max_attempts.max(1)))
}

fn codes(node: &Node<'_>) -> Result<Vec<GrpcCode>, ServiceConfigError> {
    let listed = node.elements()?;
    if listed.is_empty() {
        return Err(node.error("at least one status code, such as \"UNAVAILABLE\""));
    }
    let mut codes = Vec::new();
    for node in listed {
        let code = node.code()?;
        if !codes.contains(&code) {
            codes.push(code);
        }
    }
    Ok(codes)
}

/// The failures that a gRPC client reports with this status.
fn patterns(code: GrpcCode) -> Vec<Pattern> {
    let itself = Pattern::Grpc(code.number());
    match code {
        GrpcCode::Unavailable => vec![itself, Pattern::Network],
        GrpcCode::DeadlineExceeded => vec![itself, Pattern::Timeout],
        _ => vec![itself],
    }
}

#[cfg(test)]
mod tests;
