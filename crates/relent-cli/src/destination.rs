//! A file that is written whole or not at all.

use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access, close};
use tempfile::{Builder, NamedTempFile};

use crate::console::complain;

/// The most symbolic links that lead to a file; the system's own limit.
const MOST_LINKS: usize = 40;
/// The permissions of a new file, of which the system takes away its `umask`.
const NEW: u32 = 0o666;

/// Where a result goes that was asked for by name.
#[derive(Debug)]
pub(crate) enum Destination {
    /// A regular file, or none yet.
    File(NewFile),
    /// Something that is no regular file (`/dev/null`, a pipe) and must not be replaced by one.
    Special(File),
}

/// What there is of that name.
#[derive(Debug)]
pub(crate) enum Found {
    /// A regular file, or none yet.
    File(Place),
    /// Something that is no regular file.
    Special(File),
}

/// The place of a regular file, in which a new one can be put.
#[derive(Debug)]
pub(crate) struct Place {
    /// Behind all symbolic links, which stay.
    path: PathBuf,
    /// The file that is there.
    old: Option<Old>,
}

/// What is to survive of a file that is replaced.
#[derive(Clone, Copy, Debug)]
struct Old {
    mode: u32,
    user: u32,
    group: u32,
    length: u64,
    /// How many names it has.
    links: u64,
}

impl Old {
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

/// A new file for a [`Place`]; dropped before it is complete, it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct NewFile {
    new: NamedTempFile,
    place: Place,
}

impl Destination {
    /// Makes sure that `name` can be written. A new file is made beside it, whose own name begins
    /// with `prefix`.
    ///
    /// # Errors
    /// Why it cannot.
    pub(crate) fn open(name: &Path, prefix: &str) -> io::Result<Self> {
        match Found::at(name)? {
            Found::File(place) => place.new_file(prefix).map(Self::File),
            Found::Special(file) => Ok(Self::Special(file)),
        }
    }
}

impl Found {
    /// Looks whether `name` can be written.
    ///
    /// # Errors
    /// Why it cannot.
    pub(crate) fn at(name: &Path) -> io::Result<Self> {
        let place = match fs::metadata(name) {
            Ok(there) if there.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(there) => {
                // Also tells whether a file that is to be replaced may be written to.
                let file = File::options().write(true).open(name)?;
                if !there.is_file() {
                    return Ok(Self::Special(file));
                }
                Place {
                    path: name.canonicalize()?,
                    old: Some(Old::of(&there)),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Place {
                path: behind_links(name)?,
                old: None,
            },
            Err(error) => return Err(error),
        };
        // Asked first, since later errors name another file, which means nothing to anyone.
        access(place.folder(), AccessFlags::W_OK | AccessFlags::X_OK)?;
        Ok(Self::File(place))
    }
}

impl Place {
    /// Where the file is, behind all symbolic links.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The length of the file that is there.
    pub(crate) fn old_len(&self) -> Option<u64> {
        self.old.map(|old| old.length)
    }

    /// The permissions to create a new file with: never more than those of the old one.
    pub(crate) fn mode(&self) -> u32 {
        self.old.map_or(NEW, |old| old.mode)
    }

    /// A new file beside it, whose own name begins with `prefix`.
    ///
    /// # Errors
    /// When it cannot be created.
    fn new_file(self, prefix: &str) -> io::Result<NewFile> {
        let new = Builder::new()
            .prefix(prefix)
            .permissions(Permissions::from_mode(self.mode()))
            .tempfile_in(self.folder())?;
        Ok(NewFile { new, place: self })
    }

    /// Puts the file with the path `from`, written through `file`, in the place of the old one, when
    /// all of it has reached the disk. Mode and owner stay those of the old file; what could not be
    /// kept is returned in words.
    ///
    /// # Errors
    /// When the system could not write all of it, or the folder allows no change.
    pub(crate) fn put(&self, file: File, from: &Path) -> io::Result<Option<String>> {
        let lost = self.old.and_then(|old| dress(&file, old));
        unless_unsupported(file.sync_all())?;
        // Network file systems tell some errors only now.
        close(file)?;
        fs::rename(from, &self.path)?;
        self.sync_folder()?;
        Ok(lost)
    }

    /// Makes sure that what has been created, renamed or removed in the folder stays so.
    fn sync_folder(&self) -> io::Result<()> {
        match File::open(self.folder()) {
            Ok(folder) => unless_unsupported(folder.sync_all()),
            // A folder that may be written to and not read.
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

    /// Puts the new file in the place of the old one; see [`Place::put`]. What could not be kept of
    /// the old one is said on standard error.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn complete(self) -> io::Result<()> {
        let (file, path) = self.new.into_parts();
        let lost = self.place.put(file, &path)?;
        // It has another name now.
        let _ = path.keep();
        if let Some(lost) = lost {
            complain(&format!("{}: {lost}", self.place.path.display()));
        }
        Ok(())
    }
}

/// Gives `new` the mode and the owner of `old`, and says what could not be kept.
fn dress(new: &File, old: Old) -> Option<String> {
    let mut lost = Vec::new();
    let mut mode = old.mode;
    match keep_owner(new, old) {
        Ok(None) => {}
        Ok(Some((user, group))) => {
            if group != old.group {
                // Another group gets no more than everybody.
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
    // The bits for set-user-ID and set-group-ID are not for other contents: the system too takes them
    // away when a file is written to.
    if let Err(error) = new.set_permissions(Permissions::from_mode(mode)) {
        lost.push(format!("its permissions could not be kept: {error}"));
    }
    if old.links > 1 {
        lost.push("its other names (hard links) keep the old contents".to_owned());
    }
    (!lost.is_empty()).then(|| lost.join("; "))
}

/// Gives `new` the owner of `old`. The user and the group that it has instead, if that is not allowed.
fn keep_owner(new: &File, old: Old) -> io::Result<Option<(u32, u32)>> {
    let owner = |file: &Metadata| (file.uid(), file.gid());
    let now = new.metadata()?;
    if owner(&now) == (old.user, old.group) || fchown(new, Some(old.user), Some(old.group)).is_ok()
    {
        return Ok(None);
    }
    // The group alone may be given by any of its members.
    let _ = fchown(new, None, Some(old.group));
    Ok(Some(owner(&new.metadata()?)))
}

/// The path that a symbolic link to a file that is not there leads to, or `name` itself.
fn behind_links(name: &Path) -> io::Result<PathBuf> {
    let mut path = name.to_owned();
    for _ in 0..MOST_LINKS {
        match fs::read_link(&path) {
            Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(nix::errno::Errno::ELOOP.into())
}

/// Some file systems cannot be told to write now.
fn unless_unsupported(synced: io::Result<()>) -> io::Result<()> {
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
