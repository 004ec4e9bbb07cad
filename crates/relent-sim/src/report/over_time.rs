//! Requests, attempts and successes over time, a panel for each policy.

use plotters::element::{PathElement, Rectangle, Text};
use plotters::style::Color;
use plotters::style::text_anchor::{HPos, VPos};

use super::canvas::{Area, DrawError};
use super::chart::{Chart, Size, Table};
use super::frame::{Axis, SMALL, frame, line, number, round_step, style, time, unit};
use super::palette::Swatch;
use crate::recording::Recording;
use crate::scenario::{Arrivals, Effect, Model, SECOND, Scenario};
use crate::series::{Bin, Series};

/// The size of a panel.
pub(super) const PANEL: Size = (480, 230);
/// The number of bins of a panel, about.
const BINS: u64 = 240;
/// Fewer bins for a herd: it is soon over, and a rate from a few attempts in a millisecond says little.
const HERD_BINS: u64 = 60;
/// This share of the events is shown; the rest is a tail that would squeeze it, unless it is short.
const SHOWN_ATTEMPTS_SHARE: f64 = 0.998;
const SHORT_TAIL_FACTOR: f64 = 1.1;
/// An axis extends to this multiple of the capacity or the request rate. Higher values are cut off; otherwise a
/// policy that does not recover would flatten all others.
const AXIS_CUT_FACTOR: f64 = 3.0;

/// The scale that the panels of a scenario share, so that they can be compared.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    /// The width of a bin in nanoseconds.
    width: u64,
    /// Bins that are shown.
    bins: usize,
    /// The most events per second that are shown.
    top: f64,
    /// The limit per second, and whether the capacity or the limiter sets it.
    limit_line: Option<(f64, &'static str)>,
}

impl Scale {
    pub(super) fn of(scenario: &Scenario, recordings: &[&Recording]) -> Self {
        let shown = recordings
            .iter()
            .map(|recording| shown_until(&recording.series));
        let end = shown
            .max()
            .unwrap_or(0)
            .max(scenario.arrivals_end())
            .max(scenario.outages_end().unwrap_or(0))
            .max(1_000_000);
        let most_bins = if is_herd(scenario) { HERD_BINS } else { BINS };
        let width = bin_width(end / most_bins, recordings);
        let bins = end.div_ceil(width) as usize;
        let limit_line = limit_line(scenario);
        let (mut most, mut later) = (0.0_f64, 0.0_f64);
        let mut requests = Vec::new();
        for recording in recordings {
            let merged = recording.series.with_width(width);
            for bin in merged.bins.iter().take(bins) {
                let highest = bin.requests.max(bin.attempts).max(bin.successes);
                most = most.max(per_second(highest, width));
                if bin.requests == 0 {
                    later = later.max(per_second(highest, width));
                }
                requests.push(per_second(bin.requests, width));
            }
        }
        let limit = limit_line.map_or(0.0, |(limit, _)| limit);
        // A herd makes its requests once: later rates would look flat beside it.
        let cut = match is_herd(scenario) {
            true => (AXIS_CUT_FACTOR * limit).max(1.1 * later),
            false => AXIS_CUT_FACTOR * limit.max(p90(requests)),
        };
        let cut = if cut > 0.0 { cut } else { most };
        // Slightly higher values are not cut off.
        let top = if most > 1.5 * cut { cut } else { most }.max(1.15 * limit);
        let step = round_step(top / 10.0);
        Self {
            width,
            bins,
            top: (top / step).ceil().max(1.0) * step,
            limit_line,
        }
    }

    /// The name of the line that attempts should stay below, if there is one.
    pub(super) fn limit_line_name(&self) -> Option<&'static str> {
        self.limit_line.map(|(_, what)| what)
    }

    /// The bins that are shown, including empty ones at the end.
    fn bins(&self, series: &Series) -> Vec<Bin> {
        let mut bins = series.with_width(self.width).bins;
        bins.resize(self.bins, Bin::default());
        bins
    }

    const fn end(&self) -> u64 {
        self.width * self.bins as u64
    }
}

/// The time until which all but a small share of the attempts start.
fn shown_until(series: &Series) -> u64 {
    let total: u64 = series.bins.iter().map(|bin| bin.attempts).sum();
    let enough = (total as f64 * SHOWN_ATTEMPTS_SHARE).ceil() as u64;
    let mut seen = 0;
    let last = series.bins.iter().position(|bin| {
        seen += bin.attempts;
        seen >= enough
    });
    let most = last.map_or(0, |bin| (bin as u64 + 1) * series.width);
    let all = series.bins.len() as u64 * series.width;
    match all as f64 <= most as f64 * SHORT_TAIL_FACTOR {
        true => all,
        false => most,
    }
}

