//! Latencies of successes: a curve for each policy, from the fastest to the slowest.

use plotters::element::{Circle, PathElement};
use plotters::style::Color;

use super::canvas::{Area, DrawError, FINE};
use super::chart::{Chart, Size, Table};
use super::frame::{Axis, frame, line, nines, number, time};
use super::palette::Swatch;
use crate::recording::Recording;
use crate::scenario::SECOND;

pub(super) const SIZE: Size = (560, 300);

/// The shares that have a tick.
const SHARES: [(f64, &str); 6] = [
    (0.0, "fastest"),
    (0.5, "50 %"),
    (0.9, "90 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (0.9999, "99.99 %"),
];
/// Points in each factor of ten.
const POINTS: u32 = 24;

/// Shares and latencies, in the scale of the chart.
type Curve = Vec<(f64, f64)>;

/// The shares that this many successes can determine.
fn shares(successes: u64) -> impl Iterator<Item = f64> {
    let last = libm::log10(successes.max(1) as f64);
    let steps = (last.min(4.0) * f64::from(POINTS)).floor() as u32;
    (0..=steps).map(|step| 1.0 - libm::pow(10.0, -f64::from(step) / f64::from(POINTS)))
}

/// The height of a latency in the chart: its order of magnitude.
fn height(nanos: u64) -> f64 {
    libm::log10(nanos.max(1_000) as f64)
}

/// Draws the curves of runs that had a success; the number is that of the policy's swatch.
pub(super) fn draw(area: &Area<'_>, lines: &[(usize, &Recording)]) -> Result<(), DrawError> {
    let curves: Vec<(usize, Curve, &Recording)> = lines
        .iter()
        .map(|(number, recording)| {
            let points = shares(recording.metrics.successes).filter_map(|share| {
                let latency = recording.latency(share)?;
                Some((nines(share), height(latency)))
            });
            (*number, points.collect(), *recording)
        })
        .collect();
    let all = || curves.iter().flat_map(|(_, points, _)| points);
    let end = all().map(|point| point.0).fold(1.0, f64::max);
    let top = all().map(|point| point.1).fold(6.0, f64::max);
    let bottom = all().map(|point| point.1).fold(top, f64::min);
    let (bottom, top) = (libm::floor(bottom + 0.02), libm::ceil(top - 0.02));
    let top = top.max(bottom + 1.0);
    let mut ticks = Vec::new();
    for power in bottom as i32..=top as i32 {
        let nanos = 10_u64.saturating_pow(power.max(0).unsigned_abs());
        // Powers of ten are most readable in seconds, also above a minute.
        let label = match power {
            ..9 => time(nanos),
            _ => format!("{} s", number(nanos as f64 / SECOND as f64)),
        };
        ticks.push((f64::from(power), label));
    }
    // A little space, so that the lowest label and the first do not overlap.
    let y = Axis {
        range: bottom - 0.04 * (top - bottom)..top,
        ticks,
    };
    let ticks = SHARES
        .iter()
        .map(|(share, _)| (nines(*share), format!("{} %", share * 100.0)));
    let x = Axis {
        range: 0.0..end,
        ticks: ticks.filter(|(place, _)| *place <= end + 1e-9).collect(),
    };
    let words = (
        "latency of successes, delays included",
        "share that took no longer",
    );
    let mut plot = frame(area, &x, &y, words)?;
    for (number, points, recording) in curves {
        let swatch = Swatch::Policy(number);
        plot.draw_series([PathElement::new(points, line(swatch))])?;
        let marks = SHARES
            .iter()
            .filter(|(share, _)| *share > 0.0 && nines(*share) <= end);
        let marks = marks.filter_map(|(share, _)| {
            let enough = recording.metrics.successes as f64 * (1.0 - share) >= 0.999;
            let latency = recording.latency(*share).filter(|_| enough)?;
            let at = (nines(*share), height(latency));
            Some(Circle::new(at, 3 * FINE, swatch.color().filled()))
        });
        plot.draw_series(marks.collect::<Vec<_>>())?;
    }
    Ok(())
}

/// The chart, with its words and its numbers.
///
/// # Errors
/// Those of [`draw`].
pub(super) fn chart(lines: &[(usize, &str, &Recording)]) -> Result<Chart, DrawError> {
    let curves: Vec<_> = lines
        .iter()
        .map(|(number, _, run)| (*number, *run))
        .collect();
    let body = super::canvas::draw(SIZE, |area| draw(area, &curves))?;
    let latency = |recording: &Recording, share| {
        recording
            .latency(share)
            .map_or_else(|| "-".to_owned(), time)
    };
    let heads = SHARES.iter().map(|(_, label)| (*label).to_owned());
    let rows = lines.iter().map(|(_, name, recording)| {
        let cells = SHARES.iter().map(|(share, _)| latency(recording, *share));
        std::iter::once((*name).to_owned()).chain(cells).collect()
    });
    let words = lines
        .iter()
        .map(|(_, name, recording)| match recording.metrics.successes {
            0 => format!("{name}: no success."),
            _ => format!(
                "{name}: half of the successes take no longer than {}, 99 % no longer than {}.",
                latency(recording, 0.5),
                latency(recording, 0.99)
            ),
        });
    let words: Vec<String> = words.collect();
    Ok(Chart {
        title: "Latency by share of the successes (log scales: latency, and the share that took longer)"
            .to_owned(),
        description: words.join(" "),
        size: SIZE,
        body,
        table: Table {
            heads: std::iter::once("policy".to_owned()).chain(heads).collect(),
            rows: rows.collect(),
        },
    })
}
