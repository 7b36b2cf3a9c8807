//! The three parts of a split ring as raw memory (virtio 1.2, 2.7).

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use memory::View;

use crate::crash::stored;
use crate::doorbell::{RingField, RingMemory};
use crate::{MAX_QUEUE_SIZE, QueueConfig, RingError};

/// Flag: the chain continues at `next`.
pub(crate) const DESC_NEXT: u16 = 1;
/// Flag: the device writes this buffer.
pub(crate) const DESC_WRITE: u16 = 2;
/// Flag: the buffer is a table of descriptors.
pub(crate) const DESC_INDIRECT: u16 = 4;
/// Bytes of a descriptor.
pub(crate) const DESC_BYTES: u32 = 16;
/// Number of used ring entries in a cache line.
const USED_IN_LINE: usize = 8;

/// A descriptor, copied out of guest memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) flags: u16,
    pub(crate) next: u16,
}

/// A table of descriptors in guest memory.
#[derive(Clone, Copy)]
pub(crate) struct DescTable {
    base: NonNull<[u64; 2]>,
    pub(crate) size: u32,
}

impl DescTable {
    pub(crate) fn new(view: &View, addr: u64, size: u32) -> Result<Self, memory::MemoryError> {
        Ok(Self { base: view.array(addr, size as usize)?, size })
    }

    /// Returns the error for a chain that refers to descriptor `index`, which does not exist.
    #[cold]
    pub(crate) fn has_no(&self, index: u16) -> RingError {
        RingError::BadIndex { index, size: self.size }
    }

    /// Prefetches descriptor `index`.
    #[inline]
    pub(crate) fn fetch(&self, index: u16) {
        if u32::from(index) < self.size {
            // SAFETY: `base` is followed by `size` descriptors (View::array), index < size.
            memory::prefetch(unsafe { self.base.add(index.into()) });
        }
    }

    /// Copies descriptor `index` with one read. Returns `None` if it does not exist.
    #[inline]
    pub(crate) fn get(&self, index: u16) -> Option<Descriptor> {
        if u32::from(index) >= self.size {
            return None;
        }
        // SAFETY: `base` is followed by `size` descriptors (View::array), index < size, and the
        // queue that owns this table keeps the view alive.
        let [addr, rest] = unsafe { self.base.add(index.into()).read_volatile() };
        let (addr, rest) = (u64::from_le(addr), u64::from_le(rest));
        Some(Descriptor {
            addr,
            len: rest as u32,
            flags: (rest >> 32) as u16,
            next: (rest >> 48) as u16,
        })
    }
}

/// Available and used ring.
pub(crate) struct Rings {
    size: u16,
    /// Layout: `flags, idx, ring[size], used_event`.
    avail: NonNull<AtomicU16>,
    /// Layout: `flags, idx`.
    used: NonNull<AtomicU16>,
    /// Layout: `ring[size]` of (id, len).
    used_ring: NonNull<[u32; 2]>,
    avail_event: NonNull<AtomicU16>,
}

impl Rings {
    /// Finds all parts in guest memory.
    pub(crate) fn new(view: &View, config: &QueueConfig) -> Result<(DescTable, Self), RingError> {
        let size = config.size;
        if size > MAX_QUEUE_SIZE || !size.is_power_of_two() {
            return Err(RingError::BadSize { size });
        }
        let entries = usize::from(size);
        let bad = |part| move |source| RingError::Memory { part, source };
        let desc =
            DescTable::new(view, config.desc, size.into()).map_err(bad("descriptor table"))?;
        let avail = view.array(config.avail, 3 + entries).map_err(bad("available ring"))?;
        // The used ring is one range (flags, idx, entries of 8 bytes, event), so check it as one.
        let whole = view.array::<u32>(config.used, 1 + 2 * entries).map_err(bad("used ring"))?;
        let event = config.used.wrapping_add(4 + 8 * u64::from(size));
        let avail_event = view.array(event, 1).map_err(bad("used ring"))?;
        let used = whole.cast::<AtomicU16>();
        // SAFETY: `whole` has 1 + 2 * size words; the entries begin after the first.
        let used_ring = unsafe { whole.add(1) }.cast::<[u32; 2]>();
        Ok((desc, Self { size, avail, used, used_ring, avail_event }))
    }

