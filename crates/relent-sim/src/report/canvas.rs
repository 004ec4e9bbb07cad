//! The drawing backend for plotters: SVG whose colours are CSS classes, so that a chart follows its page.

use std::convert::Infallible;
use std::fmt::Write;

use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind,
};

/// Plotters counts in whole pixels; its pixels are tenths of ours, so that lines are smooth.
pub(super) const FINE: i32 = 10;

/// An area to draw on.
pub(super) type Area<'a> = DrawingArea<Canvas<'a>, Shift>;
/// An error of drawing: a layout that plotters cannot make.
pub(super) type DrawError = DrawingAreaErrorKind<Infallible>;

/// The elements of an SVG image.
pub(super) struct Canvas<'a> {
    size: (u32, u32),
    to: &'a mut String,
    /// The class of the path that is not closed yet: adjacent paths of one class share an element.
    open: Option<(char, u8)>,
}

/// Draws on a canvas of this size, in our pixels, and returns its elements.
pub(super) fn draw(
    size: (u32, u32),
    draw: impl FnOnce(&Area<'_>) -> Result<(), DrawError>,
) -> Result<String, DrawError> {
    let mut elements = String::new();
    let canvas = Canvas {
        size: (size.0 * FINE as u32, size.1 * FINE as u32),
        to: &mut elements,
        open: None,
    };
    let area = canvas.into_drawing_area();
    draw(&area)?;
    area.present()?;
    drop(area);
    Ok(elements)
}

impl Canvas<'_> {
    /// Begins a path of this class, or continues one.
    fn path(&mut self, kind: char, color: BackendColor) -> &mut String {
        let class = (kind, color.rgb.0);
        if self.open != Some(class) {
            self.close();
            let _ = write!(self.to, "<path class=\"{kind}{}\" d=\"", class.1);
            self.open = Some(class);
        }
        self.to
    }

    fn close(&mut self) {
        if self.open.take().is_some() {
            self.to.push_str("\"/>");
        }
    }
}

fn points(to: &mut String, path: impl IntoIterator<Item = BackendCoord>) {
    let mut last = None;
    for (x, y) in path {
        // Relative coordinates are shorter.
        let _ = match last {
            None => write!(to, "M{x} {y}"),
            Some((from_x, from_y)) if from_x == x => write!(to, "v{}", y - from_y),
            Some((from_x, from_y)) if from_y == y => write!(to, "h{}", x - from_x),
            Some((from_x, from_y)) => write!(to, "l{} {}", x - from_x, y - from_y),
        };
        last = Some((x, y));
    }
}

type Drawn = Result<(), DrawingErrorKind<Infallible>>;

impl DrawingBackend for Canvas<'_> {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        self.size
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        self.close();
        Ok(())
    }

    fn draw_pixel(&mut self, (x, y): BackendCoord, color: BackendColor) -> Drawn {
        let _ = write!(self.path('f', color), "M{x} {y}h1v1h-1z");
        Ok(())
    }

    fn draw_line<S: BackendStyle>(
        &mut self,
        from: BackendCoord,
        to: BackendCoord,
        style: &S,
    ) -> Drawn {
        points(self.path('s', style.color()), [from, to]);
        Ok(())
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        (left, top): BackendCoord,
        (right, bottom): BackendCoord,
        style: &S,
        fill: bool,
    ) -> Drawn {
        let kind = if fill { 'f' } else { 's' };
        let (width, height) = (right - left, bottom - top);
        let to = self.path(kind, style.color());
        let _ = write!(to, "M{left} {top}h{width}v{height}h-{width}z");
        Ok(())
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Drawn {
        points(self.path('s', style.color()), path);
        Ok(())
    }

    fn draw_circle<S: BackendStyle>(
        &mut self,
        (x, y): BackendCoord,
        radius: u32,
        style: &S,
        fill: bool,
    ) -> Drawn {
        let kind = if fill { 'f' } else { 's' };
        let (x, across) = (x - radius as i32, radius * 2);
        let to = self.path(kind, style.color());
        let _ = write!(
            to,
            "M{x} {y}a{radius} {radius} 0 1 0 {across} 0a{radius} {radius} 0 1 0 -{across} 0z"
        );
        Ok(())
    }

    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Drawn {
        let to = self.path('f', style.color());
        points(to, path);
        to.push('z');
        Ok(())
    }

    fn draw_text<S: BackendTextStyle>(
        &mut self,
        text: &str,
        style: &S,
        (x, y): BackendCoord,
    ) -> Drawn {
        self.close();
        let size = style.size();
        // From the anchor to the base line, as shares of the size that hold for common fonts.
        let below = match style.anchor().v_pos {
            VPos::Top => 0.8,
            VPos::Center => 0.35,
            VPos::Bottom => -0.2,
        };
        let anchor = match style.anchor().h_pos {
            HPos::Left => "",
            HPos::Center => " text-anchor=\"middle\"",
            HPos::Right => " text-anchor=\"end\"",
        };
        let (class, y) = (style.color().rgb.0, y + (size * below) as i32);
        let text = escape(text);
        let _ = write!(
            self.to,
            "<text class=\"f{class}\" x=\"{x}\" y=\"{y}\" font-size=\"{size}\"{anchor}>{text}</text>"
        );
        Ok(())
    }
}

/// Escapes the text for an element or an attribute. Characters that XML does not allow are replaced.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\t' | '\n' => escaped.push(char),
            '\u{0}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            _ => escaped.push(char),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::palette::Swatch;
    use super::*;
    use plotters::prelude::*;

    #[test]
    fn adjacent_paths_of_one_class_share_an_element_and_texts_are_escaped() {
        let elements = draw((10, 10), |area| {
            for x in [5, 15] {
                area.draw(&PathElement::new(
                    [(x, 10), (x, 30)],
                    Swatch::Attempts.color(),
                ))?;
            }
            let style = ("sans-serif", 100).into_font().color(&Swatch::Text.color());
            area.draw_text("<a & \"b\">\u{0}", &style, (0, 0))
        });
        assert_eq!(
            elements.unwrap(),
            "<path class=\"s6\" d=\"M5 10v20M15 10v20\"/>\
             <text class=\"f0\" x=\"0\" y=\"80\" font-size=\"100\">\
             &lt;a &amp; &quot;b&quot;&gt;\u{fffd}</text>"
        );
    }
}
