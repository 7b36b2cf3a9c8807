//! Last lines that a child process wrote to standard error.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncRead;
use tokio::task::JoinHandle;

use crate::json_lines::{JsonLines, LineError};

/// Number of lines stored: enough for a panic message, or for a QEMU error with its context.
const KEPT_LINES: usize = 20;
/// Longest line stored, in bytes. A longer line ends the collection.
const LINE_BYTES: usize = 64 << 10;
/// Longest wait for the end of the stream after the process exits. A grandchild may keep it open.
const DRAIN_DEADLINE: Duration = Duration::from_secs(1);

/// Background reader of a child's standard error. The child never waits for it.
#[derive(Debug)]
pub(crate) struct StderrTail {
    kept: Arc<Mutex<VecDeque<String>>>,
    task: JoinHandle<()>,
}

impl StderrTail {
    /// Starts to collect. With `echo`, also copies each line to this process's standard error,
    /// after this prefix.
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
                            logging::write_line(&format!("{prefix}: {line}"));
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

    /// Returns the stored lines after the child exited. Waits a limited time for the end of the
    /// stream.
    pub(crate) async fn finish(&mut self) -> String {
        if !self.task.is_finished() {
            // After the deadline, the lines received so far are the best result.
            let _late = tokio::time::timeout(DRAIN_DEADLINE, &mut self.task).await;
        }
        self.text()
    }

    /// Returns the lines stored so far, separated by line breaks.
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

/// Formats stored lines for an error message: empty, or `; it said:` and the indented lines.
pub(crate) fn format_tail(tail: &str) -> String {
    if tail.trim().is_empty() {
        return "; it printed nothing".into();
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
