//! Counters, and why a disk waits.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::profile::Piece;
use crate::share::{DiskId, Share};
use crate::state::{DiskCell, Header, Slot, Tokens};

/// Counters of a disk, since it was added. Requests that the disk sent while it was alone, or below
/// half of the knee, are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Requests held now.
    pub held: u64,
    /// Requests in flight, and their tokens in nanoseconds.
    pub in_flight: u64,
    /// Tokens in flight, in nanoseconds of device time.
    pub in_flight_ns: u64,
    /// Device time charged, in nanoseconds.
    pub served_ns: u64,
    /// Device time of operations that did not wait, and that is not charged yet, in nanoseconds.
    pub owed_ns: u64,
    /// Time for which requests were held, in nanoseconds.
    pub waited_ns: u64,
    /// Pieces sent.
    pub dispatches: u64,
    /// Requests that were split.
    pub splits: u64,
}

/// State of the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareStats {
    /// Device time that may be in flight, in nanoseconds: the knee, or less while latency is high.
    pub depth_ns: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// Tokens in flight, in nanoseconds of device time.
    pub in_flight_ns: u64,
    /// Number of times that latency has tightened the depth.
    pub tightened: u64,
    /// Size in which large requests are split, and its gain.
    pub piece: Option<Piece>,
}

/// Reason why requests of a disk are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// The disk waits for its share. This other disk has the most device time in flight.
    Behind(DiskId),
    /// Only this disk is busy. More requests than these in flight would only add latency.
    Depth {
        /// Requests in flight.
        in_flight: u64,
    },
}

fn in_flight(slot: Slot<'_>) -> Tokens {
    Tokens::from_bits(slot.disk(DiskCell::InFlight).load(Relaxed))
}

impl<M: AsRef<[AtomicU64]>> Share<M> {
    /// Returns the counters of a disk.
    pub fn disk_stats(&self, disk: DiskId) -> DiskStats {
        let slot = self.disk(disk);
        let load = |cell| slot.disk(cell).load(Relaxed);
        let Tokens { count, ns } = in_flight(slot);
        DiskStats {
            held: load(DiskCell::Held),
            in_flight: count,
            in_flight_ns: ns,
            served_ns: load(DiskCell::Served),
            owed_ns: load(DiskCell::Debt),
            waited_ns: load(DiskCell::Waited),
            dispatches: load(DiskCell::Dispatches),
            splits: load(DiskCell::Splits),
        }
    }

    /// Returns the state of the storage.
    pub fn stats(&self) -> ShareStats {
        let load = |cell| self.state().header(cell).load(Relaxed);
        let Tokens { count, ns } = self.in_flight();
        ShareStats {
            depth_ns: load(Header::Depth),
            in_flight: count,
            in_flight_ns: ns,
            tightened: load(Header::Tightened),
            piece: self.profile().ok().and_then(|profile| profile.piece),
        }
    }

    /// Returns why requests of a disk are held. `None` if none is.
    pub fn wait_reason(&self, disk: DiskId) -> Option<WaitReason> {
        if self.disk_stats(disk).held == 0 {
            return None;
        }
        let others = self.state().disks().filter(|(at, _)| *at != disk.slot());
        let busiest = others.map(|(at, slot)| (in_flight(slot).ns, at)).max();
        Some(match busiest {
            Some((1.., at)) => WaitReason::Behind(DiskId(at as u16)),
            _ => WaitReason::Depth { in_flight: self.in_flight().count },
        })
    }
}
