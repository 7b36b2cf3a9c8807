//! Layout of the state that all processes of a storage share.
//!
//! All of it consists of atomic 64-bit cells, so that it can lie in shared memory: a header, one slot a
//! disk, one slot a reactor. Every number may be wrong after a process was killed in the middle of a
//! step or wrote nonsense: indices are checked at each use, and no number leads to a panic.
//!
//! A reactor's slot has one writer, so taking and freeing tokens needs no atomic arithmetic, and
//! all that a dead process had in flight is returned by clearing its slots.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use crate::error::ShareError;
use crate::profile::{Profile, WORDS};

/// Disks of a share.
pub const DISKS_MAX: usize = 1024;
/// Reactors of a share, over all processes.
pub const REACTORS_MAX: usize = 256;

/// Layout of the cells. 0 in memory that is new.
const LAYOUT: u64 = 0x7368_6172_0000_0000 + LAYOUT_VERSION;
/// Version of the layout. Processes with another one cannot use the state.
pub const LAYOUT_VERSION: u64 = 3;
/// Cells of a line of the cache.
const LINE: usize = 8;
const HEADER_CELLS: usize = 10 * LINE;
const DISK_CELLS: usize = 4 * LINE;
/// Bytes of a disk's name that a slot has room for.
const NAME_BYTES: usize = LINE * 8;
const REACTOR_CELLS: usize = 2 * LINE;
/// Number of cells that a share needs.
pub const CELLS: usize = HEADER_CELLS + DISKS_MAX * DISK_CELLS + REACTORS_MAX * REACTOR_CELLS;

/// End of a name that was cut.
const ELLIPSIS: &str = "\u{2026}";
/// Value of [`Header::Sole`] while several disks are active.
pub(crate) const CONTENDED: u64 = u64::MAX;
/// Key of a reactor that holds no request that may be dispatched.
pub(crate) const NO_KEY: u64 = u64::MAX;
/// A count of requests lies above this bit, their tokens below.
const COUNT_SHIFT: u32 = 44;

/// Cells of the header. Lines are separated by how often they change.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(crate) enum Header {
    Layout = 0,
    /// Only active disk, plus 1; 0 if none is active, or [`CONTENDED`].
    Sole = 1,
    /// Number of profiles stored so far. The newest lies in the copy with this parity.
    Profiles = 2,
    /// Device time that may be in flight, in nanoseconds.
    Depth = 3,
    /// Slots of the tables that are or were in use.
    Disks = 4,
    Reactors = 5,
    /// Time since which several disks are active.
    ContendedSince = 6,
    /// 1 after a disk had a floor.
    Floors = 7,
    /// Start of the latency window, and sums at its start.
    Window = LINE,
    Latency = 9,
    Expected = 10,
    /// Number of times that latency has tightened the depth.
    Tightened = 11,
    /// Number of times that keys of disks may have become lower, other than by time.
    Lowerings = 12,
    /// Disk whose turn it is, plus 1, below a sequence number.
    Turn = 2 * LINE,
    /// Bytes left of the turn, signed.
    TurnLeft = 17,
    /// Times of the turn's start, latest end, and end of the anticipation.
    TurnStart = 18,
    TurnEnd = 19,
    TurnIdleUntil = 20,
    /// Device time charged during the turn.
    TurnCharged = 21,
    /// Two copies of the profile.
    ProfileCopies = 4 * LINE,
}

/// Cells of a disk's slot. Cell 0 is the process that uses it; 0 if it is free.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(crate) enum DiskCell {
    Weight = 1,
    /// Requests and bytes a second that the disk gets at least; 0 for no floor.
    FloorRequests = 2,
    FloorBytes = 3,
    /// Virtual time at which the next request starts.
    Tag = LINE,
    /// Device time of operations that did not wait, not paid yet.
    Debt = 9,
    /// Requests held, over all reactors.
    Held = 10,
    /// Count and tokens in flight, over all reactors.
    InFlight = 11,
    /// Time of the last request.
    Seen = 12,
    /// Times at which the next request and the next byte of the floor are due.
    RequestsDue = 13,
    BytesDue = 14,
    /// Time of the last completion, and whether anticipation was in vain.
    Completed = 15,
    NoIdle = 16,
    /// Sums since the disk was added.
    Served = 17,
    Waited = 18,
    Dispatches = 19,
    Splits = 20,
    /// Name for reports, filled up with zeroes.
    Name = 3 * LINE,
}

