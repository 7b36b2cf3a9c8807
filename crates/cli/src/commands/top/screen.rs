//! Output of the table to a terminal, pipe or file.

use std::io::{IsTerminal, Write};

use rustix::termios::tcgetwinsize;

/// Escape sequence: alternate screen, no cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// The terminal's alternate screen until it is dropped. A pipe or file gets one page after the
/// other.
#[derive(Debug)]
pub(super) struct Screen {
    terminal: bool,
}

impl Screen {
    pub(super) fn open() -> std::io::Result<Self> {
        let terminal = std::io::stdout().is_terminal();
        // Create the value first, so that its drop leaves the screen even if the rest fails.
        let screen = Self { terminal };
        if terminal {
            let mut output = std::io::stdout().lock();
            output.write_all(ENTER.as_bytes())?;
            output.flush()?;
        }
        Ok(screen)
    }

    pub(super) fn show(&self, page: &str) -> std::io::Result<()> {
        let mut output = std::io::stdout().lock();
        if self.terminal {
            // A terminal of unknown size reports zero.
            let size = tcgetwinsize(std::io::stdout()).ok();
            let size = size.filter(|size| size.ws_row > 0 && size.ws_col > 0);
            let (rows, columns) = size.map_or((24, 80), |size| (size.ws_row, size.ws_col));
            output.write_all(fitted(page, rows.into(), columns.into()).as_bytes())?;
        } else {
            writeln!(output, "{page}")?;
        }
        output.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.terminal {
            let mut output = std::io::stdout().lock();
            // The terminal may be gone.
            let _gone = output.write_all(LEAVE.as_bytes()).and_then(|()| output.flush());
        }
    }
}

/// Returns the part of a page that fits, drawn over the former one to avoid flicker.
fn fitted(page: &str, rows: usize, columns: usize) -> String {
    let mut text = HOME.to_owned();
    for (at, line) in page.lines().take(rows.max(1)).enumerate() {
        if at > 0 {
            text += "\r\n";
        }
        text.extend(line.chars().take(columns));
        text += CLEAR_LINE;
    }
    text + CLEAR_BELOW
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_never_scrolls_or_wraps() {
        let shown = fitted("abcdef\nghi\njkl\n", 2, 4);
        assert_eq!(shown, format!("{HOME}abcd{CLEAR_LINE}\r\nghi{CLEAR_LINE}{CLEAR_BELOW}"));
    }
}
