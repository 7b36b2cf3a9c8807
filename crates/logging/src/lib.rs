//! Log on standard error that can neither stop nor end the process.
//!
//! A process that serves guests must live whatever happens to its log. Standard error may be a pipe
//! whose reader paused or ended, a terminal that is gone, or a file on a full file system.
//!
//! ```text
//! any thread -> RepeatFilter -> formatted line -> LineQueue -> thread "log" -> standard error
//! ```
//! - **No thread blocks.** A thread puts a line into a bounded queue. If the queue is full, the line
//!   is dropped and counted. Only the thread `log` writes, so only that thread waits for a reader.
//! - **No write fails the process.** A line that cannot be written is counted. The next line that
//!   can be written is preceded by the number of lost lines and the reason.
//! - **No flood.** A line that repeats within a minute is counted and not written
//!   ([`repeats`]). A guest or a client can cause lines, and must not control how
//!   much is logged. Levels debug and trace are exempt, because a user chose them.
//! - **No endless file.** [`Settings::limit_bytes`] bounds the file behind standard error.
//!
//! A panic's message goes the same way. A process that ends calls [`flush`] first.
//!
//! # How to test
//! Queue, filter and file limit beside the code; whole programs with broken logs in the tests of
//! `iod`.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod file_limit;
mod filter;
mod line_queue;
mod panic_message;
pub mod repeats;
mod writer;

use std::io::{IsTerminal, Write as _};
use std::sync::OnceLock;
use std::time::Duration;

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

pub use file_limit::limit_file;
use filter::RepeatFilter;
use line_queue::LineQueue;

/// Environment variable with the largest size of the log file, in bytes. It applies if standard
/// error is a regular file.
pub const LIMIT: &str = "RINGWAY_LOG_LIMIT";

/// Longest time for which [`flush`] waits.
const FLUSH_DEADLINE: Duration = Duration::from_secs(1);

/// Queue of this process's log, once it has one.
static QUEUE: OnceLock<LineQueue> = OnceLock::new();

/// Settings of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings<'a> {
    /// Filter with the syntax of `RUST_LOG`. An invalid filter is reported and not used.
    pub filter: Option<&'a str>,
    /// Level of the lines that are logged without a filter.
    pub default_level: &'a str,
    /// True if each line names the module that logs it.
    pub with_target: bool,
    /// Largest size of the file behind standard error, if it is a regular file. A larger file loses
    /// its older half.
    pub limit_bytes: Option<u64>,
}

impl Default for Settings<'_> {
    fn default() -> Self {
        Self { filter: None, default_level: "info", with_target: true, limit_bytes: None }
    }
}

impl Settings<'_> {
    /// Sets the file limit of [`LIMIT`], if the environment has a valid one.
    #[must_use]
    pub fn limit_from_environment(mut self) -> Self {
        self.limit_bytes = std::env::var(LIMIT).ok().and_then(|bytes| bytes.parse().ok());
        self
    }
}

/// Starts logging, once in a process: a second call has no effect. If no thread can start, the
/// process has no log.
pub fn start(settings: &Settings<'_>) {
    if QUEUE.get().is_some() {
        return;
    }
    let parsed = EnvFilter::try_new(settings.filter.unwrap_or(settings.default_level));
    let invalid = parsed.as_ref().err().map(ToString::to_string);
    let enabled = parsed.unwrap_or_else(|_| EnvFilter::new(settings.default_level));
    let (queue, lines) = line_queue::pair();
    let repeat_filter = RepeatFilter::new(queue.clone());
    let repeats = repeat_filter.repeats();
    let limit = settings.limit_bytes;
    let write = move || writer::run(&lines, &repeats, limit);
    if std::thread::Builder::new().name("log".into()).spawn(write).is_err()
        || QUEUE.set(queue.clone()).is_err()
    {
        return;
    }
    let layer = tracing_subscriber::fmt::layer()
        .with_target(settings.with_target)
        .with_ansi(std::io::stderr().is_terminal())
        .log_internal_errors(false)
        .with_writer(queue)
        .with_filter(repeat_filter);
    let _ = tracing_subscriber::registry().with(enabled).with(layer).try_init();
    panic_message::install();
    if let Some(invalid) = invalid {
        tracing::warn!("log filter ignored: {invalid}");
    }
}

/// Logs a line as it is, for example the reason why a program ends or the output of a child. Before
/// [`start`], this function does nothing.
pub fn write_line(line: &str) {
    if let Some(queue) = QUEUE.get() {
        queue.push(format!("{line}\n").into_bytes());
    }
}

/// Waits until all lines so far are written, at most one second. A process calls it before it ends.
pub fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.flush(FLUSH_DEADLINE);
    }
}

/// Logs the reason why a program ends as a last line, and waits until it is written, at most one
/// second.
pub fn write_last_line(line: &str) {
    // A program that fails before it has a log has only just started.
    if QUEUE.get().is_none() {
        start(&Settings::default());
    }
    match QUEUE.get() {
        Some(_) => {
            write_line(line);
            flush();
        }
        // No thread could start. The program ends anyway, so it may wait for a reader.
        None => drop(writeln!(std::io::stderr(), "{line}")),
    }
}
