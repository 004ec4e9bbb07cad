//! `--limit-rate` and `--max-filesize`: the limits of rate and size of a body.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The limits of an output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The rate in bytes per second.
    rate: Option<u64>,
    /// The size of a whole body in bytes.
    size: Option<u64>,
    /// The time of the first bytes of this response, and the bytes received since.
    since: Option<(Instant, u64)>,
    /// The bytes of the body so far, including those of earlier attempts.
    there: u64,
}

impl Limits {
    /// Limits the rate in bytes per second, and the size in bytes.
    pub(crate) const fn new(rate: Option<u64>, size: Option<u64>) -> Self {
        Self {
            rate,
            size,
            since: None,
            there: 0,
        }
    }

    /// Begins a response whose body continues at byte `from`, and has `total` bytes as a whole.
    ///
    /// # Errors
    /// [`TooLarge`].
    pub(crate) fn begin(&mut self, from: u64, total: Option<u64>) -> io::Result<()> {
        self.since = None;
        self.there = from;
        self.check(total.unwrap_or(from))
    }

    /// Counts received bytes.
    ///
    /// # Errors
    /// [`TooLarge`].
    pub(crate) fn arrived(&mut self, bytes: u64) -> io::Result<()> {
        self.there = self.there.saturating_add(bytes);
        if self.rate.is_some() {
            let (since, before) = self.since.unwrap_or((Instant::now(), 0));
            self.since = Some((since, before.saturating_add(bytes)));
        }
        self.check(self.there)
    }

    fn check(&self, bytes: u64) -> io::Result<()> {
        match self.size {
            Some(most) if bytes > most => Err(io::Error::other(TooLarge { bytes, most })),
            _ => Ok(()),
        }
    }

    /// Waits until the received bytes conform to the rate. Can be dropped at any time.
    pub(crate) async fn pause(&self) {
        let Some((rate, (since, bytes))) = self.rate.zip(self.since) else {
            return;
        };
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
        let due = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        if let Some(due) = since.checked_add(due) {
            sleep_until(due).await;
        }
    }
}

/// A body that is longer than `--max-filesize`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TooLarge {
    bytes: u64,
    most: u64,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, most } = self;
        write!(
            f,
            "the body has {bytes} bytes or more, and --max-filesize is {most}"
        )
    }
}

impl Error for TooLarge {}

impl TooLarge {
    /// Returns the error if it is the reason why a body could not be written.
    pub(crate) fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn limit_rate_paces_received_bytes_exactly() {
        let mut limits = Limits::new(Some(1000), None);
        let began = Instant::now();
        limits.begin(5_000_000, None).unwrap();
        for _ in 0..10 {
            limits.arrived(500).unwrap();
            limits.pause().await;
        }
        assert_eq!(
            began.elapsed().as_secs(),
            5,
            "what was there before does not count"
        );
    }

    #[test]
    fn a_body_beyond_max_filesize_is_detected_by_length_or_received_bytes() {
        let mut limits = Limits::new(None, Some(10));
        assert!(TooLarge::of(&limits.begin(0, Some(11)).unwrap_err()).is_some());
        limits.begin(0, Some(10)).unwrap();
        limits.begin(4, None).unwrap();
        limits.arrived(6).unwrap();
        let error = limits.arrived(1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the body has 11 bytes or more, and --max-filesize is 10"
        );
    }
}
