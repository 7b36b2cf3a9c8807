//! What the daemon says while it runs: lines on standard error.
//!
//! Nothing that opens a door is in a line: neither passwords, nor references of sessions, nor the
//! part of an address behind its path, where clients put both.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// What is said if nobody asks for more or less.
const USUAL: &str = "info";

/// Begins to speak. `filter` is as `RUST_LOG` has it elsewhere; one that cannot be read is told.
pub fn begin(filter: Option<&str>) {
    let parsed = EnvFilter::try_new(filter.unwrap_or(USUAL));
    let wrong = parsed.as_ref().err().map(ToString::to_string);
    tracing_subscriber::fmt()
        .with_env_filter(parsed.unwrap_or_else(|_| EnvFilter::new(USUAL)))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    if let Some(wrong) = wrong {
        tracing::warn!("the filter of the log is not used: {wrong}");
    }
}
