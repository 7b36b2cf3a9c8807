//! Client connection to the control socket of one `ringway-io`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use model::nic::{NicSpec, UplinkSpec};
use model::report::Stats;
use model::rpc::{DiskReply, MAX_LINE_BYTES, NicReply, Request, Response};
use model::spec::DiskSpec;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, timeout_at};

use super::DatapathError;
use crate::json_lines::{JsonLines, write_json};

/// Longest wait for an answer that needs no storage.
pub const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// Longest wait for an answer that opens or flushes an image.
pub const ATTACH_DEADLINE: Duration = Duration::from_secs(30);
/// Longest wait for the socket to accept. A full backlog blocks.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// Connection, on which calls run one after the other. If it breaks, the next call reconnects: a
/// worker of `ringway-io` may die and be replaced.
#[derive(Debug)]
pub struct RpcConnection {
    socket: PathBuf,
    broken: bool,
    lines: JsonLines<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    next_id: u64,
    /// True while a call is being written. If the next call finds it set, half a line was sent.
    writing: bool,
    /// Id of the last call, until it is answered.
    owed: Option<u64>,
}

impl RpcConnection {
    /// Connects to a control socket.
    ///
    /// # Errors
    /// [`DatapathError::NotThere`], [`DatapathError::Late`].
    pub async fn connect(socket: &Path) -> Result<Self, DatapathError> {
        let (reader, writer) = Self::stream(socket).await?.into_split();
        let lines = JsonLines::new(reader, MAX_LINE_BYTES);
        let socket = socket.to_owned();
        Ok(Self { socket, broken: false, lines, writer, next_id: 1, writing: false, owed: None })
    }

    async fn stream(socket: &Path) -> Result<UnixStream, DatapathError> {
        tokio::time::timeout(CONNECT_DEADLINE, UnixStream::connect(socket))
            .await
            .map_err(|_| DatapathError::Late {
                what: format!("a connection to {}", socket.display()),
                deadline: CONNECT_DEADLINE,
            })?
            .map_err(|source| DatapathError::NotThere { socket: socket.into(), source })
    }

    /// Calls `method` and waits at most `deadline` for its answer. After [`DatapathError::Late`]
    /// the connection may be used again: a late answer is recognized by its id and skipped.
    ///
    /// # Errors
    /// Every [`DatapathError`] except [`DatapathError::Start`], [`DatapathError::NotThere`] and
    /// [`DatapathError::Died`].
    pub async fn call(
        &mut self,
        method: &str,
        params: Value,
        deadline: Duration,
    ) -> Result<Value, DatapathError> {
        if self.broken {
            // Continue the ids, so that a late answer matches no other call.
            let next_id = self.next_id;
            *self = Self { next_id, ..Self::connect(&self.socket).await? };
        }
        if self.writing {
            return Err(DatapathError::Unusable);
        }
        let id = self.next_id;
        self.next_id += 1;
        let until = Instant::now() + deadline;
        let outcome = timeout_at(until, self.exchange(id, method, params)).await;
        self.broken = matches!(outcome, Ok(Err(DatapathError::Broken { .. })));
        if outcome.is_ok() {
            self.owed = None;
        }
        outcome.map_err(|_| DatapathError::Late { what: method.into(), deadline })?
    }

    /// Waits, without a deadline, until the last call is answered or its connection breaks. Skips
    /// the answer.
    pub(super) async fn settle(&mut self) {
        while let Some(id) = self.owed.filter(|_| self.is_usable()) {
            match self.lines.next_json().await {
                Ok(line) if line.get("id").and_then(Value::as_u64) < Some(id) => {}
                Ok(_) => self.owed = None,
                Err(_) => self.broken = true,
            }
        }
    }

    /// Waits until the other side closes the connection. Skips what it sends meanwhile.
    pub(super) async fn closed(&mut self) {
        while self.lines.next_text().await.is_ok() {}
        self.broken = true;
    }

    /// Returns whether the connection is open and not in the middle of a line.
    pub(super) fn is_usable(&self) -> bool {
        !self.broken && !self.writing
    }

