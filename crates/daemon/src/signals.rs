//! Signals that end the daemon.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that request an orderly end.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs the handlers. From here on the signals no longer kill the process.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub fn begin() -> io::Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        Ok(Self { terminate, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the first signal and returns its name.
    pub async fn wait(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
