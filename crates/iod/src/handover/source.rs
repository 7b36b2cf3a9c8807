//! Source side of a handover: the worker that serves hands over to the next one.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use model::rpc::{RpcError, UpgradeReply, code};
use vhost_user::{NEWEST_FORMAT, OLDEST_FORMAT};

use super::protocol::{
    DestinationMessage, FormatRange, HandoverError, SourceMessage, receive_message, send_disk,
    send_message, send_record,
};
use super::{CONFIRM_DEADLINE, DISK_FORMATS, DRAIN_DEADLINE, NIC_FORMATS};
use crate::control::ControlServer;
use crate::disk_registry::DiskRegistry;
use crate::error::error_chain;
use crate::keeper_client::PreserveError;
use crate::keeper_link::Link;
use crate::message_boundary::GRACE;
use crate::nic_registry::{NicFormats, QuiescedNics};
use crate::served_disk::{DiskFormats, QuiescedDisk, ServedDisk, ServedDiskError};
use crate::served_nic::WriteError;

/// Most disks that are quiesced at the same time.
const TOGETHER: usize = 64;

/// Reason why the source continues to serve.
#[derive(Debug, thiserror::Error)]
enum HandoverAborted {
    #[error(transparent)]
    Keeper(#[from] PreserveError),
    #[error("the new worker does not take over")]
    Taker(#[from] HandoverError),
    #[error(
        "the new worker reads formats {} to {} of {what}, this one writes {} to {}; \
         upgrade by way of a version in between",
        theirs.oldest,
        theirs.newest,
        ours.oldest,
        ours.newest
    )]
    Formats { what: &'static str, theirs: FormatRange, ours: FormatRange },
    #[error("disk {id:?} cannot be handed over")]
    Disk {
        id: String,
        #[source]
        source: ServedDiskError,
    },
    #[error("the NICs cannot be quiesced")]
    Restless(#[source] RpcError),
    #[error("a NIC cannot be handed over")]
    Nic(#[from] WriteError),
    #[error(
        "the new worker does not support NICs; detach them, or upgrade by way of a version that \
         does"
    )]
    NoNics,
    #[error("no descriptors are left")]
    Os(#[from] std::io::Error),
}

/// Quiesced disk, or the error.
type DiskQuiesceResult = (Arc<ServedDisk>, Result<QuiescedDisk, ServedDiskError>);

/// Replaces this process by the program in `binary`, or by the file that is now at its own
/// program's path. After success the destination serves: this process must reply, end, and touch
/// nothing else.
///
/// # Errors
/// The upgrade was cancelled, and this process continues as before.
pub(crate) fn upgrade(
    server: &ControlServer,
    disk_registry: &Arc<DiskRegistry>,
    binary: Option<&Path>,
) -> Result<UpgradeReply, RpcError> {
    let served_disks = disk_registry.begin_upgrade()?;
    // The destination gets the sockets as they are.
    let _fixed = disk_registry.keeper_client().fix_sockets();
    let handed = for_each_disk(&served_disks, ServedDisk::check_can_quiesce)
        .and_then(|()| hand_over(server, disk_registry, &served_disks, binary));
    match handed {
        Ok(reply) => {
            disk_registry.handed_over();
            tracing::info!(pid = reply.pid, paused_ms = reply.paused_ms, "handed over");
            Ok(reply)
        }
        Err(error) => {
            disk_registry.end_upgrade();
            let message = format!(
                "upgrade cancelled, this process continues to serve: {}",
                error_chain(&error)
            );
            tracing::error!("{message}");
            Err(RpcError { code: code::FAILED, message })
        }
    }
}

/// Checks each disk. The error names the first one that fails.
fn for_each_disk(
    served_disks: &[Arc<ServedDisk>],
    check: impl Fn(&ServedDisk) -> Result<(), ServedDiskError>,
) -> Result<(), HandoverAborted> {
    served_disks.iter().try_for_each(|served_disk| {
        check(served_disk).map_err(|source| {
            let id = served_disk.spec().id.clone();
            HandoverAborted::Disk { id, source }
        })
    })
}

fn hand_over(
    server: &ControlServer,
    disk_registry: &Arc<DiskRegistry>,
    served_disks: &[Arc<ServedDisk>],
    binary: Option<&Path>,
) -> Result<UpgradeReply, HandoverAborted> {
    let (way, theirs) = Link::pair()?;
    disk_registry.keeper_client().start_successor(binary, theirs.as_fd())?;
    drop(theirs);
    let given = send_state(server, disk_registry, served_disks, &way);
    if given.is_err() {
        // The destination cannot receive `Go` any more, so it serves nothing even if it stays
        // alive.
        drop(way);
        if let Err(error) = disk_registry.keeper_client().abandon() {
            tracing::error!("the new worker may still be running: {}", error_chain(&error));
        }
    }
    given
}

fn send_state(
    server: &ControlServer,
    disk_registry: &Arc<DiskRegistry>,
    served_disks: &[Arc<ServedDisk>],
    way: &Link,
) -> Result<UpgradeReply, HandoverAborted> {
    let Destination { pid, version, disks: disk_formats, nics: nic_formats } =
        receive_hello(way, disk_registry.nics().has_any())?;
    for_each_disk(served_disks, |disk| disk.check_handover_format(disk_formats.record))?;
    settle(served_disks, disk_registry);
    let began = Instant::now();
    let quiesced_devices =
        QuiescedDevices::begin(served_disks, disk_registry, began + DRAIN_DEADLINE);
    let outcome = send_all(&quiesced_devices, disk_registry, way, (disk_formats, nic_formats))
        .and_then(|()| {
            disk_registry.keeper_client().yield_to_successor()?;
            // The destination answers all callers that connect from here on.
            server.pause_accept()?;
            served_disks.iter().try_for_each(|served_disk| served_disk.shut_exports())?;
            Ok(send_message(way, Instant::now() + CONFIRM_DEADLINE, &SourceMessage::Go, &[])?)
        });
    if let Err(error) = outcome {
        go_on(disk_registry, quiesced_devices);
        served_disks.iter().for_each(|served_disk| served_disk.open_exports());
        server.open();
        return Err(reason(way, error));
    }
    let paused_ms = began.elapsed().as_secs_f64() * 1e3;
    // From here on the keeper ignores this process. Close what is left of connections, because a
    // thread in hung storage may keep this process from ending. Front-ends then still see the end
    // of the process that serves them. All else belongs to the destination and is left without a
    // destructor.
    disk_registry.keeper_client().retire();
    for (served_disk, quiesced_disk) in quiesced_devices.disks {
        served_disk.close_handed_over(quiesced_disk.ok());
    }
    let nics = quiesced_devices.nics.len() as u64;
    disk_registry.nics().close_handed_over(quiesced_devices.nics);
    Ok(UpgradeReply { pid, version, disks: served_disks.len() as u64, nics, paused_ms })
}

/// Waits until all front-ends are between messages, while everything is served.
fn settle(served_disks: &[Arc<ServedDisk>], disk_registry: &DiskRegistry) {
    let until = Instant::now() + GRACE;
    disk_registry.nics().wait_message_boundary(until);
    served_disks.iter().for_each(|served_disk| served_disk.wait_message_boundary(until));
}

/// All quiesced devices, or the errors.
struct QuiescedDevices {
    disks: Vec<DiskQuiesceResult>,
    nics: QuiescedNics,
    rested: Result<(), RpcError>,
}

impl QuiescedDevices {
    /// Quiesces disks first: they wait for storage, while NICs wait for almost nothing.
    fn begin(
        served_disks: &[Arc<ServedDisk>],
        disk_registry: &DiskRegistry,
        deadline: Instant,
    ) -> Self {
        let disks = stand_still(served_disks, deadline);
        if disks.iter().any(|(_, quiesced_disk)| quiesced_disk.is_err()) {
            return Self { disks, nics: QuiescedNics::default(), rested: Ok(()) };
        }
        let (nics, rested) = disk_registry.nics().quiesce(deadline);
        Self { disks, nics, rested }
    }
}

/// Destination that has started.
struct Destination {
    pid: u32,
    version: String,
    /// Formats that both sides support.
    disks: DiskFormats,
    nics: NicFormats,
}

fn receive_hello(way: &Link, has_nics: bool) -> Result<Destination, HandoverAborted> {
    let (hello, _) = receive_message(way, Some(Instant::now() + CONFIRM_DEADLINE))?;
    let DestinationMessage::Hello { pid, version, oldest, newest, disks, nics } = hello else {
        return Err(HandoverError::Odd(format!("{hello:?}")).into());
    };
    let ours = FormatRange { oldest: OLDEST_FORMAT, newest: NEWEST_FORMAT };
    let session = common("the state", FormatRange { oldest, newest }, ours)?;
    let record = common("the record of a disk", disks.unwrap_or(FormatRange::FIRST), DISK_FORMATS)?;
    let disks = DiskFormats { record, session };
    // A destination that knows no NICs can take over a process without them.
    let nics = if has_nics { nics.ok_or(HandoverAborted::NoNics)? } else { NIC_FORMATS };
    let record = common("the record of a NIC", nics, NIC_FORMATS)?;
    Ok(Destination { pid, version, disks, nics: NicFormats { record, session } })
}

/// Returns the newest format that both sides support.
fn common(
    what: &'static str,
    theirs: FormatRange,
    ours: FormatRange,
) -> Result<u32, HandoverAborted> {
    let format = theirs.newest.min(ours.newest);
    if format < theirs.oldest.max(ours.oldest) {
        return Err(HandoverAborted::Formats { what, theirs, ours });
    }
    Ok(format)
}

/// Replaces an error by the destination's reason. A destination that refuses may end before it has
/// received everything.
fn reason(way: &Link, error: HandoverAborted) -> HandoverAborted {
    if let HandoverAborted::Taker(HandoverError::Gone) = error {
        // The first read may only report that the peer is gone.
        for _ in 0..2 {
            if let Ok((DestinationMessage::Refused { why }, _)) =
                receive_message(way, Some(Instant::now()))
            {
                return HandoverError::Refused(why).into();
            }
        }
    }
    error
}

fn stand_still(served_disks: &[Arc<ServedDisk>], deadline: Instant) -> Vec<DiskQuiesceResult> {
    let next = Mutex::new(served_disks.iter());
    let stands = Mutex::new(Vec::with_capacity(served_disks.len()));
    let work = || {
        loop {
            let served_disk = next.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(served_disk) = served_disk else { break };
            let stand = (Arc::clone(served_disk), served_disk.quiesce(deadline));
            stands.lock().unwrap_or_else(PoisonError::into_inner).push(stand);
        }
    };
    std::thread::scope(|scope| {
        // This thread works too, so the disks are quiesced even if no other can start.
        for _ in 1..served_disks.len().min(TOGETHER) {
            if std::thread::Builder::new().name("quiesce".into()).spawn_scoped(scope, work).is_err()
            {
                break;
            }
        }
        work();
    });
    stands.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn send_all(
    quiesced_devices: &QuiescedDevices,
    disk_registry: &DiskRegistry,
    way: &Link,
    (disk_formats, nic_formats): (DiskFormats, NicFormats),
) -> Result<(), HandoverAborted> {
    let deadline = Instant::now() + CONFIRM_DEADLINE;
    for (served_disk, quiesced_disk) in &quiesced_devices.disks {
        if let Err(error) = quiesced_disk {
            let (id, reason) = (served_disk.spec().id.clone(), error_chain(error));
            return Err(HandoverAborted::Disk { id, source: ServedDiskError::NoStand { reason } });
        }
    }
    quiesced_devices.rested.clone().map_err(HandoverAborted::Restless)?;
    for (served_disk, quiesced_disk) in &quiesced_devices.disks {
        let Ok(quiesced_disk) = quiesced_disk else { continue };
        let written = served_disk.to_handover_state(quiesced_disk, disk_formats);
        let id = served_disk.spec().id.clone();
        let (disk, fds) = written.map_err(|source| HandoverAborted::Disk { id, source })?;
        send_disk(way, deadline, &disk, &fds)?;
    }
    send_nics(&quiesced_devices.nics, disk_registry, way, nic_formats, deadline)?;
    let end = SourceMessage::End {
        disks: quiesced_devices.disks.len(),
        nics: quiesced_devices.nics.len(),
    };
    send_message(way, deadline, &end, &[])?;
    match receive_message(way, Some(deadline))?.0 {
        DestinationMessage::Ready => Ok(()),
        DestinationMessage::Refused { why } => Err(HandoverError::Refused(why).into()),
        other @ DestinationMessage::Hello { .. } => {
            Err(HandoverError::Odd(format!("{other:?}")).into())
        }
    }
}

fn send_nics(
    all: &QuiescedNics,
    disk_registry: &DiskRegistry,
    way: &Link,
    formats: NicFormats,
    deadline: Instant,
) -> Result<(), HandoverAborted> {
    let written = disk_registry.nics().written(all, formats)?;
    for (network, fds) in &written.networks {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let word = SourceMessage::Network { descriptors: fds.len() };
        send_record(way, deadline, &word, network, &fds)?;
    }
    for (nic, fds) in &written.nics {
        let word = SourceMessage::Nic { descriptors: fds.len() };
        send_record(way, deadline, &word, nic, fds)?;
    }
    Ok(())
}

/// Continues to serve as if nothing had happened.
fn go_on(disk_registry: &Arc<DiskRegistry>, quiesced_devices: QuiescedDevices) {
    disk_registry.nics().unquiesce(quiesced_devices.nics);
    for (served_disk, quiesced_disk) in quiesced_devices.disks {
        let Ok(quiesced_disk) = quiesced_disk else { continue };
        let preserved_disk = served_disk.to_preserved();
        if let Err(error) = served_disk.unquiesce(quiesced_disk) {
            disk_registry.mark_refused(&served_disk, preserved_disk, &error);
        }
    }
}
