//! Progress output: a bar on a terminal, one line per tenth of the run elsewhere.

use std::io::{IsTerminal, Write, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Receiver of progress events.
pub trait Progress {
    /// Starts a run with this number of samples.
    fn start(&mut self, turns: usize);
    /// Starts a sample.
    fn turn(&mut self, what: &str);
    /// Ends the run.
    fn finish(&mut self);
}

/// Receiver that ignores all events.
#[derive(Debug)]
pub struct Silent;

impl Progress for Silent {
    fn start(&mut self, _turns: usize) {}
    fn turn(&mut self, _what: &str) {}
    fn finish(&mut self) {}
}

/// Returns a bar on standard error if that is a terminal, and plain lines otherwise.
#[must_use]
pub fn on_stderr() -> Box<dyn Progress> {
    if stderr().is_terminal() { Box::new(Bar(None)) } else { Box::new(Lines::default()) }
}

struct Bar(Option<ProgressBar>);

impl Progress for Bar {
    fn start(&mut self, turns: usize) {
        let bar = ProgressBar::new(turns as u64);
        let style = "{bar:30} {pos}/{len} {elapsed} (about {eta} left) {wide_msg}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        self.0 = Some(bar);
    }

    fn turn(&mut self, what: &str) {
        if let Some(bar) = &self.0 {
            // The bar counts samples that have ended: none when the first begins.
            if !bar.message().is_empty() {
                bar.inc(1);
            }
            bar.set_message(what.to_owned());
        }
    }

    fn finish(&mut self) {
        if let Some(bar) = self.0.take() {
            bar.finish_and_clear();
        }
    }
}

#[derive(Default)]
struct Lines {
    turns: usize,
    begun: usize,
    since: Option<std::time::Instant>,
}

impl Lines {
    fn say(&self, text: &str) {
        // If standard error is closed, no reader is left.
        let _ = writeln!(stderr(), "{text}");
    }

    fn elapsed(&self) -> Duration {
        self.since.map(|since| since.elapsed()).unwrap_or_default()
    }
}

impl Progress for Lines {
    fn start(&mut self, turns: usize) {
        self.turns = turns;
        self.since = Some(std::time::Instant::now());
    }

    fn turn(&mut self, what: &str) {
        let tenth = |n: usize| n * 10 / self.turns.max(1);
        if self.begun == 0 || tenth(self.begun) != tenth(self.begun - 1) {
            let seconds = self.elapsed().as_secs();
            self.say(&format!("[{}/{}] {seconds} s, {what}", self.begun, self.turns));
        }
        self.begun += 1;
    }

    fn finish(&mut self) {
        let seconds = self.elapsed().as_secs();
        self.say(&format!("[{}/{}] {seconds} s, done", self.begun, self.turns));
    }
}
