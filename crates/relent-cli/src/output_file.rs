//! Output files that are written completely or not at all.

use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access, close};
use tempfile::{Builder, NamedTempFile};

use crate::console::report_error;

/// The most symbolic links that are followed; the limit of the system.
const MAX_LINKS: usize = 40;
/// The permissions of a new file, before the system applies the `umask`.
const NEW_FILE_MODE: u32 = 0o666;

/// An output that an option names.
#[derive(Debug)]
pub(crate) enum OutputFile {
    /// A regular file, or a name that does not exist yet.
    File(NewFile),
    /// A special file (`/dev/null`, a pipe), which must not be replaced by a regular file.
    Special(File),
}

/// The kind of file that exists under a name.
#[derive(Debug)]
pub(crate) enum OutputTarget {
    /// A regular file, or a name that does not exist yet.
    File(RegularFile),
    /// A special file, such as `/dev/null` or a pipe.
    Special(File),
}

/// The path of a regular file that can be replaced by a new one.
#[derive(Debug)]
pub(crate) struct RegularFile {
    /// The path after following all symbolic links, which are kept.
    path: PathBuf,
    /// The existing file.
    old: Option<OldMetadata>,
}

/// The metadata of a replaced file that the new file takes over.
#[derive(Clone, Copy, Debug)]
struct OldMetadata {
    mode: u32,
    user: u32,
    group: u32,
    length: u64,
    /// The number of hard links.
    links: u64,
}

impl OldMetadata {
    fn of(there: &Metadata) -> Self {
        Self {
            mode: there.mode() & 0o777,
            user: there.uid(),
            group: there.gid(),
            length: there.len(),
            links: there.nlink(),
        }
    }
}

/// A new file for a [`RegularFile`]. If it is dropped before it is complete, it is removed.
#[derive(Debug)]
pub(crate) struct NewFile {
    new: NamedTempFile,
    place: RegularFile,
}

impl OutputFile {
    /// Opens `name` for writing. A regular file is first written under a temporary name in the same folder, which
    /// begins with `prefix`.
    ///
    /// # Errors
    /// `name` cannot be written.
    pub(crate) fn open(name: &Path, prefix: &str) -> io::Result<Self> {
        match OutputTarget::at(name)? {
            OutputTarget::File(place) => place.new_file(prefix).map(Self::File),
            OutputTarget::Special(file) => Ok(Self::Special(file)),
        }
    }
}

