//! JSON-RPC 2.0 as `ringway-io` speaks it: one object a line over a Unix socket.

mod poll;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::export::ExportSpec;
use crate::poll::PollChange;
use crate::report::Stats;
use crate::spec::{Caps, DiskSpec};
pub use poll::SetPoll;

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

/// A verb with its checked parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// `disk.attach`: open, report geometry, listen; serve too unless `"activate":false`.
    DiskAttach(DiskSpec),
    /// `disk.activate`: take the lock, serve.
    DiskActivate(DiskRef),
    /// `disk.deactivate`: drain, flush, release the lock.
    DiskDeactivate(DiskRef),
    /// `disk.pause`: drain and hold; the lock is kept and the front-end stays.
    DiskPause(DiskRef),
    /// `disk.resume`: serve again.
    DiskResume(DiskRef),
    /// `disk.detach`: deactivate, close the socket, forget.
    DiskDetach(DiskRef),
    /// `disk.export`: offer it over NBD on a socket.
    DiskExport(ExportSpec),
    /// `disk.unexport`: end an export, or all of a disk.
    DiskUnexport(Unexport),
    /// `disk.resize`: take a new size and tell the guest.
    DiskResize(Resize),
    /// `disk.caps`: other caps from now on.
    DiskCaps(SetCaps),
    /// `disk.poll`: polls otherwise from now on.
    DiskPoll(SetPoll),
    /// `poll.defaults`: how disks are polled for which nothing else is set. What is
    /// absent stays, `null` is as the program was started.
    PollDefaults(PollChange),
    /// `stats`: everything, or one disk.
    Stats(StatsQuery),
    /// `metrics`: everything in the text format of OpenMetrics.
    Metrics,
    /// `upgrade`: another program goes on with everything; connections stay.
    Upgrade(Upgrade),
    /// `shutdown`: detach everything and exit.
    Shutdown,
    /// `keeper.adopt`: a `ringway-io` that finds this worker without a keeper becomes that. The
    /// answer comes with a descriptor.
    KeeperAdopt,
}

/// Names a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskRef {
    /// Its id.
    pub id: String,
}

/// Parameters of `disk.resize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// The disk's id.
    pub id: String,
    /// New size in bytes: a regular file or memory disk is grown to it. Absent: take the size that the backend
    /// has now (a block device or file that somebody else grew).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// Parameters of `disk.caps`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetCaps {
    /// The disk's id.
    pub id: String,
    /// All its caps from now on: what is absent is not capped any more.
    #[serde(default)]
    pub caps: Option<Caps>,
}

/// Parameters of `upgrade`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upgrade {
    /// Absolute path of the new program. Absent: the file that is now where the running program
    /// was started from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary: Option<PathBuf>,
}

/// Parameters of `disk.unexport`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unexport {
    /// The disk's id.
    pub id: String,
    /// Socket of the export; all of the disk's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
}

/// Parameters of `stats`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatsQuery {
    /// Only this disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// Every verb that [`Call::parse`] knows.
pub const METHODS: [&str; 17] = [
    "disk.attach",
    "disk.activate",
    "disk.deactivate",
    "disk.pause",
    "disk.resume",
    "disk.detach",
    "disk.export",
    "disk.unexport",
    "disk.resize",
    "disk.caps",
    "disk.poll",
    "poll.defaults",
    "stats",
    "metrics",
    "upgrade",
    "shutdown",
    "keeper.adopt",
];

impl Call {
    /// Parses a verb and its parameters into a checked call.
    ///
    /// # Errors
    /// [`code::METHOD_NOT_FOUND`] or [`code::INVALID_PARAMS`].
    pub fn parse(method: &str, params: Value) -> Result<Self, RpcError> {
        let params = if params.is_null() { Value::Object(Default::default()) } else { params };
        match method {
            "disk.attach" => {
                let spec: DiskSpec = typed(params)?;
                spec.validate().map_err(|error| invalid(error.to_string()))?;
                Ok(Self::DiskAttach(spec))
            }
            "disk.activate" => Ok(Self::DiskActivate(typed(params)?)),
            "disk.deactivate" => Ok(Self::DiskDeactivate(typed(params)?)),
            "disk.pause" => Ok(Self::DiskPause(typed(params)?)),
            "disk.resume" => Ok(Self::DiskResume(typed(params)?)),
            "disk.detach" => Ok(Self::DiskDetach(typed(params)?)),
            "disk.export" => {
                let spec: ExportSpec = typed(params)?;
                spec.validate().map_err(|error| invalid(error.to_string()))?;
                Ok(Self::DiskExport(spec))
            }
            "disk.unexport" => Ok(Self::DiskUnexport(typed(params)?)),
            "disk.resize" => Ok(Self::DiskResize(typed(params)?)),
            "disk.caps" => {
                let set: SetCaps = typed(params)?;
                let checked = set.caps.map_or(Ok(()), |caps| caps.validate());
                checked.map_err(|error| invalid(error.to_string()))?;
                Ok(Self::DiskCaps(set))
            }
            "disk.poll" => Ok(Self::DiskPoll(typed(params)?)),
            "poll.defaults" => Ok(Self::PollDefaults(typed(params)?)),
            "stats" => Ok(Self::Stats(typed(params)?)),
            "metrics" => Ok(Self::Metrics),
            "upgrade" => {
                let upgrade: Upgrade = typed(params)?;
                if upgrade.binary.as_ref().is_some_and(|path| !path.is_absolute()) {
                    return Err(invalid("binary must be an absolute path".into()));
                }
                Ok(Self::Upgrade(upgrade))
            }
            "shutdown" => Ok(Self::Shutdown),
            "keeper.adopt" => Ok(Self::KeeperAdopt),
            other => Err(RpcError {
                code: code::METHOD_NOT_FOUND,
                message: format!("unknown method {other:?}; known: {}", METHODS.join(", ")),
            }),
        }
    }
}

