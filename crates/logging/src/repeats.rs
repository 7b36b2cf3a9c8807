//! Limit on repeated lines.
//!
//! Lines belong to a **source**: the place in the program that logs, and the device that the line is
//! about. In a minute, each source may write the same line once, and [`LINES_PER_WINDOW`] different
//! lines. Further lines are counted. At the end of the minute one summary tells their number.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Period in which a line is written once.
pub const WINDOW: Duration = Duration::from_secs(60);
/// Number of different lines that one source may write in a [`WINDOW`].
pub const LINES_PER_WINDOW: usize = 10;
/// Most sources with a window. Above, the lines of all further sources count as one source.
const SOURCES_MAX: usize = 4096;
/// Longest text of a line in its summary, in bytes.
const TEXT_BYTES_MAX: usize = 256;

/// Place in the program, and hash of the device's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Address of the static data of the place in the program.
    pub callsite: usize,
    /// Hash of the device's name; 0 for no device.
    pub device: u64,
}

/// Source of the lines of all sources above [`SOURCES_MAX`].
const OTHERS: Source = Source { callsite: 0, device: 0 };

/// Decision about one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The line is written.
    Write,
    /// The line is the first one that is counted in its window.
    CountFirst,
    /// The line is counted.
    Count,
}

/// End of a window in which lines were counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Number of lines that were not written.
    pub count: u64,
    /// Text of the last of them, at most 256 bytes.
    pub text: String,
}

#[derive(Debug)]
struct Window {
    end: Instant,
    /// Hashes of the lines that were written.
    written: Vec<u64>,
    count: u64,
    text: String,
}

/// Lines of all sources in their present windows.
#[derive(Debug, Default)]
pub struct Repeats {
    windows: HashMap<Source, Window>,
}

impl Repeats {
    /// Decides about a line with this hash. `text` gives the text for a summary.
    pub fn admit(
        &mut self,
        mut source: Source,
        line: u64,
        now: Instant,
        text: impl FnOnce() -> String,
    ) -> Verdict {
        if self.windows.len() >= SOURCES_MAX && !self.windows.contains_key(&source) {
            // A window with a count ends by its summary.
            self.windows.retain(|_, window| window.end > now || window.count > 0);
            if self.windows.len() >= SOURCES_MAX {
                source = OTHERS;
            }
        }
        let fresh =
            || Window { end: now + WINDOW, written: Vec::new(), count: 0, text: String::new() };
        let window = self.windows.entry(source).or_insert_with(fresh);
        if window.end <= now && window.count == 0 {
            *window = fresh();
        }
        if window.written.len() < LINES_PER_WINDOW && !window.written.contains(&line) {
            window.written.push(line);
            return Verdict::Write;
        }
        window.count += 1;
        window.text = text();
        cut(&mut window.text);
        if window.count == 1 { Verdict::CountFirst } else { Verdict::Count }
    }

    /// Returns the summaries of the windows that have ended, and forgets these windows.
    pub fn take_due(&mut self, now: Instant) -> Vec<Summary> {
        let mut due = Vec::new();
        self.windows.retain(|_, window| {
            let is_due = window.end <= now && window.count > 0;
            if is_due {
                let text = std::mem::take(&mut window.text);
                due.push(Summary { count: window.count, text });
            }
            !is_due
        });
        due
    }

    /// Returns the end of the first window with a count.
    pub fn next_due(&self) -> Option<Instant> {
        self.windows.values().filter(|window| window.count > 0).map(|window| window.end).min()
    }
}

/// Cuts a text to [`TEXT_BYTES_MAX`] bytes.
fn cut(text: &mut String) {
    if text.len() > TEXT_BYTES_MAX {
        let end = (0..=TEXT_BYTES_MAX).rev().find(|&end| text.is_char_boundary(end));
        text.truncate(end.unwrap_or_default());
        text.push_str("...");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(device: u64) -> Source {
        Source { callsite: 1, device }
    }

    #[test]
    fn a_line_of_a_device_is_written_once_a_minute_and_counted() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        let mut admit = |device, line, at| {
            repeats.admit(source(device), line, start + Duration::from_secs(at), || "full".into())
        };
        assert_eq!(admit(1, 7, 0), Verdict::Write);
        assert_eq!(admit(1, 7, 1), Verdict::CountFirst);
        assert_eq!(admit(1, 7, 59), Verdict::Count);
        assert_eq!(admit(2, 7, 59), Verdict::Write, "another device has its own window");
        let full = |count| vec![Summary { count, text: "full".into() }];
        assert_eq!(repeats.next_due(), Some(start + WINDOW));
        assert_eq!(repeats.take_due(start + WINDOW - Duration::from_nanos(1)), []);
        assert_eq!(repeats.take_due(start + WINDOW), full(2));
        assert_eq!((repeats.take_due(start + WINDOW), repeats.next_due()), (vec![], None));
        assert_eq!(repeats.admit(source(1), 7, start + WINDOW, String::new), Verdict::Write);
    }

    #[test]
    fn different_lines_of_a_device_are_bounded() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        let mut verdicts = (0..100).map(|line| repeats.admit(source(1), line, now, String::new));
        assert!(verdicts.by_ref().take(LINES_PER_WINDOW).all(|one| one == Verdict::Write));
        assert_eq!(verdicts.next(), Some(Verdict::CountFirst));
        assert!(verdicts.all(|verdict| verdict == Verdict::Count));
        let long = || "ü".repeat(TEXT_BYTES_MAX);
        repeats.admit(source(1), 0, now, long);
        let summaries = repeats.take_due(now + WINDOW);
        let [Summary { count: 91, text }] = summaries.as_slice() else { panic!("{summaries:?}") };
        assert!(text.len() == TEXT_BYTES_MAX + 3 && text.ends_with("ü..."), "{text}");
    }

    #[test]
    fn sources_are_bounded() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        for device in 0..SOURCES_MAX as u64 {
            assert_eq!(repeats.admit(source(device), 7, now, String::new), Verdict::Write);
        }
        assert_eq!(repeats.admit(source(u64::MAX), 7, now, String::new), Verdict::Write);
        assert_eq!(repeats.admit(source(u64::MAX - 1), 7, now, String::new), Verdict::CountFirst);
        assert_eq!(repeats.windows.len(), SOURCES_MAX + 1);
        let later = now + WINDOW;
        assert_eq!(repeats.take_due(later).len(), 1);
        assert_eq!(repeats.admit(source(u64::MAX), 7, later, String::new), Verdict::Write);
        assert_eq!(repeats.windows.len(), 1, "ended windows are forgotten");
    }
}
