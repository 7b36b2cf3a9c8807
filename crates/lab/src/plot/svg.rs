//! SVG shapes and text on a white sheet.

use std::fmt::{Display, Write};

/// Plot under construction. Writing to a String cannot fail, so results of `write!` are dropped.
pub(super) struct Sheet {
    body: String,
    width: f64,
    height: f64,
}

/// Alignment of text at its point.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// Width of a letter relative to the font size, a safe average.
const LETTER: f64 = 0.58;

/// Returns the width of a text.
pub(super) fn width_of(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * LETTER
}

/// Escapes the characters that XML text may not contain.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl Sheet {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self { body: String::new(), width, height }
    }

    fn put(&mut self, element: impl Display) {
        let _ = writeln!(self.body, "{element}");
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.put(format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}" stroke-width="{width}"/>"#
        ));
    }

    /// Draws a translucent bar with rounded ends.
    pub(super) fn band(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.put(format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}" stroke-width="{width}" stroke-opacity="0.35" stroke-linecap="butt"/>"#
        ));
    }

    pub(super) fn path(&mut self, points: &[(f64, f64)], colour: &str, dashed: bool) {
        let dash = if dashed { r#" stroke-dasharray="6 3""# } else { "" };
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.put(format_args!(
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>"#,
            points.join(" ")
        ));
    }

    pub(super) fn dot(&mut self, (x, y): (f64, f64), radius: f64, colour: &str, opacity: f64) {
        self.put(format_args!(
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius}" fill="{colour}" fill-opacity="{opacity}"/>"#
        ));
    }

    /// Draws one of several marks, so that colour is not the only distinction.
    pub(super) fn mark(&mut self, (x, y): (f64, f64), kind: usize, colour: &str) {
        let corners: &[(f64, f64)] = match kind % 4 {
            0 => return self.dot((x, y), 4.0, colour, 1.0),
            1 => &[(-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)],
            2 => &[(0.0, -4.8), (4.4, 3.4), (-4.4, 3.4)],
            _ => &[(0.0, -5.2), (4.6, 0.0), (0.0, 5.2), (-4.6, 0.0)],
        };
        let corners = corners.iter().map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy));
        let corners: Vec<String> = corners.collect();
        self.put(format_args!(r#"<polygon points="{}" fill="{colour}"/>"#, corners.join(" ")));
    }

    pub(super) fn text(&mut self, (x, y): (f64, f64), text: &str, size: f64, anchor: Anchor) {
        self.words((x, y), text, size, anchor, "");
    }

    pub(super) fn bold(&mut self, (x, y): (f64, f64), text: &str, size: f64) {
        self.words((x, y), text, size, Anchor::Start, r#" font-weight="bold""#);
    }

    /// Draws bold text in a colour that ends at the point.
    pub(super) fn flag(&mut self, at: (f64, f64), text: &str, size: f64, colour: &str) {
        let more = format!(r#" font-weight="bold" fill="{colour}""#);
        self.words(at, text, size, Anchor::End, &more);
    }

    /// Draws text that reads upwards.
    pub(super) fn upright(&mut self, (x, y): (f64, f64), text: &str, size: f64) {
        let turned = format!(r#" transform="rotate(-90 {x:.1} {y:.1})""#);
        self.words((x, y), text, size, Anchor::Middle, &turned);
    }

    fn words(&mut self, (x, y): (f64, f64), text: &str, size: f64, anchor: Anchor, more: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        self.put(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" text-anchor="{anchor}"{more}>{}</text>"#,
            escaped(text)
        ));
    }

    /// Returns the complete file.
    pub(super) fn finish(self) -> String {
        let Self { body, width, height } = self;
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}" font-family="Helvetica, Arial, 'DejaVu Sans', sans-serif" fill="#222222">
<rect width="100%" height="100%" fill="#ffffff"/>
{body}</svg>
"##
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_escaped_and_the_file_is_closed() {
        let mut sheet = Sheet::new(10.0, 20.0);
        sheet.text((1.0, 2.0), "a<b & \"c\"", 12.0, Anchor::Middle);
        sheet.mark((1.0, 2.0), 2, "#000000");
        let file = sheet.finish();
        assert!(file.contains("a&lt;b &amp; &quot;c&quot;") && !file.contains("a<b"), "{file}");
        assert!(file.starts_with("<svg ") && file.ends_with("</svg>\n"), "{file}");
        assert!(width_of("abcd", 10.0) > width_of("abc", 10.0));
    }
}
