//! Dispatch of a request line to its reply.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use model::report::Stats;
use model::rpc::{Adopted, Call, MAX_LINE_BYTES, MetricsReply, Request, Response, RpcError, code};
use serde::Serialize;
use serde_json::Value;
use vhost_user::StopSignal;

use super::ControlServer;
use crate::disk_registry::DiskRegistry;
use crate::keeper_link::KeeperInfo;
use crate::open_disk::Sources;
use crate::{golden_calls, handover};

/// Action after the reply to a line.
#[derive(Debug)]
pub(crate) enum AfterReply {
    /// Read the next line.
    GoOn,
    /// End the process.
    ShutDown,
    /// Send a descriptor with the reply.
    Give(OwnedFd),
    /// End this process at once and touch nothing, because another process serves.
    HandedOver,
}

/// Caller, and the parts of the process that a call may use beside the disks.
pub(crate) struct CallContext<'a> {
    /// True if the caller has the same user ID as this process.
    pub(crate) is_us: bool,
    /// Connection of the caller.
    pub(crate) stream: BorrowedFd<'a>,
    /// Signal that ends the process.
    pub(crate) end: &'a StopSignal,
    /// Server that accepts callers.
    pub(crate) server: &'a ControlServer,
}

/// Executes the call in a line. `fds` are the descriptors that came with it.
pub(crate) fn answer(
    disk_registry: &Arc<DiskRegistry>,
    call_context: &CallContext<'_>,
    line: &[u8],
    fds: Vec<OwnedFd>,
) -> (Response, AfterReply) {
    let (id, call) = parse(line);
    let mut after = match call {
        Ok(Call::Shutdown) => AfterReply::ShutDown,
        Ok(Call::Upgrade(_)) => AfterReply::HandedOver,
        _ => AfterReply::GoOn,
    };
    let outcome = match call {
        Ok(Call::KeeperAdopt) => adopt(disk_registry, call_context).map(|(value, link)| {
            after = AfterReply::Give(link);
            value
        }),
        Ok(Call::DiskAttach(spec)) => {
            let sources = Sources { files: (0..).zip(fds).collect(), ..Sources::default() };
            disk_registry.attach(spec, sources).and_then(value)
        }
        Ok(Call::DiskWaitFull(full)) => {
            let reply = disk_registry.wait_full(full.known.as_ref(), call_context.stream);
            reply.and_then(value)
        }
        Ok(
            call @ (Call::ImageInfo(_)
            | Call::ImageCheck(_)
            | Call::ImageMap(_)
            | Call::ImageCreate(_)
            | Call::ImageConvert(_)
            | Call::ImageSnapshot(_)
            | Call::ImageResize(_)
            | Call::ImageExport(_)
            | Call::ImageImport(_)
            | Call::ImageCopy(_)
            | Call::ImageCommit(_)
            | Call::ImageProgress),
        ) => call_context.server.image_calls.run(call, disk_registry, call_context.stream),
        Ok(Call::StorageCalibrate(call)) => {
            call_context.server.storage_calls.calibrate(call, disk_registry, call_context.stream)
        }
        Ok(Call::StorageProfile(query)) => {
            call_context.server.storage_calls.profile(query, disk_registry, call_context.stream)
        }
        Ok(Call::StorageProgress) => value(call_context.server.storage_calls.progress()),
        call => call.and_then(|call| carry_out(call_context.server, disk_registry, call)),
    };
    let after = if outcome.is_ok() { after } else { AfterReply::GoOn };
    if let Err(error) = &outcome {
        tracing::warn!(code = error.code, "call refused: {}", error.message);
    }
    (Response::new(id, outcome), after)
}

/// Returns the reply to a line that is not a valid request.
pub(crate) fn refusal(code: i64, message: impl Into<String>) -> Response {
    Response::new(Value::Null, Err(RpcError { code, message: message.into() }))
}

/// Parses the call in a line, and its request id.
pub(crate) fn parse(line: &[u8]) -> (Value, Result<Call, RpcError>) {
    let refuse = |id, code, message: String| (id, Err(RpcError { code, message }));
    let value: Value = match serde_json::from_slice(line) {
        Ok(value) => value,
        Err(error) => {
            let message = format!("not JSON: {error}; send one object a line");
            return refuse(Value::Null, code::PARSE, message);
        }
    };
    // Read the id first, so that error replies carry it.
    let id = value.get("id").filter(|id| id.is_number() || id.is_string()).cloned();
    let id = id.unwrap_or_default();
    let request: Request = match serde_json::from_value(value) {
        Ok(request) => request,
        Err(error) => {
            let message = format!("not a JSON-RPC 2.0 request: {error}");
            return refuse(id, code::INVALID_REQUEST, message);
        }
    };
    if request.jsonrpc != "2.0" {
        let message = format!("jsonrpc is {:?}, only \"2.0\" is supported", request.jsonrpc);
        return refuse(id, code::INVALID_REQUEST, message);
    }
    (id, Call::parse(&request.method, request.params))
}