/// The least width from `least` on that is 1, 2 or 5 times a power of ten and a multiple of the width of every
/// series.
fn bin_width(least: u64, recordings: &[&Recording]) -> u64 {
    let fits = |width: &u64| {
        recordings
            .iter()
            .all(|recording| width.is_multiple_of(recording.series.width))
    };
    (6..19)
        .flat_map(|power| [1, 2, 5].map(|factor| factor * 10_u64.pow(power)))
        .find(|width| *width >= least && fits(width))
        .unwrap_or(u64::MAX / 2)
}

const fn is_herd(scenario: &Scenario) -> bool {
    matches!(scenario.clients.arrivals, Arrivals::Herd { .. })
}

fn limit_line(scenario: &Scenario) -> Option<(f64, &'static str)> {
    match (&scenario.service.limiter, scenario.service.model) {
        (Some(limiter), _) => Some((limiter.rate, "limit")),
        (None, Model::Queue) => Some((scenario.capacity(), "capacity")),
        (None, _) => None,
    }
}

fn per_second(count: u64, width: u64) -> f64 {
    count as f64 * SECOND as f64 / width as f64
}

/// The 90th percentile.
fn p90(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() * 9 / 10).copied().unwrap_or(0.0)
}

const fn name(effect: Effect) -> &'static str {
    match effect {
        Effect::Blackout => "blackout",
        Effect::Stall => "stall",
        Effect::Brownout(_) => "brownout",
        Effect::Restart => "restart",
        Effect::Failures(_) => "failures",
        Effect::Loss(_) => "loss",
        Effect::FastFailures(_) => "fast failures",
    }
}

/// The swatches of the lines and what they show, in the order of drawing.
pub(super) const LINES: [(Swatch, &str); 3] = [
    (Swatch::Requests, "requests"),
    (Swatch::Attempts, "attempts"),
    (Swatch::Successes, "successes"),
];

fn count(bin: &Bin, swatch: Swatch) -> u64 {
    match swatch {
        Swatch::Requests => bin.requests,
        Swatch::Attempts => bin.attempts,
        _ => bin.successes,
    }
}

/// Draws the panel of one policy.
pub(super) fn draw(
    area: &Area<'_>,
    scenario: &Scenario,
    recording: &Recording,
    scale: &Scale,
) -> Result<(), DrawError> {
    let (size, unit) = unit(scale.end());
    let x = Axis::from_zero(scale.end() as f64 / size, 6, |value| {
        format!("{} {unit}", number(value))
    });
    let y = Axis::from_zero(scale.top, 5, number);
    let bins = scale.bins(&recording.series);
    let highest = |swatch| {
        let rates = bins
            .iter()
            .map(|bin| per_second(count(bin, swatch), scale.width));
        rates.fold(0.0, f64::max)
    };
    let most = highest(Swatch::Attempts).max(highest(Swatch::Requests));
    let cut = match most > scale.top {
        true => format!("cut off: up to {}", number(most)),
        false => String::new(),
    };
    let mut plot = frame(area, &x, &y, ("per second", &cut))?;

    for span in scenario.spans() {
        let from = span.at as f64 / size;
        let to = (span.end.min(scale.end())) as f64 / size;
        let corners = [(from, scale.top), (to, 0.0)];
        plot.draw_series([Rectangle::new(corners, Swatch::Outage.color().filled())])?;
    }
    // Each bin is drawn at its middle, the first also where it begins.
    let middle = |bin: usize| (bin as f64 + 0.5) * scale.width as f64 / size;
    let points = |swatch| -> Vec<(f64, f64)> {
        let rate = |bin| per_second(count(bin, swatch), scale.width).min(scale.top);
        let first = bins.first().map(|bin| (0.0, rate(bin)));
        let all = bins.iter().enumerate();
        let all = all.map(|(index, bin)| (middle(index), rate(bin)));
        first.into_iter().chain(all).collect()
    };
    let served = points(Swatch::Successes);
    if let (Some(first), Some(last)) = (served.first(), served.last()) {
        let mut outline = served.clone();
        outline.extend([(last.0, 0.0), (first.0, 0.0)]);
        let shape = plotters::element::Polygon::new(outline, Swatch::Served.color().filled());
        plot.draw_series([shape])?;
    }
    for (swatch, _) in LINES {
        plot.draw_series([PathElement::new(points(swatch), line(swatch))])?;
    }
    let end = x.range.end;
    if let Some((limit, what)) = scale.limit_line {
        // A brownout leaves a part of the capacity; a limiter is not affected.
        let mut points = vec![(0.0, limit)];
        let mut spans: Vec<_> = scenario.spans().collect();
        spans.sort_by_key(|span| span.at);
        for span in spans {
            let outage = &scenario.outages[span.outage];
            if let (Effect::Brownout(share), None, true) =
                (outage.effect, &scenario.service.limiter, outage.is_total())
            {
                let (from, to) = (span.at as f64 / size, span.end as f64 / size);
                let left = limit * share;
                points.extend([(from, limit), (from, left), (to, left), (to, limit)]);
            }
        }
        points.push((end, limit));
        plot.draw_series([PathElement::new(points, line(Swatch::Capacity))])?;
        let words = style(Swatch::Text, SMALL, HPos::Right, VPos::Bottom);
        let words = Text::new(format!("{what} {}", number(limit)), (end, limit), words);
        plot.draw_series([words])?;
    }
    for outage in &scenario.outages {
        let words = style(Swatch::Text, SMALL, HPos::Left, VPos::Top);
        let place = (
            (outage.at as f64 + scale.end() as f64 * 0.006) / size,
            scale.top * 0.98,
        );
        plot.draw_series([Text::new(name(outage.effect), place, words)])?;
    }
    Ok(())
}

