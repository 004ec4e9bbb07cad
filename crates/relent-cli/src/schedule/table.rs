//! The schedule as a table with a bar for each delay.

use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::time::Duration;

use terminal_size::{Width, terminal_size_of};

use super::row::Row;
use crate::console::counted;
use crate::human::tabular;

/// The capabilities of the output that the table is printed to.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableStyle {
    /// The width in columns.
    pub(super) width: usize,
    /// Whether characters beyond ASCII can be shown.
    pub(super) unicode: bool,
}

/// The width in columns if the output is no terminal.
const DEFAULT_WIDTH: usize = 80;
/// The length of the longest bar in columns; longer bars are not easier to compare.
const MAX_BAR_WIDTH: usize = 60;

impl TableStyle {
    /// The capabilities of standard output, by its terminal and the locale.
    pub(super) fn of_terminal() -> Self {
        let stdout = io::stdout();
        let width =
            terminal_size_of(&stdout).map_or(DEFAULT_WIDTH, |(Width(width), _)| width.into());
        let dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
        Self {
            width,
            unicode: locale_is_utf8() && !(dumb && stdout.is_terminal()),
        }
    }
}

/// Whether the locale uses UTF-8; the first of these variables that is not empty decides.
fn locale_is_utf8() -> bool {
    ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .filter_map(std::env::var_os)
        .find(|locale| !locale.is_empty())
        .is_some_and(|locale| {
            let locale = locale.to_string_lossy().to_ascii_lowercase();
            locale.contains("utf-8") || locale.contains("utf8")
        })
}

/// Formats the title, the table and the sum; every line ends with a newline.
pub(super) fn table(title: &str, rows: &[Row], look: TableStyle) -> String {
    let mut text = format!("{title}\n");
    let Some(last) = rows.last() else {
        text.push_str("no retries\n");
        return text;
    };
    let cells: Vec<[String; 5]> = rows
        .iter()
        .map(|row| {
            [
                row.retry.to_string(),
                tabular(row.delay),
                tabular(row.min),
                tabular(row.max),
                tabular(row.total),
            ]
        })
        .collect();
    let head = ["retry", "delay", "least", "most", "total"];
    let widths = std::array::from_fn::<usize, 5, _>(|column| {
        let longest = cells.iter().map(|row| row[column].len()).max();
        longest.unwrap_or(0).max(head[column].len())
    });
    let used: usize = widths.iter().map(|width| width + 2).sum();
    let bar_width = look.width.saturating_sub(used + 1).min(MAX_BAR_WIDTH);
    let longest = rows.iter().map(|row| row.max).max().unwrap_or_default();

    text.push('\n');
    push_cells(&mut text, &head.map(str::to_owned), &widths);
    text.push('\n');
    for (row, cells) in rows.iter().zip(&cells) {
        push_cells(&mut text, cells, &widths);
        let bar = bar(row, longest, bar_width, look.unicode);
        if !bar.is_empty() {
            let _ = write!(text, "  {bar}");
        }
        text.push('\n');
    }
    let _ = writeln!(
        text,
        "\n{}, {} of waiting",
        counted(rows.len() as u64 + 1, "attempt"),
        tabular(last.total)
    );
    text
}

fn push_cells(text: &mut String, cells: &[String; 5], widths: &[usize; 5]) {
    for (index, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let gap = if index == 0 { "" } else { "  " };
        let _ = write!(text, "{gap}{cell:>width$}");
    }
}

/// A bar for the delay, followed by its possible range.
fn bar(row: &Row, longest: Duration, width: usize, unicode: bool) -> String {
    let (full, rest, hair) = if unicode {
        ("█", "░", "▏")
    } else {
        ("#", ".", "|")
    };
    let cells = |duration: Duration| {
        let share = if longest.is_zero() {
            0.0
        } else {
            duration.as_secs_f64() / longest.as_secs_f64()
        };
        (share * width as f64).round() as usize
    };
    let (delay, most) = (cells(row.delay).min(width), cells(row.max).min(width));
    let bar = full.repeat(delay) + &rest.repeat(most.saturating_sub(delay));
    if bar.is_empty() && !row.max.is_zero() && width > 0 {
        // The delay is too short for the scale, but not zero.
        return hair.to_owned();
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(retry: u32, delay: u64, max: u64, total: u64) -> Row {
        Row {
            retry,
            delay: Duration::from_millis(delay),
            min: Duration::ZERO,
            max: Duration::from_millis(max),
            total: Duration::from_millis(total),
        }
    }

    const ASCII: TableStyle = TableStyle {
        width: 60,
        unicode: false,
    };

    #[test]
    fn a_bar_shows_the_delay_and_its_range() {
        let rows = [row(1, 500, 1000, 500), row(2, 1000, 2000, 1500)];
        let expected = "\
title

retry  delay  least  most  total
    1  500ms     0s    1s  500ms  ######.......
    2     1s     0s    2s   1.5s  #############............

3 attempts, 1.5s of waiting
";
        assert_eq!(table("title", &rows, ASCII), expected);
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_as_long_as_the_numbers_fit() {
        let rows = [row(1, 500, 1000, 500), row(2, 2000, 2000, 2500)];
        for width in [0, 1, 34, 40, 80, 1000] {
            let text = table(
                "",
                &rows,
                TableStyle {
                    width,
                    unicode: true,
                },
            );
            for line in text.lines() {
                let columns = line.chars().count();
                assert!(
                    columns <= width.max(32) && columns <= 32 + 2 + MAX_BAR_WIDTH,
                    "{width}: {line}"
                );
            }
        }
    }

    #[test]
    fn a_delay_too_short_for_the_scale_is_shown_differently_from_zero() {
        let text = table("", &[row(1, 1, 1, 1), row(2, 9000, 9000, 9001)], ASCII);
        assert!(text.contains("    1ms  |\n"), "{text}");
    }

    #[test]
    fn zero_delays_have_no_bar() {
        let text = table("", &[row(1, 0, 0, 0)], ASCII);
        assert!(
            text.contains("    1     0s     0s    0s     0s\n"),
            "{text}"
        );
    }
}
