//! A file that is written whole or not at all.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};
use tempfile::{Builder, NamedTempFile};

/// Where a result goes that was asked for by name.
#[derive(Debug)]
pub(crate) enum Destination {
    /// A regular file, or none yet.
    File(NewFile),
    /// Something that is no regular file (`/dev/null`, a pipe) and must not be replaced by one.
    Special(File),
}

/// A file that takes the place of the old one when it is complete; dropped before, it leaves
/// nothing behind.
#[derive(Debug)]
pub(crate) struct NewFile {
    new: NamedTempFile,
    path: PathBuf,
}

impl Destination {
    /// Makes sure that `name` can be written. A new file is made beside it, whose own name begins
    /// with `prefix`.
    ///
    /// # Errors
    /// Why it cannot.
    pub(crate) fn open(name: &Path, prefix: &str) -> io::Result<Self> {
        let (path, mode) = match std::fs::metadata(name) {
            Ok(there) if there.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(there) => {
                // Also tells whether a file that is to be replaced may be written to.
                let file = File::options().write(true).open(name)?;
                if !there.is_file() {
                    return Ok(Self::Special(file));
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
        // Asked first, since the error below names the temporary file, which means nothing to
        // anyone.
        access(folder, AccessFlags::W_OK | AccessFlags::X_OK)?;
        let new = Builder::new()
            .prefix(prefix)
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(folder)?;
        Ok(Self::File(NewFile { new, path }))
    }
}

impl NewFile {
    /// The file to write to.
    pub(crate) fn file(&self) -> &File {
        self.new.as_file()
    }

    /// Puts the new file in the place of the old one.
    ///
    /// # Errors
    /// When the folder does not allow it any more.
    pub(crate) fn complete(self) -> io::Result<()> {
        self.new
            .persist(self.path)
            .map(drop)
            .map_err(|error| error.error)
    }
}
