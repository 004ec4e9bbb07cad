//! The colours of charts by meaning, in a light and in a dark form.

use std::fmt::Write;

use plotters::style::RGBColor;

/// A colour with its stroke; the style sheet around the chart defines it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Swatch {
    Text,
    /// Labels of axes.
    Muted,
    Grid,
    Outage,
    Capacity,
    Requests,
    Attempts,
    Successes,
    /// The area below the successes.
    Served,
    /// An attempt of one client.
    Mark,
    /// The success of one client.
    Done,
    /// Elements of one policy among several.
    Policy(usize),
}

/// The background behind every colour: light, dark.
pub(super) const BACKGROUND: [&str; 2] = ["#ffffff", "#15181d"];

/// Colours that people with colour-blindness can distinguish (after Okabe and Ito, 2008), with enough contrast to
/// their [`BACKGROUND`].
const POLICIES: [[&str; 2]; 8] = [
    ["#0b62b0", "#66b5ff"],
    ["#b34700", "#ff9d5c"],
    ["#00745a", "#43d3a7"],
    ["#96387f", "#ee93d4"],
    ["#7a6000", "#e3c34d"],
    ["#4d4fb8", "#a9abff"],
    ["#0a7485", "#59d3e6"],
    ["#57606a", "#b6bec8"],
];
/// Dashes distinguish lines of equal colour, and the first policies even without colour; in tenths of a pixel.
const DASHES: [&str; 8] = [
    "",
    "70 30",
    "20 30",
    "100 30 20 30",
    "160 40",
    "20 80",
    "100 30 20 30 20 30",
    "60 30 60 30 20 30",
];
/// The number of distinguishable lines: every colour with every dash.
const LINES: usize = POLICIES.len() * DASHES.len();
/// The number of swatches that are not of policies.
const FIXED: usize = 11;

impl Swatch {
    /// The number of the swatch in the style sheet.
    const fn number(self) -> usize {
        match self {
            Self::Text => 0,
            Self::Muted => 1,
            Self::Grid => 2,
            Self::Outage => 3,
            Self::Capacity => 4,
            Self::Requests => 5,
            Self::Attempts => 6,
            Self::Successes => 7,
            Self::Served => 8,
            Self::Mark => 9,
            Self::Done => 10,
            Self::Policy(number) => FIXED + number % LINES,
        }
    }

    /// A placeholder colour that passes through plotters: its red is the number.
    pub(super) const fn color(self) -> RGBColor {
        RGBColor(self.number() as u8, 0, 0)
    }

    /// The class of lines in this swatch.
    pub(super) fn line_class(self) -> String {
        format!("s{}", self.number())
    }

    /// The light and the dark colour.
    const fn colors(self) -> [&'static str; 2] {
        match self {
            Self::Text => ["#1c2128", "#e8ebef"],
            Self::Muted => ["#57606a", "#aab2bd"],
            Self::Grid => ["#e3e6ea", "#2b3139"],
            Self::Outage => ["#f6dcd6", "#4a2a24"],
            Self::Capacity => ["#1c2128", "#e8ebef"],
            Self::Requests => ["#57606a", "#aab2bd"],
            Self::Attempts | Self::Mark => ["#c24e00", "#e07b2e"],
            Self::Successes | Self::Done => ["#083d77", "#b3daff"],
            Self::Served => ["#d7e8f8", "#173350"],
            Self::Policy(number) => POLICIES[number % POLICIES.len()],
        }
    }

    /// The width of lines in tenths of a pixel, and their dashes.
    const fn stroke(self) -> (u32, &'static str) {
        match self {
            Self::Capacity => (12, "60 40"),
            Self::Requests => (14, "15 25"),
            Self::Attempts => (18, "90 25"),
            Self::Successes => (18, ""),
            Self::Mark => (24, ""),
            Self::Done => (44, ""),
            Self::Policy(number) => (
                22,
                DASHES[(number + number / POLICIES.len()) % DASHES.len()],
            ),
            Self::Text | Self::Muted | Self::Grid | Self::Outage | Self::Served => (10, ""),
        }
    }
}

/// The swatches that are not of policies: those of a single picture.
const FIXED_SWATCHES: [Swatch; FIXED] = [
    Swatch::Text,
    Swatch::Muted,
    Swatch::Grid,
    Swatch::Outage,
    Swatch::Capacity,
    Swatch::Requests,
    Swatch::Attempts,
    Swatch::Successes,
    Swatch::Served,
    Swatch::Mark,
    Swatch::Done,
];

fn all() -> impl Iterator<Item = Swatch> {
    FIXED_SWATCHES
        .into_iter()
        .chain((0..LINES).map(Swatch::Policy))
}

