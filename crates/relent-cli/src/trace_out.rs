//! `--trace FILE`: the account of a session as one JSON object.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};
use relent::{Summary, TraceJson};
use tempfile::{Builder, NamedTempFile};

/// Where the trace goes; opened before the first attempt, so that a bad path is an error before
/// anything ran.
#[derive(Debug)]
pub(crate) struct TraceOut {
    /// As it was written, for messages.
    name: PathBuf,
    to: To,
}

#[derive(Debug)]
enum To {
    Stderr,
    /// A new file that takes the place of the old one when it is complete.
    Replacing {
        new: NamedTempFile,
        path: PathBuf,
    },
    /// Something that is no regular file (`/dev/null`, a pipe) and must not be replaced by one.
    Special(File),
}

impl TraceOut {
    /// Makes sure that a trace can be written there. `-` is standard error.
    ///
    /// # Errors
    /// A path that cannot be written, in words.
    pub(crate) fn open(name: &Path) -> Result<Self, String> {
        let to = if name == Path::new("-") {
            Ok(To::Stderr)
        } else {
            open(name)
        };
        match to {
            Ok(to) => Ok(Self {
                name: name.to_owned(),
                to,
            }),
            Err(error) => Err(format!(
                "--trace {}: cannot be written: {error}",
                name.display()
            )),
        }
    }

    /// Writes the account of a session.
    ///
    /// # Errors
    /// When it cannot be written after all (a full disk), in words. A trace that was there before
    /// is left as it was.
    pub(crate) fn finish(self, trace: &TraceJson) -> Result<(), String> {
        let result = match self.to {
            To::Stderr => trace.write(io::stderr().lock()),
            To::Special(file) => trace.write(file),
            To::Replacing { new, path } => trace
                .write(new.as_file())
                .and_then(|()| new.persist(path).map(drop).map_err(|error| error.error)),
        };
        result.map_err(|error| {
            format!(
                "--trace {}: the trace could not be written: {error}",
                self.name.display()
            )
        })
    }
}

/// Writes the account of a session where it was asked for.
///
/// # Errors
/// As [`TraceOut::finish`].
pub(crate) fn finish(trace: Option<TraceOut>, summary: &Summary) -> Result<(), String> {
    trace.map_or(Ok(()), |trace| trace.finish(&TraceJson::new(summary)))
}

fn open(name: &Path) -> io::Result<To> {
    let (path, mode) = match std::fs::metadata(name) {
        Ok(there) if there.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        Ok(there) => {
            // Also tells whether a file that is to be replaced may be written to.
            let file = File::options().write(true).open(name)?;
            if !there.is_file() {
                return Ok(To::Special(file));
            }
            // Through a symbolic link, which stays.
            (name.canonicalize()?, there.permissions().mode() & 0o777)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => (name.to_owned(), 0o666),
        Err(error) => return Err(error),
    };
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    // Asked first, since the error below names the temporary file, which means nothing to anyone.
    access(folder, AccessFlags::W_OK | AccessFlags::X_OK)?;
    let new = Builder::new()
        .prefix(".relent-trace-")
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(folder)?;
    Ok(To::Replacing { new, path })
}
