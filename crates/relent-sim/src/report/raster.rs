//! A raster of the attempts of a herd: a row for each client, time to the right.

use plotters::element::PathElement;

use super::canvas::{Area, DrawError};
use super::chart::{Chart, Size, Table};
use super::frame::{Axis, frame, line, number, round_step, time, unit};
use super::palette::Swatch;
use crate::event_log::Row;
use crate::recording::Recording;

pub(super) const SIZE: Size = (480, 360);

/// Of two runs that are compared, one is shown for at most this multiple of the other's time.
const MAX_TIME_RATIO: f64 = 2.5;

/// The marks, in the order of drawing: a success lies above its attempt.
pub(super) const MARKS: [(Swatch, &str); 2] =
    [(Swatch::Mark, "attempt"), (Swatch::Done, "success")];

/// The time of the last recorded event.
fn last(recording: &Recording) -> u64 {
    let times = recording
        .rows
        .iter()
        .flat_map(|row| row.attempts.iter().chain(&row.succeeded));
    times.copied().max().unwrap_or(0)
}

/// The time that the rasters of `all` show: as long as the longest, unless it would squeeze another.
pub(super) fn shown(all: &[&Recording]) -> u64 {
    let lasts = all.iter().map(|recording| last(recording));
    let longest = lasts.clone().max().unwrap_or(0);
    let shortest = lasts.min().unwrap_or(0).max(1_000_000);
    longest
        .min((shortest as f64 * MAX_TIME_RATIO) as u64)
        .max(1_000_000)
}

/// Draws the raster of one run, up to `end`.
pub(super) fn draw(area: &Area<'_>, recording: &Recording, end: u64) -> Result<(), DrawError> {
    let rows = &recording.rows;
    // A little space, so that the first and the last mark are visible.
    let whole = end as f64 * 1.02;
    let (size, unit) = unit(end);
    let x = Axis::from_zero(whole / size, 6, |value| format!("{} {unit}", number(value)));
    let count = rows.len() as f64;
    // The first client, and round numbers after it.
    let every = round_step(count / 5.0).max(1.0) as usize;
    let labels = rows.iter().enumerate();
    let labels = labels.filter(|(index, _)| *index == 0 || (index + 1).is_multiple_of(every));
    let y = Axis {
        range: 0.0..count.max(1.0),
        ticks: labels
            .map(|(index, row)| (index as f64 + 0.5, number(f64::from(row.client) + 1.0)))
            .collect(),
    };
    let longest = last(recording);
    let goes_on = match longest > end {
        true => format!("continues until {}", time(longest)),
        false => String::new(),
    };
    let mut plot = frame(area, &x, &y, ("client", &goes_on))?;
    for (swatch, _) in MARKS {
        let marks = rows.iter().enumerate().flat_map(|(index, row)| {
            let times: Vec<u64> = match swatch {
                Swatch::Mark => row.attempts.clone(),
                _ => row.succeeded.into_iter().collect(),
            };
            let (low, high) = (index as f64 + 0.08, index as f64 + 0.92);
            let times = times.into_iter().filter(move |at| *at <= end);
            times.map(move |at| {
                let at = at as f64 / size;
                PathElement::new([(at, low), (at, high)], line(swatch))
            })
        });
        plot.draw_series(marks)?;
    }
    Ok(())
}

/// The raster of one run, with its words and its numbers. `title` names the policy.
///
/// # Errors
/// Those of [`draw`].
pub(super) fn chart(title: &str, recording: &Recording, end: u64) -> Result<Chart, DrawError> {
    let body = super::canvas::draw(SIZE, |area| draw(area, recording, end))?;
    let rows = recording.rows.iter().map(|row| {
        let first = |times: &[u64]| times.first().copied().map_or_else(dash, time);
        vec![
            (row.client + 1).to_string(),
            attempts(row).to_string(),
            first(&row.attempts),
            row.attempts.get(1).copied().map_or_else(dash, time),
            row.succeeded.map_or_else(dash, time),
        ]
    });
    let heads = ["client", "attempts", "first", "second", "success"];
    Ok(Chart {
        title: title.to_owned(),
        description: describe(recording, end),
        size: SIZE,
        body,
        table: Table {
            heads: heads.map(str::to_owned).to_vec(),
            rows: rows.collect(),
        },
    })
}

fn dash() -> String {
    "-".to_owned()
}

fn attempts(row: &Row) -> u64 {
    row.attempts.len() as u64 + row.more
}

/// The share of the retries that start within the busiest hundredth of the time shown.
fn busiest_retry_share(rows: &[Row], end: u64) -> Option<f64> {
    let mut retries: Vec<u64> = rows
        .iter()
        .flat_map(|row| row.attempts.iter().skip(1).copied())
        .filter(|at| *at <= end)
        .collect();
    retries.sort_unstable();
    let span = end / 100;
    let mut most = 0;
    let mut from = 0;
    for (to, at) in retries.iter().enumerate() {
        while at - retries[from] > span {
            from += 1;
        }
        most = most.max(to + 1 - from);
    }
    (!retries.is_empty()).then(|| most as f64 / retries.len() as f64)
}

/// A text description of the raster.
pub(super) fn describe(recording: &Recording, end: u64) -> String {
    let rows = &recording.rows;
    let made: u64 = rows.iter().map(attempts).sum();
    let done = rows.iter().filter(|row| row.succeeded.is_some()).count();
    let mut words = format!(
        "{} clients make {} attempts; {done} of the clients succeed",
        rows.len(),
        number(made as f64)
    );
    if let Some(at) = rows.iter().filter_map(|row| row.succeeded).max() {
        words += &format!(", the last after {}", time(at));
    }
    words.push('.');
    if let Some(share) = busiest_retry_share(rows, end) {
        words += &format!(
            " The busiest hundredth of the time shown has {:.0} % of the retries.",
            share * 100.0
        );
    }
    words
}