fn adopt(
    disk_registry: &Arc<DiskRegistry>,
    call_context: &CallContext<'_>,
) -> Result<(Value, OwnedFd), RpcError> {
    if !call_context.is_us {
        let message = "only the user of this process may adopt it".into();
        return Err(RpcError { code: code::FAILED, message });
    }
    // The keeper that starts an upgrade must stay the same until it ends.
    disk_registry.refuse_while_upgrading()?;
    let (keeper_info, link) =
        disk_registry.keeper_client().adopt(call_context.end).map_err(crate::error::failed)?;
    let KeeperInfo { restarts, last_exit, .. } = keeper_info;
    let adopted = Adopted { pid: std::process::id(), restarts, last_exit };
    Ok((value(adopted)?, link))
}

fn carry_out(
    server: &ControlServer,
    disk_registry: &Arc<DiskRegistry>,
    call: Call,
) -> Result<Value, RpcError> {
    match call {
        Call::DiskActivate(disk) => value(disk_registry.activate(&disk.id)?),
        Call::DiskDeactivate(disk) => value(disk_registry.deactivate(&disk.id)?),
        Call::DiskPause(disk) => value(disk_registry.pause(&disk.id)?),
        Call::DiskResume(disk) => value(disk_registry.resume(&disk.id)?),
        Call::DiskDetach(detach) => {
            disk_registry.detach(&detach.id, detach.force)?;
            Ok(Value::Object(Default::default()))
        }
        Call::DiskExport(spec) => value(disk_registry.export(&spec)?),
        Call::DiskUnexport(which) => {
            value(disk_registry.unexport(&which.id, which.socket.as_deref())?)
        }
        Call::DiskReplace(replace) => value(disk_registry.replace(&replace)?),
        Call::DiskSnapshot(snapshot) => value(disk_registry.snapshot(&snapshot)?),
        Call::DiskReset(disk) => value(disk_registry.reset(&disk.id)?),
        Call::DiskResize(resize) => value(disk_registry.resize(&resize.id, resize.size)?),
        Call::DiskWeight(set) => value(disk_registry.set_share(&set.id, set.share())?),
        Call::DiskCaps(set) => value(disk_registry.caps(&set.id, set.caps)?),
        Call::DiskPoll(set) => value(disk_registry.poll(&set.id, set.change)?),
        Call::PollDefaults(change) => value(disk_registry.set_poll_defaults(change)?),
        Call::NicAttach(spec) => value(disk_registry.attach_nic(spec)?),
        Call::NicDetach(nic) => {
            disk_registry.detach_nic(&nic.id)?;
            Ok(Value::Object(Default::default()))
        }
        Call::NicPoll(set) => value(disk_registry.poll_nic(&set.id, set.change)?),
        Call::NicLimits(set) => {
            disk_registry.limit_nic(&set.id, set.limits)?;
            Ok(Value::Object(Default::default()))
        }
        Call::NetworkUplink(spec) => {
            disk_registry.uplink(&spec)?;
            Ok(Value::Object(Default::default()))
        }
        call @ (Call::GoldenWarm(_)
        | Call::GoldenCancel(_)
        | Call::GoldenExport(_)
        | Call::GoldenImport(_)
        | Call::GoldenClean(_)) => golden_calls::run(call, disk_registry),
        Call::Stats(query) => value::<Stats>(disk_registry.stats(query.id.as_deref())?),
        Call::Metrics => metrics(disk_registry),
        Call::Upgrade(upgrade) => {
            value(handover::upgrade(server, disk_registry, upgrade.binary.as_deref())?)
        }
        Call::Shutdown => {
            disk_registry.refuse_while_upgrading()?;
            disk_registry.shut_down();
            Ok(Value::Object(Default::default()))
        }
        // The caller handles these calls: they need its connection.
        Call::DiskAttach(_)
        | Call::KeeperAdopt
        | Call::DiskWaitFull(_)
        | Call::ImageInfo(_)
        | Call::ImageCheck(_)
        | Call::ImageMap(_)
        | Call::ImageCreate(_)
        | Call::ImageConvert(_)
        | Call::ImageSnapshot(_)
        | Call::ImageResize(_)
        | Call::ImageExport(_)
        | Call::ImageImport(_)
        | Call::ImageCopy(_)
        | Call::ImageCommit(_)
        | Call::ImageProgress
        | Call::StorageCalibrate(_)
        | Call::StorageProfile(_)
        | Call::StorageProgress => Ok(Value::Null),
    }
}

fn metrics(disk_registry: &Arc<DiskRegistry>) -> Result<Value, RpcError> {
    let openmetrics = disk_registry.metrics();
    // Quotes and line ends take two bytes each in JSON.
    if openmetrics.len() > MAX_LINE_BYTES / 2 {
        let message = "the metrics are too long for one reply; scrape them (--metrics)".into();
        return Err(RpcError { code: code::FAILED, message });
    }
    value(MetricsReply { openmetrics })
}

fn value<T: Serialize>(result: T) -> Result<Value, RpcError> {
    serde_json::to_value(result).map_err(crate::error::failed)
}
