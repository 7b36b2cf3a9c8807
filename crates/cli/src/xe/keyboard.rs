//! The terminal, each key at once.

use std::io::IsTerminal;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// While this lives, a terminal at standard input passes on every key as it is and shows none.
pub(crate) struct Keyboard {
    before: Option<Termios>,
}

impl Keyboard {
    /// Takes over standard input, if it is a terminal.
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

    /// It is a terminal that was taken over.
    pub(crate) fn is_taken(&self) -> bool {
        self.before.is_some()
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
