//! The built-in policies.
//!
//! Every preset is a readable file, with its source and reasons in comments:
//! `relent policy show NAME` prints it.

use crate::policy_file::{NamedPolicy, PolicyFile, PolicyFileError};

/// A built-in policy.
///
/// ```
/// use relent::presets;
///
/// let preset = presets::get("google-iam").expect("a preset");
/// assert!(preset.text.contains("max_elapsed = \"300s\""));
/// let policy = preset.load()?.policy;
/// assert_eq!(policy.max_retries(), None);
/// # Ok::<(), relent::policy::PolicyFileError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// The text of its file, including comments.
    pub text: &'static str,
}

impl Preset {
    /// Parses the file.
    ///
    /// # Errors
    /// None in a released version: the tests parse every preset.
    pub fn load(&self) -> Result<NamedPolicy, PolicyFileError> {
        let file = PolicyFile::parse(self.text)?;
        let mut policy = file.get(None)?.clone();
        policy.name = Some(self.name.to_owned());
        Ok(policy)
    }
}

macro_rules! presets {
    ($($name:literal,)*) => {
        const PRESETS: &[Preset] = &[
            $(Preset {
                name: $name,
                text: include_str!(concat!("../policies/", $name, ".toml")),
            },)*
        ];
    };
}

// Relent's own presets first, then published documents, other systems, and notification schedules.
presets!(
    "standard",
    "patient",
    "poll",
    "api-design-patterns",
    "vital",
    "fetch-retry",
    "google-iam",
    "memorystore",
    "ethernet",
    "cenkalti",
    "aws-standard",
    "aws-legacy",
    "grpc",
    "envoy",
    "finagle",
    "tcp",
    "wechat-pay",
    "wechat-pay-v2",
    "alipay",
    "standard-webhooks",
    "svix",
    "stripe-like",
    "circle-cpn",
    "juspay-upi",
    "nmi",
    "sns",
);

/// The names of all presets: Relent's own first.
#[must_use]
pub fn names() -> Vec<&'static str> {
    PRESETS.iter().map(|preset| preset.name).collect()
}

/// All presets.
#[must_use]
pub const fn all() -> &'static [Preset] {
    PRESETS
}

/// The preset of this name.
#[must_use]
pub fn get(name: &str) -> Option<Preset> {
    PRESETS.iter().find(|preset| preset.name == name).copied()
}
