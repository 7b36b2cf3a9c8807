//! The user's terminal: keys to the guest, signals to us.

use std::io::{IsTerminal, Read};

use anyhow::Context;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// The code that takes a key its meaning (termios(3), _POSIX_VDISABLE).
const DISABLED: u8 = 0;

/// A signal that asks us to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// SIGINT: Ctrl-C.
    Int,
    /// SIGTERM: kill(1), a service manager.
    Term,
    /// SIGHUP: the terminal has gone.
    Hup,
}

impl Interrupt {
    /// As a message says it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Int => "interrupted",
            Self::Term => "asked to end by SIGTERM",
            Self::Hup => "the terminal has gone",
        }
    }

    /// 128 and the number of the signal, as shells have it.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::Hup => 129,
            Self::Int => 130,
            Self::Term => 143,
        }
    }
}

/// The signals that ask us to end, from now on.
#[derive(Debug)]
pub(crate) struct Interrupts {
    int: Signal,
    term: Signal,
    hup: Signal,
}

/// Takes over SIGINT, SIGTERM and SIGHUP.
///
/// # Errors
/// When the system refuses.
pub(crate) fn interrupts() -> anyhow::Result<Interrupts> {
    let take = |kind| signal(kind).context("cannot take over signals");
    Ok(Interrupts {
        int: take(SignalKind::interrupt())?,
        term: take(SignalKind::terminate())?,
        hup: take(SignalKind::hangup())?,
    })
}

impl Interrupts {
    /// Waits for the first of them.
    pub(crate) async fn first(mut self) -> Interrupt {
        tokio::select! {
            _ = self.int.recv() => Interrupt::Int,
            _ = self.term.recv() => Interrupt::Term,
            _ = self.hup.recv() => Interrupt::Hup,
        }
    }
}

/// Standard input. While this lives, a terminal passes on each key at once and does not show it
/// (the guest does). Of the keys that are signals only Ctrl-C stays one.
pub(crate) struct Keyboard {
    before: Option<Termios>,
}

impl Keyboard {
    /// Takes over standard input, if it is a terminal; otherwise only reads it.
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

    /// Whether it is a terminal that was taken over.
    pub(crate) fn is_taken(&self) -> bool {
        self.before.is_some()
    }

    /// What is typed, or read from the file or pipe that standard input is. The reading thread
    /// ends with the process: a read of a terminal cannot be called off.
    pub(crate) fn read(&self) -> mpsc::Receiver<Vec<u8>> {
        /// Chunks on the way; a guest that does not read holds the typist, not our memory.
        const CHUNKS: usize = 16;
        let (sender, receiver) = mpsc::channel(CHUNKS);
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = std::io::stdin().read(&mut chunk) {
                let bytes = chunk.get(..count).unwrap_or_default().to_vec();
                if sender.blocking_send(bytes).is_err() {
                    return;
                }
            }
        });
        receiver
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // The terminal may have gone: then there is nothing to restore.
            let _gone = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}