fn typed<T: serde::de::DeserializeOwned>(params: Value) -> Result<T, RpcError> {
    serde_json::from_value(params).map_err(|error| invalid(error.to_string()))
}

fn invalid(message: String) -> RpcError {
    RpcError { code: code::INVALID_PARAMS, message }
}

/// Result of `disk.attach`, `disk.activate`, `disk.deactivate`, `disk.pause`, `disk.resume`,
/// `disk.resize`, `disk.caps` and `disk.poll`. That of `poll.defaults` is a
/// [`Polling`](crate::poll::Polling): what is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskReply {
    /// The disk's id.
    pub id: String,
    /// State after the call.
    pub state: crate::report::DiskState,
    /// Geometry as the guest sees it.
    pub geometry: crate::report::Geometry,
}

/// Result of `keeper.adopt`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopted {
    /// Process id of the worker.
    pub pid: u32,
    /// What its last keeper counted.
    pub restarts: u64,
    /// How the last of the workers before it ended.
    #[serde(default)]
    pub last_exit: Option<String>,
}

/// Result of `metrics`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricsReply {
    /// The page that a scraper gets.
    pub openmetrics: String,
}

/// Result of `upgrade`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpgradeReply {
    /// Process id of the new worker.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// Disks that it goes on with.
    pub disks: u64,
    /// How long guests were not served, in milliseconds.
    pub paused_ms: f64,
}

/// Result of `disk.export`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportReply {
    /// The disk's id, which is the name of the export.
    pub id: String,
    /// What NBD clients take: `nbdinfo URI`, `nbdcopy URI ...`.
    pub uri: String,
    /// Geometry as clients see it.
    pub geometry: crate::report::Geometry,
}

/// Result of `stats`.
pub type StatsReply = Stats;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_parse_into_checked_types() {
        let call = Call::parse("disk.resize", serde_json::json!({"id":"a","size":512})).unwrap();
        assert_eq!(call, Call::DiskResize(Resize { id: "a".into(), size: Some(512) }));
        assert_eq!(Call::parse("stats", Value::Null).unwrap(), Call::Stats(StatsQuery::default()));
    }

    #[test]
    fn refusals_carry_the_right_code() {
        let cases = [
            ("disk.atach", serde_json::json!({}), code::METHOD_NOT_FOUND),
            ("disk.detach", serde_json::json!({}), code::INVALID_PARAMS),
            ("disk.detach", serde_json::json!([1]), code::INVALID_PARAMS),
            ("disk.caps", serde_json::json!({"id":"a","caps":{"iops":0}}), code::INVALID_PARAMS),
            ("disk.poll", serde_json::json!({}), code::INVALID_PARAMS),
            ("disk.poll", serde_json::json!({"id":"a","poll":"on"}), code::INVALID_PARAMS),
            ("disk.poll", serde_json::json!({"id":"a","max_us":1}), code::INVALID_PARAMS),
            ("poll.defaults", serde_json::json!({"id":"a"}), code::INVALID_PARAMS),
            ("poll.defaults", serde_json::json!({"poll_max_us":10_001}), code::INVALID_PARAMS),
            (
                "disk.attach",
                serde_json::json!({"id":"a","socket":"/s","backend":{"null":0}}),
                code::INVALID_PARAMS,
            ),
        ];
        for (method, params, expected) in cases {
            assert_eq!(Call::parse(method, params).unwrap_err().code, expected, "{method}");
        }
    }

    #[test]
    fn a_reply_holds_a_result_or_an_error() {
        let reply = Response::new(1.into(), Ok(serde_json::json!({"a":1})));
        assert_eq!(
            serde_json::to_string(&reply).unwrap(),
            r#"{"jsonrpc":"2.0","id":1,"result":{"a":1}}"#
        );
    }
}
