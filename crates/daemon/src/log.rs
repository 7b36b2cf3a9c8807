//! Log of the daemon, on standard error.
//!
//! No line contains secrets: no passwords, no session references, and no query part of a URL, where
//! clients put both.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Default filter.
const USUAL: &str = "info";

/// Starts logging. `filter` has the syntax of `RUST_LOG`. An invalid filter is reported.
pub fn begin(filter: Option<&str>) {
    let parsed = EnvFilter::try_new(filter.unwrap_or(USUAL));
    let wrong = parsed.as_ref().err().map(ToString::to_string);
    tracing_subscriber::fmt()
        .with_env_filter(parsed.unwrap_or_else(|_| EnvFilter::new(USUAL)))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    if let Some(wrong) = wrong {
        tracing::warn!("log filter ignored: {wrong}");
    }
}
