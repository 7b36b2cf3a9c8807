//! Who ends the daemon: the signals that ask for it.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that ask for an orderly end.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From here on they ask, and no longer end the process.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn begin() -> io::Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        Ok(Self { terminate, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the first; its name.
    pub async fn wait(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
