//! One storage: its disks, reactors and profile.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

use crate::charge;
use crate::error::ShareError;
use crate::profile::{Op, Profile};
use crate::state::{
    CONTENDED, DISKS_MAX, DiskCell, Header, REACTORS_MAX, ReactorCell, Slot, State, Tokens,
};

/// Weight of a disk whose weight nobody set.
pub const DEFAULT_WEIGHT: u64 = 100;
/// Weight of background work: coalescing, cleaning, exports. It is added as a disk of its own.
pub const BACKGROUND_WEIGHT: u64 = 10;
/// Highest weight.
pub const WEIGHT_MAX: u64 = 1000;

/// Time without a request after which a disk is not active, in nanoseconds.
pub(crate) const ACTIVE_NS: u64 = 100_000_000;

/// Slot of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DiskId(pub(crate) u16);

/// Slot of a reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReactorId(pub(crate) u16);

impl ReactorId {
    /// Returns the number of the slot, below [`REACTORS_MAX`].
    pub fn slot(self) -> usize {
        self.0.into()
    }

    /// Returns the reactor of a slot. `None` if there is no such slot.
    pub fn from_slot(slot: u16) -> Option<Self> {
        (usize::from(slot) < REACTORS_MAX).then_some(Self(slot))
    }
}

impl DiskId {
    /// Returns the mark of the disk in [`Share::sole`].
    #[inline]
    pub fn mark(self) -> u64 {
        u64::from(self.0) + 1
    }

    /// Returns the number of the slot, below [`DISKS_MAX`].
    pub fn slot(self) -> usize {
        self.0.into()
    }
}

/// Settings of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// Weight, 1 to [`WEIGHT_MAX`].
    pub weight: u64,
    /// Requests a second that the disk gets at least; 0 for no floor.
    pub floor_requests: u64,
    /// Bytes a second that the disk gets at least; 0 for no floor.
    pub floor_bytes: u64,
}

impl Default for DiskConfig {
    fn default() -> Self {
        Self { weight: DEFAULT_WEIGHT, floor_requests: 0, floor_bytes: 0 }
    }
}

/// One storage. All reactors of the process share it; its state is shared by all processes.
#[derive(Debug)]
pub struct Share<M> {
    memory: M,
    /// Number of this process, which its slots have.
    process: u64,
}

impl<M: AsRef<[AtomicU64]>> Share<M> {
    /// Opens the state of a storage. `memory` has at least [`crate::CELLS`] cells, all 0 if no
    /// process uses the storage yet. `process` is at least 1 and differs between the processes of
    /// the storage.
    ///
    /// # Errors
    /// The memory is too small or has another layout.
    pub fn open(memory: M, process: u64) -> Result<Arc<Self>, ShareError> {
        State::new(memory.as_ref()).open()?;
        Ok(Arc::new(Self { memory, process: process.max(1) }))
    }

