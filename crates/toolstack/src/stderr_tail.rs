//! The last lines that a child process wrote to its standard error.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncRead;
use tokio::task::JoinHandle;

use crate::json_lines::{JsonLines, LineError};

/// Lines kept: enough for a panic message or a QEMU complaint with its context.
const KEPT_LINES: usize = 20;
/// Longest line kept, in bytes; the rest of a longer one ends the reading.
const LINE_BYTES: usize = 64 << 10;
/// Longest wait for the end of the stream after the process has gone: a grandchild may hold it.
const DRAIN_DEADLINE: Duration = Duration::from_secs(1);

/// Collects in the background what a process says; the process never waits for us.
#[derive(Debug)]
pub(crate) struct StderrTail {
    kept: Arc<Mutex<VecDeque<String>>>,
    task: JoinHandle<()>,
}

impl StderrTail {
    /// Starts to collect. With `echo` each line also goes to our own standard error, after this
    /// prefix.
    pub(crate) fn collect<R>(stream: R, echo: Option<&'static str>) -> Self
    where
        R: AsyncRead + Unpin + Send + 'static,
    {
        let kept = Arc::new(Mutex::new(VecDeque::with_capacity(KEPT_LINES)));
        let into = Arc::clone(&kept);
        let task = tokio::spawn(async move {
            let mut lines = JsonLines::new(stream, LINE_BYTES);
            loop {
                match lines.next_text().await {
                    Ok(line) => {
                        if let Some(prefix) = echo {
                            eprintln!("{prefix}: {line}");
                        }
                        push(&into, line);
                    }
                    Err(LineError::TooLong { .. }) => {
                        push(&into, format!("(a line of more than {LINE_BYTES} bytes)"));
                        return;
                    }
                    Err(_) => return,
                }
            }
        });
        Self { kept, task }
    }

    /// What was kept, once the process has gone: waits, bounded, for the end of the stream.
    pub(crate) async fn finish(&mut self) -> String {
        if !self.task.is_finished() {
            // Past the deadline the lines that did come are still the best answer.
            let _late = tokio::time::timeout(DRAIN_DEADLINE, &mut self.task).await;
        }
        self.text()
    }

    /// What was kept so far, one line after the other.
    pub(crate) fn text(&self) -> String {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for StderrTail {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn push(kept: &Mutex<VecDeque<String>>, line: String) {
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.len() == KEPT_LINES {
        kept.pop_front();
    }
    kept.push_back(line);
}

/// Formats a tail for an error message: nothing, or `; it said:` and the lines, indented.
pub(crate) fn format_tail(tail: &str) -> String {
    if tail.trim().is_empty() {
        return "; it said nothing".into();
    }
    let lines: Vec<String> = tail.lines().map(|line| format!("\n    {line}")).collect();
    format!("; its last lines:{}", lines.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_lines_are_kept() {
        let text: String = (0..100).map(|n| format!("line {n}\n")).collect();
        let mut tail = StderrTail::collect(std::io::Cursor::new(text.into_bytes()), None);
        let kept = tail.finish().await;
        assert_eq!(kept.lines().count(), KEPT_LINES);
        assert!(kept.starts_with("line 80\n") && kept.ends_with("line 99"), "{kept}");
    }
}
