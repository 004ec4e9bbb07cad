//! A bar for each policy: the mean over the seeds, with its interval.

use plotters::element::{Circle, PathElement, Rectangle, Text};
use plotters::style::Color;
use plotters::style::text_anchor::{HPos, VPos};

use super::canvas::{DrawError, FINE};
use super::chart::{Chart, Table};
use super::frame::{SMALL, line, nines, style};
use super::palette::Swatch;
use crate::measure::Measure;
use crate::metrics::Metrics;
use crate::study::Estimate;

const WIDTH: u32 = 480;
/// The height of a bar with its gap, and the space above and below all of them.
const ROW_PIXELS: u32 = 28;
const EDGE_PIXELS: u32 = 6;
/// The space for the names, and for the numbers.
const NAMES_PIXELS: i32 = 138;
const NUMBERS_PIXELS: i32 = 124;
/// The space for the labels of an axis, and their minimum distance.
const AXIS_PIXELS: u32 = 18;
const MIN_TICK_DISTANCE_PIXELS: f64 = 46.0;
/// The smallest share of losses that the numbers distinguish from none.
const MIN_LOSS_SHARE: f64 = 0.000_05;

/// The name, shortened to fit beside a bar.
pub(super) fn short(name: &str) -> String {
    const MOST: usize = 22;
    match name.chars().count() > MOST {
        // The end of a path is more specific than its start.
        true => {
            let from = name.chars().count() - (MOST - 1);
            std::iter::once('…')
                .chain(name.chars().skip(from))
                .collect()
        }
        false => name.to_owned(),
    }
}

/// The positions of values, and the ticks of their axis.
struct Scale {
    /// The smallest share of losses that these runs distinguish from none; `None` if the measure is not a share.
    finest: Option<f64>,
    end: f64,
}

impl Scale {
    fn of(measure: &Measure, rows: &[(usize, &str, Vec<&Metrics>)], highest: f64) -> Self {
        let requests = |runs: &Vec<&Metrics>| runs.iter().map(|run| run.requests).sum::<u64>();
        let most = rows.iter().map(|(_, _, runs)| requests(runs)).max();
        let scale = Self {
            // Numbers have no more decimal places either.
            finest: (measure.most == 1.0)
                .then(|| (0.5 / most.unwrap_or(0).max(5) as f64).max(MIN_LOSS_SHARE)),
            end: 1.0,
        };
        let end = scale.place(highest).max(1.0);
        Self { end, ..scale }
    }

    fn place(&self, value: f64) -> f64 {
        match self.finest {
            None => value,
            Some(finest) => nines(value.min(1.0 - finest)),
        }
    }

    /// The ticks of an axis of this length in pixels; none if the bars start at zero on a linear scale.
    fn ticks(&self, pixels: f64) -> Vec<(f64, String)> {
        let step = (MIN_TICK_DISTANCE_PIXELS * self.end / pixels)
            .ceil()
            .max(1.0);
        let most = match self.finest {
            None => 0,
            Some(_) => (self.end / step + 1e-9) as u32 + 1,
        };
        let ticks = (0..most).map(|tick| f64::from(tick) * step);
        ticks
            .map(|nines| (nines, percent(nines as usize)))
            .collect()
    }
}

/// The percentage with this number of nines.
fn percent(nines: usize) -> String {
    match nines {
        0 => "0 %".to_owned(),
        1 => "90 %".to_owned(),
        2 => "99 %".to_owned(),
        more => format!("99.{} %", "9".repeat(more - 2)),
    }
}

