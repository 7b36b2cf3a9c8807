//! A guest's console. A thread reads it to the end, so that the guest never waits for the test.

use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Most console bytes stored. Beyond, the older half is dropped: the end has the script's result.
const KEPT_BYTES_MAX: usize = 16 << 20;
/// Most bytes of the console in an error.
const TAIL_BYTES: usize = 4096;

const READY: &str = "ringway-guest: ready\n";
const EXIT: &str = "ringway-guest: exit ";

/// Result of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Exit code; 127 if the guest did not receive the script, 143 if it was powered off meanwhile.
    pub code: i32,
    /// Output of the script. It may contain kernel messages, which share the console.
    pub output: String,
}

/// Result of a wait for text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    Yes,
    Closed,
    Late,
}

#[derive(Debug, Default)]
struct State {
    text: Vec<u8>,
    /// Position at which the next wait starts.
    next: usize,
    closed: bool,
}

/// Reading end of a console.
#[derive(Debug)]
pub(crate) struct Console {
    shared: Arc<(Mutex<State>, Condvar)>,
    input: Option<UnixStream>,
}

impl Console {
    pub(crate) fn new(from: impl Read + Send + 'static, input: Option<UnixStream>) -> Self {
        let shared = Arc::<(Mutex<State>, Condvar)>::default();
        let copy = Arc::clone(&shared);
        thread::spawn(move || copy_all(from, &copy));
        Self { shared, input }
    }

