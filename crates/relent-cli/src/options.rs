//! The policy options, common to every subcommand that retries.

use std::env::VarError;
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use relent::policy::{PolicyError, format_duration, parse_duration};
use relent::random::SessionRandom;
use relent::{Backoff, Jitter, NamedPolicy, Policy};

/// The environment variable that names a policy, or turns retries off.
pub(crate) const VARIABLE: &str = "RELENT_POLICY";
/// The value of the variable that turns retries off and overrides all options, so that an operator always can.
const OFF: &str = "off";
/// The default policy of every subcommand.
const DEFAULT: &str = "patient";

/// The options that select a policy and change it. If an option is given twice, the last one counts.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Policy options")]
pub(crate) struct PolicyOptions {
    /// Use this preset, or the policy in this file [default: $RELENT_POLICY, else patient]
    ///
    /// FILE is TOML or JSON and holds one policy, or several, each under [policies.NAME]. Presets
    /// take precedence: give a file of the same name as ./NAME. See `relent policy list`. The word
    /// `off` is a policy without retries.
    ///
    /// The environment variable RELENT_POLICY names the policy if this option is not given.
    /// RELENT_POLICY=off turns retries off and overrides all options.
    #[arg(long, value_name = "NAME|FILE[#NAME]", allow_hyphen_values = true)]
    pub(crate) policy: Option<String>,

    /// At most this many retries; 10 allows 11 attempts; or `unlimited`
    #[arg(
        long,
        value_name = "N",
        value_parser = retries,
        allow_hyphen_values = true,
        overrides_with = "attempts"
    )]
    pub(crate) max_retries: Option<Retries>,

    /// At most this many attempts, one more than retries; or `unlimited`
    #[arg(
        long,
        value_name = "N",
        value_parser = attempts,
        allow_hyphen_values = true,
        overrides_with = "max_retries"
    )]
    pub(crate) attempts: Option<Retries>,

    /// The same delay before each retry, without jitter unless --jitter is given
    ///
    /// A constant backoff; it replaces --initial, --factor and --max-delay.
    #[arg(
        long,
        value_name = "D",
        value_parser = duration,
        allow_hyphen_values = true,
        conflicts_with_all = ["initial", "factor", "max_delay"]
    )]
    pub(crate) delay: Option<Duration>,

    /// The delay before the first retry, before jitter
    ///
    /// Durations are written like 250ms, 1.5s, 2m or 1h30m. The policy's rules for single failures are
    /// not changed.
    #[arg(long, value_name = "D", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) initial: Option<Duration>,

    /// The factor by which the delay grows with each retry, at least 1
    #[arg(long, value_name = "F", value_parser = factor, allow_hyphen_values = true)]
    pub(crate) factor: Option<f64>,

    /// The cap of the delay, before jitter
    #[arg(long, value_name = "D", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) max_delay: Option<Duration>,

    /// The jitter of the delays: none, full, equal, proportional:F or additive:D
    ///
    /// For a delay d: full draws from 0 to d, equal from d/2 to d, proportional:0.2 from 0.8d to
    /// 1.2d, additive:1s from d to d + 1 s.
    #[arg(long, value_name = "J", value_parser = jitter, allow_hyphen_values = true)]
    pub(crate) jitter: Option<Jitter>,

    /// The time limit for all attempts together, from the start of the first
    ///
    /// At the deadline no attempt starts, and a running one is ended.
    #[arg(long, value_name = "D", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) deadline: Option<Duration>,

    /// End an attempt that takes longer than this; it counts as a failure
    #[arg(long, value_name = "D", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) attempt_timeout: Option<Duration>,

    /// The seed of the jitter
    ///
    /// The same seed gives the same delays.
    #[arg(long, value_name = "N", value_parser = seed, allow_hyphen_values = true)]
    pub(crate) seed: Option<u64>,

    /// Write every attempt and decision to this file as JSON; - is standard error
    ///
    /// The complete file appears at the end, also when relent was interrupted. Whether it can be
    /// written is checked first. docs/schema/trace.schema.json describes its format.
    #[arg(
        long,
        value_name = "FILE",
        allow_hyphen_values = true,
        help_heading = "Output and diagnostics"
    )]
    pub(crate) trace: Option<PathBuf>,

    /// Report no failed attempts and delays, only errors of relent itself
    #[arg(short, long, help_heading = "Output and diagnostics")]
    pub(crate) quiet: bool,
}