/// Cells of a reactor's slot. Cell 0 is the process that uses it; 0 if it is free. Only its reactor
/// stores, except for `Kicked`.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(crate) enum ReactorCell {
    /// Key of the lowest request that is held, or [`NO_KEY`].
    Key = 1,
    /// Count and tokens in flight.
    Tokens = 2,
    /// Highest start tag dispatched.
    Start = 3,
    /// Discards in flight.
    Discards = 4,
    /// Time since which a held discard waits for one in flight, or 0.
    DiscardWaits = 5,
    /// Time of a kick that the reactor has not taken yet, or 0.
    Kicked = 6,
    /// Sums of latencies and of expected latencies.
    Latency = LINE,
    Expected = 9,
    /// Device time in flight, which tokens count up to a limit each.
    Costs = 10,
    /// Device time that floors got, less a multiple of that given by weight; signed.
    FloorExcess = 11,
}

/// Number of requests and their tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tokens {
    /// Number of requests.
    pub(crate) count: u64,
    /// Device time in nanoseconds.
    pub(crate) ns: u64,
}

impl Tokens {
    pub(crate) fn one(ns: u64) -> Self {
        Self { count: 1, ns }
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self { count: bits >> COUNT_SHIFT, ns: bits & ((1 << COUNT_SHIFT) - 1) }
    }

    pub(crate) fn bits(self) -> u64 {
        self.count << COUNT_SHIFT | self.ns & ((1 << COUNT_SHIFT) - 1)
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self { count: self.count.saturating_add(other.count), ns: self.ns.saturating_add(other.ns) }
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self { count: self.count.saturating_sub(other.count), ns: self.ns.saturating_sub(other.ns) }
    }
}

/// View of the cells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State<'a>(&'a [AtomicU64]);

/// View of one slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot<'a>(&'a [AtomicU64]);

/// Adds to a cell that has one writer.
#[inline]
pub(crate) fn add(cell: &AtomicU64, value: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(value), Relaxed);
}

/// Returns a cell. A cell outside of the memory, which [`State::open`] excludes, has no effect.
#[inline]
fn cell(cells: &[AtomicU64], at: usize) -> &AtomicU64 {
    static NOWHERE: AtomicU64 = AtomicU64::new(0);
    cells.get(at).unwrap_or(&NOWHERE)
}

impl<'a> Slot<'a> {
    #[inline]
    pub(crate) fn disk(self, at: DiskCell) -> &'a AtomicU64 {
        cell(self.0, at as usize)
    }

    #[inline]
    pub(crate) fn reactor(self, at: ReactorCell) -> &'a AtomicU64 {
        cell(self.0, at as usize)
    }

    /// Takes the slot for a process, if it is free.
    fn claim(self, process: u64) -> bool {
        let free = cell(self.0, 0).compare_exchange(0, process, AcqRel, Relaxed).is_ok();
        if free {
            // Another process may have left numbers.
            self.0.iter().skip(1).for_each(|cell| cell.store(0, Relaxed));
        }
        free
    }

    /// Stores the name of a disk. Of a longer name than fits, the end is replaced by an ellipsis.
    pub(crate) fn store_name(self, name: &str) {
        let mut bytes = name.as_bytes().to_vec();
        if bytes.len() > NAME_BYTES {
            bytes.truncate(name.floor_char_boundary(NAME_BYTES - ELLIPSIS.len()));
            bytes.extend(ELLIPSIS.as_bytes());
        }
        bytes.resize(NAME_BYTES, 0);
        for (at, chunk) in bytes.chunks_exact(8).enumerate() {
            let word = chunk.try_into().map_or(0, u64::from_le_bytes);
            cell(self.0, DiskCell::Name as usize + at).store(word, Relaxed);
        }
    }

    /// Returns the name of a disk. It is garbled while the slot gets another disk.
    pub(crate) fn name(self) -> String {
        let word = |at| cell(self.0, DiskCell::Name as usize + at).load(Relaxed).to_le_bytes();
        let bytes: Vec<u8> = (0..LINE).flat_map(word).take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(crate) fn process(self) -> u64 {
        cell(self.0, 0).load(Acquire)
    }

    pub(crate) fn free(self) {
        cell(self.0, 0).store(0, Release);
    }
}

impl<'a> State<'a> {
    #[inline]
    pub(crate) fn new(cells: &'a [AtomicU64]) -> Self {
        Self(cells)
    }

