//! `FILE.part`: what has arrived of a response that is on its way to FILE.
//!
//! Beside it lies `FILE.part.json`, which says what it is a part of. It is written before the first
//! byte, and the old bytes are gone before it is, so that the two agree whenever the process ends:
//! bytes are taken up in a later call only if the side file names them.

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use relent_reqwest::Resumable;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::destination::Place;

/// What the side file begins with; another number for another meaning.
const FORMAT: &str = "relent-part-1";
/// The side file can hold an address with a secret in it.
const ONLY_OWNER: u32 = 0o600;
/// How each begins, as it is written.
const BEGINNING: &str = "{\n  \"format\": \"relent-part-";
/// No side file is longer, in bytes.
const LONGEST: u64 = 1 << 16;

/// A part of a file, which no other process writes to.
///
/// When it is dropped, what can be taken up later stays, and anything else goes away.
#[derive(Debug)]
pub(crate) struct Part {
    place: Place,
    path: PathBuf,
    side: PathBuf,
    /// Locked as long as this is open.
    file: File,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// What an earlier call has left, if anything.
    Earlier,
    /// Begun in this call, or taken up.
    Begun,
    /// In its place.
    Complete,
}

/// What `FILE.part.json` says.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Side {
    format: String,
    /// The URL as it was given, without name, password and fragment.
    url: String,
    /// Whether the rest can be asked for.
    can_be_resumed: bool,
    /// What names the representation: the URL that answered.
    #[serde(default)]
    final_url: Option<String>,
    /// An entity tag with its quotes, or the date of `Last-Modified`.
    #[serde(default)]
    validator: Option<String>,
    /// The length of the whole in bytes.
    #[serde(default)]
    total: Option<u64>,
}

impl Side {
    /// For a response to a request for `url`: `of` if it has a validator, and otherwise whether the
    /// rest can be asked for all the same, on somebody's word that it has not changed.
    pub(crate) fn new(
        url: &str,
        of: Option<&Resumable>,
        vouched: bool,
        total: Option<u64>,
    ) -> Self {
        Self {
            format: FORMAT.to_owned(),
            url: url.to_owned(),
            can_be_resumed: of.is_some() || vouched,
            final_url: of.map(|of| of.url().to_owned()),
            validator: of.map(|of| of.validator().to_owned()),
            total: of.map_or(total, Resumable::total),
        }
    }

    fn read(path: &Path) -> Option<Self> {
        let text = fs::symlink_metadata(path)
            .ok()?
            .is_file()
            .then(|| text(path))?;
        serde_json::from_str(&text.ok()?)
            .ok()
            .filter(|side: &Self| side.format == FORMAT)
    }

    /// Whether what has the name of a side file is none, also none that was cut short. It is somebody
    /// else's then.
    fn is_foreign(path: &Path) -> bool {
        match fs::symlink_metadata(path) {
            Err(_) => false,
            Ok(there) if !there.is_file() => true,
            Ok(_) => text(path)
                .is_ok_and(|text| !text.starts_with(BEGINNING) && !BEGINNING.starts_with(&text)),
        }
    }
}

