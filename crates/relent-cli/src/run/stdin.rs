//! Standard input, replayed to every attempt while it streams.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;

use indicatif::BinaryBytes;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::error::Error;
use crate::console::say;
use crate::spool::Spool;

/// The most bytes of one read: the capacity of a pipe on Linux.
const PIECE_BYTES: usize = 1 << 16;

/// The source of standard input for the attempts of one run.
///
/// A terminal is passed through, because a user cannot be asked to type the same input again for a
/// retry. So is a descriptor that cannot be read (`nohup` leaves one). A regular file is passed
/// through as well, and rewound before each attempt. Nothing but the command then moves its position, which a
/// shell loop shares (`while read -r host; do relent run …; done < hosts`).
///
/// Any other input is buffered in a [`Spool`] while it streams: an attempt first gets the buffered input and
/// then continues live.
///
/// Input beyond the buffer limit is passed through, and cannot be replayed.
///
/// Nothing is read before the first attempt, and at most one piece (64 KiB) more than the command has
/// consumed: `yes | relent run -- sleep 60` does not fill the disk.
#[derive(Debug)]
pub(crate) enum Stdin {
    /// The command reads relent's own descriptor.
    Inherited,
    /// The command reads relent's own descriptor, from this position on.
    Rewound(File, u64),
    /// The command reads a pipe that relent fills.
    Replayed(Replayed),
}

/// Input that relent reads and buffers.
#[derive(Debug)]
pub(crate) struct Replayed {
    kept: Spool,
    /// The most bytes that are buffered.
    most: u64,
    /// The input has exceeded the buffer limit: no other attempt can get the whole input.
    exceeded: bool,
    reader: Reader,
}

#[derive(Debug)]
enum Reader {
    /// Nothing has been read yet.
    Untouched(OwnedFd),
    /// A thread reads one piece per request, because a read of a pipe cannot be cancelled, and
    /// making the descriptor non-blocking would affect all processes that share it. The process exits
    /// without waiting for the thread.
    Thread {
        requests: mpsc::Sender<()>,
        pieces: UnboundedReceiver<io::Result<Vec<u8>>>,
        /// A piece was requested and has not arrived; an earlier attempt may have requested it.
        requested: bool,
    },
    /// The input has ended and is buffered completely.
    Ended,
}

/// The result of waiting for more input.
enum NextInput {
    /// Further input is buffered.
    Kept,
    /// These bytes are not buffered, because they exceed the limit.
    Passed(Vec<u8>),
    /// The input has ended.
    End,
}

impl Stdin {
    /// Takes the standard input of this process, of which at most `most` bytes are buffered. Nothing is
    /// read yet.
    ///
    /// # Errors
    /// The descriptor cannot be duplicated.
    pub(crate) fn of_process(most: u64) -> Result<Self, Error> {
        let stdin = io::stdin();
        if stdin.is_terminal() || !is_readable(&stdin) {
            return Ok(Self::Inherited);
        }
        let stdin = stdin.as_fd().try_clone_to_owned();
        let mut stdin = File::from(stdin.map_err(Error::ReadStdin)?);
        let is_regular = stdin.metadata().is_ok_and(|there| there.is_file());
        Ok(match stdin.stream_position() {
            Ok(start) if is_regular => Self::Rewound(stdin, start),
            _ => Self::replay(stdin.into(), most),
        })
    }

    /// Replays the bytes of `fd`, from its current position.
    pub(crate) fn replay(fd: OwnedFd, most: u64) -> Self {
        Self::Replayed(Replayed {
            kept: Spool::default(),
            most,
            exceeded: false,
            reader: Reader::Untouched(fd),
        })
    }

    /// Whether more was read than may be buffered, so that no other attempt can get the whole input.
    pub(crate) fn is_exceeded(&self) -> bool {
        matches!(self, Self::Replayed(input) if input.exceeded)
    }