    pub(crate) fn input(&mut self) -> Option<&mut UnixStream> {
        self.input.as_mut()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&lock(&self.shared.0).text).into_owned()
    }

    /// Returns the end of the console.
    pub(crate) fn tail(&self) -> String {
        let state = lock(&self.shared.0);
        let from = state.text.len().saturating_sub(TAIL_BYTES);
        String::from_utf8_lossy(state.text.get(from..).unwrap_or_default()).into_owned()
    }

    /// Skips the text that no wait has consumed.
    pub(crate) fn skip(&self) {
        let mut state = lock(&self.shared.0);
        state.next = state.text.len();
    }

    pub(crate) fn wait_for(&self, text: &str, deadline: Duration) -> Seen {
        let mut found = false;
        let state = self.wait(deadline, |state| {
            let fresh = state.text.get(state.next..).unwrap_or_default();
            if let Some(at) = fresh.windows(text.len().max(1)).position(|w| w == text.as_bytes()) {
                state.next += at + text.len();
                found = true;
            }
            found || state.closed
        });
        match (found, state.closed) {
            (true, _) => Seen::Yes,
            (false, true) => Seen::Closed,
            (false, false) => Seen::Late,
        }
    }

    /// Waits until the guest's side is closed, so that all output is here. Returns false if it is
    /// still open at the deadline.
    pub(crate) fn wait_closed(&self, deadline: Duration) -> bool {
        self.wait(deadline, |state| state.closed).closed
    }

    fn wait(
        &self,
        deadline: Duration,
        mut done: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'_, State> {
        let state = lock(&self.shared.0);
        let waited = self.shared.1.wait_timeout_while(state, deadline, |state| !done(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits until the guest has printed the result of the script.
    ///
    /// # Errors
    /// The guest's side is closed, or the deadline has passed.
    pub(crate) fn wait_outcome(&self, deadline: Duration) -> Result<Outcome, Seen> {
        let mut outcome = None;
        let state = self.wait(deadline, |state| {
            outcome = parse(&String::from_utf8_lossy(&state.text));
            outcome.is_some() || state.closed
        });
        let missing = if state.closed { Seen::Closed } else { Seen::Late };
        outcome.ok_or(missing)
    }

    /// Returns the result of the script, if the guest has printed it.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        parse(&self.text())
    }
}

impl Drop for Console {
    /// Closes the line. Otherwise the reading thread would hold it until the guest prints
    /// something, and an emulator accepts one connection at a time.
    fn drop(&mut self) {
        if let Some(line) = &self.input {
            // Fails only if the other side has closed.
            let _ = line.shutdown(Shutdown::Both);
        }
    }
}

fn copy_all(mut from: impl Read, shared: &(Mutex<State>, Condvar)) {
    let mut chunk = [0; 4096];
    loop {
        let n = match from.read(&mut chunk) {
            Ok(n) => n,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => 0,
        };
        let mut state = lock(&shared.0);
        // The terminal sends each newline as carriage return and newline.
        let fresh = chunk.get(..n).unwrap_or_default();
        state.text.extend(fresh.iter().filter(|byte| **byte != b'\r'));
        state.closed = n == 0;
        if state.text.len() > KEPT_BYTES_MAX {
            let gone = state.text.len() / 2;
            state.text.drain(..gone);
            state.next = state.next.saturating_sub(gone);
        }
        shared.1.notify_all();
        if n == 0 {
            return;
        }
    }
}

/// Locks the state. A panic in another thread cannot leave it half changed.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Finds the script's output and exit code. The exit message may follow output in the same line, if
/// that output did not end in a newline.
fn parse(console: &str) -> Option<Outcome> {
    let (before, after) = console.rsplit_once(EXIT)?;
    // Require the whole line: its rest may still arrive.
    let (code, _) = after.split_once('\n')?;
    let code = code.trim().parse().ok()?;
    let output = before.split_once(READY).map_or("", |(_, output)| output);
    Some(Outcome { code, output: output.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(code: i32, output: &str) -> Option<Outcome> {
        Some(Outcome { code, output: output.to_owned() })
    }

    #[test]
    fn output_is_between_ready_and_exit() {
        let text = "[0.1] boot\nringway-guest: ready\na\n b\nringway-guest: exit 3\n[9] down\n";
        assert_eq!(parse(text), outcome(3, "a\n b\n"));
    }

    #[test]
    fn output_without_a_last_newline_is_kept() {
        let text = "ringway-guest: ready\nhaltringway-guest: exit 0\n";
        assert_eq!(parse(text), outcome(0, "halt"));
    }

    #[test]
    fn a_script_that_prints_the_markers_does_not_fool() {
        let text = "ringway-guest: ready\nringway-guest: exit 7\nringway-guest: ready\n\
                    ringway-guest: exit 2\n";
        let output = "ringway-guest: exit 7\nringway-guest: ready\n";
        assert_eq!(parse(text), outcome(2, output));
    }

    #[test]
    fn a_guest_that_never_got_ready_has_no_output() {
        assert_eq!(parse("disk: no disk\nringway-guest: exit 127\n"), outcome(127, ""));
        assert_eq!(parse("Kernel panic\n"), None);
        for begun in ["", " ", " 1"] {
            assert_eq!(parse(&format!("ringway-guest: ready\nringway-guest: exit{begun}")), None);
        }
    }

    #[test]
    fn waits_go_forward_and_end_with_the_guest() {
        let console = Console::new(&b"one\r\ntwo one\r\n"[..], None);
        let long = Duration::from_secs(20);
        assert_eq!(console.wait_for("one", long), Seen::Yes);
        assert_eq!(console.wait_for("one\n", long), Seen::Yes);
        assert_eq!(console.wait_for("two", long), Seen::Closed);
        assert_eq!(console.text(), "one\ntwo one\n");
    }

    #[test]
    fn what_was_skipped_is_not_found() {
        let console = Console::new(&b"one two"[..], None);
        console.wait_closed(Duration::from_secs(20));
        console.skip();
        assert_eq!(console.wait_for("one", Duration::ZERO), Seen::Closed);
        assert_eq!(console.text(), "one two");
    }

    #[test]
    fn silence_is_late() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let console = Console::new(ours, None);
        assert_eq!(console.wait_for("x", Duration::from_millis(1)), Seen::Late);
    }

    #[test]
    fn a_silent_line_is_given_back_at_once() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        drop(Console::new(ours.try_clone().unwrap(), Some(ours)));
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
    }
}
