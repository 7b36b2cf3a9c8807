//! Driver's side of a ring, for tests: creates guest memory and puts requests into it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering, fence};

use memory::{Buffers, Mapping, Region, RegionSpec, Table, View};

use crate::QueueConfig;

/// Descriptor flag: the device writes the buffer.
pub const WRITE: u16 = crate::ring::DESC_WRITE;
/// Descriptor flag: the chain continues.
pub const NEXT: u16 = crate::ring::DESC_NEXT;
/// Descriptor flag: the buffer is a table of descriptors.
pub const INDIRECT: u16 = crate::ring::DESC_INDIRECT;

/// First guest address of the buffers. The ring lies below.
pub const BUFFERS: u64 = 0x10_0000;

/// A guest's memory with one ring in it.
pub struct Driver {
    /// Guest memory.
    pub table: Arc<Table>,
    /// Location of the ring.
    pub config: QueueConfig,
    mapping: Arc<Mapping>,
    view: View,
    avail_idx: u16,
    used_seen: u16,
}

impl Driver {
    /// Creates `bytes` bytes of memory at guest address 0, with an empty ring of `size` entries.
    ///
    /// # Panics
    /// The memory cannot be allocated.
    pub fn new(size: u16, bytes: u64, event_idx: bool) -> Self {
        let mapping = Arc::new(Mapping::memfd("driver", bytes).expect("memory for a test"));
        let spec = RegionSpec { guest_addr: 0, user_addr: 0, len: bytes, file_offset: 0 };
        let region = Region::within(spec, mapping.clone()).expect("region in its mapping");
        let table = Arc::new(Table::new(vec![region]).expect("one region"));
        let config = QueueConfig {
            size,
            desc: 0x1000,
            avail: 0x8_2000,
            used: 0xa_0000,
            next_avail: 0,
            event_idx,
        };
        let view = View::new(table.clone());
        Self { table, config, mapping, view, avail_idx: 0, used_seen: 0 }
    }

    /// Returns the mapping behind the memory.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Writes bytes at a guest address.
    ///
    /// # Panics
    /// The range is outside memory.
    pub fn write(&self, addr: u64, data: &[u8]) {
        let mut list = Buffers::default();
        list.append(&self.view, addr, data.len() as u32).expect("inside memory");
        list.write(data);
    }

    /// Reads bytes from a guest address.
    ///
    /// # Panics
    /// The range is outside memory.
    pub fn read(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut list = Buffers::default();
        list.append(&self.view, addr, len as u32).expect("inside memory");
        let mut out = vec![0; len];
        list.peek(&mut out);
        out
    }

    /// Returns two bytes that a device accesses meanwhile, as one atomic.
    ///
    /// # Panics
    /// The address is outside memory or odd.
    pub fn word(&self, addr: u64) -> &AtomicU16 {
        let found = self.view.array::<AtomicU16>(addr, 1).expect("inside memory");
        // SAFETY: the view keeps the memory mapped as long as this driver lives, and both sides
        // access the fields of a ring as atomics.
        unsafe { found.as_ref() }
    }

    fn read_u16(&self, addr: u64) -> u16 {
        u16::from_le(self.word(addr).load(Ordering::Acquire))
    }

    /// Writes two bytes with one store: a copy could write the second byte first.
    fn write_u16(&self, addr: u64, value: u16) {
        self.word(addr).store(value.to_le(), Ordering::Release);
    }

    /// Returns the bytes of a descriptor in memory.
    pub fn descriptor(addr: u64, len: u32, flags: u16, next: u16) -> [u8; 16] {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&addr.to_le_bytes());
        out[8..12].copy_from_slice(&len.to_le_bytes());
        out[12..14].copy_from_slice(&flags.to_le_bytes());
        out[14..].copy_from_slice(&next.to_le_bytes());
        out
    }

    /// Writes entry `index` of the descriptor table.
    pub fn put_desc(&self, index: u16, addr: u64, len: u32, flags: u16, next: u16) {
        let at = self.config.desc + 16 * u64::from(index);
        self.write(at, &Self::descriptor(addr, len, flags, next));
    }

    /// Writes a chain of `(addr, len, writable)` to the descriptors from `head`.
    pub fn put_chain(&self, head: u16, pieces: &[(u64, u32, bool)]) {
        for (i, (addr, len, writable)) in pieces.iter().enumerate() {
            let index = head + i as u16;
            let last = i + 1 == pieces.len();
            let flags = if *writable { WRITE } else { 0 } | if last { 0 } else { NEXT };
            self.put_desc(index, *addr, *len, flags, index + 1);
        }
    }

    /// Makes the chain at `head` available. The device sees it after [`Driver::publish`].
    pub fn offer(&mut self, head: u16) {
        let slot = u64::from(self.avail_idx % self.config.size);
        self.write_u16(self.config.avail + 4 + 2 * slot, head);
        self.avail_idx = self.avail_idx.wrapping_add(1);
    }

    /// Publishes the available index. Returns whether the device wants a kick.
    pub fn publish(&mut self) -> bool {
        let old = self.read_u16(self.config.avail + 2);
        self.write_u16(self.config.avail + 2, self.avail_idx);
        fence(Ordering::SeqCst);
        if self.config.event_idx {
            let event = self.read_u16(self.config.used + 4 + 8 * u64::from(self.config.size));
            let new = self.avail_idx;
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.read_u16(self.config.used) & 1 == 0
        }
    }

    /// Sets the available index to any value.
    pub fn jump(&mut self, idx: u16) {
        self.avail_idx = idx;
        self.write_u16(self.config.avail + 2, idx);
    }

    /// Sets both indices to `idx`, as in a ring that has been in use for a long time.
    pub fn start_at(&mut self, idx: u16) {
        self.jump(idx);
        self.write_u16(self.config.used + 2, idx);
        (self.used_seen, self.config.next_avail) = (idx, idx);
    }

    /// Returns the used index that the device published.
    pub fn used_idx(&self) -> u16 {
        self.read_u16(self.config.used + 2)
    }

    /// Requests a call when the used index passes `idx`.
    pub fn set_used_event(&self, idx: u16) {
        let at = self.config.avail + 4 + 2 * u64::from(self.config.size);
        self.write_u16(at, idx);
    }

    /// Requests a call at the next completion. Returns whether one is there already.
    pub fn arm(&mut self) -> bool {
        self.set_used_event(self.used_seen);
        fence(Ordering::SeqCst);
        self.read_u16(self.config.used + 2) != self.used_seen
    }

    /// Takes the next completion: head and number of bytes written.
    pub fn used(&mut self) -> Option<(u32, u32)> {
        if self.read_u16(self.config.used + 2) == self.used_seen {
            return None;
        }
        let slot = u64::from(self.used_seen % self.config.size);
        let raw = self.read(self.config.used + 4 + 8 * slot, 8);
        self.used_seen = self.used_seen.wrapping_add(1);
        let word = |i: usize| u32::from_le_bytes(raw[i..i + 4].try_into().expect("four bytes"));
        Some((word(0), word(4)))
    }
}