    /// Returns the standard input for starting an attempt. The `last` one needs no buffer: if it is
    /// also the first to read, it gets the descriptor itself.
    ///
    /// # Errors
    /// The descriptor cannot be duplicated or rewound.
    pub(crate) fn for_attempt(&self, last: bool) -> Result<Stdio, Error> {
        match self {
            Self::Inherited => Ok(Stdio::inherit()),
            Self::Rewound(file, start) => {
                let mut file = file.try_clone().map_err(Error::ReadStdin)?;
                let rewound = file.seek(SeekFrom::Start(*start));
                rewound.map(|_| file.into()).map_err(Error::ReadStdin)
            }
            Self::Replayed(Replayed {
                reader: Reader::Untouched(fd),
                ..
            }) if last => fd.try_clone().map(Stdio::from).map_err(Error::ReadStdin),
            Self::Replayed(_) => Ok(Stdio::piped()),
        }
    }

    /// Writes the input, from its beginning, to a command. Returns at the end of the input, or when the
    /// command has closed its standard input. Dropping this future loses no input.
    ///
    /// # Errors
    /// The input cannot be read or buffered.
    pub(crate) async fn feed(&mut self, pipe: Option<ChildStdin>) -> Result<(), Error> {
        let (Self::Replayed(input), Some(mut pipe)) = (self, pipe) else {
            return Ok(());
        };
        let mut piece = vec![0; PIECE_BYTES];
        let mut position = 0;
        loop {
            let n = input
                .kept
                .read_at(position, &mut piece)
                .map_err(Error::KeepStdin)?;
            if n > 0 {
                if pipe.write_all(&piece[..n]).await.is_err() {
                    return Ok(());
                }
                position += n as u64;
                continue;
            }
            match input.read_more().await? {
                NextInput::Kept => {}
                NextInput::Passed(piece) => {
                    if pipe.write_all(&piece).await.is_err() {
                        return Ok(());
                    }
                }
                NextInput::End => return Ok(()),
            }
        }
    }
}

impl Replayed {
    /// Waits for more input.
    async fn read_more(&mut self) -> Result<NextInput, Error> {
        if let Reader::Untouched(fd) = &self.reader {
            let fd = fd.try_clone().map_err(Error::ReadStdin)?;
            self.reader = start(fd).map_err(Error::ReadStdin)?;
        }
        let Reader::Thread {
            requests,
            pieces,
            requested,
        } = &mut self.reader
        else {
            return Ok(NextInput::End);
        };
        if !*requested {
            *requested = requests.send(()).is_ok();
        }
        let piece = pieces
            .recv()
            .await
            .transpose()
            .map_err(Error::ReadStdin)?
            .unwrap_or_default();
        *requested = false;
        if piece.is_empty() {
            self.reader = Reader::Ended;
            return Ok(NextInput::End);
        }
        if self.exceeded || self.kept.len().saturating_add(piece.len() as u64) > self.most {
            if !std::mem::replace(&mut self.exceeded, true) {
                say(&format!(
                    "standard input exceeds --max-buffer ({}): it is passed through, and no other attempt follows",
                    BinaryBytes(self.most)
                ));
            }
            return Ok(NextInput::Passed(piece));
        }
        self.kept.append(&piece).map_err(Error::KeepStdin)?;
        Ok(NextInput::Kept)
    }
}

/// Starts the thread that reads `fd` on request.
fn start(fd: OwnedFd) -> io::Result<Reader> {
    let (requests, wanted) = mpsc::channel();
    let (answers, pieces) = unbounded_channel();
    thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(move || read_on_request(File::from(fd), &wanted, &answers))?;
    Ok(Reader::Thread {
        requests,
        pieces,
        requested: false,
    })
}

fn read_on_request(
    mut from: File,
    wanted: &mpsc::Receiver<()>,
    answers: &UnboundedSender<io::Result<Vec<u8>>>,
) {
    while wanted.recv().is_ok() {
        let mut piece = vec![0; PIECE_BYTES];
        let answer = read(&mut from, &mut piece).map(|n| {
            piece.truncate(n);
            piece
        });
        if answers.send(answer).is_err() {
            return;
        }
    }
}

fn read(from: &mut File, piece: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(piece) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // Another process that shares this pipe may have made it non-blocking.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                poll(
                    &mut [PollFd::new(from.as_fd(), PollFlags::POLLIN)],
                    PollTimeout::NONE,
                )?;
            }
            result => return result,
        }
    }
}

fn is_readable(fd: &impl AsFd) -> bool {
    fcntl(fd.as_fd(), FcntlArg::F_GETFL)
        .is_ok_and(|flags| OFlag::from_bits_truncate(flags) & OFlag::O_ACCMODE != OFlag::O_WRONLY)
}
