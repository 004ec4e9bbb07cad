//! A chart: its elements, what it shows in words, and its numbers.

use super::canvas::{FINE, escape};

/// Width and height in pixels.
pub(super) type Size = (u32, u32);

/// A chart.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    /// Plain text, like all fields except `body`.
    pub(super) title: String,
    /// A text description, for screen readers.
    pub(super) description: String,
    pub(super) size: Size,
    /// SVG elements.
    pub(super) body: String,
    pub(super) table: Table,
}

/// The numbers of a chart.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) heads: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Chart {
    /// The chart as an image within a page, whose style sheet has its colours.
    pub(super) fn inline(&self, id: &str) -> String {
        let (width, height) = self.size;
        let fine = FINE as u32;
        format!(
            "<svg viewBox=\"0 0 {} {}\" style=\"--w:{width}px\" role=\"img\" \
             aria-labelledby=\"{id}-t {id}-d\"><title id=\"{id}-t\">{}</title>\
             <desc id=\"{id}-d\">{}</desc>{}</svg>",
            width * fine,
            height * fine,
            escape(&self.title),
            escape(&self.description),
            self.body
        )
    }
}
