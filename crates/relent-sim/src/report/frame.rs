//! Axes: the ticks of a chart, and their labels.

use std::ops::Range;

use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontDesc, ShapeStyle, TextStyle};
use plotters_backend::BackendColor;

use super::canvas::{Area, Canvas, DrawError, FINE};
use super::palette::Swatch;

/// The sizes of texts, in our pixels.
pub(super) const SMALL: i32 = 12;
pub(super) const TITLE: i32 = 14;
/// The space for the labels at the left and below.
const LEFT: i32 = 60;
const BELOW: i32 = 24;
/// The space above, for words about the whole chart.
const ABOVE: i32 = 26;
const RIGHT: i32 = 28;

/// A chart with its axes drawn.
pub(super) type Plot<'a, 'b> = ChartContext<'a, Canvas<'b>, Cartesian2d<Axis, Axis>>;

/// An axis.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) range: Range<f64>,
    pub(super) ticks: Vec<(f64, String)>,
}

impl Axis {
    /// From 0 to `end`, with about this many ticks at round numbers.
    pub(super) fn from_zero(end: f64, about: u32, label: impl Fn(f64) -> String) -> Self {
        let step = round_step(end / f64::from(about.max(1)));
        let ticks = (0..=about * 3)
            .map(|tick| f64::from(tick) * step)
            .take_while(|value| *value <= end * 1.0001)
            .map(|value| (value, label(value)));
        Self {
            range: 0.0..end,
            ticks: ticks.collect(),
        }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        from + libm::round(share * f64::from(to - from)) as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match hint.weight().allow_light_points() {
            true => Vec::new(),
            false => self.ticks.iter().map(|(value, _)| *value).collect(),
        }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        let tick = self.ticks.iter().find(|(tick, _)| tick == value);
        tick.map_or_else(String::new, |(_, label)| label.clone())
    }
}

/// The position of a share on a scale where each factor of ten of the rest takes the same space, so that differences
/// near 1 are visible: 1 for 90 %, 2 for 99 %.
pub(super) fn nines(share: f64) -> f64 {
    -libm::log10(1.0 - share)
}

/// The least of 1, 2 and 5 times a power of ten that is not below `least`.
pub(super) fn round_step(least: f64) -> f64 {
    if !(least > 0.0 && least.is_finite()) {
        return 1.0;
    }
    let power = libm::pow(10.0, libm::floor(libm::log10(least)));
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= least * 0.999_999)
        .unwrap_or(10.0 * power)
}

/// A number with thousands separators and no more decimal places than it needs.
pub(super) fn number(value: f64) -> String {
    let places = match value.abs() {
        size if size >= 100.0 || size.fract() == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 => 2,
        _ => 4,
    };
    let text = format!("{value:.places$}");
    let (whole, part) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) && digit.is_ascii_digit() {
            // A thin space that does not break.
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    let part = part.trim_end_matches('0').trim_end_matches('.');
    grouped + part
}

/// The most readable unit for an axis of this length: its nanoseconds and its name.
pub(super) const fn unit(span: u64) -> (f64, &'static str) {
    match span {
        0..2_000_000_000 => (1e6, "ms"),
        2_000_000_000..1_200_000_000_000 => (1e9, "s"),
        1_200_000_000_000..10_800_000_000_000 => (60e9, "min"),
        _ => (3600e9, "h"),
    }
}

/// A time in its most readable unit.
pub(super) fn time(nanos: u64) -> String {
    // A second is shown as a second, while an axis of one second is better divided into milliseconds.
    let (size, name) = unit(nanos.saturating_mul(2));
    format!("{} {name}", number(nanos as f64 / size))
}

/// A text style.
pub(super) fn style(swatch: Swatch, size: i32, h_pos: HPos, v_pos: VPos) -> TextStyle<'static> {
    let font = FontDesc::from(("sans-serif", size * FINE));
    let mut style = TextStyle::from(font).pos(Pos::new(h_pos, v_pos));
    style.color = BackendColor {
        alpha: 1.0,
        rgb: swatch.color().rgb(),
    };
    style
}

/// A line of this swatch.
pub(super) fn line(swatch: Swatch) -> ShapeStyle {
    swatch.color().stroke_width(1)
}

/// Draws the axes of a chart, with words above its left and its right end.
pub(super) fn frame<'a, 'b>(
    area: &'a Area<'b>,
    x: &Axis,
    y: &Axis,
    above: (&str, &str),
) -> Result<Plot<'a, 'b>, DrawError> {
    let mut plot = ChartBuilder::on(area)
        .margin_top(ABOVE * FINE)
        .margin_right(RIGHT * FINE)
        .y_label_area_size(LEFT * FINE)
        .x_label_area_size(BELOW * FINE)
        .build_cartesian_2d(x.clone(), y.clone())?;
    plot.configure_mesh()
        .light_line_style(line(Swatch::Grid))
        .bold_line_style(line(Swatch::Grid))
        .axis_style(line(Swatch::Muted))
        .label_style(style(Swatch::Muted, SMALL, HPos::Left, VPos::Top))
        .set_all_tick_mark_size(3 * FINE)
        .draw()?;
    let (width, _) = area.dim_in_pixel();
    let (left, right) = above;
    let middle = 9 * FINE;
    let words = |h_pos| style(Swatch::Muted, SMALL, h_pos, VPos::Center);
    area.draw_text(left, &words(HPos::Left), (FINE, middle))?;
    let end = width as i32 - RIGHT * FINE;
    area.draw_text(right, &words(HPos::Right), (end, middle))?;
    Ok(plot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_end_with_the_axis() {
        let ticks = |end| {
            let axis = Axis::from_zero(end, 5, number);
            axis.ticks.into_iter().map(|(_, label)| label).collect()
        };
        let all: Vec<String> = ticks(600.0);
        assert_eq!(all, ["0", "200", "400", "600"]);
        let all: Vec<String> = ticks(1.0);
        assert_eq!(all, ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(round_step(0.0), 1.0);
        assert_eq!(round_step(f64::NAN), 1.0);
        assert_eq!((round_step(0.03), round_step(7.0)), (0.05, 10.0));
    }

    #[test]
    fn numbers_and_times_have_suitable_decimal_places_and_units() {
        for (value, text) in [
            (1_234_567.0, "1\u{202f}234\u{202f}567"),
            (12.34, "12.3"),
            (2.50, "2.5"),
            (0.0, "0"),
            (100.0, "100"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(time(1_500_000), "1.5 ms");
        assert_eq!(time(63_485_000_000), "63.5 s");
        assert_eq!(time(1_000_000_000), "1 s");
        assert_eq!(time(3_600_000_000_000), "60 min");
        assert_eq!(time(7_200_000_000_000), "2 h");
    }
}
