//! `relent deliver verify`: verifies the signature of a message by Standard Webhooks, and explains a failure.

use std::io::Read;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use relent_http::webhook::{
    SignatureError, Verifier, VerifyingKey, WEBHOOK_ID, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP,
};

use super::server::{PointInTime, moment};
use crate::console::{print, say};
use crate::exit_status::ExitError;
use crate::options::duration;

/// The end of `relent deliver verify --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  A request that was saved to files as it was received:
      relent deliver verify --secret shop.key --header-file headers <body

  An old request, at the time when it was received:
      relent deliver verify --secret env:SHOP_KEY --at 2026-01-31T12:00:00Z \\
          -H 'webhook-id: msg_1' -H 'webhook-timestamp: 1769860800' \\
          -H 'webhook-signature: v1,K5o…' <body

A key is whsec_… (a shared secret), whpk_… (the sender's public key) or whsk_…
(its private key, from which the public one is derived).

Exit status: 0 if the signature is valid; 1 if it is not, with the reason on
standard error; 2 if the options are wrong.";

#[derive(Args, Debug)]
pub(crate) struct VerifyArgs {
    /// The key in this file, or in the environment variable env:NAME; any of several may match
    #[arg(long = "secret", value_name = "FILE|env:NAME", required = true)]
    secrets: Vec<String>,

    /// A header field of the request
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    fields: Vec<String>,

    /// A file with the header fields of the request; other lines are ignored
    #[arg(long, value_name = "FILE")]
    header_file: Option<std::path::PathBuf>,

    /// The largest difference between the time of the attempt and now
    #[arg(long, value_name = "D", default_value = "5m", value_parser = duration)]
    tolerance: Duration,

    /// Verify as of this time: 2h for two hours ago, or 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = moment)]
    at: Option<PointInTime>,
}

pub(super) fn run(args: &VerifyArgs) -> Result<i32, ExitError> {
    let keys: Result<Vec<_>, ExitError> = args.secrets.iter().map(|secret| key(secret)).collect();
    let verifier = Verifier::new(keys?).tolerance(args.tolerance);
    let headers = headers(args)?;
    let mut body = Vec::new();
    std::io::stdin()
        .lock()
        .read_to_end(&mut body)
        .map_err(|error| {
            ExitError::failed(format!(
                "the body cannot be read from standard input: {error}"
            ))
        })?;
    let now = match args.at {
        Some(PointInTime(ms)) => UNIX_EPOCH + Duration::from_millis(u64::try_from(ms).unwrap_or(0)),
        None => SystemTime::now(),
    };
    match verifier.verify(&headers, &body, now) {
        Ok(verified) => {
            say("the signature is valid");
            print(&format!("{}\n", verified.id))
                .map(|()| 0)
                .map_err(ExitError::failed)
        }
        Err(SignatureError::NoMatch) => {
            let changed = changes(&body).find(|(_, body)| {
                let verified = verifier.verify(&headers, body, now);
                matches!(verified, Ok(_) | Err(SignatureError::OutOfTime { .. }))
            });
            let found = changed.map(|(how, _)| format!("; it is valid for {how}"));
            Err(ExitError::failed(format!(
                "{}{}",
                SignatureError::NoMatch,
                found.unwrap_or_default()
            )))
        }
        Err(error) => Err(ExitError::failed(error.to_string())),
    }
}

/// Variants of a body that undo typical changes by editors and logs.
fn changes(body: &[u8]) -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    let trimmed = body.trim_ascii_end().to_vec();
    let with_newline = [body, b"\n"].concat();
    let unix = String::from_utf8_lossy(body)
        .replace("\r\n", "\n")
        .into_bytes();
    let compact = serde_json::from_slice::<serde_json::Value>(body)
        .and_then(|value| serde_json::to_vec(&value))
        .unwrap_or_default();
    [
        ("the body without the white space at its end", trimmed),
        ("the body with a line end", with_newline),
        ("the body with Unix line ends", unix),
        (
            "the body as compact JSON: it was parsed and serialized again",
            compact,
        ),
    ]
    .into_iter()
}

fn key(secret: &str) -> Result<VerifyingKey, ExitError> {
    let text = match secret.strip_prefix("env:") {
        Some(name) => std::env::var(name)
            .map_err(|_| ExitError::usage(format!("--secret {secret}: the variable is not set")))?,
        None => super::values::secret(secret)?,
    };
    let text = text.trim();
    let private = text
        .parse()
        .map(|key: relent_http::webhook::SigningKey| key.verifying_key());
    private
        .or_else(|_| text.parse())
        .map_err(|error| ExitError::usage(format!("--secret {secret}: {error}")))
}

fn headers(args: &VerifyArgs) -> Result<HeaderMap, ExitError> {
    let mut headers = HeaderMap::new();
    let wrong = |line: &str| {
        ExitError::usage(format!(
            "-H {line:?}: use a name, a colon and a value, such as '{WEBHOOK_ID}: msg_1'"
        ))
    };
    for line in &args.fields {
        let (name, value) = field(line).ok_or_else(|| wrong(line))?;
        headers.append(name, value);
    }
    if let Some(file) = &args.header_file {
        let text = std::fs::read_to_string(file).map_err(|error| {
            ExitError::usage(format!(
                "--header-file {}: cannot be read: {error}",
                file.display()
            ))
        })?;
        let ours = [WEBHOOK_ID, WEBHOOK_TIMESTAMP, WEBHOOK_SIGNATURE];
        for (name, value) in text.lines().filter_map(field) {
            if ours.contains(&name) {
                headers.append(name, value);
            }
        }
    }
    Ok(headers)
}

fn field(line: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = line.split_once(':')?;
    Some((name.trim().parse().ok()?, value.trim().parse().ok()?))
}