    /// Checks the layout, or stores it in new memory.
    pub(crate) fn open(self) -> Result<(), ShareError> {
        if self.0.len() < CELLS {
            return Err(ShareError::Small { cells: self.0.len(), needed: CELLS });
        }
        match self.header(Header::Layout).compare_exchange(0, LAYOUT, AcqRel, Acquire) {
            Err(found) if found != LAYOUT => Err(ShareError::Layout { found, expected: LAYOUT }),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    #[inline]
    pub(crate) fn header(self, at: Header) -> &'a AtomicU64 {
        cell(self.0, at as usize)
    }

    #[inline]
    fn slot(self, from: usize, cells: usize) -> Slot<'a> {
        Slot(self.0.get(from..from + cells).unwrap_or_default())
    }

    #[inline]
    pub(crate) fn disk(self, slot: usize) -> Slot<'a> {
        self.slot(HEADER_CELLS + slot * DISK_CELLS, DISK_CELLS)
    }

    #[inline]
    pub(crate) fn reactor(self, slot: usize) -> Slot<'a> {
        let reactors = HEADER_CELLS + DISKS_MAX * DISK_CELLS;
        self.slot(reactors + slot * REACTOR_CELLS, REACTOR_CELLS)
    }

    /// Counts a change that may have lowered keys: all reactors look at all of their disks again.
    pub(crate) fn count_lowering(self) {
        self.header(Header::Lowerings).fetch_add(1, Release);
    }

    /// Returns the slots of disks that are or were in use.
    pub(crate) fn disks(self) -> impl Iterator<Item = (usize, Slot<'a>)> {
        let end = (self.header(Header::Disks).load(Acquire) as usize).min(DISKS_MAX);
        (0..end).map(move |at| (at, self.disk(at))).filter(|(_, slot)| slot.process() != 0)
    }

    /// Returns the slots of reactors that are or were in use.
    #[inline]
    pub(crate) fn reactors(self) -> impl Iterator<Item = (usize, Slot<'a>)> {
        let end = (self.header(Header::Reactors).load(Acquire) as usize).min(REACTORS_MAX);
        (0..end).map(move |at| (at, self.reactor(at)))
    }

    /// Takes a free slot of a disk.
    pub(crate) fn claim_disk(self, process: u64) -> Option<usize> {
        let at = (0..DISKS_MAX).find(|at| self.disk(*at).claim(process))?;
        self.header(Header::Disks).fetch_max(at as u64 + 1, AcqRel);
        Some(at)
    }

    /// Takes a free slot of a reactor. Virtual time does not go back.
    pub(crate) fn claim_reactor(self, process: u64) -> Option<usize> {
        let now = self.reactors().map(|(_, slot)| slot.reactor(ReactorCell::Start).load(Relaxed));
        let virtual_time = now.max().unwrap_or(0);
        let at = (0..REACTORS_MAX).find(|at| self.reactor(*at).claim(process))?;
        let slot = self.reactor(at);
        slot.reactor(ReactorCell::Key).store(NO_KEY, Relaxed);
        slot.reactor(ReactorCell::Start).store(virtual_time, Relaxed);
        self.header(Header::Reactors).fetch_max(at as u64 + 1, AcqRel);
        Some(at)
    }

    /// Returns the tokens of a reactor's slot, and makes it free.
    pub(crate) fn release_reactor(self, at: usize) {
        let slot = self.reactor(at);
        slot.reactor(ReactorCell::Key).store(NO_KEY, Relaxed);
        for cell in [
            ReactorCell::Tokens,
            ReactorCell::Discards,
            ReactorCell::DiscardWaits,
            ReactorCell::Kicked,
            ReactorCell::Costs,
            ReactorCell::FloorExcess,
        ] {
            slot.reactor(cell).store(0, Relaxed);
        }
        slot.free();
    }

    /// Stores a profile. One process at a time does so.
    pub(crate) fn store_profile(self, profile: &Profile) {
        let next = self.header(Header::Profiles).load(Acquire).wrapping_add(1).max(1);
        let copy = Header::ProfileCopies as usize + (next % 2) as usize * 2 * LINE;
        for (at, word) in profile.to_words().into_iter().enumerate() {
            cell(self.0, copy + at).store(word, Relaxed);
        }
        fence(Release);
        self.header(Header::Depth).store(profile.knee_ns, Relaxed);
        self.header(Header::Profiles).store(next, Release);
    }

    /// Returns the number of the newest profile, and the profile. `None` if there is none.
    pub(crate) fn profile(self) -> Option<(u64, Result<Profile, ShareError>)> {
        let number = self.header(Header::Profiles).load(Acquire);
        let copy = Header::ProfileCopies as usize + (number % 2) as usize * 2 * LINE;
        let words: [u64; WORDS] = std::array::from_fn(|at| cell(self.0, copy + at).load(Relaxed));
        (number > 0).then(|| (number, Profile::from_words(words)))
    }
}
