//! JSON-RPC 2.0 as `ringway-io` speaks it: one object a line over a Unix socket.

mod call;
mod params;
mod replies;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use call::{Call, METHODS};
pub use params::{
    DiskRef, NicRef, Resize, SetCaps, SetLimits, SetPoll, StatsQuery, Unexport, Upgrade,
};
pub use replies::{
    Adopted, DiskReply, ExportReply, MetricsReply, NicReply, StatsReply, UpgradeReply,
};

/// Longest line that either side accepts, in bytes. A stats reply of 1,000 disks fits.
pub const MAX_LINE_BYTES: usize = 4 << 20;

/// One request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Always `"2.0"`.
    pub jsonrpc: String,
    /// Number or string that the reply repeats.
    #[serde(default)]
    pub id: Value,
    /// Verb, for example `disk.attach`.
    pub method: String,
    /// Its parameters: an object, or absent.
    #[serde(default)]
    pub params: Value,
}

/// One reply: exactly one of `result` and `error` is there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// Always `"2.0"`.
    pub jsonrpc: String,
    /// The request's id.
    pub id: Value,
    /// What the call returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RpcError>,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct RpcError {
    /// One of the constants of [`code`].
    pub code: i64,
    /// Cause and next step, in a sentence.
    pub message: String,
}

/// Error codes: those of JSON-RPC 2.0, and ours from -32000 down.
pub mod code {
    /// The line is not JSON.
    pub const PARSE: i64 = -32700;
    /// The JSON is not a request.
    pub const INVALID_REQUEST: i64 = -32600;
    /// No such verb.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// Parameters are missing, unknown or out of range.
    pub const INVALID_PARAMS: i64 = -32602;
    /// The call was right and the host refused it (missing image, locked image, limit reached).
    pub const FAILED: i64 = -32000;
    /// No disk of that id.
    pub const NO_SUCH_DISK: i64 = -32001;
    /// The disk is in a state that does not allow this call.
    pub const WRONG_STATE: i64 = -32002;
    /// Another call is at work on the disk: try again when that has ended.
    pub const BUSY: i64 = -32003;
    /// No NIC of that id.
    pub const NO_SUCH_NIC: i64 = -32004;
    /// No network of that name: none of its NICs is attached.
    pub const NO_SUCH_NETWORK: i64 = -32005;
}

impl Request {
    /// A request with a numeric id.
    pub fn new(id: u64, method: impl Into<String>, params: Value) -> Self {
        Self { jsonrpc: "2.0".into(), id: id.into(), method: method.into(), params }
    }
}

impl Response {
    /// A reply to `id`.
    pub fn new(id: Value, outcome: Result<Value, RpcError>) -> Self {
        let (result, error) = match outcome {
            Ok(value) => (Some(value), None),
            Err(error) => (None, Some(error)),
        };
        Self { jsonrpc: "2.0".into(), id, result, error }
    }

    /// The outcome.
    ///
    /// # Errors
    /// The other side's error, or [`code::INVALID_REQUEST`] when the reply held neither.
    pub fn outcome(self) -> Result<Value, RpcError> {
        match (self.result, self.error) {
            (_, Some(error)) => Err(error),
            (Some(value), None) => Ok(value),
            (None, None) => Ok(Value::Null),
        }
    }
}
