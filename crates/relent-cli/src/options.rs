//! The policy options: the same for every subcommand that retries.

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
/// The word in the variable that turns retries off, whatever the options say (design rule 14).
const OFF: &str = "off";
/// The policy of every subcommand, unless another is named.
const DEFAULT: &str = "patient";

/// Which policy is followed, and what is changed in it. The last of two equal options counts.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Policy options")]
pub(crate) struct PolicyOptions {
    /// Follow this preset, or the policy in this file [default: $RELENT_POLICY, else patient]
    ///
    /// FILE is TOML or JSON and holds one policy, or several, each under [policies.NAME]. A preset
    /// comes first: reach a file of the same name as ./NAME. See `relent policy list`. The word `off`
    /// is a policy without retries.
    ///
    /// The environment variable RELENT_POLICY names the policy where this option does not.
    /// RELENT_POLICY=off turns retries off, whatever the options say.
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

    /// The same wait before each retry, without jitter unless --jitter is given
    ///
    /// A constant backoff, in place of --initial, --factor and --max-delay.
    #[arg(
        long,
        value_name = "D",
        value_parser = duration,
        allow_hyphen_values = true,
        conflicts_with_all = ["initial", "factor", "max_delay"]
    )]
    pub(crate) delay: Option<Duration>,

    /// The wait before the first retry, before jitter
    ///
    /// Durations are written like 250ms, 1.5s, 2m or 1h30m. What a policy says in rules about
    /// single failures stays as it is.
    #[arg(long, value_name = "D", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) initial: Option<Duration>,

    /// Each wait is this many times the one before, from 1 up
    #[arg(long, value_name = "F", value_parser = factor, allow_hyphen_values = true)]
    pub(crate) factor: Option<f64>,

    /// The most that a wait may grow to, before jitter
    #[arg(long, value_name = "D", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) max_delay: Option<Duration>,

    /// How waits are randomised: none, full, equal, proportional:F or additive:D
    ///
    /// For a wait w: full draws from 0 to w, equal from w/2 to w, proportional:0.2 from 0.8w to
    /// 1.2w, additive:1s from w to w + 1 s.
    #[arg(long, value_name = "J", value_parser = jitter, allow_hyphen_values = true)]
    pub(crate) jitter: Option<Jitter>,

    /// No attempt starts, and none still runs, this long after the first began
    #[arg(long, value_name = "D", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) deadline: Option<Duration>,

    /// End an attempt that takes longer than this; it counts as a failure
    #[arg(long, value_name = "D", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) attempt_timeout: Option<Duration>,

    /// Draw the jitter from the random stream with this number
    ///
    /// The same number gives the same waits.
    #[arg(long, value_name = "N", value_parser = seed, allow_hyphen_values = true)]
    pub(crate) seed: Option<u64>,

    /// Write every attempt and decision to this file as JSON; - is standard error
    ///
    /// The file appears at the end, complete, also when relent was interrupted. That it can be
    /// written is checked before anything else is done. docs/trace.schema.json describes it.
    #[arg(
        long,
        value_name = "FILE",
        allow_hyphen_values = true,
        help_heading = "What is told"
    )]
    pub(crate) trace: Option<PathBuf>,

    /// Say nothing about failed attempts and waits, only what relent itself cannot do
    #[arg(short, long, help_heading = "What is told")]
    pub(crate) quiet: bool,
}

/// A number of retries; `None` if unlimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Retries(Option<u32>);

/// The policy that the options come to.
#[derive(Debug)]
pub(crate) struct Chosen {
    /// What it is called where something is said about it.
    pub(crate) name: String,
    pub(crate) policy: Policy,
}

impl PolicyOptions {
    /// Loads the policy and changes in it what the options say.
    ///
    /// # Errors
    /// A policy that cannot be loaded, saying whether the option or the environment named it; an
    /// option that contradicts the policy, naming the option.
    pub(crate) fn resolve(&self) -> Result<Chosen, String> {
        self.resolve_in(std::env::var(VARIABLE))
    }

