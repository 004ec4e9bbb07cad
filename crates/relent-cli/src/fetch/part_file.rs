//! `FILE.part`: the received bytes of an unfinished response for FILE.
//!
//! The side file `FILE.part.json` describes the response. Old bytes are removed before it is written,
//! and it is written before the first byte, so that both files agree whenever the process ends. A later
//! call resumes bytes only if the side file describes them.

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use relent_reqwest::Resumable;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::output_file::RegularFile;

/// The format version in the side file; an incompatible format gets another number.
const FORMAT_VERSION: &str = "relent-part-1";
/// The permissions of the side file: its URL can contain a secret.
const SIDE_FILE_MODE: u32 = 0o600;
/// The first bytes of every side file.
const SIDE_FILE_PREFIX: &str = "{\n  \"format\": \"relent-part-";
/// The length of the longest side file, in bytes.
const MAX_SIDE_FILE_BYTES: u64 = 1 << 16;

/// A part of a file, locked against other processes.
///
/// When it is dropped, a part that can be resumed stays, and any other is removed.
#[derive(Debug)]
pub(crate) struct Part {
    place: RegularFile,
    path: PathBuf,
    side: PathBuf,
    /// The open file, which holds the lock.
    file: File,
    state: PartState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PartState {
    /// The part of an earlier call, if any.
    EarlierPart,
    /// Started or resumed in this call.
    Begun,
    /// FILE was replaced.
    Complete,
}

/// The contents of `FILE.part.json`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SideFile {
    format: String,
    /// The URL as given, without user, password and fragment.
    url: String,
    /// Whether the rest can be requested.
    can_be_resumed: bool,
    /// The URL that responded, which identifies the representation.
    #[serde(default)]
    final_url: Option<String>,
    /// The entity tag with its quotes, or the date of `Last-Modified`.
    #[serde(default)]
    validator: Option<String>,
    /// The length of the whole in bytes.
    #[serde(default)]
    total: Option<u64>,
}

impl SideFile {
    /// Describes a response to a request for `url`. `of` is set if it has a validator. Otherwise
    /// `vouched` says whether the rest may be requested if the user states that it has not changed.
    pub(crate) fn new(
        url: &str,
        of: Option<&Resumable>,
        vouched: bool,
        total: Option<u64>,
    ) -> Self {
        Self {
            format: FORMAT_VERSION.to_owned(),
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
            .filter(|side: &Self| side.format == FORMAT_VERSION)
    }

    /// Whether the file with the name of the side file is not relent's: it is neither a side file nor a
    /// truncated one.
    fn is_foreign(path: &Path) -> bool {
        match fs::symlink_metadata(path) {
            Err(_) => false,
            Ok(there) if !there.is_file() => true,
            Ok(_) => text(path).is_ok_and(|text| {
                !text.starts_with(SIDE_FILE_PREFIX) && !SIDE_FILE_PREFIX.starts_with(&text)
            }),
        }
    }
}

/// Reads the beginning of a file, up to the length of the longest side file.
fn text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_SIDE_FILE_BYTES)
        .read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The part that an earlier call has left.
