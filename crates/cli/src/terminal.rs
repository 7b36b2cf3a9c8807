//! The user's terminal: sends keys to the guest, and signals to this process.

use std::io::{IsTerminal, Read};

use anyhow::Context;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use toolstack::hangup;

/// Character code that disables a special key (termios(3), _POSIX_VDISABLE).
const DISABLED: u8 = 0;

/// A signal that asks this process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Interrupt {
    /// SIGINT: Ctrl-C.
    #[error("interrupted")]
    Int,
    /// SIGTERM: kill(1) or a service manager.
    #[error("asked to end by SIGTERM")]
    Term,
    /// SIGHUP: the terminal is gone.
    #[error("the terminal was closed")]
    Hup,
}

impl Interrupt {
    /// Returns 128 plus the signal number, as in shells.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::Hup => 129,
            Self::Int => 130,
            Self::Term => 143,
        }
    }
}

/// Receiver of the signals that ask this process to end.
#[derive(Debug)]
pub(crate) struct Interrupts {
    int: Signal,
    term: Signal,
    /// `None` if this process was started with SIGHUP ignored, as by nohup(1).
    hup: Option<Signal>,
}

/// Installs handlers of SIGINT, SIGTERM and SIGHUP.
///
/// # Errors
/// The system refuses the handlers.
pub(crate) fn interrupts() -> anyhow::Result<Interrupts> {
    let take = |kind| signal(kind).context("cannot take over signals");
    let ignored = hangup::is_ignored().context("cannot take over signals")?;
    Ok(Interrupts {
        int: take(SignalKind::interrupt())?,
        term: take(SignalKind::terminate())?,
        hup: (!ignored).then(|| take(SignalKind::hangup())).transpose()?,
    })
}

impl Interrupts {
    /// Waits for the first signal.
    pub(crate) async fn first(mut self) -> Interrupt {
        tokio::select! {
            _ = self.int.recv() => Interrupt::Int,
            _ = self.term.recv() => Interrupt::Term,
            () = hangup::recv(&mut self.hup) => Interrupt::Hup,
        }
    }
}

/// Standard input. While this value lives, a terminal passes on each key at once without echo,
/// because the guest echoes it. Only Ctrl-C still sends a signal.
pub(crate) struct Keyboard {
    before: Option<Termios>,
}

impl Keyboard {
    /// Opens standard input, and switches a terminal to raw mode.
    pub(crate) fn open() -> Self {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return Self { before: None };
        }
        let Ok(before) = tcgetattr(&stdin) else { return Self { before: None } };
        let mut raw = before.clone();
        raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        for key in [SpecialCodeIndex::VQUIT, SpecialCodeIndex::VSUSP] {
            raw.special_codes[key] = DISABLED;
        }
        let taken = tcsetattr(&stdin, OptionalActions::Now, &raw).is_ok();
        Self { before: taken.then_some(before) }
    }

    /// Returns whether standard input is a terminal in raw mode.
    pub(crate) fn is_taken(&self) -> bool {
        self.before.is_some()
    }

    /// Starts to read standard input. The reading thread ends only with the process, because a
    /// read of a terminal cannot be cancelled.
    ///
    /// # Errors
    /// The process cannot have another thread.
    pub(crate) fn read(&self) -> std::io::Result<mpsc::Receiver<Vec<u8>>> {
        /// Maximum number of buffered chunks: a guest that does not read blocks the input.
        const CHUNKS: usize = 16;
        let (sender, receiver) = mpsc::channel(CHUNKS);
        let read = move || {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = std::io::stdin().read(&mut chunk) {
                let bytes = chunk.get(..count).unwrap_or_default().to_vec();
                if sender.blocking_send(bytes).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("keyboard".into()).spawn(read)?;
        Ok(receiver)
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // If the terminal is gone, there is nothing to restore.
            let _gone = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}
