//! QEMU's control protocol: greeting, capabilities, commands told apart by id, events.

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

/// Longest line: `query-qmp-schema` answers with some hundred KiB.
const LINE_BYTES: usize = 16 << 20;
/// Events kept for a reader that does not read; a slower one is told that it lost some.
const EVENTS_KEPT: usize = 256;
/// Longest wait for the greeting: QEMU sends it before it opens its devices.
const GREETING_DEADLINE: Duration = Duration::from_secs(10);
/// Longest wait for the first answer: QEMU has opened every device by then, and waits as long as
/// it takes for a backend that does not accept or answer.
const OPEN_DEADLINE: Duration = Duration::from_secs(30);
/// The wait of one who does nothing but wait.
const FOREVER: Duration = Duration::MAX;
/// The capability of a QEMU that reads commands before it has answered those before them.
const READS_AHEAD: &str = "oob";
/// Longest wait for an ordinary command.
pub const COMMAND_DEADLINE: Duration = Duration::from_secs(10);

/// Something that QEMU says by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its name, for example `SHUTDOWN`.
    pub name: String,
    /// Its data; null if it has none.
    pub data: Value,
}

type Answer = Result<Value, String>;
type Pending = Arc<Mutex<HashMap<u64, oneshot::Sender<Answer>>>>;

/// One control connection. Commands may be sent at the same time.
#[derive(Debug)]
pub struct Qmp {
    writer: AsyncMutex<OwnedWriteHalf>,
    /// A command was cut off while it was being written.
    cut: AtomicBool,
    next_id: AtomicU64,
    pending: Pending,
    events: broadcast::Sender<Event>,
    reader: JoinHandle<()>,
    /// Its other end goes with the reader.
    open: watch::Receiver<()>,
}

impl Qmp {
    /// Takes the greeting and leaves the negotiation mode. The receiver misses no event.
    ///
    /// # Errors
    /// [`QemuError::Late`], [`QemuError::Broken`], [`QemuError::NotQemu`],
    /// [`QemuError::Refused`].
    pub async fn handshake(
        stream: UnixStream,
    ) -> Result<(Self, broadcast::Receiver<Event>), QemuError> {
        Self::open(stream, GREETING_DEADLINE, OPEN_DEADLINE).await
    }

    /// The same with a QEMU that may be silent: it is waited for until it speaks.
    ///
    /// # Errors
    /// As [`handshake`](Self::handshake), but never [`QemuError::Late`].
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
            // Those who wait hear of the end after it can be seen.
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

    /// Events from now on.
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

    /// Waits until QEMU has closed the connection, and every event has been delivered, or until a
    /// command was cut off half way.
    pub async fn closed(&self) {
        let mut open = self.open.clone();
        while open.changed().await.is_ok() {}
    }

    /// No command will be answered any more: QEMU has closed the connection, or one was cut off
    /// half way.
    pub fn is_closed(&self) -> bool {
        self.open.has_changed().is_err() || self.cut.load(Ordering::Relaxed)
    }
}

/// What is asked for of what QEMU offers. A QEMU that takes commands out of turn reads the next ones
/// while it works on one. It reads byte by byte, which takes it as long as the work.
fn wanted(greeting: &Value) -> Value {
    let offered = greeting.pointer("/QMP/capabilities").and_then(Value::as_array);
    let reads_ahead = offered.is_some_and(|all| all.iter().any(|one| one == READS_AHEAD));
    if reads_ahead { json!({ "enable": [READS_AHEAD] }) } else { Value::Null }
}

/// A command that is being written. Dropped before it is done, it was cut off: nobody can write
/// another, and QEMU takes no other connection before this one ends.
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

/// Those who wait for an answer. Dropped, none of them waits any longer.
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
            // A process that ends with unread bytes resets the connection instead of closing it.
            Err(LineError::Closed { .. } | LineError::Io(_)) => break,
            Err(error) => {
                tracing::warn!(%error, "the control connection of QEMU broke");
                break;
            }
        }
    }
}

fn deliver(message: Value, pending: &Pending, events: &broadcast::Sender<Event>) {
    if let Some(name) = message.get("event").and_then(Value::as_str) {
        let data = message.get("data").cloned().unwrap_or(Value::Null);
        // Without a receiver the event is of interest to nobody.
        let _unheard = events.send(Event { name: name.into(), data });
        return;
    }
    let waiting =
        message.get("id").and_then(Value::as_u64).and_then(|id| lock(pending).remove(&id));
    let Some(waiting) = waiting else {
        tracing::debug!(%message, "an answer that nobody waits for");
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
    // Whoever waited may have given up.
    let _gone = waiting.send(answer);
}

#[cfg(test)]
mod tests;
