//! Progress of the demo on standard error.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::Progress;

/// A line that is updated in place on a terminal, and plain lines elsewhere.
pub(super) struct Display {
    bar: Option<ProgressBar>,
    verbose: bool,
    started: Instant,
}

impl Display {
    pub(super) fn new(verbose: bool) -> Self {
        let bar = (std::io::stderr().is_terminal() && !verbose).then(|| {
            let style = ProgressStyle::with_template("{spinner} {elapsed:>3} {wide_msg}");
            let bar = ProgressBar::new_spinner()
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Self { bar, verbose, started: Instant::now() }
    }

    pub(super) fn show(&self, progress: &Progress) {
        match progress {
            Progress::Step(text) => self.step(text),
            Progress::Console(text) if self.verbose => {
                logging::write_line(&format!("       | {text}"))
            }
            Progress::Console(_) | Progress::Serving | Progress::Strike | Progress::Done => {}
        }
    }

    pub(super) fn step(&self, text: &str) {
        let line = format!("{:>4.0} s {text}", self.seconds());
        match &self.bar {
            Some(bar) => {
                bar.println(line);
                bar.set_message(text.to_owned());
            }
            None => logging::write_line(&line),
        }
    }

    /// Returns the seconds since the start.
    pub(super) fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
