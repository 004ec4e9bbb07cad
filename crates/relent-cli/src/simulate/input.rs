//! The input of a simulation: policies, and files of limited size.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use relent::{NamedPolicy, Policy};

use crate::exit_status::ExitError;

/// The most bytes of a scenario and of a grid: 1 MiB.
pub(super) const MAX_SCENARIO_BYTES: u64 = 1 << 20;

/// A policy or scenario with its given name and the text of its file.
#[derive(Clone)]
pub(crate) struct NamedItem<T> {
    pub(crate) name: String,
    pub(crate) value: T,
    pub(crate) text: String,
}

/// Reads the text of a file of at most `most` bytes; `large` is the message for a larger one.
///
/// # Errors
/// The file cannot be read, is larger, or is not text.
pub(crate) fn read_at_most(path: &Path, most: u64, large: &str) -> Result<String, String> {
    let name = path.display();
    let mut bytes = Vec::new();
    match File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes)) {
        Ok(_) if bytes.len() as u64 > most => Err(format!("{name}: {large}")),
        // Some editors begin a text with a byte order mark.
        Ok(_) => match String::from_utf8(bytes) {
            Ok(text) => Ok(text.trim_start_matches('\u{feff}').to_owned()),
            Err(_) => Err(format!("{name}: is not UTF-8 text")),
        },
        Err(error) => Err(format!("{name}: cannot be read: {error}")),
    }
}

/// Loads a policy that `--policy` names.
///
/// # Errors
/// It cannot be loaded.
pub(crate) fn load_policy(spec: &str) -> Result<NamedItem<Policy>, ExitError> {
    let value = NamedPolicy::load(spec)
        .map_err(|error| ExitError::usage(format!("--policy {spec}: {error}")))?
        .policy;
    let text = toml::to_string(&value).map_err(|error| ExitError::failed(error.to_string()))?;
    Ok(NamedItem {
        name: spec.to_owned(),
        value,
        text,
    })
}
