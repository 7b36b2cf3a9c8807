//! Signals.

use std::io;

use rustix::process::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};
use toolstack::hangup;

/// Signals without effect. A write beyond the limit of a file's size causes SIGXFSZ: the write fails
/// then, and the daemon lives.
const WITHOUT_EFFECT: [Number; 9] = [
    Number::XFSZ,
    Number::XCPU,
    Number::USR1,
    Number::USR2,
    Number::ALARM,
    Number::VTALARM,
    Number::PROF,
    Number::IO,
    Number::POWER,
];

/// Signals that request an orderly end.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// `None` if the daemon was started with SIGHUP ignored, as by nohup(1).
    hangup: Option<Signal>,
}

impl Signals {
    /// Installs the handlers. From here on the signals no longer kill the process. Programs that
    /// the daemon starts do not inherit handlers.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub fn begin() -> io::Result<Self> {
        for number in WITHOUT_EFFECT {
            // The handler stays when this value is dropped.
            drop(signal(SignalKind::from_raw(number.as_raw()))?);
        }
        let hangup = (!hangup::is_ignored()?).then(|| signal(SignalKind::hangup())).transpose()?;
        let terminate = signal(SignalKind::terminate())?;
        Ok(Self { terminate, interrupt: signal(SignalKind::interrupt())?, hangup })
    }

    /// Waits for the first signal and returns its name.
    pub async fn wait(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            () = hangup::recv(&mut self.hangup) => "SIGHUP",
        }
    }
}
