//! The progress bar.

use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar on standard error, if that is a terminal.
pub(crate) fn progress(runs: usize) -> ProgressBar {
    let bar = ProgressBar::new(runs as u64);
    match ProgressStyle::with_template("{msg:16} [{bar:40}] {pos}/{len} runs, {eta} left") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