    async fn exchange(
        &mut self,
        id: u64,
        method: &str,
        params: Value,
    ) -> Result<Value, DatapathError> {
        let what = || method.to_owned();
        self.writing = true;
        write_json(&mut self.writer, &Request::new(id, method, params))
            .await
            .map_err(|error| DatapathError::Broken { what: what(), source: error.into() })?;
        self.writing = false;
        self.owed = Some(id);
        loop {
            let line = self.lines.next_json().await;
            let line = line.map_err(|source| DatapathError::Broken { what: what(), source })?;
            let reply: Response = serde_json::from_value(line).map_err(|error| {
                DatapathError::Nonsense { what: what(), why: error.to_string() }
            })?;
            match reply.id.as_u64() {
                Some(got) if got == id => {
                    return reply
                        .outcome()
                        .map_err(|source| DatapathError::Refused { what: what(), source });
                }
                Some(got) if got < id => {} // late answer to a call that timed out
                // An error without an id: the peer did not understand the line at all.
                None if reply.error.is_some() => {
                    let outcome = reply.outcome();
                    return outcome
                        .map_err(|source| DatapathError::Refused { what: what(), source });
                }
                _ => {
                    let why = format!("its id is {}, the call's is {id}", reply.id);
                    return Err(DatapathError::Nonsense { what: what(), why });
                }
            }
        }
    }

    pub(super) async fn typed<T: DeserializeOwned>(
        &mut self,
        method: &str,
        params: Value,
        deadline: Duration,
    ) -> Result<T, DatapathError> {
        let value = self.call(method, params, deadline).await?;
        serde_json::from_value(value).map_err(|error| DatapathError::Nonsense {
            what: method.into(),
            why: error.to_string(),
        })
    }

    /// Calls `disk.attach`, which returns when the disk's socket accepts.
    ///
    /// # Errors
    /// The errors of [`Self::call`].
    pub async fn attach(&mut self, spec: &DiskSpec) -> Result<DiskReply, DatapathError> {
        let params = written("disk.attach", spec)?;
        self.typed("disk.attach", params, ATTACH_DEADLINE).await
    }

    /// Calls `disk.detach`.
    ///
    /// # Errors
    /// The errors of [`Self::call`].
    pub async fn detach(&mut self, id: &str) -> Result<(), DatapathError> {
        self.call("disk.detach", json!({ "id": id }), ATTACH_DEADLINE).await.map(drop)
    }

    /// Calls `nic.attach`, which returns when the NIC's socket accepts. A repeated call has no
    /// effect.
    ///
    /// # Errors
    /// The errors of [`Self::call`].
    pub async fn nic_attach(&mut self, spec: &NicSpec) -> Result<NicReply, DatapathError> {
        let params = written("nic.attach", spec)?;
        self.typed("nic.attach", params, ATTACH_DEADLINE).await
    }

    /// Calls `nic.detach`, which returns when the NIC is removed completely.
    ///
    /// # Errors
    /// The errors of [`Self::call`].
    pub async fn nic_detach(&mut self, id: &str) -> Result<(), DatapathError> {
        self.call("nic.detach", json!({ "id": id }), ATTACH_DEADLINE).await.map(drop)
    }

    /// Calls `network.uplink`, which returns when the uplink is created or removed.
    ///
    /// # Errors
    /// The errors of [`Self::call`].
    pub async fn network_uplink(&mut self, spec: &UplinkSpec) -> Result<(), DatapathError> {
        let params = written("network.uplink", spec)?;
        self.call("network.uplink", params, ATTACH_DEADLINE).await.map(drop)
    }

    /// Calls `stats` for the whole process.
    ///
    /// # Errors
    /// The errors of [`Self::call`].
    pub async fn stats(&mut self) -> Result<Stats, DatapathError> {
        self.typed("stats", json!({}), CALL_DEADLINE).await
    }

    /// Calls `stats` for one disk or NIC, with all details.
    ///
    /// # Errors
    /// The errors of [`Self::call`]; [`DatapathError::Refused`] if it does not exist.
    pub async fn stats_of(&mut self, id: &str) -> Result<Stats, DatapathError> {
        self.typed("stats", json!({ "id": id }), CALL_DEADLINE).await
    }

    /// Calls `shutdown`: the process drains, flushes and detaches every disk, then exits.
    ///
    /// # Errors
    /// The errors of [`Self::call`].
    pub async fn shutdown(&mut self, deadline: Duration) -> Result<(), DatapathError> {
        self.call("shutdown", json!({}), deadline).await.map(drop)
    }
}

/// Serializes the parameters of `what`. A path that is not UTF-8 has no JSON form.
pub(super) fn written(what: &str, spec: &impl Serialize) -> Result<Value, DatapathError> {
    serde_json::to_value(spec)
        .map_err(|error| DatapathError::NoJson { what: what.into(), why: error.to_string() })
}
