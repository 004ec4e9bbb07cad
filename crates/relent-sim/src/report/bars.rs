//! A bar for each policy: the mean over the seeds, and its interval.

use plotters::element::{PathElement, Rectangle, Text};
use plotters::style::Color;
use plotters::style::text_anchor::{HPos, VPos};

use super::canvas::{DrawError, FINE};
use super::chart::{Chart, Table};
use super::frame::{SMALL, line, style};
use super::palette::Swatch;
use crate::measure::Measure;
use crate::metrics::Metrics;
use crate::study::Estimate;

const WIDTH: u32 = 400;
/// The height of a bar and its gap, and the room above and below all of them.
const ROW: u32 = 28;
const EDGE: u32 = 6;
/// The room for the names, and for the numbers.
const NAMES: i32 = 138;
const NUMBERS: i32 = 110;

/// The name as it fits beside a bar.
pub(super) fn short(name: &str) -> String {
    const MOST: usize = 22;
    match name.chars().count() > MOST {
        // The end of a path says more than its beginning.
        true => {
            let from = name.chars().count() - (MOST - 1);
            std::iter::once('…')
                .chain(name.chars().skip(from))
                .collect()
        }
        false => name.to_owned(),
    }
}

/// The chart of one measure.
///
/// # Errors
/// A layout that cannot be made.
pub(super) fn chart(
    title: &str,
    measure: &Measure,
    rows: &[(usize, &str, Vec<&Metrics>)],
) -> Result<Chart, DrawError> {
    let estimates: Vec<Option<Estimate>> = rows
        .iter()
        .map(|(_, _, runs)| measure.estimate(runs))
        .collect();
    let upper = |estimate: &Estimate| estimate.mean + estimate.half_width.unwrap_or(0.0);
    let most = estimates.iter().flatten().map(upper).fold(1.0, f64::max);
    let size = (WIDTH, ROW * rows.len() as u32 + 2 * EDGE);
    let length = f64::from((WIDTH as i32 - NAMES - NUMBERS) * FINE);
    let x = |value: f64| NAMES * FINE + (value / most * length) as i32;
    let body = super::canvas::draw(size, |area| {
        for (index, ((number, name, runs), estimate)) in rows.iter().zip(&estimates).enumerate() {
            let top = (EDGE as i32 + ROW as i32 * index as i32) * FINE;
            let (high, low) = (top + 4 * FINE, top + (ROW as i32 - 4) * FINE);
            let middle = i32::midpoint(high, low);
            let label = style(Swatch::Text, SMALL, HPos::Right, VPos::Center);
            area.draw(&Text::new(short(name), ((NAMES - 8) * FINE, middle), label))?;
            let mut end = x(0.0);
            if let Some(estimate) = estimate {
                let bar = [(x(0.0), high), (x(estimate.mean), low)];
                let fill = Swatch::Policy(*number).color().filled();
                area.draw(&Rectangle::new(bar, fill))?;
                let half = estimate.half_width.unwrap_or(0.0);
                let (from, to) = (x((estimate.mean - half).max(0.0)), x(estimate.mean + half));
                end = x(estimate.mean).max(to);
                if to - from > 8 * FINE {
                    let interval = [(from, middle), (to, middle)];
                    area.draw(&PathElement::new(interval, line(Swatch::Text)))?;
                    for at in [from, to] {
                        let (high, low) = (middle - 4 * FINE, middle + 4 * FINE);
                        let end = [(at, high), (at, low)];
                        area.draw(&PathElement::new(end, line(Swatch::Text)))?;
                    }
                }
            }
            let label = style(Swatch::Text, SMALL, HPos::Left, VPos::Center);
            let words = words(measure, runs);
            area.draw(&Text::new(words, (end + 8 * FINE, middle), label))?;
        }
        Ok(())
    })?;
    let cells = rows
        .iter()
        .map(|(_, name, runs)| [(*name).to_owned(), words(measure, runs)]);
    let rows: Vec<Vec<String>> = cells.map(Vec::from).collect();
    let description: Vec<String> = rows.iter().map(|cells| cells.join(": ")).collect();
    Ok(Chart {
        title: title.to_owned(),
        description: format!("{}. {}.", measure.meaning, description.join("; ")),
        size,
        body,
        table: Table {
            heads: vec!["policy".to_owned(), measure.head()],
            rows,
        },
    })
}

fn words(measure: &Measure, runs: &[&Metrics]) -> String {
    match measure.cell(runs, false).as_str() {
        "-" => "no success".to_owned(),
        cell => cell.to_owned(),
    }
}
