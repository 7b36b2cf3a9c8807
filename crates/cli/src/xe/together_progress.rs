//! Progress of an operation on several objects, on a terminal.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// Line that tells how many of the operations have ended, and how long the others will take.
#[derive(Debug)]
pub(crate) struct TogetherProgress {
    /// `None` if standard error is no terminal, or there is one object.
    since: Option<Instant>,
    total: usize,
    done: usize,
}

impl TogetherProgress {
    pub(crate) fn begin(total: usize) -> Self {
        let is_wanted = total > 1 && io::stderr().is_terminal();
        let progress = Self { since: is_wanted.then(Instant::now), total, done: 0 };
        progress.show();
        progress
    }

    /// Counts an operation that has ended.
    pub(crate) fn count(&mut self) {
        self.done += 1;
        self.show();
    }

    fn show(&self) {
        if let Some(since) = self.since {
            let line = format!("\r{}\x1b[K", line(self.done, self.total, since.elapsed()));
            // Without a reader, the operations go on.
            let _unread = io::stderr().write_all(line.as_bytes());
        }
    }
}

impl Drop for TogetherProgress {
    fn drop(&mut self) {
        if self.since.is_some() {
            let _unread = io::stderr().write_all(b"\n");
        }
    }
}

/// Returns the line. The rest takes as long for each operation as the ended ones did.
fn line(done: usize, total: usize, elapsed: Duration) -> String {
    let left = total.saturating_sub(done) as f64;
    match done {
        0 => format!("0 of {total} done"),
        _ if left == 0.0 => format!("{done} of {total} done in {} s", elapsed.as_secs()),
        _ => {
            let seconds = (elapsed.as_secs_f64() / done as f64 * left).ceil();
            format!("{done} of {total} done, about {seconds} s left")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_as_what_has_ended() {
        let s = Duration::from_secs;
        assert_eq!(line(0, 100, s(3)), "0 of 100 done");
        assert_eq!(line(25, 100, s(10)), "25 of 100 done, about 30 s left");
        assert_eq!(line(99, 100, s(10)), "99 of 100 done, about 1 s left");
        assert_eq!(line(100, 100, s(41)), "100 of 100 done in 41 s");
    }
}