/// The panel of one policy, with its words and its numbers.
///
/// # Errors
/// Those of [`draw`].
pub(super) fn chart(
    policy: &str,
    scenario: &Scenario,
    recording: &Recording,
    scale: &Scale,
) -> Result<Chart, DrawError> {
    let body = super::canvas::draw(PANEL, |area| draw(area, scenario, recording, scale))?;
    let bins = scale.bins(&recording.series);
    let rows = bins.iter().enumerate().map(|(index, bin)| {
        let start = time(index as u64 * scale.width);
        let rate = |(swatch, _)| number(per_second(count(bin, swatch), scale.width));
        std::iter::once(start).chain(LINES.map(rate)).collect()
    });
    let table = Table {
        heads: ["from", "requests/s", "attempts/s", "successes/s"]
            .map(str::to_owned)
            .to_vec(),
        rows: rows.collect(),
    };
    Ok(Chart {
        title: policy.to_owned(),
        description: describe(policy, scenario, &bins, scale, recording),
        size: PANEL,
        body,
        table,
    })
}

/// A text description of the panel.
fn describe(
    policy: &str,
    scenario: &Scenario,
    bins: &[Bin],
    scale: &Scale,
    recording: &Recording,
) -> String {
    let busiest = bins.iter().enumerate().max_by_key(|(_, bin)| bin.attempts);
    let (index, most) = busiest.map_or((0, 0), |(index, bin)| (index, bin.attempts));
    let mut words = format!(
        "With {policy}, {} requests make {} attempts, and {} succeed. Attempts are most frequent at \
         {}: {} per second",
        number(recording.metrics.requests as f64),
        number(recording.metrics.attempts as f64),
        number(recording.metrics.successes as f64),
        time(index as u64 * scale.width),
        number(per_second(most, scale.width)),
    );
    match scale.limit_line {
        Some((limit, what)) => words += &format!(", where the {what} is {}.", number(limit)),
        None => words.push('.'),
    }
    for outage in &scenario.outages {
        let end = outage.at.saturating_add(outage.lasts);
        let range = (outage.at / scale.width) as usize..end.div_ceil(scale.width) as usize;
        let during = bins.get(range.start.min(bins.len())..range.end.min(bins.len()));
        let during = during.unwrap_or_default();
        let sum = |swatch| during.iter().map(|bin| count(bin, swatch)).sum::<u64>();
        let span = (during.len() as u64).max(1) * scale.width;
        let again = match outage.times {
            1 => String::new(),
            times => format!(", the first of {times},"),
        };
        words += &format!(
            " In the {} from {} to {}{again} there are {} attempts and {} successes per second on average.",
            name(outage.effect),
            time(outage.at),
            time(end),
            number(per_second(sum(Swatch::Attempts), span)),
            number(per_second(sum(Swatch::Successes), span)),
        );
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of the cost 1 and 5, in equal numbers, cost 3 on average.
    #[test]
    fn the_capacity_line_counts_requests_of_the_mean_cost() {
        let scenario = Scenario::parse(
            "clients.arrivals.herd = { clients = 3 }
             clients.classes = [{ name = \"a\", share = 1 }, { name = \"b\", share = 1, cost = 5 }]
             service.capacity = 300",
        )
        .unwrap();
        assert_eq!(limit_line(&scenario), Some((100.0, "capacity")));
    }
}
