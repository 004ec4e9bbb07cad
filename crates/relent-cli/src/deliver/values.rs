//! Parsers for the option values of `relent deliver`.

use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::Path;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use relent_outbox::endpoint::Acknowledgement;
use relent_outbox::secrets::is_fingerprint;

use crate::exit_status::ExitError;
use crate::options::digits;

/// 32 random bytes of the operating system.
pub(super) fn random_key() -> io::Result<[u8; 32]> {
    let mut key = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut key)?;
    Ok(key)
}

/// Parses a positive number.
pub(super) fn count(text: &str) -> Result<NonZeroU32, String> {
    digits::<u32>(text)
        .and_then(NonZeroU32::new)
        .ok_or_else(|| format!("use a whole number from 1 to {}", u32::MAX))
}

/// Parses an address to listen on.
pub(super) fn listen_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "use an IP address and a port up to 65535, such as 127.0.0.1:8480 or [::1]:8480".to_owned()
    })
}

/// Parses a name or an identifier that can be a path segment of a URL.
pub(super) fn segment(text: &str) -> Result<String, String> {
    match text {
        "" | "." | ".." => Err("it cannot be part of a URL: choose another".to_owned()),
        text => Ok(text.to_owned()),
    }
}

/// Parses the name of an endpoint, alone or after its tenant: `acme/warehouse`.
pub(super) fn endpoint_name(text: &str) -> Result<String, String> {
    let (tenant, name) = tenant_and_name(None, text);
    for part in tenant.iter().chain([&name]) {
        segment(part)?;
    }
    Ok(text.to_owned())
}

/// Parses the number or the fingerprint of a signing key.
pub(super) fn signing_key(text: &str) -> Result<String, String> {
    let text = text.to_ascii_lowercase();
    match is_fingerprint(&text) || count(&text).is_ok() {
        true => Ok(text),
        false => Err(
            "use its number, 1 for the newest, or its fingerprint of 8 hexadecimal digits"
                .to_owned(),
        ),
    }
}

/// Separates a name such as `acme/warehouse`, as endpoints are printed, into tenant and name, unless a tenant is given.
pub(super) fn tenant_and_name(tenant: Option<&str>, name: &str) -> (Option<String>, String) {
    match (tenant, name.split_once('/')) {
        (None, Some((tenant, name))) => (Some(tenant.to_owned()), name.to_owned()),
        (tenant, _) => (tenant.map(str::to_owned), name.to_owned()),
    }
}

/// Parses the name of an acknowledgement.
pub(super) fn acknowledged() -> impl TypedValueParser<Value = Acknowledgement> {
    let values =
        Acknowledgement::ALL.map(|(_, name, answer)| PossibleValue::new(name).help(answer));
    PossibleValuesParser::new(values).map(|given| {
        let mut all = Acknowledgement::ALL.into_iter();
        all.find(|(_, name, _)| *name == given)
            .map_or_else(Acknowledgement::default, |(one, ..)| one)
    })
}

/// Reads a key from a file, or returns the reference to one in the environment.
pub(super) fn secret(secret: &str) -> Result<String, ExitError> {
    if secret.starts_with("env:") {
        return Ok(secret.to_owned());
    }
    // The value is a key itself: the message does not repeat it, because others may read the output.
    if ["whsec_", "whsk_", "whpk_"]
        .iter()
        .any(|kind| secret.starts_with(kind))
    {
        return Err(ExitError::usage(
            "--secret: a key on the command line can be seen by others: put it into a file and name that"
                .to_owned(),
        ));
    }
    let text = std::fs::read_to_string(Path::new(secret))
        .map_err(|error| ExitError::usage(format!("--secret {secret}: cannot be read: {error}")))?;
    Ok(text.trim().to_owned())
}

/// Converts MiB to bytes.
pub(super) fn mebibytes(number: NonZeroU32) -> usize {
    usize::try_from(u64::from(number.get()) << 20).unwrap_or(usize::MAX)
}
