//! Bounded queue of formatted lines.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Most lines in the queue.
const LINES_MAX: usize = 1024;
/// Longest line in bytes. A longer line is cut.
pub(crate) const LINE_BYTES_MAX: usize = 8 << 10;
/// End of a line that was cut.
const CUT: &[u8] = b"... (cut)\n";

/// Entry of the queue.
#[derive(Debug)]
pub(crate) enum Entry {
    /// Line with its line break.
    Line(Vec<u8>),
    /// A repetition was counted whose summary is due later.
    Repetition,
    /// Request for a message when all earlier entries are written.
    Flush(SyncSender<()>),
}

/// Sending end. Clones share one queue.
#[derive(Clone, Debug)]
pub(crate) struct LineQueue {
    entries: SyncSender<Entry>,
    dropped: Arc<AtomicU64>,
}

/// Receiving end.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(crate) entries: Receiver<Entry>,
    dropped: Arc<AtomicU64>,
}

/// Creates a queue.
pub(crate) fn pair() -> (LineQueue, Lines) {
    let (sender, receiver) = sync_channel(LINES_MAX);
    let dropped = Arc::new(AtomicU64::new(0));
    let lines = Lines { entries: receiver, dropped: Arc::clone(&dropped) };
    (LineQueue { entries: sender, dropped }, lines)
}

impl LineQueue {
    /// Appends a line. If the queue is full, drops and counts it.
    pub(crate) fn push(&self, mut line: Vec<u8>) {
        if line.len() > LINE_BYTES_MAX {
            line.truncate(LINE_BYTES_MAX - CUT.len());
            line.extend_from_slice(CUT);
        }
        if self.entries.try_send(Entry::Line(line)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reports a counted repetition. A full queue needs no report, because its reader is awake.
    pub(crate) fn report_repetition(&self) {
        let _ = self.entries.try_send(Entry::Repetition);
    }

    /// Waits until all entries so far are written, at most for `deadline`.
    pub(crate) fn flush(&self, deadline: Duration) {
        let (done, written) = sync_channel(1);
        // A full queue has a reader that waits: there is nothing to hope for.
        if self.entries.try_send(Entry::Flush(done)).is_ok() {
            let _ = written.recv_timeout(deadline);
        }
    }
}

impl Lines {
    /// Returns how many lines were dropped since the last call.
    pub(crate) fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }
}

/// `tracing_subscriber` writes each event with one call.
impl io::Write for LineQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for LineQueue {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_and_counts() {
        let (queue, lines) = pair();
        (0..LINES_MAX + 7).for_each(|number| queue.push(number.to_string().into_bytes()));
        assert_eq!((lines.take_dropped(), lines.take_dropped()), (7, 0));
        queue.flush(Duration::from_secs(1000));
        let first = lines.entries.try_recv().unwrap();
        assert!(matches!(first, Entry::Line(line) if line == b"0"));
    }

    #[test]
    fn a_long_line_is_cut() {
        let (queue, lines) = pair();
        queue.push(vec![b'x'; LINE_BYTES_MAX + 1]);
        queue.push(vec![b'x'; LINE_BYTES_MAX]);
        for ending in [CUT, b"x".as_slice()] {
            let Ok(Entry::Line(line)) = lines.entries.try_recv() else { panic!("no line") };
            assert!(line.len() == LINE_BYTES_MAX && line.ends_with(ending));
        }
    }
}