/// A maximum number of retries; `None` means unlimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Retries(Option<u32>);

/// The policy that results from the options.
#[derive(Debug)]
pub(crate) struct ResolvedPolicy {
    /// The name for messages.
    pub(crate) name: String,
    pub(crate) policy: Policy,
}

impl PolicyOptions {
    /// Loads the policy and applies the options to it.
    ///
    /// # Errors
    /// The policy cannot be loaded: the message names the option or the environment variable. Or an
    /// option contradicts the policy: the message names the option.
    pub(crate) fn resolve(&self) -> Result<ResolvedPolicy, String> {
        self.resolve_in(std::env::var(VARIABLE))
    }

    /// Whether the environment turns retries off.
    pub(crate) fn are_off_by_environment() -> bool {
        std::env::var(VARIABLE).as_deref() == Ok(OFF)
    }

    fn resolve_in(&self, variable: Result<String, VarError>) -> Result<ResolvedPolicy, String> {
        let off = variable.as_deref() == Ok(OFF);
        let (spec, blame) = match (&self.policy, variable) {
            (Some(spec), _) => (spec.clone(), format!("--policy {spec}: ")),
            (None, Ok(spec)) if !spec.is_empty() => {
                let blame = format!("{VARIABLE}={spec} in the environment: ");
                (spec, blame)
            }
            (None, Err(VarError::NotUnicode(spec))) => {
                return Err(format!(
                    "{VARIABLE} in the environment is not text: {}",
                    spec.display()
                ));
            }
            (None, _) => (DEFAULT.to_owned(), String::new()),
        };
        let policy = NamedPolicy::load(&spec)
            .map_err(|error| format!("{blame}{error}"))?
            .policy;
        let mut chosen = self.change(spec, policy)?;
        if off {
            // The limits of the chosen policy stay.
            chosen.policy = chosen.policy.without_retries();
            chosen.name = OFF.to_owned();
        }
        Ok(chosen)
    }

    /// The random source of the session.
    pub(crate) fn random(&self) -> SessionRandom {
        self.seed
            .map_or_else(SessionRandom::new, SessionRandom::with_seed)
    }

    fn change(&self, name: String, policy: Policy) -> Result<ResolvedPolicy, String> {
        let mut backoff = policy.backoff().clone();
        if let Some(initial) = self.initial {
            *first_delay(&mut backoff)
                .ok_or_else(|| missing("--initial", format_duration(initial), &name, &policy))? =
                initial;
        }
        if let Some(factor) = self.factor {
            match &mut backoff {
                Backoff::Exponential { factor: old, .. }
                | Backoff::Decorrelated { factor: old, .. } => *old = factor,
                _ => return Err(missing("--factor", factor.to_string(), &name, &policy)),
            }
        }
        self.check_max_delay(&name, &policy, &mut backoff)?;
        let mut builder = policy.into_builder().backoff(backoff);
        if let Some(delay) = self.delay {
            // A constant delay does not grow, so it needs no cap.
            builder = builder
                .backoff(Backoff::Constant { delay })
                .unlimited_delay()
                .jitter(Jitter::None);
        }
        if let Some(Retries(retries)) = self.max_retries.or(self.attempts) {
            builder = match retries {
                Some(retries) => builder.max_retries(retries),
                None => builder.unlimited_retries(),
            };
        }
        if let Some(max_delay) = self.max_delay {
            builder = builder.max_delay(max_delay);
        }
        if let Some(jitter) = self.jitter {
            builder = builder.jitter(jitter);
        }
        if let Some(deadline) = self.deadline {
            builder = builder.deadline(deadline);
        }
        if let Some(timeout) = self.attempt_timeout {
            builder = builder.attempt_timeout(timeout);
        }
        match builder.build() {
            Ok(policy) => Ok(ResolvedPolicy { name, policy }),
            Err(error) => Err(self.blame(&name, &error)),
        }
    }