/// The chart of one measure. `outage`: whether there is an outage to recover from. If only some of the runs recover,
/// each run has a mark instead of an interval, since the mean describes no run.
///
/// # Errors
/// A layout that cannot be made.
pub(super) fn chart(
    title: &str,
    measure: &Measure,
    rows: &[(usize, &str, Vec<&Metrics>)],
    outage: bool,
) -> Result<Chart, DrawError> {
    let estimates: Vec<Option<Estimate>> = rows
        .iter()
        .map(|(_, _, runs)| measure.estimate(runs))
        .collect();
    let intervals: Vec<Option<(f64, f64)>> = rows
        .iter()
        .map(|(_, _, runs)| measure.interval(runs, outage))
        .collect();
    let means = estimates.iter().flatten().map(|estimate| estimate.mean);
    let upper = intervals.iter().flatten().map(|(_, high)| *high);
    let single = rows.iter().flat_map(|(_, _, runs)| {
        let all = measure.recovers_in_some(runs, outage);
        all.then(|| measure.values(runs)).into_iter().flatten()
    });
    let highest = means.chain(upper).chain(single).fold(0.0, f64::max);
    let scale = Scale::of(measure, rows, highest);
    let pixels = f64::from(WIDTH as i32 - NAMES_PIXELS - NUMBERS_PIXELS);
    let ticks = scale.ticks(pixels);
    let below = ROW_PIXELS * rows.len() as u32 + EDGE_PIXELS;
    let size = (
        WIDTH,
        below
            + if ticks.is_empty() {
                EDGE_PIXELS
            } else {
                AXIS_PIXELS
            },
    );
    let at =
        |place: f64| NAMES_PIXELS * FINE + (place / scale.end * pixels * f64::from(FINE)) as i32;
    let x = |value: f64| at(scale.place(value));
    let body = super::canvas::draw(size, |area| {
        for (place, label) in &ticks {
            let (top, end) = (EDGE_PIXELS as i32 * FINE, below as i32 * FINE);
            area.draw(&PathElement::new(
                [(at(*place), top), (at(*place), end)],
                line(Swatch::Grid),
            ))?;
            let words = style(Swatch::Muted, SMALL, HPos::Center, VPos::Top);
            area.draw(&Text::new(
                label.clone(),
                (at(*place), end + 3 * FINE),
                words,
            ))?;
        }
        for (index, ((number, name, runs), estimate)) in rows.iter().zip(&estimates).enumerate() {
            let top = (EDGE_PIXELS as i32 + ROW_PIXELS as i32 * index as i32) * FINE;
            let (high, low) = (top + 4 * FINE, top + (ROW_PIXELS as i32 - 4) * FINE);
            let middle = i32::midpoint(high, low);
            let label = style(Swatch::Text, SMALL, HPos::Right, VPos::Center);
            area.draw(&Text::new(
                short(name),
                ((NAMES_PIXELS - 8) * FINE, middle),
                label,
            ))?;
            let mut end = x(0.0);
            if let Some(estimate) = estimate {
                let bar = [(x(0.0), high), (x(estimate.mean), low)];
                let fill = Swatch::Policy(*number).color().filled();
                area.draw(&Rectangle::new(bar, fill))?;
                let interval = intervals.get(index).copied().flatten();
                let (low, high) = interval.unwrap_or((estimate.mean, estimate.mean));
                let (from, to) = (x(low), x(high));
                end = x(estimate.mean).max(to);
                if measure.recovers_in_some(runs, outage) {
                    for value in measure.values(runs) {
                        let mark = (x(value), middle);
                        area.draw(&Circle::new(mark, 3 * FINE, line(Swatch::Text)))?;
                        end = end.max(x(value));
                    }
                }
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
            let words = words(measure, runs, outage);
            area.draw(&Text::new(words, (end + 8 * FINE, middle), label))?;
        }
        Ok(())
    })?;
    let cells = rows
        .iter()
        .map(|(_, name, runs)| [(*name).to_owned(), words(measure, runs, outage)]);
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

fn words(measure: &Measure, runs: &[&Metrics], outage: bool) -> String {
    match measure.cell(runs, outage).as_str() {
        "-" => "no success".to_owned(),
        cell => cell.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::run;
    use crate::scenario::Scenario;
    use relent_core::Policy;

    #[test]
    fn goodputs_near_one_are_distinguishable_on_an_axis_of_nines() {
        let scenario = Scenario::parse("clients.arrivals.herd = { clients = 3 }").unwrap();
        let metrics = run(&scenario, Policy::STANDARD, 1).unwrap();
        let [goodput, amplification, ..] = &crate::measure::ALL;
        let of = |goodput: f64| Metrics {
            goodput,
            requests: 100_000,
            ..metrics.clone()
        };
        let runs = [of(0.99), of(0.999), of(1.0)];
        let rows: Vec<_> = runs.iter().map(|run| (0, "one", vec![run])).collect();
        let scale = Scale::of(goodput, &rows, 1.0);
        let [low, middle, high] = [0.99, 0.999, 1.0].map(|value| scale.place(value) / scale.end);
        assert!(
            middle - low > 0.2 && high - middle > 0.2,
            "{low} {middle} {high}"
        );
        assert_eq!(scale.place(0.0), 0.0);
        let labels: Vec<String> = scale
            .ticks(218.0)
            .into_iter()
            .map(|(_, label)| label)
            .collect();
        assert_eq!(labels, ["0 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
        let scale = Scale::of(amplification, &rows, 3.0);
        assert_eq!((scale.place(2.5), scale.end), (2.5, 3.0));
        assert!(scale.ticks(218.0).is_empty());
    }

    #[test]
    fn if_only_some_runs_recover_each_run_has_a_mark_and_no_interval() {
        let scenario = Scenario::parse(
            "clients.arrivals.poisson = { rate = 40, for = \"40s\" }
             outages = [{ at = \"5s\", for = \"2s\", effect = \"blackout\" }]",
        )
        .unwrap();
        let well = run(&scenario, Policy::STANDARD, 1).unwrap();
        let worse = Metrics {
            goodput: 0.5,
            ..well.clone()
        };
        let never = Metrics {
            ttr_s: None,
            ..worse.clone()
        };
        let body = |runs: Vec<&Metrics>| {
            let chart = chart("", &crate::measure::ALL[0], &[(0, "one", runs)], true);
            chart.unwrap().body
        };
        // The text colour draws intervals and marks.
        let lines = |body: &str| body.matches("class=\"s0\"").count();
        let marks = |body: &str| body.matches("a30 30 0 1 0 60 0").count();
        let (alike, two) = (body(vec![&well, &worse]), body(vec![&well, &never, &well]));
        assert!(lines(&alike) > 0 && marks(&alike) == 0, "{alike}");
        assert!(marks(&two) == 3, "{two}");
    }
}