#[derive(Debug)]
pub(crate) enum EarlierPart {
    /// Nothing.
    Nothing,
    /// A part that is not resumed, with the reason.
    Other(&'static str),
    /// The complete response, which only has to replace FILE.
    Complete,
    /// The first bytes of a response, and their number.
    Part(PartSource, u64),
}

/// The representation that the bytes of an earlier call belong to.
#[derive(Debug)]
pub(crate) enum PartSource {
    /// A representation with a validator.
    Named(Resumable),
    /// The user states that it has not changed. The whole length in bytes, if the server sent it.
    Vouched(Option<u64>),
}

impl Part {
    /// Opens and locks `FILE.part`, without changing its contents.
    ///
    /// # Errors
    /// The file cannot be written, another process has locked it, or it is not relent's.
    pub(crate) fn open(place: RegularFile) -> io::Result<Self> {
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
                // The file system does not support locks.
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
                Err(TryLockError::Error(error)) => return Err(named(&path, &error)),
            }
            // Before the lock, another process may have renamed or removed the file.
            let opened = file.metadata()?;
            if id(&path) == Some((opened.dev(), opened.ino())) {
                break file;
            }
        };
        let there = file.metadata()?;
        if !there.is_file() || there.len() > 0 && SideFile::read(&side).is_none() {
            let foreign = format!(
                "it exists and is not relent's, since {} does not describe it: move it away",
                side.display()
            );
            let foreign = io::Error::new(io::ErrorKind::AlreadyExists, foreign);
            return Err(named(&path, &foreign));
        }
        if SideFile::is_foreign(&side) {
            if there.len() == 0 {
                // This call has created it.
                let _ = fs::remove_file(&path);
            }
            let foreign = "it exists and is not relent's: move it away";
            let foreign = io::Error::new(io::ErrorKind::AlreadyExists, foreign);
            return Err(named(&side, &foreign));
        }
        // A part of an earlier call can have more permissions than FILE has now.
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
            state: PartState::EarlierPart,
        })
    }

    /// The path of FILE.
    pub(crate) fn place(&self) -> &RegularFile {
        &self.place
    }

    /// Finds the part of an earlier call for this URL.
    pub(crate) fn earlier(&self, url: &str) -> io::Result<EarlierPart> {
        let length = self.file.metadata()?.len();
        if length == 0 {
            return Ok(EarlierPart::Nothing);
        }
        let Some(side) = SideFile::read(&self.side) else {
            return Ok(EarlierPart::Nothing);
        };
        // A signed URL has a different query each time. Then only validator and length prove that the
        // representation is the same.
        let is_same = side.url == url;
        let is_named = side.final_url.is_some() && side.validator.is_some() && side.total.is_some();
        let is_signed_anew = is_named && without_query(&side.url) == without_query(url);
        if !is_same && !is_signed_anew {
            return Ok(EarlierPart::Other("it is a part of another URL"));
        }
        if !side.can_be_resumed {
            return Ok(EarlierPart::Other(
                "the rest of that response cannot be requested",
            ));
        }
        if side.total.is_some_and(|total| length > total) {
            return Ok(EarlierPart::Other("it is longer than the whole"));
        }
        if side.total == Some(length) && is_same {
            return Ok(EarlierPart::Complete);
        }
        let of = match (&side.final_url, &side.validator) {
            (Some(url), Some(validator)) => match Resumable::new(url, validator, side.total) {
                Ok(of) => PartSource::Named(of),
                Err(_) => return Ok(EarlierPart::Other("its validator cannot be read")),
            },
            _ => PartSource::Vouched(side.total),
        };
        Ok(EarlierPart::Part(of, length))
    }

    /// Resumes after the bytes of an earlier call.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn take_up(&mut self) -> io::Result<()> {
        self.file.seek(SeekFrom::End(0))?;
        self.state = PartState::Begun;
        Ok(())
    }

    /// Resumes after a copy of the first `length` bytes of FILE. Returns the copying, which can take long. If it is
    /// interrupted, FILE.part is a shorter part.
    ///
    /// # Errors
    /// One of the files cannot be written, or FILE cannot be copied.
    pub(crate) fn take_up_copy(
        &mut self,
        side: &SideFile,
        length: u64,
    ) -> io::Result<impl FnOnce() -> io::Result<()> + Send + use<>> {
        self.begin(side)?;
        let (path, mut part) = (self.place.path().to_owned(), self.try_clone()?);
        Ok(move || {
            let copied = io::copy(&mut File::open(&path)?.take(length), &mut part)?;
            if copied != length {
                let shorter = io::Error::other("it has become shorter meanwhile");
                return Err(named(&path, &shorter));
            }
            Ok(())
        })
    }

    /// Starts over with a response that `side` describes.
    ///
    /// # Errors
    /// One of the files cannot be written.
    pub(crate) fn begin(&mut self, side: &SideFile) -> io::Result<()> {
        // This order ensures that the side file describes the bytes at any time.
        let again = self.file.metadata()?.len() > 0;
        self.file.set_len(0)?;
        self.file.rewind()?;
        if again {
            self.file.sync_all()?;
        }
        self.state = PartState::Begun;
        match fs::remove_file(&self.side) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(named(&self.side, &error));
            }
            _ => {}
        }
        let written = File::options()
            .write(true)
            .create_new(true)
            .mode(SIDE_FILE_MODE)
            .open(&self.side)
            .and_then(|file| {
                serde_json::to_writer_pretty(&file, side)?;
                file.sync_all()
            });
        written.map_err(|error| named(&self.side, &error))
    }

    /// Replaces the side file, which describes the existing bytes. A length that is not known any more is kept.
    ///
    /// # Errors
    /// The side file cannot be written; the old one is kept.
    pub(crate) fn describe(&self, mut side: SideFile) -> io::Result<()> {
        if let Some(old) = SideFile::read(&self.side) {
            side.total = side.total.or(old.total);
            if side == old {
                return Ok(());
            }
        }
        let folder = self.side.parent().filter(|folder| *folder != Path::new(""));
        let folder = folder.unwrap_or(Path::new("."));
        let written = NamedTempFile::new_in(folder).and_then(|file| {
            serde_json::to_writer_pretty(&file, &side)?;
            file.as_file().sync_all()?;
            file.persist(&self.side).map_err(|error| error.error)
        });
        written.map(drop).map_err(|error| named(&self.side, &error))
    }

    /// Adds bytes at the end.
    ///
    /// # Errors
    /// The bytes cannot be written; none of them is in the file then.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let before = self.file.stream_position()?;
        let written = self.file.write_all(bytes);
        if written.is_err() {
            // Some of the bytes may have been written.
            self.file.set_len(before)?;
            self.file.seek(SeekFrom::Start(before))?;
        }
        written
    }

    /// Duplicates the descriptor, for a thread that copies to the file or syncs it.
    pub(crate) fn try_clone(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Replaces FILE. The returned text names attributes of the old file that could not be kept.
    ///
    /// # Errors
    /// As [`RegularFile::put`].
    pub(crate) fn complete(&mut self) -> io::Result<Option<String>> {
        let side = id(&self.side);
        // The lock is released with the last descriptor.
        let lost = self.place.put(self.file.try_clone()?, &self.path)?;
        self.state = PartState::Complete;
        // Another process may have started its own part by now.
        if side.is_some() && id(&self.side) == side {
            let _ = fs::remove_file(&self.side);
        }
        Ok(lost)
    }

    /// The number of bytes that stay for a later call, and their path.
    pub(crate) fn left(&self) -> Option<(u64, &Path)> {
        let length = self.file.metadata().map_or(0, |there| there.len());
        let side = (length > 0).then(|| SideFile::read(&self.side)).flatten();
        side.is_some_and(|side| side.can_be_resumed)
            .then_some((length, &*self.path))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Errors cannot be reported here, and a remaining part is described or empty.
        if self.state == PartState::Complete {
            return;
        }
        if self.left().is_none() {
            let _ = fs::remove_file(&self.side);
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Identifies a file, to distinguish it from others of the same name.
fn id(path: &Path) -> Option<(u64, u64)> {
    let there = fs::symlink_metadata(path).ok()?;
    Some((there.dev(), there.ino()))
}

fn without_query(url: &str) -> &str {
    url.split('?').next().unwrap_or(url)
}

fn beside(place: &RegularFile, suffix: &str) -> PathBuf {
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

    /// Contents of a side file: valid ones, modified ones, and random bytes.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        let side = (
            prop::sample::select(vec![FORMAT_VERSION, "relent-part-2", ""]),
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
                let side = SideFile {
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

        /// Bytes are resumed only if the side file describes them as a part of this URL.
        #[test]
        fn a_part_is_resumed_only_if_its_side_file_describes_it(
            text in text(), length in 0..20u64,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("file");
            fs::write(folder.path().join("file.part"), vec![b'x'; length as usize]).unwrap();
            fs::write(folder.path().join("file.part.json"), &text).unwrap();
            let Ok(crate::output_file::OutputTarget::File(place)) = crate::output_file::OutputTarget::at(&file) else {
                panic!("a place for a file");
            };
            let side = serde_json::from_slice::<SideFile>(&text).ok();
            let side = side.filter(|side| side.format == FORMAT_VERSION);
            let Ok(part) = Part::open(place) else {
                prop_assert!(side.is_none(), "a side file of relent is not refused");
                return Ok(());
            };
            let earlier = part.earlier(URL).unwrap();
            if length == 0 {
                prop_assert!(matches!(earlier, EarlierPart::Nothing));
                return Ok(());
            }
            let Some(side) = side else {
                prop_assert!(matches!(earlier, EarlierPart::Other(_)), "{earlier:?}");
                return Ok(());
            };
            let same = side.url == URL;
            let named = side.final_url.is_some() && side.validator.is_some();
            match earlier {
                EarlierPart::Complete => {
                    prop_assert!(same && side.can_be_resumed && side.total == Some(length));
                }
                EarlierPart::Part(of, there) => {
                    prop_assert!(side.can_be_resumed && there == length);
                    prop_assert_eq!(matches!(of, PartSource::Named(_)), named);
                    let signed = side.url.starts_with("http://localhost/large?");
                    prop_assert!(same || signed && named && side.total.is_some());
                    prop_assert!(side.total.is_none_or(|total| total >= length));
                    prop_assert!(!same || side.total != Some(length));
                }
                EarlierPart::Nothing => prop_assert!(false, "there are {length} bytes"),
                EarlierPart::Other(_) => {}
            }
        }
    }
}
