//! A queue of the guest: its ring, and a fixed slot for each request that may be in flight.

use std::os::fd::OwnedFd;
use std::time::Instant;

use super::Shape;
use super::content::{BLOCK_BYTES, Effect, Range};
use super::load::PlannedRequest;
use crate::error::{Error, Result};
use crate::raw::SharedMemory;
use crate::raw::guest::event_fd;
use crate::raw::request::{HEADER_BYTES, Request, kind, status};
use crate::raw::ring::{DESC_INDIRECT, Desc, SplitRing, Used, link};

/// Offsets of the parts of a slot, in bytes.
const STATUS_AT: u64 = 16;
const TABLE_AT: u64 = 64;
const SEGMENT_AT: u64 = 128;
const DATA_AT: u64 = BLOCK_BYTES;
/// Content of a buffer before a read fills it.
const POISON: u8 = 0xa5;

/// A request in flight.
#[derive(Debug)]
pub(super) struct InFlightRequest {
    pub(super) range: Range,
    pub(super) effect: Effect,
    pub(super) offered: Instant,
    /// Number of bytes that the device must write, including the status.
    written: u32,
    kind: u32,
}

/// Memory and descriptors for one request.
#[derive(Debug)]
struct Slot {
    /// First descriptor, and the only one if the chain is indirect.
    head: u16,
    indirect: bool,
    base: u64,
    in_flight_request: Option<InFlightRequest>,
}

/// Queue of a reconnecting guest.
#[derive(Debug)]
pub(super) struct GuestQueue {
    pub(super) ring: SplitRing,
    pub(super) kick: OwnedFd,
    pub(super) call: OwnedFd,
    pub(super) err: OwnedFd,
    /// Time of the call for completions that are not collected yet.
    pub(super) called: Option<Instant>,
    /// Used index at which the current backend began.
    pub(super) resumed: u16,
    /// Start of the time without a completion by any backend, and by the current one.
    pub(super) outage: Option<Instant>,
    pub(super) pause: Option<Instant>,
    slots: Vec<Slot>,
    /// Slots by head.
    by_head: Vec<Option<usize>>,
    free: Vec<usize>,
    /// Heads to be published.
    batch: Vec<u16>,
}

fn stride(shape: &Shape) -> u64 {
    DATA_AT + u64::from(shape.blocks_max) * BLOCK_BYTES
}

/// Returns the most bytes of memory that a queue needs.
pub(super) fn bytes(shape: &Shape) -> u64 {
    let ring = 26 * u64::from(shape.queue_size) + 3 * BLOCK_BYTES;
    ring + u64::from(shape.depth) * stride(shape)
}

impl GuestQueue {
    pub(super) fn new(memory: &mut SharedMemory, shape: &Shape) -> Result<Self> {
        let ring = SplitRing::new(memory, shape.queue_size)?;
        let depth = shape.depth.min(shape.queue_size);
        // As many direct chains of three descriptors as fit beside the indirect ones, at most half.
        let plain = ((shape.queue_size - depth) / 2).min(depth / 2);
        let mut slots = Vec::new();
        let mut by_head = vec![None; shape.queue_size.into()];
        let mut head = 0;
        for index in 0..depth {
            let base = memory.alloc(stride(shape), BLOCK_BYTES)?;
            by_head[usize::from(head)] = Some(slots.len());
            let indirect = index >= plain;
            slots.push(Slot { head, indirect, base, in_flight_request: None });
            head += if indirect { 1 } else { 3 };
        }
        let free = (0..slots.len()).collect();
        let (kick, call, err) = (event_fd()?, event_fd()?, event_fd()?);
        Ok(Self {
            ring,
            kick,
            call,
            err,
            called: None,
            resumed: 0,
            outage: None,
            pause: None,
            slots,
            by_head,
            free,
            batch: Vec::new(),
        })
    }