    /// Explains the most frequent contradiction, a first delay above the cap, and names the option to change.
    fn check_max_delay(
        &self,
        name: &str,
        policy: &Policy,
        backoff: &mut Backoff,
    ) -> Result<(), String> {
        let Some(first) = first_delay(backoff).copied() else {
            return Ok(());
        };
        match (self.max_delay, policy.max_delay()) {
            (Some(ceiling), _) if ceiling < first => Err(format!(
                "--max-delay {}: the maximum delay may not be below the first delay, which is {}{}",
                format_duration(ceiling),
                format_duration(first),
                if self.initial.is_none() {
                    format!(" in policy `{name}`: give a lower --initial too")
                } else {
                    String::new()
                }
            )),
            (None, Some(ceiling)) if ceiling < first => Err(format!(
                "--initial {}: policy `{name}` has a maximum delay of {}: give a higher --max-delay too",
                format_duration(first),
                format_duration(ceiling),
            )),
            _ => Ok(()),
        }
    }

    /// Names the option that causes a contradiction, or all options that may cause it.
    fn blame(&self, name: &str, error: &PolicyError) -> String {
        let given = self.given();
        let flag = format!("--{}", error.key().replace('_', "-"));
        match given.iter().find(|(option, _)| *option == flag) {
            // `check_max_delay` has checked the cap already: this error is about a rule of the policy.
            Some((option, value)) if *option != "--max-delay" => {
                format!("{option} {value}: {}", error.accepted())
            }
            _ => {
                let given: Vec<_> = given
                    .iter()
                    .map(|(option, value)| format!("{option} {value}"))
                    .collect();
                format!("{} contradicts policy `{name}`: {error}", given.join(" "))
            }
        }
    }

    /// The options that can contradict a policy, with their values.
    fn given(&self) -> Vec<(&'static str, String)> {
        [
            ("--delay", self.delay.map(format_duration)),
            ("--initial", self.initial.map(format_duration)),
            ("--factor", self.factor.map(|factor| factor.to_string())),
            ("--max-delay", self.max_delay.map(format_duration)),
            ("--jitter", self.jitter.map(|jitter| jitter.to_string())),
            ("--deadline", self.deadline.map(format_duration)),
            (
                "--attempt-timeout",
                self.attempt_timeout.map(format_duration),
            ),
        ]
        .into_iter()
        .filter_map(|(option, value)| Some((option, value?)))
        .collect()
    }
}

/// Names the option to use instead of an option of another tool that retries.
pub(crate) fn equivalent_option(option: &str) -> Option<&'static str> {
    Some(match option {
        "--timeout" | "--time-limit" => {
            "use --attempt-timeout D for each attempt, or --deadline D for all attempts together"
        }
        "--retries" | "--retry" => {
            "use --max-retries N for N retries after the first attempt, or --attempts N for N \
             attempts in all"
        }
        "--tries" | "--times" | "--max-attempts" | "--max-tries" => "use --attempts N",
        "--sleep" | "--interval" | "--wait" | "--pause" | "--retry-delay" => {
            "use --delay D for a constant delay, or --initial D for a growing one"
        }
        "--backoff" => "use --initial D for the first delay, --factor F for its growth",
        "--max-time" | "--retry-max-time" | "--total-timeout" => "use --deadline D",
        _ => return None,
    })
}

/// The delay that `--initial` changes.
fn first_delay(backoff: &mut Backoff) -> Option<&mut Duration> {
    match backoff {
        Backoff::Constant { delay: initial }
        | Backoff::Linear { initial, .. }
        | Backoff::Exponential { initial, .. }
        | Backoff::Fibonacci { initial }
        | Backoff::Decorrelated { initial, .. }
        | Backoff::Elapsed { initial, .. } => Some(initial),
        Backoff::None
        | Backoff::Slotted { .. }
        | Backoff::Schedule { .. }
        | Backoff::Chain { .. } => None,
    }
}

