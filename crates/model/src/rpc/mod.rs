//! JSON-RPC 2.0 of `ringway-io`: one object a line over a Unix socket.

mod call;
mod params;
mod replies;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use call::{Call, METHODS};
pub use params::{
    Detach, DiskRef, GoldenClean, GoldenImport, GoldenRef, GoldenWarm, KnownFull,
    MAX_SNAPSHOT_DISKS, NicRef, Replace, Resize, SetCaps, SetLimits, SetPoll, SetWeight, Snapshot,
    SnapshotDisk, StatsQuery, Unexport, Upgrade,
};
pub use replies::{
    Adopted, DiskReply, ExportReply, FullReply, MetricsReply, NicReply, ReplaceReply, StatsReply,
    UpgradeReply,
};

/// Longest line that either side accepts, in bytes. A `stats` reply with 1,000 disks fits.
pub const MAX_LINE_BYTES: usize = 4 << 20;

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Always `"2.0"`.
    pub jsonrpc: String,
    /// Number or string that the reply repeats.
    #[serde(default)]
    pub id: Value,
    /// Method, for example `disk.attach`.
    pub method: String,
    /// Parameters: an object, or absent.
    #[serde(default)]
    pub params: Value,
}

/// A reply, with either `result` or `error`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// Always `"2.0"`.
    pub jsonrpc: String,
    /// Id of the request.
    pub id: Value,
    /// Result of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Reason why the call failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RpcError>,
}

/// Reason why a call failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct RpcError {
    /// Error code, a constant of [`code`].
    pub code: i64,
    /// Cause and remedy, as a sentence.
    pub message: String,
}

/// Error codes: those of JSON-RPC 2.0, and Ringway's from -32000 down.
pub mod code {
    /// The line is not JSON.
    pub const PARSE: i64 = -32700;
    /// The JSON is not a request.
    pub const INVALID_REQUEST: i64 = -32600;
    /// The method does not exist.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// Parameters are missing, unknown or out of range.
    pub const INVALID_PARAMS: i64 = -32602;
    /// The call was valid, but the host refused it (missing image, locked image, limit reached).
    pub const FAILED: i64 = -32000;
    /// No disk has this id.
    pub const NO_SUCH_DISK: i64 = -32001;
    /// The disk is in a state that does not allow this call.
    pub const WRONG_STATE: i64 = -32002;
    /// Another call is running on the disk; retry when that has ended.
    pub const BUSY: i64 = -32003;
    /// No NIC has this id.
    pub const NO_SUCH_NIC: i64 = -32004;
    /// No network has this name: none of its NICs is attached.
    pub const NO_SUCH_NETWORK: i64 = -32005;
    /// A raw file begins like another image at its first attach. The caller may state `format=raw`.
    pub const FORMAT_NOT_STATED: i64 = -32006;
}

impl Request {
    /// Creates a request with a numeric id.
    pub fn new(id: u64, method: impl Into<String>, params: Value) -> Self {
        Self { jsonrpc: "2.0".into(), id: id.into(), method: method.into(), params }
    }
}

impl Response {
    /// Creates the reply to the request `id`.
    pub fn new(id: Value, outcome: Result<Value, RpcError>) -> Self {
        let (result, error) = match outcome {
            Ok(value) => (Some(value), None),
            Err(error) => (None, Some(error)),
        };
        Self { jsonrpc: "2.0".into(), id, result, error }
    }

    /// Returns the outcome.
    ///
    /// # Errors
    /// The other side's error, or [`code::INVALID_REQUEST`] if the reply has neither field.
    pub fn outcome(self) -> Result<Value, RpcError> {
        match (self.result, self.error) {
            (_, Some(error)) => Err(error),
            (Some(value), None) => Ok(value),
            (None, None) => Ok(Value::Null),
        }
    }
}
