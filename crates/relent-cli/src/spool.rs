//! A buffer that is in memory up to a limit, and beyond it in an unnamed temporary file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The bytes of a spool that stay in memory; further bytes go to a temporary file.
pub(crate) const MAX_MEMORY_BYTES: usize = 1 << 20;

/// An append-only sequence of bytes that can be read from any position, repeatedly.
///
/// The first [`MAX_MEMORY_BYTES`] bytes stay in memory. The rest is written to an unnamed file in the directory for
/// temporary files (`TMPDIR`, else `/tmp`), which vanishes with the process.
/// A failed [`append`](Spool::append) leaves the spool as it was.
#[derive(Debug, Default)]
pub(crate) struct Spool {
    head: Vec<u8>,
    tail: Option<File>,
    tail_len: u64,
}

impl Spool {
    /// The number of bytes kept.
    pub(crate) fn len(&self) -> u64 {
        self.head.len() as u64 + self.tail_len
    }

    /// Adds `bytes` at the end.
    ///
    /// # Errors
    /// The temporary file cannot be created or written (a full disk); the message names the directory.
    /// None of `bytes` is kept then.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (head, rest) = bytes.split_at(bytes.len().min(MAX_MEMORY_BYTES - self.head.len()));
        if !rest.is_empty() {
            self.append_to_file(rest)
                .map_err(|e| in_temporary_directory(&e))?;
        }
        self.head.extend_from_slice(head);
        Ok(())
    }

    fn append_to_file(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = match &mut self.tail {
            Some(file) => file,
            none => none.insert(tempfile::tempfile()?),
        };
        file.write_all_at(bytes, self.tail_len)?;
        self.tail_len += bytes.len() as u64;
        Ok(())
    }

    /// Reads bytes from `position` on into `buf` and returns their number; 0 at the end.
    ///
    /// # Errors
    /// The temporary file cannot be read.
    pub(crate) fn read_at(&self, position: u64, buf: &mut [u8]) -> io::Result<usize> {
        let in_head = usize::try_from(position)
            .ok()
            .and_then(|start| self.head.get(start..));
        match in_head {
            Some(head) if !head.is_empty() => {
                let n = head.len().min(buf.len());
                buf[..n].copy_from_slice(&head[..n]);
                Ok(n)
            }
            _ => {
                // A failed append may have left bytes in the file beyond `tail_len`; they do not count.
                let start = position.saturating_sub(self.head.len() as u64);
                let left = self.tail_len.saturating_sub(start);
                let n = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
                match &self.tail {
                    Some(file) if n > 0 => {
                        file.read_exact_at(&mut buf[..n], start)
                            .map_err(|e| in_temporary_directory(&e))?;
                        Ok(n)
                    }
                    _ => Ok(0),
                }
            }
        }
    }
}

/// Adds the directory to the error, so that the user knows where space or permission is missing.
fn in_temporary_directory(e: &io::Error) -> io::Error {
    let directory = std::env::temp_dir();
    io::Error::new(
        e.kind(),
        format!(
            "temporary file in {} (TMPDIR names another place): {e}",
            directory.display()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn contents(spool: &Spool, chunk: usize) -> Vec<u8> {
        let (mut all, mut buf) = (Vec::new(), vec![0; chunk]);
        loop {
            match spool.read_at(all.len() as u64, &mut buf).unwrap() {
                0 => return all,
                n => all.extend_from_slice(&buf[..n]),
            }
        }
    }

    #[test]
    fn spool_bytes_beyond_the_limit_go_to_a_file_in_order() {
        let bytes: Vec<u8> = (0..3 * MAX_MEMORY_BYTES + 17)
            .map(|i| (i % 251) as u8)
            .collect();
        let mut spool = Spool::default();
        for chunk in bytes.chunks(100_003) {
            spool.append(chunk).unwrap();
        }
        assert_eq!(spool.head.len(), MAX_MEMORY_BYTES);
        assert!(spool.tail.is_some());
        assert_eq!(spool.len(), bytes.len() as u64);
        assert!(contents(&spool, 65_536) == bytes);
        assert!(
            contents(&spool, 65_536) == bytes,
            "a spool can be read again"
        );
    }

    #[test]
    fn a_spool_at_its_memory_limit_needs_no_file() {
        let mut spool = Spool::default();
        spool.append(&vec![7; MAX_MEMORY_BYTES]).unwrap();
        assert!(spool.tail.is_none());
        assert_eq!(contents(&spool, 1 << 16).len(), MAX_MEMORY_BYTES);
        spool.append(b"x").unwrap();
        assert!(spool.tail.is_some());
        assert_eq!(contents(&spool, 1 << 16).last(), Some(&b'x'));
    }

    #[test]
    fn a_failed_spool_append_names_the_folder_and_keeps_earlier_bytes() {
        let mut spool = Spool::default();
        spool.append(&vec![1; MAX_MEMORY_BYTES]).unwrap();
        // /dev/full answers every write with "no space left on device".
        spool.tail = Some(
            File::options()
                .read(true)
                .write(true)
                .open("/dev/full")
                .unwrap(),
        );
        let error = spool.append(b"more").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().contains("TMPDIR"), "{error}");
        assert_eq!(spool.len(), MAX_MEMORY_BYTES as u64);
        assert_eq!(contents(&spool, 1 << 16).len(), MAX_MEMORY_BYTES);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_spool_returns_the_appended_bytes(
            lens in proptest::collection::vec(0usize..400_000, 0..8),
            position in 0u64..3_000_000,
        ) {
            let mut spool = Spool::default();
            let mut all = Vec::new();
            for (i, len) in lens.iter().enumerate() {
                let chunk: Vec<u8> = (0..*len).map(|j| (i * 31 + j) as u8).collect();
                spool.append(&chunk).unwrap();
                all.extend_from_slice(&chunk);
            }
            let mut buf = vec![0; 4096];
            let n = spool.read_at(position, &mut buf).unwrap();
            let expected = all.get(position as usize..).unwrap_or(&[]);
            prop_assert_eq!(n == 0, expected.is_empty());
            prop_assert_eq!(&buf[..n], &expected[..n]);
        }
    }
}