/// The rules for everything but colours.
fn shapes(swatches: impl Iterator<Item = Swatch>) -> String {
    let mut css = "path{fill:none;stroke-linejoin:round}\
                   text{paint-order:stroke;stroke-width:30;stroke-linejoin:round}"
        .to_owned();
    for swatch in swatches {
        let (width, dashes) = swatch.stroke();
        let _ = write!(css, ".s{}{{stroke-width:{width}", swatch.number());
        if !dashes.is_empty() {
            let _ = write!(css, ";stroke-dasharray:{dashes}");
        }
        css.push('}');
    }
    css
}

/// The rules for colours, where `color` returns the value for a swatch. Texts have an outline that separates them
/// from lines.
fn colors(
    swatches: impl Iterator<Item = Swatch>,
    background: &str,
    color: impl Fn(Swatch) -> String,
) -> String {
    let mut css = format!(".paper{{fill:{background}}}text{{stroke:{background}}}");
    for swatch in swatches {
        let (number, color) = (swatch.number(), color(swatch));
        let _ = write!(
            css,
            ".s{number}{{stroke:{color}}}.f{number}{{fill:{color}}}"
        );
    }
    css
}

/// The style sheet of a stand-alone picture: light, or dark if its viewer passes on the reader's preference. It has
/// no variables, since some viewers do not support them.
pub(super) fn picture_css() -> String {
    let colors = |form: usize| {
        let color = |swatch: Swatch| swatch.colors()[form].to_owned();
        colors(FIXED_SWATCHES.into_iter(), BACKGROUND[form], color)
    };
    format!(
        "{}{}@media screen and (prefers-color-scheme:dark){{{}}}",
        shapes(FIXED_SWATCHES.into_iter()),
        colors(0),
        colors(1)
    )
}

/// The style sheet of charts in a page, which follow the reader's preference.
pub(super) fn page_css() -> String {
    let values = |form: usize| {
        let mut css = format!("--paper:{};", BACKGROUND[form]);
        for swatch in all() {
            let _ = write!(css, "--k{}:{};", swatch.number(), swatch.colors()[form]);
        }
        css
    };
    format!(
        ":root{{color-scheme:light dark;{}}}@media (prefers-color-scheme:dark){{:root{{{}}}}}\
         @media print{{:root{{color-scheme:light;{}}}}}{}{}",
        values(0),
        values(1),
        values(0),
        shapes(all()),
        colors(all(), "var(--paper)", |swatch| format!(
            "var(--k{})",
            swatch.number()
        ))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The relative luminance of WCAG 2.
    fn luminance(color: &str) -> f64 {
        let channel = |at: usize| {
            let value = u8::from_str_radix(&color[at..at + 2], 16).unwrap();
            let value = f64::from(value) / 255.0;
            match value <= 0.04045 {
                true => value / 12.92,
                false => ((value + 0.055) / 1.055).powf(2.4),
            }
        };
        0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
    }

    fn contrast(one: &str, other: &str) -> f64 {
        let (one, other) = (luminance(one), luminance(other));
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    #[test]
    fn lines_and_texts_have_enough_contrast_to_their_background() {
        for swatch in all() {
            if matches!(swatch, Swatch::Grid | Swatch::Outage | Swatch::Served) {
                continue;
            }
            for form in [0, 1] {
                let color = swatch.colors()[form];
                let on_background = contrast(color, BACKGROUND[form]);
                assert!(
                    on_background >= 4.5,
                    "{swatch:?} in form {form}: {on_background}"
                );
                for behind in [Swatch::Outage, Swatch::Served] {
                    let found = contrast(color, behind.colors()[form]);
                    assert!(
                        found >= 3.0,
                        "{swatch:?} on {behind:?} in form {form}: {found}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_swatch_has_its_own_number_in_the_style_sheet() {
        assert!(all().map(Swatch::number).eq(0..FIXED + LINES));
    }

    #[test]
    fn attempts_and_successes_are_distinguishable_without_colour() {
        assert_ne!(Swatch::Attempts.stroke(), Swatch::Successes.stroke());
        for form in [0, 1] {
            let [one, other] =
                [Swatch::Attempts, Swatch::Successes].map(|swatch| swatch.colors()[form]);
            let found = contrast(one, other);
            assert!(found >= 1.8, "form {form}: {found}");
        }
    }

    #[test]
    fn policies_look_different_and_the_first_eight_even_without_colour() {
        let looks: std::collections::HashSet<_> = (0..LINES)
            .map(|number| {
                (
                    Swatch::Policy(number).colors(),
                    Swatch::Policy(number).stroke(),
                )
            })
            .collect();
        assert_eq!(looks.len(), LINES);
        let dashes: std::collections::HashSet<_> = (0..POLICIES.len())
            .map(|number| Swatch::Policy(number).stroke())
            .collect();
        assert_eq!(dashes.len(), POLICIES.len());
    }
}
