//! Parser of the guest's console output.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::Progress;

/// Longest line of the console, in bytes; the guest's programs print shorter ones.
const LINE_BYTES: usize = 64 << 10;
/// Number of last lines stored for an error message.
const KEPT_LINES: usize = 15;
/// Prefix of the script's lines for the demo.
const OURS: &str = "ringway-demo: ";
/// Text before the script's exit code.
const EXIT: &str = "ringway-guest: exit ";

/// Event of a console line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GuestEvent {
    /// Progress to report.
    News(Progress),
    /// The guest waits until a disk is plugged.
    Plug,
}

/// Results that the guest has reported.
#[derive(Debug, Default)]
pub(super) struct GuestTranscript {
    /// SHA-256 of the data that the guest wrote, by name.
    pub(super) sums: BTreeMap<String, String>,
    /// Longest request of the disk whose worker was killed, as measured by its fio.
    pub(super) longest: Option<Duration>,
    failure: Option<String>,
    exit: Option<i32>,
    last: VecDeque<String>,
    /// Start of an incomplete line.
    begun: Vec<u8>,
}

impl GuestTranscript {
    /// Parses more output and returns its events.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Vec<GuestEvent> {
        let mut guest_event = Vec::new();
        for byte in bytes {
            if *byte != b'\n' && self.begun.len() < LINE_BYTES {
                self.begun.push(*byte);
                continue;
            }
            let line = String::from_utf8_lossy(&std::mem::take(&mut self.begun)).into_owned();
            guest_event.extend(self.line(line.trim_end_matches('\r')));
        }
        guest_event
    }

    fn line(&mut self, line: &str) -> Option<GuestEvent> {
        if self.last.len() == KEPT_LINES {
            self.last.pop_front();
        }
        self.last.push_back(line.to_owned());
        let news = |progress| Some(GuestEvent::News(progress));
        // Output without a newline may precede both prefixes.
        if let Some((_, code)) = line.split_once(EXIT) {
            self.exit = code.trim().parse().ok();
            return None;
        }
        let Some((_, ours)) = line.split_once(OURS) else {
            return news(Progress::Console(line.to_owned()));
        };
        match ours.split_once(' ').unwrap_or((ours, "")) {
            ("step", "done") => return news(Progress::Done),
            ("step", text) => return news(Progress::Step(format!("guest: {text}"))),
            ("strike", _) => return news(Progress::Strike),
            ("plug", _) => return Some(GuestEvent::Plug),
            ("sha256", rest) => {
                let (name, sum) = rest.split_once(' ')?;
                self.sums.insert(name.into(), sum.trim().into());
            }
            ("longest", text) => {
                let times = text.split(' ').map(|us| us.trim().parse::<f64>().ok());
                let longest = times.flatten().reduce(f64::max);
                self.longest = longest.and_then(|us| Duration::try_from_secs_f64(us / 1e6).ok());
            }
            ("failed", text) => self.failure = Some(text.into()),
            _ => {}
        }
        None
    }

    /// Returns whether the script succeeded.
    ///
    /// # Errors
    /// The reason why it did not.
    pub(super) fn verdict(&self) -> Result<(), String> {
        match (&self.failure, self.exit) {
            (Some(failure), _) => Err(failure.clone()),
            (None, Some(0)) => Ok(()),
            (None, Some(code)) => Err(format!("the script ended with code {code}")),
            (None, None) => Err("the script did not end".into()),
        }
    }

    /// Returns the end of the console output, indented.
    pub(super) fn last_lines(&self) -> String {
        self.last.iter().map(|line| format!("\n    {line}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn story(pieces: &[&str]) -> (GuestTranscript, Vec<GuestEvent>) {
        let mut guest_transcript = GuestTranscript::default();
        let guest_event =
            pieces.iter().flat_map(|piece| guest_transcript.take(piece.as_bytes())).collect();
        (guest_transcript, guest_event)
    }

    #[test]
    fn the_lines_of_the_script_are_understood() {
        let (guest_transcript, guest_event) = story(&[
            "ringway-guest: ready\r\nringway-demo: sha256 random abc\r\nringway-de",
            "mo: strike\r\nringway-demo: longest 120 1200000\r\n",
            "noiseringway-demo: step late: write\r\nringway-demo: plug\r\nringway-demo: step done",
            "\r\nringway-guest: exit 0\r\n",
        ]);
        assert_eq!(guest_transcript.verdict(), Ok(()));
        assert_eq!(guest_transcript.sums["random"], "abc");
        assert_eq!(guest_transcript.longest, Some(Duration::from_micros(1_200_000)));
        let expected = [
            GuestEvent::News(Progress::Console("ringway-guest: ready".into())),
            GuestEvent::News(Progress::Strike),
            GuestEvent::News(Progress::Step("guest: late: write".into())),
            GuestEvent::Plug,
            GuestEvent::News(Progress::Done),
        ];
        assert_eq!(guest_event, expected);
    }

    #[test]
    fn failures_and_early_ends_are_told() {
        let (failed, _) = story(&["ringway-demo: failed fio on late\nringway-guest: exit 1\n"]);
        assert_eq!(failed.verdict(), Err("fio on late".into()));
        let (code, _) = story(&["sh: no\nringway-guest: exit 2\n"]);
        assert_eq!(code.verdict(), Err("the script ended with code 2".into()));
        assert!(code.last_lines().contains("sh: no"));
        let (cut, _) = story(&["ringway-guest: ready\n"]);
        assert!(cut.verdict().is_err());
    }

    #[test]
    fn a_guest_that_never_ends_a_line_fills_no_memory() {
        let mut guest_transcript = GuestTranscript::default();
        for _ in 0..3 {
            guest_transcript.take(&[b'x'; LINE_BYTES]);
        }
        assert!(guest_transcript.begun.len() <= LINE_BYTES);
        assert!(guest_transcript.last.len() <= KEPT_LINES);
    }
}
