//! What the guest tells over its console.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::io::AsyncRead;

use super::Progress;
use crate::lines::Lines;

/// Longest line of the console, in bytes; the guest's programs print shorter ones.
const LINE_BYTES: usize = 64 << 10;
/// Lines kept for a message of failure.
const KEPT_LINES: usize = 15;
/// What begins a line that the script means for us.
const OURS: &str = "ringway-demo: ";
/// What precedes the script's exit code.
const EXIT: &str = "ringway-guest: exit ";

/// What is known of the guest's side.
#[derive(Debug, Default)]
pub(super) struct Story {
    /// SHA-256 of what the guest wrote, by name.
    pub(super) sums: BTreeMap<String, String>,
    /// The longest request of the disk whose worker was killed, as its fio saw it.
    pub(super) longest: Option<Duration>,
    failure: Option<String>,
    exit: Option<i32>,
    last: VecDeque<String>,
}

impl Story {
    /// Takes one line; says what the user should see of it.
    fn take(&mut self, line: &str) -> Option<Progress> {
        if self.last.len() == KEPT_LINES {
            self.last.pop_front();
        }
        self.last.push_back(line.to_owned());
        // Output without a newline may precede either.
        if let Some((_, code)) = line.split_once(EXIT) {
            self.exit = code.trim().parse().ok();
            return None;
        }
        let Some((_, ours)) = line.split_once(OURS) else {
            return Some(Progress::Console(line.to_owned()));
        };
        match ours.split_once(' ').unwrap_or((ours, "")) {
            ("step", "done") => None,
            ("step", text) => Some(Progress::Step(format!("guest: {text}"))),
            ("sha256", rest) => {
                let (name, sum) = rest.split_once(' ')?;
                self.sums.insert(name.into(), sum.trim().into());
                None
            }
            ("strike", _) => Some(Progress::Strike),
            ("longest", text) => {
                let times = text.split(' ').map(|us| us.trim().parse::<f64>().ok());
                let longest = times.flatten().reduce(f64::max);
                self.longest = longest.and_then(|us| Duration::try_from_secs_f64(us / 1e6).ok());
                None
            }
            ("failed", text) => {
                self.failure = Some(text.into());
                None
            }
            _ => None,
        }
    }

    /// Whether the script succeeded; if not, why.
    pub(super) fn verdict(&self) -> Result<(), String> {
        match (&self.failure, self.exit) {
            (Some(failure), _) => Err(failure.clone()),
            (None, Some(0)) => Ok(()),
            (None, Some(code)) => Err(format!("the script ended with code {code}")),
            (None, None) => Err("the script did not end".into()),
        }
    }

    /// The end of the console, indented.
    pub(super) fn last_lines(&self) -> String {
        self.last.iter().map(|line| format!("\n    {line}")).collect()
    }
}

/// Follows the console to its end.
pub(super) async fn follow(
    source: impl AsyncRead + Unpin,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Story {
    let mut story = Story::default();
    let mut lines = Lines::new(source, LINE_BYTES);
    while let Ok(line) = lines.next_text().await {
        if let Some(news) = story.take(&line) {
            progress(news);
        }
    }
    story
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    async fn story(text: &str) -> (Story, Vec<Progress>) {
        let news = Mutex::new(Vec::new());
        let story = follow(text.as_bytes(), &|p| news.lock().unwrap().push(p)).await;
        (story, news.into_inner().unwrap())
    }

    #[tokio::test]
    async fn the_lines_of_the_script_are_understood() {
        let text = "ringway-guest: ready\r\nringway-demo: sha256 random abc\r\n\
                    ringway-demo: strike\r\nringway-demo: longest 120 1200000\r\n\
                    noiseringway-demo: step mem: write\r\nringway-demo: step done\r\n\
                    ringway-guest: exit 0\r\n";
        let (story, news) = story(text).await;
        assert_eq!(story.verdict(), Ok(()));
        assert_eq!(story.sums["random"], "abc");
        assert_eq!(story.longest, Some(Duration::from_micros(1_200_000)));
        assert_eq!(news[1], Progress::Strike);
        assert_eq!(news[2], Progress::Step("guest: mem: write".into()));
        assert_eq!(news.len(), 3);
    }

    #[tokio::test]
    async fn failures_and_early_ends_are_told() {
        let (failed, _) = story("ringway-demo: failed fio on mem\nringway-guest: exit 1\n").await;
        assert_eq!(failed.verdict(), Err("fio on mem".into()));
        let (code, _) = story("sh: no\nringway-guest: exit 2\n").await;
        assert_eq!(code.verdict(), Err("the script ended with code 2".into()));
        assert!(code.last_lines().contains("sh: no"));
        let (cut, _) = story("ringway-guest: ready\n").await;
        assert!(cut.verdict().is_err());
    }
}