    fn avail_word(&self, index: usize) -> &AtomicU16 {
        debug_assert!(index < 3 + usize::from(self.size));
        // SAFETY: the array has 3 + size words and callers stay below; the queue keeps the view
        // alive, and shared memory is accessed through atomics only.
        unsafe { self.avail.add(index).as_ref() }
    }

    fn used_word(&self, index: usize) -> &AtomicU16 {
        debug_assert!(index < 2);
        // SAFETY: flags and idx are the first two words of the used ring; the view keeps it mapped.
        unsafe { self.used.add(index).as_ref() }
    }

    /// Reads the entry of the available ring for index `at`.
    pub(crate) fn avail_entry(&self, at: u16) -> u16 {
        let slot = usize::from(at & (self.size - 1));
        u16::from_le(self.avail_word(2 + slot).load(Ordering::Relaxed))
    }

    /// Prefetches what a completion writes and reads: the entry for used index `at`, the index, and
    /// the driver's event. Not for a driver that polls for its completion: it would fetch the lines
    /// back.
    #[inline]
    pub(crate) fn fetch_answer(&self, at: u16) {
        let slot = usize::from(at & (self.size - 1));
        // SAFETY: slot < size entries; the queue keeps the view alive.
        memory::prefetch_to_write(unsafe { self.used_ring.add(slot) });
        memory::prefetch_to_write(self.used);
        // SAFETY: the array has 3 + size words.
        memory::prefetch(unsafe { self.avail.add(2 + usize::from(self.size)) });
    }

    /// Prefetches the lines of `count` used entries from index `at`, for writing. Skips the first
    /// line, which contains the index that a driver polls.
    #[inline]
    pub(crate) fn fetch_used(&self, at: u16, count: u16) {
        for ahead in (0..count.min(self.size)).step_by(USED_IN_LINE) {
            let slot = usize::from(at.wrapping_add(ahead) & (self.size - 1));
            if slot >= USED_IN_LINE {
                // SAFETY: slot < size entries; the queue keeps the view alive.
                memory::prefetch_to_write(unsafe { self.used_ring.add(slot) });
            }
        }
    }

    /// Writes a used entry for index `at`. The driver sees it after
    /// [`show`](crate::doorbell::show).
    pub(crate) fn put_used(&self, at: u16, head: u16, len: u32) {
        let slot = usize::from(at & (self.size - 1));
        // SAFETY: slot < size entries; the queue keeps the view alive.
        unsafe { self.used_ring.add(slot).write_volatile([u32::from(head).to_le(), len.to_le()]) };
        stored();
    }

    /// Reads the used index: the number of requests completed so far, modulo 2^16.
    pub(crate) fn used_idx(&self) -> u16 {
        self.load(RingField::UsedIdx, Ordering::Relaxed)
    }

    fn word(&self, ring_field: RingField) -> &AtomicU16 {
        match ring_field {
            RingField::AvailFlags => self.avail_word(0),
            RingField::AvailIdx => self.avail_word(1),
            RingField::UsedEvent => self.avail_word(2 + usize::from(self.size)),
            RingField::UsedFlags => self.used_word(0),
            RingField::UsedIdx => self.used_word(1),
            // SAFETY: found in `new`; the queue keeps the view alive.
            RingField::AvailEvent => unsafe { self.avail_event.as_ref() },
        }
    }
}

impl RingMemory for Rings {
    #[inline]
    fn load(&self, ring_field: RingField, order: Ordering) -> u16 {
        u16::from_le(self.word(ring_field).load(order))
    }

    #[inline]
    fn store(&self, ring_field: RingField, value: u16, order: Ordering) {
        self.word(ring_field).store(value.to_le(), order);
        if ring_field == RingField::UsedIdx {
            stored();
        }
    }
}