    fn resolve_in(&self, variable: Result<String, VarError>) -> Result<Chosen, String> {
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
            // The limits of what was chosen stay.
            chosen.policy = chosen.policy.without_retries();
            chosen.name = OFF.to_owned();
        }
        Ok(chosen)
    }

    /// The random stream of the session.
    pub(crate) fn random(&self) -> SessionRandom {
        self.seed
            .map_or_else(SessionRandom::new, SessionRandom::with_seed)
    }

    fn change(&self, name: String, policy: Policy) -> Result<Chosen, String> {
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
        self.check_ceiling(&name, &policy, &mut backoff)?;
        let mut builder = policy.into_builder().backoff(backoff);
        if let Some(delay) = self.delay {
            // A ceiling is for what grows.
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
            Ok(policy) => Ok(Chosen { name, policy }),
            Err(error) => Err(self.blame(&name, &error)),
        }
    }

    /// The contradiction that people meet most, in words that say which option to give.
    fn check_ceiling(
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
                "--max-delay {}: the ceiling may not be below the first delay, which is {}{}",
                format_duration(ceiling),
                format_duration(first),
                if self.initial.is_none() {
                    format!(" in policy `{name}`: give a lower --initial too")
                } else {
                    String::new()
                }
            )),
            (None, Some(ceiling)) if ceiling < first => Err(format!(
                "--initial {}: policy `{name}` has a ceiling of {}: give a higher --max-delay too",
                format_duration(first),
                format_duration(ceiling),
            )),
            _ => Ok(()),
        }
    }

    /// Names the option behind a contradiction, or all that could be.
    fn blame(&self, name: &str, error: &PolicyError) -> String {
        let given = self.given();
        let flag = format!("--{}", error.key().replace('_', "-"));
        match given.iter().find(|(option, _)| *option == flag) {
            // The ceiling was checked before: what is left is about a rule of the policy.
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

/// What to write in place of an option of another tool that retries.
pub(crate) fn ours(option: &str) -> Option<&'static str> {
    Some(match option {
        "--timeout" | "--time-limit" => {
            "say which time is meant: --attempt-timeout D is for each attempt, --deadline D for all \
             together"
        }
        "--retries" | "--retry" => {
            "--max-retries N allows N retries after the first attempt, --attempts N allows N \
             attempts in all"
        }
        "--tries" | "--times" | "--max-attempts" | "--max-tries" => "use --attempts N",
        "--sleep" | "--interval" | "--wait" | "--pause" | "--retry-delay" => {
            "--delay D waits the same time before each retry, --initial D a growing one"
        }
        "--backoff" => "--initial D is the first wait, --factor F how it grows",
        "--max-time" | "--retry-max-time" | "--total-timeout" => "use --deadline D",
        _ => return None,
    })
}

/// The delay that `--initial` means.
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

/// An option that swallowed the next one, in words.
fn no_option(text: &str) -> Result<(), String> {
    if text.starts_with("--") {
        return Err("the option needs a value, and this is another option".to_owned());
    }
    Ok(())
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    no_option(text)?;
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
    no_option(text)?;
    if text == "unlimited" {
        return Ok(Retries(None));
    }
    digits::<u32>(text)
        .map(|retries| Retries(Some(retries)))
        .ok_or_else(|| format!("use a whole number from 0 to {}, or unlimited", u32::MAX))
}

fn attempts(text: &str) -> Result<Retries, String> {
    no_option(text)?;
    if text == "unlimited" {
        return Ok(Retries(None));
    }
    digits::<u32>(text)
        .and_then(|attempts| attempts.checked_sub(1))
        .map(|retries| Retries(Some(retries)))
        .ok_or_else(|| format!("use a whole number from 1 to {}, or unlimited", u32::MAX))
}

pub(crate) fn seed(text: &str) -> Result<u64, String> {
    no_option(text)?;
    digits(text).ok_or_else(|| format!("use a whole number from 0 to {}", u64::MAX))
}

/// `from_str` alone would take "+5".
pub(crate) fn digits<T: std::str::FromStr>(text: &str) -> Option<T> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

fn factor(text: &str) -> Result<f64, String> {
    no_option(text)?;
    text.parse()
        .ok()
        .filter(|factor: &f64| *factor >= 1.0 && factor.is_finite())
        .ok_or_else(|| "use a number from 1 up, such as 1.5: waits never shrink".to_owned())
}

fn jitter(text: &str) -> Result<Jitter, String> {
    no_option(text)?;
    text.parse()
        .map_err(|error: relent::policy::JitterError| error.to_string())
}

/// A number of bytes, such as 64KiB.
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
