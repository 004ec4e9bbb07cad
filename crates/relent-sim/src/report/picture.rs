//! A stand-alone picture of a scenario: SVG.

use plotters::element::PathElement;
use plotters::style::text_anchor::{HPos, VPos};

use super::bars::short;
use super::canvas::{Area, DrawError, FINE, escape};
use super::chart::Size;
use super::frame::{SMALL, TITLE, line, style};
use super::palette::{Swatch, picture_css};
use super::section::Section;
use super::{over_time, raster};
use crate::recording::Recording;

/// The space for the title and the legend, and between panels.
const HEAD: u32 = 64;
const GAP: u32 = 12;
/// The average width of a letter of the title.
const TITLE_LETTER: u32 = 7;
/// The space for the name above a panel.
const NAME: u32 = 24;

/// One panel: its name and its run; `None` if the run was given up.
struct Panel<'a> {
    name: String,
    run: Option<&'a Recording>,
    /// For a raster, the time that is shown.
    end: u64,
    row: u32,
    column: u32,
}

/// The picture as SVG.
///
/// # Errors
/// A layout that cannot be made.
pub(super) fn svg(section: &Section<'_>) -> Result<String, DrawError> {
    let herd = section.is_herd();
    let panels = panels(section, herd);
    let panel: Size = if herd { raster::SIZE } else { over_time::PANEL };
    let across = |panel: &Panel<'_>| panel.column + 1;
    let columns = panels.iter().map(across).max().unwrap_or(1);
    let rows = panels.iter().map(|panel| panel.row + 1).max().unwrap_or(1);
    let title = title(section);
    let words = (title.chars().count() as u32 * TITLE_LETTER).min(2 * panel.0);
    let size = (
        (columns * panel.0 + (columns + 1) * GAP).max(words + 2 * GAP),
        HEAD + rows * (panel.1 + NAME + GAP),
    );
    let recordings: Vec<&Recording> = panels.iter().filter_map(|panel| panel.run).collect();
    let scale = over_time::Scale::of(section.scenario, &recordings);
    let body = super::canvas::draw(size, |area| {
        head(area, section, &title, herd)?;
        for one in &panels {
            let left = (GAP + one.column * (panel.0 + GAP)) as i32 * FINE;
            let top = (HEAD + one.row * (panel.1 + NAME + GAP)) as i32 * FINE;
            let words = style(Swatch::Text, SMALL + 2, HPos::Left, VPos::Top);
            area.draw_text(&one.name, &words, (left + FINE, top))?;
            let top = top + NAME as i32 * FINE;
            let (width, height) = (panel.0 as i32 * FINE, panel.1 as i32 * FINE);
            let part = area.clone().shrink((left, top), (width, height));
            match one.run {
                Some(run) if herd => raster::draw(&part, run, one.end)?,
                Some(run) => over_time::draw(&part, section.scenario, run, &scale)?,
                None => {
                    let words = style(Swatch::Muted, SMALL, HPos::Left, VPos::Top);
                    part.draw_text("given up: too many attempts", &words, (FINE, FINE))?;
                }
            }
        }
        Ok(())
    })?;
    let (width, height) = size;
    let (fine_width, fine_height) = (width * FINE as u32, height * FINE as u32);
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {fine_width} {fine_height}\" font-family=\"system-ui, sans-serif\">\
         <title>{}</title><style>{}</style>\
         <rect class=\"paper\" width=\"{fine_width}\" height=\"{fine_height}\"/>{body}</svg>\n",
        escape(section.name),
        picture_css(),
    ))
}

/// The panels: for a herd a row for each policy, with its run without jitter beside it; otherwise two in a row.
fn panels<'a>(section: &Section<'a>, herd: bool) -> Vec<Panel<'a>> {
    let mut panels = Vec::new();
    for (index, entry) in (0..).zip(&section.entries) {
        let run = entry.recording.ok();
        let twin = entry.without_jitter.filter(|_| herd);
        let both: Vec<&Recording> = run.into_iter().chain(twin.and_then(Result::ok)).collect();
        let end = raster::shown(&both);
        let name = short(entry.name);
        let (row, column) = if herd {
            (index, 0)
        } else {
            (index / 2, index % 2)
        };
        let beside = twin.map(|twin| Panel {
            name: format!("{name}, without its jitter"),
            run: twin.ok(),
            end,
            row,
            column: 1,
        });
        panels.push(Panel {
            name,
            run,
            end,
            row,
            column,
        });
        panels.extend(beside);
    }
    panels
}

fn title(section: &Section<'_>) -> String {
    match section.scenario.description.as_str() {
        "" => section.name.to_owned(),
        description => format!("{}: {description}", section.name),
    }
}

/// The title, the legend, and the seed at the right.
fn head(area: &Area<'_>, section: &Section<'_>, title: &str, herd: bool) -> Result<(), DrawError> {
    let left = GAP as i32 * FINE;
    let words = style(Swatch::Text, TITLE, HPos::Left, VPos::Center);
    area.draw_text(title, &words, (left, 18 * FINE))?;
    let legend: &[(Swatch, &str)] = if herd {
        &raster::MARKS
    } else {
        &over_time::LINES
    };
    let (mut x, y) = (left, 44 * FINE);
    let words = style(Swatch::Muted, SMALL, HPos::Left, VPos::Center);
    for (swatch, label) in legend {
        let sample = match herd {
            true => [(x + 12 * FINE, y - 5 * FINE), (x + 12 * FINE, y + 5 * FINE)],
            false => [(x, y), (x + 24 * FINE, y)],
        };
        area.draw(&PathElement::new(sample, line(*swatch)))?;
        area.draw_text(label, &words, (x + 30 * FINE, y))?;
        x += (48 + 7 * label.len() as i32) * FINE;
    }
    let seed = section.seeds.first().copied().unwrap_or_default();
    let words = style(Swatch::Muted, SMALL, HPos::Right, VPos::Center);
    let right = area.dim_in_pixel().0 as i32 - left;
    area.draw_text(&format!("seed {seed}"), &words, (right, y))
}
