//! The thread that writes the log.

use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::sync::mpsc::{RecvTimeoutError, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

use crate::limit_file;
use crate::line_queue::{Entry, Lines};
use crate::repeats::{Repeats, Summary, WINDOW};

/// Writes lines to standard error until the process ends.
pub(crate) fn run(lines: &Lines, repeats: &Mutex<Repeats>, limit_bytes: Option<u64>) {
    let stderr = std::io::stderr();
    let mut output = Output { fd: &stderr, limit_bytes, lost: 0, error: None };
    loop {
        let due = repeats.lock().unwrap_or_else(PoisonError::into_inner).next_due();
        let next = match due {
            None => lines.entries.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(due) => lines.entries.recv_timeout(due.saturating_duration_since(Instant::now())),
        };
        let mut flushed: Option<SyncSender<()>> = None;
        match next {
            Ok(Entry::Line(line)) => output.write(&line),
            Ok(Entry::Flush(done)) => flushed = Some(done),
            Ok(Entry::Repetition) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let summaries =
            repeats.lock().unwrap_or_else(PoisonError::into_inner).take_due(Instant::now());
        summaries.iter().for_each(|summary| output.write(summary_line(summary).as_bytes()));
        output.tell_dropped(lines.take_dropped());
        if let Some(done) = flushed {
            // The caller may have stopped waiting.
            let _ = done.try_send(());
        }
    }
}

fn summary_line(summary: &Summary) -> String {
    let Summary { count, text } = summary;
    let seconds = WINDOW.as_secs();
    format!("{} {}(not logged {count} more times in {seconds} s)\n", timestamp(), text)
}

fn timestamp() -> String {
    let mut now = String::new();
    // A string takes any text.
    let _ = SystemTime.format_time(&mut Writer::new(&mut now));
    now
}

/// Standard error, or a file in tests.
struct Output<'a, F> {
    fd: &'a F,
    limit_bytes: Option<u64>,
    /// Number of lines that could not be written since the last one that could.
    lost: u64,
    /// Why the first of them could not be written.
    error: Option<Errno>,
}

impl<F: AsFd> Output<'_, F> {
    fn write(&mut self, line: &[u8]) {
        if let Some(error) = self.error {
            let lost = self.lost;
            let mut notice = timestamp();
            // A string takes any text.
            let _ = writeln!(notice, "  WARN {lost} log lines were lost: {error}");
            if self.write_all(notice.as_bytes()).is_err() {
                self.lost += 1;
                return;
            }
            (self.lost, self.error) = (0, None);
        }
        if let Err(error) = self.write_all(line) {
            (self.lost, self.error) = (self.lost + 1, Some(error));
        }
        if let Some(limit) = self.limit_bytes {
            limit_file(self.fd.as_fd(), limit);
        }
    }

    fn tell_dropped(&mut self, dropped: u64) {
        if dropped > 0 {
            let now = timestamp();
            let why = "the reader of the log was too slow";
            self.write(format!("{now}  WARN {dropped} log lines were dropped: {why}\n").as_bytes());
        }
    }

    /// Waits for a reader, if there is one.
    fn write_all(&self, mut rest: &[u8]) -> Result<(), Errno> {
        while !rest.is_empty() {
            match rustix::io::write(self.fd, rest) {
                Ok(0) => return Err(Errno::IO),
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                // Another process may have made the descriptor non-blocking.
                Err(Errno::AGAIN) => {
                    let room = PollFd::new(self.fd, PollFlags::OUT);
                    match poll(&mut [room], None) {
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(error) => return Err(error),
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn lost_lines_are_told_when_the_log_can_be_written_again() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut output = Output { fd: &full, limit_bytes: None, lost: 0, error: None };
        (0..3).for_each(|_| output.write(b"lost\n"));
        let Output { lost, error, .. } = output;
        let mut output = Output { fd: &writer, limit_bytes: None, lost, error };
        output.write(b"first\n");
        output.tell_dropped(0);
        output.tell_dropped(9);
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let [lost, "first", dropped] = lines.as_slice() else { panic!("{text}") };
        assert!(
            lost.ends_with("WARN 3 log lines were lost: No space left on device (os error 28)")
        );
        assert!(dropped.contains("WARN 9 log lines were dropped"), "{dropped}");
    }
}