    #[inline]
    pub(crate) fn state(&self) -> State<'_> {
        State::new(self.memory.as_ref())
    }

    /// Returns the profile.
    ///
    /// # Errors
    /// There is none yet, or another process has stored nonsense.
    pub fn profile(&self) -> Result<Profile, ShareError> {
        self.state().profile().ok_or(ShareError::NoProfile)?.1
    }

    /// Sets the profile for all processes, and the depth to its knee. One process at a time does
    /// so. Reactors use it from their next request on.
    ///
    /// # Errors
    /// A number is outside of its range.
    pub fn update_profile(&self, profile: &Profile) -> Result<(), ShareError> {
        profile.check()?;
        self.state().store_profile(profile);
        Ok(())
    }

    /// Adds a disk. Reports of all processes call it `name`.
    ///
    /// # Errors
    /// The weight is outside of its range, or the table is full.
    pub fn add_disk(&self, name: &str, config: DiskConfig) -> Result<DiskId, ShareError> {
        check_weight(config.weight)?;
        let full = ShareError::TableFull { what: "disks", limit: DISKS_MAX };
        let slot = self.state().claim_disk(self.process).ok_or(full)?;
        self.state().disk(slot).store_name(name);
        self.store_config(self.state().disk(slot), config);
        Ok(DiskId(slot as u16))
    }

    /// Changes the settings of a disk. Requests that are held follow them at once.
    ///
    /// # Errors
    /// The weight is outside of its range.
    pub fn update_disk(&self, disk: DiskId, config: DiskConfig) -> Result<(), ShareError> {
        check_weight(config.weight)?;
        self.store_config(self.disk(disk), config);
        Ok(())
    }

    /// Charges a disk for an operation that went past all queues, as debt. Charges nothing while at
    /// most half of the depth is in flight, as for other operations.
    pub fn charge(&self, disk: DiskId, op: Op) {
        let Ok(profile) = self.profile() else { return };
        let depth = self.state().header(Header::Depth).load(Relaxed);
        if !self.is_sole(disk) && self.in_flight().ns > depth / 2 {
            charge::add_debt(self.disk(disk), profile.cost(op));
        }
    }

    /// Removes a disk. No request of it is held or in flight.
    pub fn remove_disk(&self, disk: DiskId) {
        self.clear_sole(disk.slot());
        self.disk(disk).free();
    }

    /// Returns the tokens of a process that has ended, and removes its disks and reactors. The caller
    /// knows that it has ended.
    pub fn release_process(&self, process: u64) {
        let state = self.state();
        for (at, slot) in state.disks().filter(|(_, slot)| slot.process() == process) {
            self.clear_sole(at);
            slot.free();
        }
        for (at, _) in state.reactors().filter(|(_, slot)| slot.process() == process) {
            state.release_reactor(at);
        }
    }

    /// Returns the name of a disk of any process.
    pub fn disk_name(&self, disk: DiskId) -> String {
        self.disk(disk).name()
    }

    /// Returns the number of the process that a reactor belongs to. 0 if the slot is free.
    pub fn process_of(&self, reactor: ReactorId) -> u64 {
        self.reactor(reactor).process()
    }

    /// Returns the numbers of the other processes that have disks or reactors, in ascending order.
    pub fn other_processes(&self) -> BTreeSet<u64> {
        let slots = self.state().disks().chain(self.state().reactors());
        let processes = slots.map(|(_, slot)| slot.process());
        processes.filter(|process| ![0, self.process].contains(process)).collect()
    }

    /// Takes a slot for a reactor.
    pub(crate) fn claim_reactor(&self) -> Result<ReactorId, ShareError> {
        let full = ShareError::TableFull { what: "reactors", limit: REACTORS_MAX };
        self.state().claim_reactor(self.process).map(|at| ReactorId(at as u16)).ok_or(full)
    }

    #[inline]
    pub(crate) fn disk(&self, disk: DiskId) -> Slot<'_> {
        self.state().disk(disk.slot())
    }

    #[inline]
    pub(crate) fn reactor(&self, reactor: ReactorId) -> Slot<'_> {
        self.state().reactor(reactor.slot())
    }

    /// Returns whether only this disk is active.
    #[inline]
    pub(crate) fn is_sole(&self, disk: DiskId) -> bool {
        self.sole() == disk.mark()
    }

    /// Returns the mark of the only active disk ([`DiskId::mark`]). Another value means that the
    /// storage is contended, or that no disk is active.
    #[inline]
    pub fn sole(&self) -> u64 {
        self.state().header(Header::Sole).load(Relaxed)
    }

    /// Notes a request of a disk. Other disks may make the storage contended.
    pub(crate) fn mark_active(&self, disk: DiskId, now: u64) {
        let sole = self.state().header(Header::Sole);
        let own = u64::from(disk.0) + 1;
        // The order of this store and the load matches that of `end_contention`.
        self.disk(disk).disk(DiskCell::Seen).store(now, SeqCst);
        let found = sole.load(SeqCst);
        if found == CONTENDED || found == own {
            return;
        }
        let value = if found == 0 { own } else { CONTENDED };
        if sole.compare_exchange(found, value, SeqCst, SeqCst).is_err() {
            sole.store(CONTENDED, SeqCst);
        }
        self.state().header(Header::ContendedSince).store(now, Relaxed);
    }

    /// Ends the contention if at most one disk has been active for 100 ms.
    pub(crate) fn end_contention(&self, now: u64) {
        let state = self.state();
        let since = state.header(Header::ContendedSince).load(Relaxed);
        let sole = state.header(Header::Sole);
        if sole.load(Relaxed) != CONTENDED || now.saturating_sub(since) < ACTIVE_NS {
            return;
        }
        let mut active = state.disks().filter(|(_, slot)| {
            let seen = slot.disk(DiskCell::Seen).load(SeqCst);
            slot.disk(DiskCell::Held).load(Acquire) > 0 || now.saturating_sub(seen) < ACTIVE_NS
        });
        let value = active.next().map_or(0, |(at, _)| at as u64 + 1);
        if active.next().is_none() {
            // A disk that becomes active now finds the other disk's number, and changes it back.
            let _ = sole.compare_exchange(CONTENDED, value, SeqCst, SeqCst);
        }
    }

    fn store_config(&self, slot: Slot<'_>, config: DiskConfig) {
        slot.disk(DiskCell::Weight).store(config.weight, Relaxed);
        slot.disk(DiskCell::FloorRequests).store(config.floor_requests, Relaxed);
        slot.disk(DiskCell::FloorBytes).store(config.floor_bytes, Relaxed);
        if config.floor_requests > 0 || config.floor_bytes > 0 {
            self.state().header(Header::Floors).store(1, Relaxed);
        }
        self.state().count_lowering();
    }

    /// Forgets that a disk is the only active one.
    fn clear_sole(&self, slot: usize) {
        let sole = self.state().header(Header::Sole);
        let _ = sole.compare_exchange(slot as u64 + 1, 0, AcqRel, Relaxed);
    }

    /// Returns the requests and tokens in flight, over all reactors.
    pub(crate) fn in_flight(&self) -> Tokens {
        self.state().reactors().fold(Tokens::default(), |sum, (_, slot)| {
            sum.plus(Tokens::from_bits(slot.reactor(ReactorCell::Tokens).load(Acquire)))
        })
    }
}

fn check_weight(weight: u64) -> Result<(), ShareError> {
    let fine = (1..=WEIGHT_MAX).contains(&weight);
    if fine { Ok(()) } else { Err(ShareError::Weight(weight)) }
}

#[cfg(test)]
mod tests;