/// The beginning of a file, as long as a side file can be.
fn text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What an earlier call has left to go on with.
#[derive(Debug)]
pub(crate) enum Earlier {
    /// Nothing.
    Nothing,
    /// Something that is not resumed, and why.
    Other(&'static str),
    /// All of it: it only has to be put in its place.
    Complete,
    /// This many first bytes.
    Part(Of, u64),
}

/// What the bytes of an earlier call are a part of.
#[derive(Debug)]
pub(crate) enum Of {
    /// The representation that this names.
    Named(Resumable),
    /// The caller's word has to do. The length of all of it in bytes, if the server told it.
    Vouched(Option<u64>),
}

impl Part {
    /// Takes possession of `FILE.part`. What is in it stays as it is.
    ///
    /// # Errors
    /// When it cannot be written, another process is at it, or it is not relent's.
    pub(crate) fn open(place: Place) -> io::Result<Self> {
        let (path, side) = (beside(&place, ".part"), beside(&place, ".part.json"));
        let file = loop {
            let file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(place.mode())
                .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
                .open(&path)
                .map_err(|error| named(&path, &error))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let busy = "another fetch is writing it";
                    let busy = io::Error::new(io::ErrorKind::ResourceBusy, busy);
                    return Err(named(&path, &busy));
                }
                // A file system without locks.
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
                Err(TryLockError::Error(error)) => return Err(named(&path, &error)),
            }
            // Another process may have put it in its place, or removed it, before it was locked.
            let opened = file.metadata()?;
            if id(&path) == Some((opened.dev(), opened.ino())) {
                break file;
            }
        };
        let there = file.metadata()?;
        if !there.is_file() || there.len() > 0 && Side::read(&side).is_none() {
            let foreign = format!(
                "it is there and not relent's, since {} does not describe it: move it away",
                side.display()
            );
            let foreign = io::Error::new(io::ErrorKind::AlreadyExists, foreign);
            return Err(named(&path, &foreign));
        }
        if Side::is_foreign(&side) {
            if there.len() == 0 {
                // Of this call.
                let _ = fs::remove_file(&path);
            }
            let foreign = "it is there and not relent's: move it away";
            let foreign = io::Error::new(io::ErrorKind::AlreadyExists, foreign);
            return Err(named(&side, &foreign));
        }
        // One that was left by an earlier call can be more open than FILE is by now.
        let mode = there.mode() & 0o777;
        if mode & !place.mode() != 0 {
            file.set_permissions(Permissions::from_mode(mode & place.mode()))
                .map_err(|error| named(&path, &error))?;
        }
        Ok(Self {
            place,
            path,
            side,
            file,
            state: State::Earlier,
        })
    }

    /// Where it is going.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// What an earlier call for this URL has left.
    pub(crate) fn earlier(&self, url: &str) -> io::Result<Earlier> {
        let length = self.file.metadata()?.len();
        if length == 0 {
            return Ok(Earlier::Nothing);
        }
        let Some(side) = Side::read(&self.side) else {
            return Ok(Earlier::Nothing);
        };
        // A signed URL has another query each time. Then only a validator and a total can prove that it
        // leads to the same.
        let is_same = side.url == url;
        let is_named = side.final_url.is_some() && side.validator.is_some() && side.total.is_some();
        let is_signed_anew = is_named && without_query(&side.url) == without_query(url);
        if !is_same && !is_signed_anew {
            return Ok(Earlier::Other("it is a part of another URL"));
        }
        if !side.can_be_resumed {
            return Ok(Earlier::Other(
                "the rest of that response cannot be asked for",
            ));
        }
        if side.total.is_some_and(|total| length > total) {
            return Ok(Earlier::Other("it is longer than the whole"));
        }
        if side.total == Some(length) && is_same {
            return Ok(Earlier::Complete);
        }
        let of = match (&side.final_url, &side.validator) {
            (Some(url), Some(validator)) => match Resumable::new(url, validator, side.total) {
                Ok(of) => Of::Named(of),
                Err(_) => return Ok(Earlier::Other("its validator cannot be read")),
            },
            _ => Of::Vouched(side.total),
        };
        Ok(Earlier::Part(of, length))
    }

    /// Goes on behind what an earlier call has left.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(crate) fn take_up(&mut self) -> io::Result<()> {
        self.file.seek(SeekFrom::End(0))?;
        self.state = State::Begun;
        Ok(())
    }

    /// Goes on behind a copy of the first `length` bytes of the file that is in its place.
    ///
    /// # Errors
    /// When it cannot be copied.
    pub(crate) fn take_up_copy(&mut self, side: &Side, length: u64) -> io::Result<()> {
        self.begin(side)?;
        let old = File::open(self.place.path())?;
        let copied = io::copy(&mut old.take(length), &mut self.file)?;
        if copied != length {
            return Err(named(
                self.place.path(),
                &io::Error::other("it has become shorter meanwhile"),
            ));
        }
        Ok(())
    }

    /// Begins anew: what is written from now on is what `side` says.
    ///
    /// # Errors
    /// When one of the files cannot be written.
    pub(crate) fn begin(&mut self, side: &Side) -> io::Result<()> {
        // In this order: at no time are there bytes that the side file does not name.
        let again = self.file.metadata()?.len() > 0;
        self.file.set_len(0)?;
        self.file.rewind()?;
        if again {
            self.file.sync_all()?;
        }
        self.state = State::Begun;
        match fs::remove_file(&self.side) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(named(&self.side, &error));
            }
            _ => {}
        }
        let written = File::options()
            .write(true)
            .create_new(true)
            .mode(ONLY_OWNER)
            .open(&self.side)
            .and_then(|file| {
                serde_json::to_writer_pretty(&file, side)?;
                file.sync_all()
            });
        written.map_err(|error| named(&self.side, &error))
    }

    /// Replaces the side file: what the bytes that are there are a part of.
    ///
    /// # Errors
    /// When the side file cannot be written; the old one is there then.
    pub(crate) fn describe(&self, side: &Side) -> io::Result<()> {
        if Side::read(&self.side).as_ref() == Some(side) {
            return Ok(());
        }
        let folder = self.side.parent().filter(|folder| *folder != Path::new(""));
        let folder = folder.unwrap_or(Path::new("."));
        let written = NamedTempFile::new_in(folder).and_then(|file| {
            serde_json::to_writer_pretty(&file, side)?;
            file.as_file().sync_all()?;
            file.persist(&self.side).map_err(|error| error.error)
        });
        written.map(drop).map_err(|error| named(&self.side, &error))
    }

    /// Adds bytes at the end.
    ///
    /// # Errors
    /// When they cannot be written; they are not in the file then.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let before = self.file.stream_position()?;
        let written = self.file.write_all(bytes);
        if written.is_err() {
            // A part of them may be there.
            self.file.set_len(before)?;
            self.file.seek(SeekFrom::Start(before))?;
        }
        written
    }

    /// Another descriptor, for a thread that waits until all of it is on the disk.
    pub(crate) fn try_clone(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Puts it in its place. Says what could not be kept of the old file.
    ///
    /// # Errors
    /// As [`Place::put`].
    pub(crate) fn complete(&mut self) -> io::Result<Option<String>> {
        let side = id(&self.side);
        // The lock goes with the last descriptor.
        let lost = self.place.put(self.file.try_clone()?, &self.path)?;
        self.state = State::Complete;
        // Another process may have begun a part of its own by now.
        if side.is_some() && id(&self.side) == side {
            let _ = fs::remove_file(&self.side);
        }
        Ok(lost)
    }

    /// The bytes that stay for a later call, and where.
    pub(crate) fn left(&self) -> Option<(u64, &Path)> {
        let length = self.file.metadata().map_or(0, |there| there.len());
        let side = (length > 0).then(|| Side::read(&self.side)).flatten();
        side.is_some_and(|side| side.can_be_resumed)
            .then_some((length, &*self.path))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Nobody can be told of an error here, and whatever is left is described or empty.
        if self.state == State::Complete {
            return;
        }
        if self.left().is_none() {
            let _ = fs::remove_file(&self.side);
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// What tells this file from any other that has had the name.
fn id(path: &Path) -> Option<(u64, u64)> {
    let there = fs::symlink_metadata(path).ok()?;
    Some((there.dev(), there.ino()))
}

fn without_query(url: &str) -> &str {
    url.split('?').next().unwrap_or(url)
}

fn beside(place: &Place, suffix: &str) -> PathBuf {
    let mut path = place.path().as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const URL: &str = "http://localhost/large";

    /// What may stand in a side file: what is written there, changed in places, and anything.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        let side = (
            prop::sample::select(vec![FORMAT, "relent-part-2", ""]),
            prop::sample::select(vec![
                URL,
                "http://localhost/large?signature=1",
                "http://localhost/other",
                "",
            ]),
            any::<bool>(),
            prop::option::of("(http://localhost/large|[ -~]{0,9})"),
            prop::option::of("(\"v1\"|W/\"v1\"|.{0,9})"),
            prop::option::of(prop_oneof![0..20u64, any::<u64>()]),
        );
        let side = side.prop_map(
            |(format, url, can_be_resumed, final_url, validator, total)| {
                let side = Side {
                    format: format.to_owned(),
                    url: url.to_owned(),
                    can_be_resumed,
                    final_url,
                    validator,
                    total,
                };
                serde_json::to_vec_pretty(&side).unwrap()
            },
        );
        let cut = (side, any::<prop::sample::Index>(), any::<bool>());
        prop_oneof![
            3 => cut.prop_map(|(mut side, at, whole)| {
                if !whole {
                    side.truncate(at.index(side.len()));
                }
                side
            }),
            1 => prop::collection::vec(any::<u8>(), 0..60),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Bytes are taken up only if the side file names them, as a part of this URL.
        #[test]
        fn whatever_stands_beside_a_part_only_what_it_names_is_taken_up(
            text in text(), length in 0..20u64,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("file");
            fs::write(folder.path().join("file.part"), vec![b'x'; length as usize]).unwrap();
            fs::write(folder.path().join("file.part.json"), &text).unwrap();
            let Ok(crate::destination::Found::File(place)) = crate::destination::Found::at(&file) else {
                panic!("a place for a file");
            };
            let side = serde_json::from_slice::<Side>(&text).ok();
            let side = side.filter(|side| side.format == FORMAT);
            let Ok(part) = Part::open(place) else {
                prop_assert!(side.is_none(), "a side file of relent is not refused");
                return Ok(());
            };
            let earlier = part.earlier(URL).unwrap();
            if length == 0 {
                prop_assert!(matches!(earlier, Earlier::Nothing));
                return Ok(());
            }
            let Some(side) = side else {
                prop_assert!(matches!(earlier, Earlier::Other(_)), "{earlier:?}");
                return Ok(());
            };
            let same = side.url == URL;
            let named = side.final_url.is_some() && side.validator.is_some();
            match earlier {
                Earlier::Complete => {
                    prop_assert!(same && side.can_be_resumed && side.total == Some(length));
                }
                Earlier::Part(of, there) => {
                    prop_assert!(side.can_be_resumed && there == length);
                    prop_assert_eq!(matches!(of, Of::Named(_)), named);
                    let signed = side.url.starts_with("http://localhost/large?");
                    prop_assert!(same || signed && named && side.total.is_some());
                    prop_assert!(side.total.is_none_or(|total| total >= length));
                    prop_assert!(!same || side.total != Some(length));
                }
                Earlier::Nothing => prop_assert!(false, "there are {length} bytes"),
                Earlier::Other(_) => {}
            }
        }
    }
}
