//! Destination side of a handover: a new worker takes over from the one that serves.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, pidfd_open};
use vhost_user::{NEWEST_FORMAT, OLDEST_FORMAT, StopSignal, Woken};

use super::protocol::{
    DestinationMessage, HandoverError, SourceMessage, receive_message, receive_record, send_message,
};
use super::{CONFIRM_DEADLINE, DISK_FORMATS, NIC_FORMATS};
use crate::keeper_client::{KeeperClient, PreservedDisk, PreservedDiskRecord, PreservedFds};
use crate::keeper_link::Link;
use crate::nic_registry::{IncomingNics, NetworkHandoverState, NicHandoverState, NicRegistry};
use crate::pool::Pool;
use crate::served_disk::{DiskHandoverState, IncomingDisk, ServedDisk};

/// All received devices.
#[derive(Debug)]
pub(crate) struct HandoverState {
    pub(crate) disks: Vec<ReceivedDisk>,
    pub(crate) nics: IncomingNics,
}

/// Received disk and its preserved record.
#[derive(Debug)]
pub(crate) struct ReceivedDisk {
    pub(crate) preserved_disk: PreservedDisk,
    pub(crate) incoming_disk: IncomingDisk,
}

/// Takes everything over through `way`. When this returns, the source serves nothing and never will
/// again, so the caller must serve at once.
///
/// # Errors
/// The source continues, and nothing has been touched. The process must end, and must not drop
/// anything that it does not own.
pub(crate) fn take(
    way: &Link,
    keeper_client: &KeeperClient,
    pool: &Arc<Pool>,
    nics: &NicRegistry,
) -> anyhow::Result<HandoverState> {
    let deadline = Instant::now() + CONFIRM_DEADLINE;
    let (pid, version) = (std::process::id(), env!("CARGO_PKG_VERSION").into());
    let (oldest, newest) = (OLDEST_FORMAT, NEWEST_FORMAT);
    let (disks, of_nics) = (Some(DISK_FORMATS), Some(NIC_FORMATS));
    let hello = DestinationMessage::Hello { pid, version, oldest, newest, disks, nics: of_nics };
    send_message(way, deadline, &hello, &[])?;
    let answer = || Instant::now() + CONFIRM_DEADLINE;
    let arrived = match receive(way).and_then(|all| arrange(all, keeper_client, pool, nics)) {
        Ok(arrived) => arrived,
        Err(error) => {
            let why = format!("{error:#}");
            // If the reply cannot be sent, closing the link has the same effect.
            let _ = send_message(way, answer(), &DestinationMessage::Refused { why }, &[]);
            return Err(error);
        }
    };
    send_message(way, answer(), &DestinationMessage::Ready, &[])?;
    match receive_message(way, None) {
        Ok((SourceMessage::Go, _)) => Ok(arrived),
        Ok((other, _)) => Err(HandoverError::Odd(format!("{other:?}")).into()),
        Err(error) => Err(error).context("the former worker continues to serve"),
    }
}

/// Waits until the source process has ended and its listening sockets are closed. Returns false if
/// `stop` is signalled first.
///
/// # Errors
/// The kernel cannot report the end of the process.
pub(crate) fn await_end(way: &Link, stop: &StopSignal) -> anyhow::Result<bool> {
    // The source created the link.
    let giver = socket_peercred(way)?.pid;
    let ended = match pidfd_open(giver, PidfdFlags::empty()) {
        Ok(ended) => ended,
        Err(Errno::SRCH) => return Ok(true),
        Err(error) => return Err(error.into()),
    };
    Ok(stop.wait(Some(ended.as_fd()), None)? == Woken::Readable)
}

/// Received messages, each with its descriptors.
#[derive(Default)]
struct ReceivedMessages {
    disks: Vec<(DiskHandoverState, Vec<OwnedFd>)>,
    networks: Vec<(NetworkHandoverState, Vec<OwnedFd>)>,
    nics: Vec<(NicHandoverState, Vec<OwnedFd>)>,
}

fn receive(way: &Link) -> anyhow::Result<ReceivedMessages> {
    let mut received_messages = ReceivedMessages::default();
    loop {
        // The source drains first, for as long as it needs.
        let (record, fds) = receive_message(way, None)?;
        let deadline = Instant::now() + CONFIRM_DEADLINE;
        let (disk, nic) = (("disk", DISK_FORMATS), ("NIC", NIC_FORMATS));
        match record {
            SourceMessage::Disk { descriptors } => {
                received_messages.disks.push(receive_record(
                    way,
                    deadline,
                    disk,
                    descriptors,
                    fds,
                )?);
            }
            SourceMessage::Network { descriptors } => {
                received_messages.networks.push(receive_record(
                    way,
                    deadline,
                    nic,
                    descriptors,
                    fds,
                )?);
            }
            SourceMessage::Nic { descriptors } => {
                received_messages.nics.push(receive_record(way, deadline, nic, descriptors, fds)?);
            }
            SourceMessage::End { disks, nics } if (disks, nics) == received_messages.counts() => {
                return Ok(received_messages);
            }
            other => return Err(HandoverError::Odd(format!("{other:?}")).into()),
        }
    }
}

impl ReceivedMessages {
    /// Returns the numbers of disks and NICs.
    fn counts(&self) -> (usize, usize) {
        (self.disks.len(), self.nics.len())
    }
}

fn arrange(
    received_messages: ReceivedMessages,
    keeper_client: &KeeperClient,
    pool: &Arc<Pool>,
    nics: &NicRegistry,
) -> anyhow::Result<HandoverState> {
    let disks = arrange_disks(received_messages.disks, keeper_client, pool)?;
    Ok(HandoverState {
        disks,
        nics: nics.prepare(received_messages.networks, received_messages.nics)?,
    })
}

fn arrange_disks(
    disks: Vec<(DiskHandoverState, Vec<OwnedFd>)>,
    keeper_client: &KeeperClient,
    pool: &Arc<Pool>,
) -> anyhow::Result<Vec<ReceivedDisk>> {
    let all = keeper_client.disks();
    let mut received_disk = Vec::with_capacity(disks.len());
    for (disk, fds) in disks {
        let id = disk.id.clone();
        let preserved_disk_record = all
            .iter()
            .find(|preserved_disk_record| preserved_disk_record.held().spec.id == id)
            .cloned();
        let preserved_disk = match preserved_disk_record
            .with_context(|| format!("the keeper has no record of disk {id:?}"))?
        {
            PreservedDiskRecord::Known(preserved_disk) => preserved_disk,
            PreservedDiskRecord::Novel { reason, .. } => anyhow::bail!("disk {id:?}: {reason}"),
        };
        let preserved_entry = keeper_client
            .disk(&id)
            .with_context(|| format!("the keeper has no record of disk {id:?}"))??;
        let incoming_disk = ServedDisk::from_handover_state(
            preserved_disk.clone(),
            PreservedFds::read(preserved_entry)?,
            disk,
            fds,
            Arc::clone(pool),
        );
        let incoming_disk = incoming_disk.with_context(|| format!("disk {id:?}"))?;
        received_disk.push(ReceivedDisk { preserved_disk, incoming_disk });
    }
    Ok(received_disk)
}
