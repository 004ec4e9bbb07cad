//! Reports and pictures of the results of policies.
//!
//! [`html`] makes one file that a browser shows without any network; [`svg`] makes one picture. The input is a
//! [`Section`] for each scenario; nothing is run here.

mod bars;
mod canvas;
mod chart;
mod frame;
mod latency;
mod over_time;
mod page;
mod palette;
mod picture;
mod raster;
mod section;

use std::fmt;

use relent_core::{Jitter, Policy};

pub use section::{PolicyRuns, Section};

/// A chart cannot be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReportError(String);

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot be drawn: {}", self.0)
    }
}

impl std::error::Error for ReportError {}

impl From<canvas::DrawError> for ReportError {
    fn from(error: canvas::DrawError) -> Self {
        Self(error.to_string())
    }
}

/// A copy of the policy without jitter; `None` if it has none or does not retry. Randomness of the backoff itself
/// stays.
///
/// ```
/// use relent_core::{Jitter, Policy};
/// use relent_sim::report::without_jitter;
///
/// let plain = without_jitter(Policy::STANDARD).expect("it has jitter");
/// assert_eq!(plain.jitter(), Jitter::None);
/// assert_eq!(without_jitter(&plain), None);
/// ```
#[must_use]
pub fn without_jitter(policy: &Policy) -> Option<Policy> {
    if policy.jitter() == Jitter::None || policy.max_retries() == Some(0) {
        return None;
    }
    policy
        .clone()
        .into_builder()
        .jitter(Jitter::None)
        .build()
        .ok()
}

/// One HTML file with everything about these scenarios: it loads nothing, has no script, and follows
/// the reader's preference for light or dark. The same input gives the same file.
///
/// # Errors
/// A chart that cannot be laid out.
pub fn html(sections: &[Section<'_>]) -> Result<String, ReportError> {
    Ok(page::page(sections)?)
}

/// One picture as SVG: for a herd the attempts of its clients, otherwise the rates over time; a panel for each
/// policy. It loads nothing: its text is in the reader's own font, and it follows the preference for light or dark.
///
/// # Errors
/// A chart that cannot be laid out.
pub fn svg(section: &Section<'_>) -> Result<String, ReportError> {
    Ok(picture::svg(section)?)
}

#[cfg(test)]
mod tests;
