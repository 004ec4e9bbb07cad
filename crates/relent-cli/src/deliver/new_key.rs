//! `relent deliver new-key`: creates a signing key.

use std::io;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use relent_outbox::secrets::fingerprint;

use super::serve::{WriteError, write_new};
use super::values::random_key;
use crate::console::{print, say};
use crate::exit_status::ExitError;

/// The end of `relent deliver new-key --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  A key for a new endpoint; give the same key to the receiver:
      relent deliver new-key --output shop.key
      relent deliver endpoints add shop https://shop.example/notify \\
          --secret shop.key

The key is 32 random bytes in base64 after `whsec_`, as in Standard Webhooks.
Sender and receiver share it. Its fingerprint goes to standard error:
`relent deliver endpoints show` prints the fingerprints of an endpoint's keys.

Exit status: 0; 1 if the key cannot be made or written; 2 if the file exists, or
the options are wrong.";

#[derive(Args, Debug)]
pub(crate) struct NewKeyArgs {
    /// Write the key to this new file, which only its owner can read [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn run(args: &NewKeyArgs) -> Result<i32, ExitError> {
    let bytes =
        random_key().map_err(|error| ExitError::failed(format!("no randomness: {error}")))?;
    let key = format!("whsec_{}", STANDARD.encode(bytes));
    match &args.output {
        None => print(&(key.clone() + "\n")).map_err(ExitError::failed)?,
        Some(path) => write_new(path, &key).map_err(|error| {
            let (WriteError::Folder(error) | WriteError::File(error)) = error;
            let text = format!("--output {}: cannot be created: {error}", path.display());
            match error.kind() {
                io::ErrorKind::AlreadyExists => ExitError::usage(text),
                _ => ExitError::failed(text),
            }
        })?,
    }
    say(&format!(
        "the key has the fingerprint {}",
        fingerprint(&key)
    ));
    Ok(0)
}