fn missing(option: &str, value: impl Display, name: &str, policy: &Policy) -> String {
    let what = if option == "--initial" {
        "first delay"
    } else {
        "factor"
    };
    let backoff = match policy.backoff() {
        Backoff::None => "none",
        Backoff::Constant { .. } => "constant",
        Backoff::Linear { .. } => "linear",
        Backoff::Exponential { .. } => "exponential",
        Backoff::Fibonacci { .. } => "fibonacci",
        Backoff::Decorrelated { .. } => "decorrelated",
        Backoff::Slotted { .. } => "slotted",
        Backoff::Schedule { .. } => "a schedule",
        Backoff::Elapsed { .. } => "a share of the elapsed time",
        Backoff::Chain { .. } => "a chain",
    };
    format!(
        "{option} {value}: policy `{name}` has no {what} to change, its backoff is {backoff}: \
         choose another policy or leave the option out"
    )
}

/// Rejects a value that is another option: the value of this one is missing.
fn reject_option(text: &str) -> Result<(), String> {
    if text.starts_with("--") {
        return Err("the option needs a value, and this is another option".to_owned());
    }
    Ok(())
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    reject_option(text)?;
    let parsed = parse_duration(text);
    let too_long = match &parsed {
        Ok(duration) => u64::try_from(duration.as_nanos()).is_err(),
        Err(error) => error.is_too_long(),
    };
    if too_long {
        return Err(format!(
            "duration {text:?} is longer than 584 years: write it like 250ms, 1.5s, 2m or 1h30m"
        ));
    }
    parsed.map_err(|error| error.to_string())
}

pub(crate) fn retries(text: &str) -> Result<Retries, String> {
    reject_option(text)?;
    if text == "unlimited" {
        return Ok(Retries(None));
    }
    digits::<u32>(text)
        .map(|retries| Retries(Some(retries)))
        .ok_or_else(|| format!("use a whole number from 0 to {}, or unlimited", u32::MAX))
}

fn attempts(text: &str) -> Result<Retries, String> {
    reject_option(text)?;
    if text == "unlimited" {
        return Ok(Retries(None));
    }
    digits::<u32>(text)
        .and_then(|attempts| attempts.checked_sub(1))
        .map(|retries| Retries(Some(retries)))
        .ok_or_else(|| format!("use a whole number from 1 to {}, or unlimited", u32::MAX))
}

pub(crate) fn seed(text: &str) -> Result<u64, String> {
    reject_option(text)?;
    digits(text).ok_or_else(|| format!("use a whole number from 0 to {}", u64::MAX))
}

/// Parses decimal digits only: `from_str` alone accepts "+5".
pub(crate) fn digits<T: std::str::FromStr>(text: &str) -> Option<T> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

fn factor(text: &str) -> Result<f64, String> {
    reject_option(text)?;
    text.parse()
        .ok()
        .filter(|factor: &f64| *factor >= 1.0 && factor.is_finite())
        .ok_or_else(|| "use a number from 1 up, such as 1.5: delays never shrink".to_owned())
}

fn jitter(text: &str) -> Result<Jitter, String> {
    reject_option(text)?;
    text.parse()
        .map_err(|error: relent::policy::JitterError| error.to_string())
}

/// Parses a number of bytes, such as 64KiB.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let factor = match &text[digits.len()..] {
        "" => Some(1),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1 << 30),
        _ => None,
    };
    let number = digits.parse::<u64>().ok();
    number
        .zip(factor)
        .and_then(|(number, factor)| number.checked_mul(factor))
        .ok_or_else(|| "use a number of bytes, such as 65536, 64KiB, 10MiB or 1GiB".to_owned())
}

#[cfg(test)]
#[path = "options/tests.rs"]
mod tests;