    pub(super) fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns whether there is a free slot.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Writes a request to a slot. [`Self::publish`] publishes it.
    pub(super) fn put(
        &mut self,
        memory: &SharedMemory,
        planned_request: PlannedRequest,
    ) -> Result<()> {
        let full = || Error::Full { what: "a slot for a request".into() };
        let slot = self.free.pop().and_then(|index| self.slots.get_mut(index)).ok_or_else(full)?;
        let PlannedRequest { request, range, effect } = planned_request;
        let data = place(memory, slot.base, &request)?;
        let mut descs = vec![Desc::readable(slot.base, HEADER_BYTES)];
        descs.extend(data);
        descs.push(Desc::writable(slot.base + STATUS_AT, 1));
        let linked = |first| link(&descs, first).iter().flat_map(Desc::encode).collect::<Vec<_>>();
        let desc_at = self.ring.desc + 16 * u64::from(slot.head);
        if slot.indirect {
            let table = linked(0);
            memory.write(slot.base + TABLE_AT, &table)?;
            let (addr, len) = (slot.base + TABLE_AT, table.len() as u32);
            let desc = Desc { addr, len, flags: DESC_INDIRECT, next: 0 };
            memory.write(desc_at, &desc.encode())?;
        } else {
            memory.write(desc_at, &linked(slot.head))?;
        }
        let written = request.input.iter().sum::<u32>() + 1;
        let (offered, kind) = (Instant::now(), request.kind);
        slot.in_flight_request = Some(InFlightRequest { range, effect, offered, written, kind });
        self.batch.push(slot.head);
        Ok(())
    }

    /// Publishes all requests that were put, and kicks if the device wants it.
    pub(super) fn publish(&mut self, memory: &SharedMemory, event_idx: bool) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let old = self.ring.avail_idx;
        self.ring.publish_all(memory, &self.batch)?;
        self.batch.clear();
        let new = self.ring.avail_idx;
        let wanted = if event_idx {
            let event = self.ring.avail_event(memory)?;
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.ring.used_flags(memory)? & 1 == 0
        };
        if wanted {
            let kicked = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
            kicked.map_err(|e| Error::io("cannot kick", e))?;
        }
        Ok(())
    }

    /// Returns the request that a used element completes, and the data that it read.
    pub(super) fn take(
        &mut self,
        memory: &SharedMemory,
        used: Used,
    ) -> Result<(InFlightRequest, Vec<u8>)> {
        let bad = |what: String| Error::Reply { request: "a request".into(), what };
        let index = self.by_head.get(used.id as usize).copied().flatten();
        let found = index.and_then(|index| Some((index, self.slots.get_mut(index)?)));
        let Some((index, slot)) = found else {
            return Err(bad(format!("{used:?} is not a chain of this driver")));
        };
        let Some(in_flight_request) = slot.in_flight_request.take() else {
            return Err(bad(format!("{used:?} is not in flight: it was completed twice")));
        };
        let [code] = memory.read_array::<1>(slot.base + STATUS_AT)?;
        if code != status::OK || used.len != in_flight_request.written {
            return Err(bad(format!("{used:?} with status {code:#x} of {in_flight_request:?}")));
        }
        let len = if in_flight_request.kind == kind::IN {
            in_flight_request.range.bytes() as usize
        } else {
            0
        };
        let data = memory.read(slot.base + DATA_AT, len)?;
        self.free.push(index);
        Ok((in_flight_request, data))
    }
}

/// Writes header, status and data. Returns the descriptor of the data, if there is any.
fn place(memory: &SharedMemory, base: u64, request: &Request) -> Result<Option<Desc>> {
    let mut head = [0; SEGMENT_AT as usize];
    head[..16].copy_from_slice(&request.header());
    head[STATUS_AT as usize] = status::UNTOUCHED;
    memory.write(base, &head[..TABLE_AT as usize])?;
    match (request.kind, request.input.first()) {
        (kind::IN, Some(len)) => {
            memory.write(base + DATA_AT, &vec![POISON; *len as usize])?;
            Ok(Some(Desc::writable(base + DATA_AT, *len)))
        }
        (kind::OUT, _) => {
            memory.write(base + DATA_AT, &request.out)?;
            Ok(Some(Desc::readable(base + DATA_AT, request.out.len() as u32)))
        }
        _ if !request.out.is_empty() => {
            memory.write(base + SEGMENT_AT, &request.out)?;
            Ok(Some(Desc::readable(base + SEGMENT_AT, request.out.len() as u32)))
        }
        _ => Ok(None),
    }
}