impl OutputTarget {
    /// Checks whether `name` can be written.
    ///
    /// # Errors
    /// `name` cannot be written.
    pub(crate) fn at(name: &Path) -> io::Result<Self> {
        let place = match fs::metadata(name) {
            Ok(there) if there.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(there) => {
                // Opening also checks whether a file that will be replaced may be written to.
                let file = File::options().write(true).open(name)?;
                if !there.is_file() {
                    return Ok(Self::Special(file));
                }
                RegularFile {
                    path: name.canonicalize()?,
                    old: Some(OldMetadata::of(&there)),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => RegularFile {
                path: follow_links(name)?,
                old: None,
            },
            Err(error) => return Err(error),
        };
        // Checked first, because later errors name the temporary file, which means nothing to the user.
        access(place.folder(), AccessFlags::W_OK | AccessFlags::X_OK)?;
        Ok(Self::File(place))
    }
}

impl RegularFile {
    /// The path after following all symbolic links.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The length of the existing file in bytes.
    pub(crate) fn old_len(&self) -> Option<u64> {
        self.old.map(|old| old.length)
    }

    /// The permissions for creating a new file: never more than those of the old file.
    pub(crate) fn mode(&self) -> u32 {
        self.old.map_or(NEW_FILE_MODE, |old| old.mode)
    }

    /// Creates a temporary file in the same folder, whose name begins with `prefix`.
    ///
    /// # Errors
    /// The file cannot be created.
    fn new_file(self, prefix: &str) -> io::Result<NewFile> {
        let new = Builder::new()
            .prefix(prefix)
            .permissions(Permissions::from_mode(self.mode()))
            .tempfile_in(self.folder())?;
        Ok(NewFile { new, place: self })
    }

    /// Replaces the old file by the file at `from`, which was written through `file`, after syncing it
    /// to the disk. The new file gets the mode and the owner of the old one; the returned text names
    /// those that could not be kept.
    ///
    /// # Errors
    /// The file cannot be written completely, or the folder cannot be changed.
    pub(crate) fn put(&self, file: File, from: &Path) -> io::Result<Option<String>> {
        let lost = self.old.and_then(|old| apply_metadata(&file, old));
        ignore_unsupported(file.sync_all())?;
        // Network file systems report some errors only at close.
        close(file)?;
        fs::rename(from, &self.path)?;
        self.sync_folder()?;
        Ok(lost)
    }

    /// Makes created, renamed and removed entries of the folder durable.
    fn sync_folder(&self) -> io::Result<()> {
        match File::open(self.folder()) {
            Ok(folder) => ignore_unsupported(folder.sync_all()),
            // A folder may be writable without being readable.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn folder(&self) -> &Path {
        match self.path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        }
    }
}

impl NewFile {
    /// The file to write to.
    pub(crate) fn file(&self) -> &File {
        self.new.as_file()
    }

    /// Replaces the old file by the new one, as [`RegularFile::put`] does. Reports attributes that could not
    /// be kept on standard error.
    ///
    /// # Errors
    /// As [`RegularFile::put`].
    pub(crate) fn complete(self) -> io::Result<()> {
        let (file, path) = self.new.into_parts();
        let lost = self.place.put(file, &path)?;
        // The file was renamed: there is no temporary file to remove.
        let _ = path.keep();
        if let Some(lost) = lost {
            report_error(&format!("{}: {lost}", self.place.path.display()));
        }
        Ok(())
    }
}

/// Gives `new` the mode and the owner of `old`, and names those that could not be kept.
fn apply_metadata(new: &File, old: OldMetadata) -> Option<String> {
    let mut lost = Vec::new();
    let mut mode = old.mode;
    match keep_owner(new, old) {
        Ok(None) => {}
        Ok(Some((user, group))) => {
            if group != old.group {
                // A different group gets no more permissions than all other users.
                mode = mode & 0o707 | (mode & 0o007) << 3;
            }
            lost.push(format!(
                "it belonged to user {} and group {}, and belongs to user {user} and group {group} \
                 now, since the system does not let this user give files away",
                old.user, old.group,
            ));
        }
        Err(error) => lost.push(format!("its owner could not be kept: {error}")),
    }
    // The set-user-ID and set-group-ID bits must not apply to new contents: the system also clears them
    // when a file is written to.
    if let Err(error) = new.set_permissions(Permissions::from_mode(mode)) {
        lost.push(format!("its permissions could not be kept: {error}"));
    }
    if old.links > 1 {
        lost.push("its other names (hard links) keep the old contents".to_owned());
    }
    (!lost.is_empty()).then(|| lost.join("; "))
}

/// Gives `new` the owner of `old`. If that is not allowed, returns the user and the group that it has instead.
fn keep_owner(new: &File, old: OldMetadata) -> io::Result<Option<(u32, u32)>> {
    let owner = |file: &Metadata| (file.uid(), file.gid());
    let now = new.metadata()?;
    if owner(&now) == (old.user, old.group) || fchown(new, Some(old.user), Some(old.group)).is_ok()
    {
        return Ok(None);
    }
    // Any member of a group may set the group alone.
    let _ = fchown(new, None, Some(old.group));
    Ok(Some(owner(&new.metadata()?)))
}

/// Follows symbolic links to the path of a file that does not exist yet; `name` itself if it is no link.
fn follow_links(name: &Path) -> io::Result<PathBuf> {
    let mut path = name.to_owned();
    for _ in 0..MAX_LINKS {
        match fs::read_link(&path) {
            Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(nix::errno::Errno::ELOOP.into())
}

/// Ignores the error of file systems that do not support syncing.
fn ignore_unsupported(synced: io::Result<()>) -> io::Result<()> {
    match synced {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
            ) =>
        {
            Ok(())
        }
        synced => synced,
    }
}
