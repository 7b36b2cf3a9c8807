//! The terminal in raw mode.

use std::io::IsTerminal;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// Standard input. While this value lives, a terminal passes on every key unchanged without echo.
pub(crate) struct Keyboard {
    before: Option<Termios>,
}

impl Keyboard {
    /// Opens standard input, and switches a terminal to raw mode.
    pub(crate) fn open() -> Self {
        let input = std::io::stdin();
        let before = if input.is_terminal() { tcgetattr(&input).ok() } else { None };
        let taken = before.filter(|before| {
            let mut raw = before.clone();
            raw.make_raw();
            tcsetattr(&input, OptionalActions::Now, &raw).is_ok()
        });
        Self { before: taken }
    }

    /// Returns whether standard input is a terminal in raw mode.
    pub(crate) fn is_taken(&self) -> bool {
        self.before.is_some()
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
