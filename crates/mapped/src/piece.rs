//! Parts of requests.

use std::time::Instant;

use disk::{BounceBuffer, IoError};
use image::channel::AddedBlocks;
use image::map::Hold;
use image::shared::{Claim, Grant};
use memory::Buffers;

use crate::channel::Target;

/// Request of the guest, while its pieces run.
#[derive(Debug)]
pub(crate) struct Parent {
    pub(crate) tag: u32,
    /// Pieces that have not ended.
    pub(crate) left: u32,
    /// First failure of a piece.
    pub(crate) outcome: Result<(), IoError>,
    /// Buffers that go back with the completion.
    pub(crate) buffers: Buffers,
    /// Epochs that the request holds until it ends.
    pub(crate) holds: Vec<Hold>,
    /// True if the request ends with a flush: it must be durable, and a piece was not.
    pub(crate) needs_flush: bool,
    /// Since when pieces wait for the map, and how many do.
    pub(crate) waits: Option<(Instant, u32)>,
}

impl Parent {
    /// Creates a request with one piece.
    pub(crate) fn new(tag: u32, needs_flush: bool) -> Self {
        let (buffers, holds) = Default::default();
        Self { tag, left: 1, outcome: Ok(()), buffers, holds, needs_flush, waits: None }
    }
}

/// Action of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Read,
    Write {
        durable: bool,
    },
    /// Make whole granules zero, one after the other.
    Zero,
    Flush,
}

/// Part of a request that goes to one place.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) parent: u32,
    pub(crate) action: Action,
    /// First byte, on the guest's disk.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) buffers: Buffers,
    pub(crate) phase: Phase,
    /// Epochs of the I/O in flight.
    pub(crate) holds: Few<Hold>,
    /// Blocks to commit after a write.
    pub(crate) added: Few<AddedBlocks>,
    /// Byte in the file where a write in flight has begun.
    pub(crate) file_offset: u64,
    /// True once it has waited for space with the storage.
    pub(crate) is_counted: bool,
    /// Claim on the discard that the owner was asked for.
    pub(crate) claim: Option<Claim>,
}

impl Piece {
    /// Creates a piece that is to be planned. `range` is its first byte and its length.
    pub(crate) fn new(parent: u32, action: Action, range: (u64, u64), buffers: Buffers) -> Self {
        let (offset, len) = range;
        Self {
            parent,
            action,
            offset,
            len,
            buffers,
            phase: Phase::Planned,
            holds: Few::default(),
            added: Few::default(),
            file_offset: 0,
            is_counted: false,
            claim: None,
        }
    }

    /// Returns whether the owner has a question of it about the map. A flush waits for the storage.
    pub(crate) fn waits_for_map(&self) -> bool {
        self.action != Action::Flush && matches!(self.phase, Phase::Asked | Phase::Describing(_))
    }

    /// Returns whether the data must be durable when the request ends.
    pub(crate) fn is_durable(&self) -> bool {
        self.action == Action::Write { durable: true }
    }

    /// Returns whether the piece waits for space with the storage.
    pub(crate) fn is_stalled(&self) -> bool {
        matches!(self.phase, Phase::Stalled | Phase::StalledMidway(_))
    }
}

/// Progress of a piece.
#[derive(Debug)]
pub(crate) enum Phase {
    /// It is planned now.
    Planned,
    /// The owner has a question of it.
    Asked,
    /// A disk below has its I/O.
    Submitted,
    /// It waits for memory to fill a grant.
    Starved(Grant),
    /// The owner describes the granule of a grant.
    Describing(Fill),
    /// It reads what a granule consists of, below or in the file, to fill a grant.
    Reading(Fill),
    /// It writes a granule.
    Filling(Fill),
    /// It waits for space on the storage.
    Stalled,
    /// It waits for space after a part was written: the rest goes to this byte of the file.
    StalledMidway(u64),
    /// It has ended, and the answer of the owner is still to come.
    Ended,
}

/// Granule that a piece fills.
#[derive(Debug)]
pub(crate) struct Fill {
    pub(crate) grant: Grant,
    /// Memory of the whole granule.
    pub(crate) memory: BounceBuffer,
    /// Parts to read into it, the last one first.
    pub(crate) reads: Vec<FillRead>,
}

/// Part of a granule that a fill reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FillRead {
    pub(crate) target: Target,
    /// First byte in the target.
    pub(crate) offset: u64,
    /// First byte in the granule.
    pub(crate) at: u64,
    pub(crate) len: u64,
}

/// List that usually has one value, and takes no memory for it.
#[derive(Debug)]
pub(crate) struct Few<T> {
    first: Option<T>,
    rest: Vec<T>,
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self { first: None, rest: Vec::new() }
    }
}

impl<T> Few<T> {
    pub(crate) fn push(&mut self, value: T) {
        match &self.first {
            None => self.first = Some(value),
            Some(_) => self.rest.push(value),
        }
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        self.rest.pop().or_else(|| self.first.take())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}

impl<T> Extend<T> for Few<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        values.into_iter().for_each(|value| self.push(value));
    }
}

impl<T> IntoIterator for Few<T> {
    type Item = T;
    type IntoIter = std::iter::Chain<std::option::IntoIter<T>, std::vec::IntoIter<T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.rest)
    }
}
