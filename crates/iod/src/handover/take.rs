//! A new worker takes over from the one that serves.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, pidfd_open};
use vhost_user::{NEWEST_FORMAT, OLDEST_FORMAT, StopSignal, Woken};

use super::way::{FromGiver, FromTaker, WayError, hear, hear_record, say};
use super::{CONFIRM_DEADLINE, DISK_FORMATS, NIC_FORMATS};
use crate::export::{Export, Taken, WrittenDisk};
use crate::held::{Door, Found, Held, Kept};
use crate::link::Link;
use crate::nics::{Nics, TakenNics, WrittenNetwork, WrittenNic};
use crate::pool::Pool;

/// All that has come over.
#[derive(Debug)]
pub(crate) struct Arrivals {
    pub(crate) disks: Vec<Arrived>,
    pub(crate) nics: TakenNics,
}

/// A disk that has come over, and what is held of it.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) held: Held,
    pub(crate) taken: Taken,
}

/// Takes everything over by `way`. When this returns, the other worker serves nothing any more and
/// never will: go on at once.
///
/// # Errors
/// The other worker goes on, and nothing has been touched. The process must end, and drop nothing
/// that is not its own.
pub(crate) fn take(
    way: &Link,
    door: &Door,
    pool: &Arc<Pool>,
    nics: &Nics,
) -> anyhow::Result<Arrivals> {
    let deadline = Instant::now() + CONFIRM_DEADLINE;
    let (pid, version) = (std::process::id(), env!("CARGO_PKG_VERSION").into());
    let (oldest, newest) = (OLDEST_FORMAT, NEWEST_FORMAT);
    let (disks, of_nics) = (Some(DISK_FORMATS), Some(NIC_FORMATS));
    let hello = FromTaker::Hello { pid, version, oldest, newest, disks, nics: of_nics };
    say(way, deadline, &hello, &[])?;
    let answer = || Instant::now() + CONFIRM_DEADLINE;
    let arrived = match receive(way).and_then(|all| arrange(all, door, pool, nics)) {
        Ok(arrived) => arrived,
        Err(error) => {
            let why = format!("{error:#}");
            // If that cannot be said, the end of the way says enough.
            let _ = say(way, answer(), &FromTaker::Refused { why }, &[]);
            return Err(error);
        }
    };
    say(way, answer(), &FromTaker::Ready, &[])?;
    match hear(way, None) {
        Ok((FromGiver::Go, _)) => Ok(arrived),
        Ok((other, _)) => Err(WayError::Odd(format!("{other:?}")).into()),
        Err(error) => Err(error).context("the former worker goes on"),
    }
}

/// Waits until the process that has handed over has ended, and with it whatever it listened on.
/// False: told to stop before.
///
/// # Errors
/// The system cannot tell.
pub(crate) fn await_end(way: &Link, stop: &StopSignal) -> anyhow::Result<bool> {
    // Whoever has made the way.
    let giver = socket_peercred(way)?.pid;
    let ended = match pidfd_open(giver, PidfdFlags::empty()) {
        Ok(ended) => ended,
        Err(Errno::SRCH) => return Ok(true),
        Err(error) => return Err(error.into()),
    };
    Ok(stop.wait(Some(ended.as_fd()), None)? == Woken::Readable)
}

/// What was said, each with its descriptors.
#[derive(Default)]
struct Said {
    disks: Vec<(WrittenDisk, Vec<OwnedFd>)>,
    networks: Vec<(WrittenNetwork, Vec<OwnedFd>)>,
    nics: Vec<(WrittenNic, Vec<OwnedFd>)>,
}

fn receive(way: &Link) -> anyhow::Result<Said> {
    let mut said = Said::default();
    loop {
        // The other worker drains first, for as long as it likes.
        let (record, fds) = hear(way, None)?;
        let deadline = Instant::now() + CONFIRM_DEADLINE;
        let (disk, nic) = (("disk", DISK_FORMATS), ("NIC", NIC_FORMATS));
        match record {
            FromGiver::Disk { descriptors } => {
                said.disks.push(hear_record(way, deadline, disk, descriptors, fds)?);
            }
            FromGiver::Network { descriptors } => {
                said.networks.push(hear_record(way, deadline, nic, descriptors, fds)?);
            }
            FromGiver::Nic { descriptors } => {
                said.nics.push(hear_record(way, deadline, nic, descriptors, fds)?);
            }
            FromGiver::End { disks, nics } if (disks, nics) == said.counts() => return Ok(said),
            other => return Err(WayError::Odd(format!("{other:?}")).into()),
        }
    }
}

impl Said {
    /// Disks and NICs.
    fn counts(&self) -> (usize, usize) {
        (self.disks.len(), self.nics.len())
    }
}

fn arrange(said: Said, door: &Door, pool: &Arc<Pool>, nics: &Nics) -> anyhow::Result<Arrivals> {
    let disks = arrange_disks(said.disks, door, pool)?;
    Ok(Arrivals { disks, nics: nics.prepare(said.networks, said.nics)? })
}

fn arrange_disks(
    disks: Vec<(WrittenDisk, Vec<OwnedFd>)>,
    door: &Door,
    pool: &Arc<Pool>,
) -> anyhow::Result<Vec<Arrived>> {
    let all = door.disks();
    let mut arrived = Vec::with_capacity(disks.len());
    for (disk, fds) in disks {
        let id = disk.id.clone();
        let found = all.iter().find(|found| found.held().spec.id == id).cloned();
        let held = match found.with_context(|| format!("disk {id:?} is not held"))? {
            Found::Known(held) => held,
            Found::Novel { reason, .. } => anyhow::bail!("disk {id:?}: {reason}"),
        };
        let holding = door.disk(&id).with_context(|| format!("disk {id:?} is not held"))??;
        let taken = Export::taken(held.clone(), Kept::from(holding), disk, fds, Arc::clone(pool));
        let taken = taken.with_context(|| format!("disk {id:?}"))?;
        arrived.push(Arrived { held, taken });
    }
    Ok(arrived)
}
