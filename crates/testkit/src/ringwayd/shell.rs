//! Shell of a VM's test guest, on its serial line.
//!
//! The line belongs to QEMU and not to the daemon, so it continues when the daemon is killed.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::guest::console::{Console, Seen};

/// Prompt of the guest's shell. Text that is typed before it may be lost.
const PROMPT: &str = " # ";
/// Last line that the guest prints before it powers off.
const LAST_WORDS: &str = "ringway-guest: exit";
/// Silence after which the test sends a newline: the guest may have printed the prompt earlier. It
/// doubles with each newline, because a guest that still boots answers none.
const FIRST_ASK_AFTER: Duration = Duration::from_millis(500);
const ASK_AFTER_MAX: Duration = Duration::from_secs(15);
/// Marks before and after the output of a command, with its number. The shell computes a part of
/// each mark, so that the echo of a typed line does not match.
const BEGIN: &str = "ringway-begin-2";
const END: &str = "ringway-end-2";
/// Shell functions that print the marks.
const SAY: [&str; 2] =
    ["b() { echo ringway-begin-$((1+1)) $1; }", "e() { echo ringway-end-$((1+1)) $1 $?; }"];

/// Returns a number for a command, because a guest that was asked twice replies twice.
fn number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// Shell of a test guest.
#[derive(Debug)]
pub struct Shell {
    console: Console,
}

impl Shell {
    /// Connects to a VM's serial line, which accepts one connection at a time.
    ///
    /// # Errors
    /// [`Error::Io`] if there is none.
    pub(super) fn open(socket: &Path) -> Result<Self> {
        let at = |e| Error::io(format!("cannot connect to {}", socket.display()), e);
        let line = UnixStream::connect(socket).map_err(at)?;
        let from = line.try_clone().map_err(at)?;
        Ok(Self { console: Console::new(from, Some(line)) })
    }

    /// Waits until the shell accepts commands.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::Closed`] if the guest ends instead.
    pub fn ready(&mut self, deadline: Duration) -> Result<()> {
        let (until, mut ask_after) = (Instant::now() + deadline, FIRST_ASK_AFTER);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.console.wait_for(PROMPT, left.min(ask_after)) {
                Seen::Yes => {}
                Seen::Closed => return Err(self.closed("its start")),
                Seen::Late if left.is_zero() => return Err(self.late("its start", deadline)),
                Seen::Late => {
                    ask_after = (2 * ask_after).min(ASK_AFTER_MAX);
                    self.type_line("")?;
                    continue;
                }
            }
            for line in SAY {
                self.type_line(line)?;
            }
            let number = number();
            self.type_line(&format!("e {number}"))?;
            match self.console.wait_for(&format!("{END} {number} "), left.min(ASK_AFTER_MAX)) {
                Seen::Yes => return Ok(()),
                Seen::Closed => return Err(self.closed("its start")),
                Seen::Late => {}
            }
        }
    }

    /// Runs a command. Returns its output if it ends with 0.
    ///
    /// # Errors
    /// [`Error::Process`] if it fails, else as [`ready`](Self::ready).
    pub fn run(&mut self, command: &str, deadline: Duration) -> Result<String> {
        self.console.skip();
        let before = self.console.text().len();
        let number = number();
        let (begin, end) = (format!("{BEGIN} {number}\n"), format!("{END} {number} "));
        self.type_line(&format!("b {number}; {command}; e {number}"))?;
        // The exit code follows the mark, in the same line.
        for mark in [&*end, "\n"] {
            match self.console.wait_for(mark, deadline) {
                Seen::Yes => {}
                Seen::Closed => return Err(self.closed(command)),
                Seen::Late => return Err(self.late(command, deadline)),
            }
        }
        let text = self.console.text();
        let new_text = text.get(before..).unwrap_or_default();
        let (output, code) = new_text.split_once(&end).unwrap_or_default();
        let output = output.split_once(&begin).map_or("", |(_, output)| output).trim_end();
        if code.lines().next() == Some("0") {
            return Ok(output.to_owned());
        }
        let (program, what) = (command.to_owned(), "failed in the guest".to_owned());
        Err(Error::Process { program, what, stderr: output.to_owned() })
    }

    /// Runs a command that ends the guest, and waits for the guest's last line.
    ///
    /// # Errors
    /// As [`ready`](Self::ready).
    pub fn last(self, command: &str, deadline: Duration) -> Result<()> {
        self.last_by(command, LAST_WORDS, deadline)
    }

    /// Runs a command that ends the guest, and waits for this text, such as the kernel's last
    /// message.
    ///
    /// # Errors
    /// As [`ready`](Self::ready).
    pub fn last_by(mut self, command: &str, words: &str, deadline: Duration) -> Result<()> {
        self.console.skip();
        self.type_line(command)?;
        match self.console.wait_for(words, deadline) {
            Seen::Yes => Ok(()),
            Seen::Closed => Err(self.closed(command)),
            Seen::Late => Err(self.late(command, deadline)),
        }
    }

    fn type_line(&mut self, line: &str) -> Result<()> {
        let gone = || Error::io("cannot type", std::io::ErrorKind::BrokenPipe);
        let input = self.console.input().ok_or_else(gone)?;
        let typed = input.write_all(format!("{line}\n").as_bytes());
        typed.map_err(|e| Error::io("cannot type", e))
    }

    fn closed(&self, what: &str) -> Error {
        Error::Closed { what: format!("{what}; the console ends with: {}", self.console.tail()) }
    }

    fn late(&self, what: &str, deadline: Duration) -> Error {
        let what = format!("{what}; the console ends with: {}", self.console.tail());
        Error::Timeout { what, after_ms: deadline.as_millis() }
    }
}
