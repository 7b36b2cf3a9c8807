//! QEMU's control protocol (QMP): greeting, capabilities, commands with ids, events.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex as AsyncMutex, broadcast, oneshot, watch};
use tokio::task::JoinHandle;

use super::QemuError;
use crate::json_lines::{JsonLines, LineError, write_json};

/// Longest line in bytes. The answer to `query-qmp-schema` has some hundred KiB.
const LINE_BYTES: usize = 16 << 20;
/// Events buffered for each receiver. A slower receiver gets an error that counts its lost events.
const EVENTS_KEPT: usize = 256;
/// Longest wait for the greeting. QEMU sends it before it opens its devices.
const GREETING_DEADLINE: Duration = Duration::from_secs(10);
/// Longest wait for the first answer. QEMU opens every device before it, and waits for a backend
/// without a limit.
const OPEN_DEADLINE: Duration = Duration::from_secs(30);
/// Deadline of a caller that has nothing else to do.
const FOREVER: Duration = Duration::MAX;
/// QMP capability to read commands before earlier ones are answered.
const READS_AHEAD: &str = "oob";
/// Longest wait for an ordinary command.
pub const COMMAND_DEADLINE: Duration = Duration::from_secs(10);

/// Event of QEMU.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Name of the event, for example `SHUTDOWN`.
    pub name: String,
    /// Data of the event; null if it has none.
    pub data: Value,
}

type Answer = Result<Value, String>;
type Pending = Arc<Mutex<HashMap<u64, oneshot::Sender<Answer>>>>;

/// Control connection. Commands may be sent in parallel.
#[derive(Debug)]
pub struct Qmp {
    writer: AsyncMutex<OwnedWriteHalf>,
    /// True if a call was dropped while it wrote its command.
    cut: AtomicBool,
    next_id: AtomicU64,
    pending: Pending,
    events: broadcast::Sender<Event>,
    reader: JoinHandle<()>,
    /// Closes when the reader ends.
    open: watch::Receiver<()>,
}

impl Qmp {
    /// Reads the greeting and leaves the negotiation mode. The receiver misses no event.
    ///
    /// # Errors
    /// [`QemuError::Late`], [`QemuError::Broken`], [`QemuError::NotQemu`], [`QemuError::Refused`].
    pub async fn handshake(
        stream: UnixStream,
    ) -> Result<(Self, broadcast::Receiver<Event>), QemuError> {
        Self::open(stream, GREETING_DEADLINE, OPEN_DEADLINE).await
    }

    /// Reads the greeting and leaves the negotiation mode without a deadline, for a QEMU that may
    /// be silent for long.
    ///
    /// # Errors
    /// The errors of [`handshake`](Self::handshake), except [`QemuError::Late`].
    pub async fn patient_handshake(
        stream: UnixStream,
    ) -> Result<(Self, broadcast::Receiver<Event>), QemuError> {
        Self::open(stream, FOREVER, FOREVER).await
    }

    async fn open(
        stream: UnixStream,
        greets_within: Duration,
        opens_within: Duration,
    ) -> Result<(Self, broadcast::Receiver<Event>), QemuError> {
        let (reader, writer) = stream.into_split();
        let mut lines = JsonLines::new(reader, LINE_BYTES);
        let greeting = tokio::time::timeout(greets_within, lines.next_json());
        let greeting = greeting.await.map_err(|_| QemuError::Late {
            what: "its greeting".into(),
            deadline: greets_within,
        })??;
        if greeting.get("QMP").is_none() {
            return Err(QemuError::NotQemu(greeting.to_string()));
        }
        let (events, receiver) = broadcast::channel(EVENTS_KEPT);
        let pending = Pending::default();
        let (reading, open) = watch::channel(());
        let waiting = Waiting(Arc::clone(&pending));
        let reader = read(lines, Arc::clone(&pending), events.clone());
        let reader = tokio::spawn(async move {
            // Drop order: `is_closed` is true before the waiting calls return.
            let (_waiting, _reading) = (waiting, reading);
            reader.await;
        });
        let qmp = Self {
            writer: AsyncMutex::new(writer),
            cut: AtomicBool::new(false),
            next_id: AtomicU64::new(1),
            pending,
            events,
            reader,
            open,
        };
        match qmp.execute("qmp_capabilities", wanted(&greeting), opens_within).await {
            Err(QemuError::Late { deadline, .. }) => {
                let what = "its first command: a disk's backend does not answer it".into();
                Err(QemuError::Late { what, deadline })
            }
            Err(error) => Err(error),
            Ok(_) => Ok((qmp, receiver)),
        }
    }

