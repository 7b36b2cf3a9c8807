//! A small client of QEMU's monitor.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::error::{Error, Result};

/// An open monitor. It runs one command at a time and stores events that arrive meanwhile.
#[derive(Debug)]
pub struct Qmp {
    stream: BufReader<UnixStream>,
    events: VecDeque<Value>,
    deadline: Duration,
}

impl Qmp {
    /// Connects to a monitor that has no other client. `deadline` applies to each reply.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub fn connect(socket: &Path, deadline: Duration) -> Result<Self> {
        let stream = UnixStream::connect(socket);
        let stream = stream.map_err(|e| Error::io("cannot connect to QEMU's monitor", e))?;
        Self::new(stream, deadline)
    }

    /// Reads the greeting and enters command mode. `deadline` applies to each later reply too.
    pub(super) fn new(stream: UnixStream, deadline: Duration) -> Result<Self> {
        let mut qmp = Self { stream: BufReader::new(stream), events: VecDeque::new(), deadline };
        let greeting = qmp.read("the greeting", Instant::now() + deadline)?;
        if greeting.get("QMP").is_none() {
            return Err(unexpected("the greeting", &greeting));
        }
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Runs a command and returns its `return` value.
    ///
    /// # Errors
    /// [`Error::Reply`] if QEMU refuses it, with QEMU's reason; [`Error::Timeout`] or
    /// [`Error::Io`] if it does not reply.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let request = json!({ "execute": command, "arguments": arguments });
        let io = |e| Error::io(format!("cannot send {command} to QEMU"), e);
        self.stream.get_mut().write_all(format!("{request}\n").as_bytes()).map_err(io)?;
        let until = Instant::now() + self.deadline;
        loop {
            let mut message = self.read(command, until)?;
            if let Some(value) = message.get_mut("return") {
                return Ok(value.take());
            }
            if message.get("event").is_some() {
                self.events.push_back(message);
                continue;
            }
            let reason = message.pointer("/error/desc").and_then(Value::as_str);
            let what = reason.map_or_else(|| message.to_string(), str::to_owned);
            return Err(Error::Reply { request: command.to_owned(), what });
        }
    }

    /// Waits for an event of this name and returns it. Drops earlier events of other names.
    ///
    /// # Errors
    /// [`Error::Timeout`] past the deadline, [`Error::Io`] if QEMU has ended.
    pub fn wait_event(&mut self, name: &str, deadline: Duration) -> Result<Value> {
        let until = Instant::now() + deadline;
        loop {
            let event = match self.events.pop_front() {
                Some(event) => event,
                None => self.read(name, until)?,
            };
            if event.get("event").and_then(Value::as_str) == Some(name) {
                return Ok(event);
            }
        }
    }

    fn read(&mut self, what: &str, until: Instant) -> Result<Value> {
        let left = until.saturating_duration_since(Instant::now());
        // A timeout of zero would mean none.
        let timeout = Some(left.max(Duration::from_millis(1)));
        let io = |e: std::io::Error| match e.kind() {
            std::io::ErrorKind::WouldBlock => {
                Error::Timeout { what: format!("{what} from QEMU"), after_ms: left.as_millis() }
            }
            _ => Error::io(format!("cannot read {what} from QEMU"), e),
        };
        self.stream.get_ref().set_read_timeout(timeout).map_err(io)?;
        let mut line = String::new();
        if self.stream.read_line(&mut line).map_err(io)? == 0 {
            return Err(io(std::io::ErrorKind::UnexpectedEof.into()));
        }
        serde_json::from_str(&line).map_err(|_| unexpected(what, &Value::String(line)))
    }
}

fn unexpected(request: &str, answer: &Value) -> Error {
    Error::Reply { request: request.to_owned(), what: format!("not QMP: {answer}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a monitor that has already sent all its lines.
    fn scripted(lines: &str) -> (Qmp, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let start = "{\"QMP\":{}}\n{\"return\":{}}\n";
        theirs.write_all(format!("{start}{lines}").as_bytes()).unwrap();
        (Qmp::new(ours, Duration::from_secs(20)).unwrap(), theirs)
    }

    #[test]
    fn events_between_command_and_answer_are_kept() {
        let (mut qmp, _qemu) = scripted(
            "{\"event\":\"A\"}\n{\"return\":{\"x\":1}}\n{\"event\":\"B\",\"data\":{\"y\":2}}\n",
        );
        assert_eq!(qmp.execute("query-x", &json!({})).unwrap(), json!({"x": 1}));
        assert_eq!(qmp.wait_event("A", Duration::ZERO).unwrap(), json!({"event": "A"}));
        assert_eq!(qmp.wait_event("B", Duration::from_secs(20)).unwrap()["data"]["y"], 2);
    }

    #[test]
    fn a_refusal_gives_the_reason() {
        let (mut qmp, _qemu) = scripted("{\"error\":{\"class\":\"X\",\"desc\":\"no such\"}}\n");
        let error = qmp.execute("frob", &json!({})).unwrap_err().to_string();
        assert_eq!(error, "bad answer to frob: no such");
    }

    #[test]
    fn silence_and_a_gone_qemu_are_errors() {
        let (mut qmp, qemu) = scripted("");
        let late = qmp.wait_event("A", Duration::from_millis(1)).unwrap_err();
        assert!(matches!(late, Error::Timeout { .. }), "{late}");
        drop(qemu);
        let gone = qmp.wait_event("A", Duration::from_secs(20)).unwrap_err();
        assert!(matches!(gone, Error::Io { .. }), "{gone}");
    }
}
