//! Logging to standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Environment variable with the filter, for example `debug` or `vhost_user=debug,info`.
const FILTER: &str = "RINGWAY_LOG";

/// Starts logging at level `info` and above, unless `RINGWAY_LOG` sets a filter. A second call has
/// no effect.
pub fn start() {
    let filter = EnvFilter::try_from_env(FILTER).unwrap_or_else(|_| EnvFilter::new("info"));
    let stderr = std::io::stderr();
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(stderr.is_terminal())
        .with_target(false)
        .with_writer(std::io::stderr)
        .try_init();
}
