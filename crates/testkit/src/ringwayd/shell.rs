//! The shell of a machine's test guest, on its serial line.
//!
//! The line is QEMU's and not the daemon's: it goes on when a daemon is killed.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::guest::console::{Console, Seen};

/// What the guest says when its shell can be used.
const READY: &str = "ringway-guest: ready";
/// How long a guest may say nothing before it is asked: it may have been ready before we listened.
const ASK_AFTER: Duration = Duration::from_secs(15);
/// What comes before and behind the output of a command. The shell works out the number, so that
/// the echo of a line is not it.
const BEGIN: &str = "ringway-begin-2\n";
const END: &str = "ringway-end-2 ";
/// What says them.
const SAY: [&str; 2] =
    ["b() { echo ringway-begin-$((1+1)); }", "e() { echo ringway-end-$((1+1)) $?; }"];

/// A shell.
#[derive(Debug)]
pub struct Shell {
    console: Console,
}

impl Shell {
    /// Connects to a machine's serial line, which takes one at a time.
    ///
    /// # Errors
    /// [`Error::Io`] if there is none.
    pub(super) fn open(socket: &Path) -> Result<Self> {
        let at = |e| Error::io(format!("cannot connect to {}", socket.display()), e);
        let line = UnixStream::connect(socket).map_err(at)?;
        let from = line.try_clone().map_err(at)?;
        Ok(Self { console: Console::new(from, Some(line)) })
    }

    /// Waits until it takes commands.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::Closed`] if the guest ends instead.
    pub fn ready(&mut self, deadline: Duration) -> Result<()> {
        let until = Instant::now() + deadline;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.console.wait_for(READY, left.min(ASK_AFTER)) == Seen::Closed {
                return Err(self.closed("its start"));
            }
            for line in SAY.iter().chain(&["e"]) {
                self.type_line(line)?;
            }
            match self.console.wait_for(END, left.min(ASK_AFTER)) {
                Seen::Yes => return Ok(()),
                Seen::Closed => return Err(self.closed("its start")),
                Seen::Late if left.is_zero() => return Err(self.late("its start", deadline)),
                Seen::Late => {}
            }
        }
    }

    /// Runs a command: what it has printed, if it ends with 0.
    ///
    /// # Errors
    /// [`Error::Process`] if it fails, else as [`ready`](Self::ready).
    pub fn run(&mut self, command: &str, deadline: Duration) -> Result<String> {
        self.console.skip();
        let before = self.console.text().len();
        self.type_line(&format!("b; {command}; e"))?;
        // The code is behind the mark, in the same line.
        for mark in [END, "\n"] {
            match self.console.wait_for(mark, deadline) {
                Seen::Yes => {}
                Seen::Closed => return Err(self.closed(command)),
                Seen::Late => return Err(self.late(command, deadline)),
            }
        }
        let text = self.console.text();
        let said = text.get(before..).unwrap_or_default();
        let (output, code) = said.split_once(END).unwrap_or_default();
        let output = output.split_once(BEGIN).map_or("", |(_, output)| output).trim_end();
        if code.lines().next() == Some("0") {
            return Ok(output.to_owned());
        }
        let (program, what) = (command.to_owned(), "failed in the guest".to_owned());
        Err(Error::Process { program, what, stderr: output.to_owned() })
    }

    /// Types a line, and waits for nothing: for what the guest does not come back from.
    ///
    /// # Errors
    /// [`Error::Io`] if the guest is gone.
    pub fn type_line(&mut self, line: &str) -> Result<()> {
        let gone = || Error::io("cannot type", std::io::ErrorKind::BrokenPipe);
        let input = self.console.input().ok_or_else(gone)?;
        let typed = input.write_all(format!("{line}\n").as_bytes());
        typed.map_err(|e| Error::io("cannot type", e))
    }

    /// Waits until the guest says this.
    ///
    /// # Errors
    /// As [`ready`](Self::ready).
    pub fn says(&self, text: &str, deadline: Duration) -> Result<()> {
        match self.console.wait_for(text, deadline) {
            Seen::Yes => Ok(()),
            Seen::Closed => Err(self.closed(text)),
            Seen::Late => Err(self.late(text, deadline)),
        }
    }

    fn closed(&self, what: &str) -> Error {
        Error::Closed { what: format!("{what}; the console ends with: {}", self.console.tail()) }
    }

    fn late(&self, what: &str, deadline: Duration) -> Error {
        let what = format!("{what}; the console ends with: {}", self.console.tail());
        Error::Timeout { what, after_ms: deadline.as_millis() }
    }
}