    /// Returns a receiver of events from now on.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// Executes `command`; `arguments` may be null.
    ///
    /// # Errors
    /// [`QemuError::Late`], [`QemuError::Closed`], [`QemuError::Refused`].
    pub async fn execute(
        &self,
        command: &str,
        arguments: Value,
        deadline: Duration,
    ) -> Result<Value, QemuError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        lock(&self.pending).insert(id, sender);
        let answer =
            tokio::time::timeout(deadline, self.exchange(id, command, arguments, receiver));
        let answer = answer.await;
        lock(&self.pending).remove(&id);
        answer
            .map_err(|_| QemuError::Late { what: command.into(), deadline })??
            .map_err(|reason| QemuError::Refused { what: command.into(), reason })
    }

    async fn exchange(
        &self,
        id: u64,
        command: &str,
        arguments: Value,
        receiver: oneshot::Receiver<Answer>,
    ) -> Result<Answer, QemuError> {
        let mut message = json!({ "execute": command, "id": id });
        if let (false, Some(object)) = (arguments.is_null(), message.as_object_mut()) {
            object.insert("arguments".into(), arguments);
        }
        {
            let mut writer = self.writer.lock().await;
            if self.is_closed() {
                return Err(QemuError::Closed);
            }
            let writing = Writing { qmp: self, whole: false };
            write_json(&mut *writer, &message).await.map_err(|_| QemuError::Closed)?;
            writing.done();
        }
        receiver.await.map_err(|_| QemuError::Closed)
    }

    /// Waits until the connection is closed. It closes after QEMU's last event, or when a call was
    /// dropped while it wrote its command.
    pub async fn closed(&self) {
        let mut open = self.open.clone();
        while open.changed().await.is_ok() {}
    }

    /// Returns whether the connection is closed: by QEMU, or because a call was dropped while it
    /// wrote its command.
    pub fn is_closed(&self) -> bool {
        self.open.has_changed().is_err() || self.cut.load(Ordering::Relaxed)
    }
}

/// Returns the capabilities to enable. With `oob`, QEMU reads the next commands while it executes
/// one. It reads byte by byte, which takes as long as the execution.
fn wanted(greeting: &Value) -> Value {
    let offered = greeting.pointer("/QMP/capabilities").and_then(Value::as_array);
    let reads_ahead = offered.is_some_and(|all| all.iter().any(|one| one == READS_AHEAD));
    if reads_ahead { json!({ "enable": [READS_AHEAD] }) } else { Value::Null }
}

/// Guard of a command that is being written. If it is dropped before the end, the connection is
/// unusable: half a command was sent. QEMU accepts no other connection before this one closes.
struct Writing<'a> {
    qmp: &'a Qmp,
    whole: bool,
}

impl Writing<'_> {
    fn done(mut self) {
        self.whole = true;
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if !self.whole {
            self.qmp.cut.store(true, Ordering::Relaxed);
            self.qmp.reader.abort();
        }
    }
}

/// Waiting calls. Dropping the value ends all of them.
struct Waiting(Pending);

impl Drop for Waiting {
    fn drop(&mut self) {
        lock(&self.0).clear();
    }
}

impl Drop for Qmp {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

fn lock(
    pending: &Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<Answer>>> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Delivers answers and events until the connection closes.
async fn read(
    mut lines: JsonLines<OwnedReadHalf>,
    pending: Pending,
    events: broadcast::Sender<Event>,
) {
    loop {
        match lines.next_json().await {
            Ok(message) => deliver(message, &pending, &events),
            // A process that exits with unread bytes resets the connection instead of closing it.
            Err(LineError::Closed { .. } | LineError::Io(_)) => break,
            Err(error) => {
                tracing::warn!(%error, "lost the control connection to QEMU");
                break;
            }
        }
    }
}

fn deliver(message: Value, pending: &Pending, events: &broadcast::Sender<Event>) {
    if let Some(name) = message.get("event").and_then(Value::as_str) {
        let data = message.get("data").cloned().unwrap_or(Value::Null);
        // An event without receivers is dropped.
        let _no_receiver = events.send(Event { name: name.into(), data });
        return;
    }
    let waiting =
        message.get("id").and_then(Value::as_u64).and_then(|id| lock(pending).remove(&id));
    let Some(waiting) = waiting else {
        tracing::debug!(%message, "unexpected answer");
        return;
    };
    let answer = match (message.get("return"), message.get("error")) {
        (Some(value), _) => Ok(value.clone()),
        (None, Some(error)) => {
            let text = error.get("desc").and_then(Value::as_str);
            Err(text.map_or_else(|| error.to_string(), str::to_owned))
        }
        (None, None) => Err(format!("an answer without a result: {message}")),
    };
    // The caller may have stopped waiting.
    let _gone = waiting.send(answer);
}

#[cfg(test)]
mod tests;
