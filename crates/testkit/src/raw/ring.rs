//! A split ring built by hand: descriptors, available ring, used ring.
//!
//! The addresses are guest addresses in a [`SharedMemory`]. Well-formed use is
//! [`SplitRing::add_chain`], [`SplitRing::publish`], [`SplitRing::pop_used`]. The other methods let
//! a test write any field at any time. Ring fields are little-endian (virtio 1.2, 2.7).

use std::sync::atomic::{Ordering, fence};

use super::memory::SharedMemory;
use crate::error::{Error, Result};

/// Flag: the chain continues at `next`.
pub const DESC_NEXT: u16 = 1;
/// Flag: the device writes this buffer.
pub const DESC_WRITE: u16 = 2;
/// Flag: the buffer is a table of descriptors.
pub const DESC_INDIRECT: u16 = 4;

/// Bytes of one descriptor.
pub const DESC_BYTES: u64 = 16;

/// One descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Desc {
    /// Guest address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Flags `DESC_*`.
    pub flags: u16,
    /// Index of the next descriptor.
    pub next: u16,
}

impl Desc {
    /// Creates a descriptor for a buffer that the device reads.
    #[must_use]
    pub fn readable(addr: u64, len: u32) -> Self {
        Self { addr, len, flags: 0, next: 0 }
    }

    /// Creates a descriptor for a buffer that the device writes.
    #[must_use]
    pub fn writable(addr: u64, len: u32) -> Self {
        Self { addr, len, flags: DESC_WRITE, next: 0 }
    }

    /// Returns the descriptor's 16 bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.flags.to_le_bytes());
        bytes[14..].copy_from_slice(&self.next.to_le_bytes());
        bytes
    }
}

/// Links descriptors in order from index `first`. Sets NEXT on all but the last.
#[must_use]
pub fn link(descs: &[Desc], first: u16) -> Vec<Desc> {
    let last = descs.len().saturating_sub(1);
    let linked = descs.iter().zip(first..).enumerate().map(|(i, (desc, index))| {
        if i == last {
            return *desc;
        }
        Desc { flags: desc.flags | DESC_NEXT, next: index.wrapping_add(1), ..*desc }
    });
    linked.collect()
}

/// An element of the used ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// Head of the chain.
    pub id: u32,
    /// Number of bytes that the device reports as written.
    pub len: u32,
}

/// The driver's side of a split ring.
#[derive(Debug, Clone)]
pub struct SplitRing {
    /// Number of descriptors.
    pub size: u16,
    /// Guest address of the descriptor table.
    pub desc: u64,
    /// Guest address of the available ring.
    pub avail: u64,
    /// Guest address of the used ring.
    pub used: u64,
    /// Available index as last published.
    pub avail_idx: u16,
    /// Used index up to which elements were popped.
    pub used_seen: u16,
    next_free: u16,
}

impl SplitRing {
    /// Allocates a ring of `size` descriptors.
    ///
    /// # Errors
    /// [`Error::Full`] if the memory is too small.
    pub fn new(memory: &mut SharedMemory, size: u16) -> Result<Self> {
        let n = u64::from(size);
        let desc = memory.alloc(DESC_BYTES * n, 16)?;
        let avail = memory.alloc(6 + 2 * n, 2)?;
        let used = memory.alloc(6 + 8 * n, 4)?;
        Ok(Self { size, desc, avail, used, avail_idx: 0, used_seen: 0, next_free: 0 })
    }

    /// Writes descriptor `index` of the table.
    ///
    /// # Errors
    /// As [`SharedMemory::write`].
    pub fn set_desc(&self, memory: &SharedMemory, index: u16, desc: Desc) -> Result<()> {
        memory.write(self.desc + DESC_BYTES * u64::from(index), &desc.encode())
    }

    /// Reserves `count` consecutive descriptors and returns the first. Starts again at 0 after the
    /// last descriptor, so a test must keep fewer in flight than the ring has.
    ///
    /// # Errors
    /// [`Error::Full`] for more than the ring has.
    pub fn reserve(&mut self, count: usize) -> Result<u16> {
        let full = || Error::Full { what: format!("{count} descriptors in a ring") };
        let count = u16::try_from(count).map_err(|_| full())?;
        if count > self.size {
            return Err(full());
        }
        if self.next_free > self.size - count {
            self.next_free = 0;
        }
        let first = self.next_free;
        self.next_free += count;
        Ok(first)
    }

    /// Writes a linked chain and returns its head. The chain is not available yet.
    ///
    /// # Errors
    /// [`Error::Full`] for more descriptors than the ring has.
    pub fn add_chain(&mut self, memory: &SharedMemory, descs: &[Desc]) -> Result<u16> {
        let first = self.reserve(descs.len())?;
        for (index, desc) in (first..).zip(link(descs, first)) {
            self.set_desc(memory, index, desc)?;
        }
        Ok(first)
    }

    /// Writes an indirect table of descriptors. Returns the descriptor that points to it.
    ///
    /// # Errors
    /// [`Error::Full`] if the memory is too small.
    pub fn indirect(memory: &mut SharedMemory, descs: &[Desc]) -> Result<Desc> {
        let bytes: Vec<u8> = descs.iter().flat_map(Desc::encode).collect();
        let addr = memory.alloc(bytes.len() as u64, 16)?;
        memory.write(addr, &bytes)?;
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        Ok(Desc { addr, len, flags: DESC_INDIRECT, next: 0 })
    }

    /// Puts a head into the available ring and publishes the index.
    ///
    /// # Errors
    /// As [`SharedMemory::write`].
    pub fn publish(&mut self, memory: &SharedMemory, head: u16) -> Result<()> {
        self.publish_all(memory, &[head])
    }

    /// Puts heads into the available ring and publishes them all by one index. The device sees
    /// either none or all of them.
    ///
    /// # Errors
    /// As [`SharedMemory::write`].
    pub fn publish_all(&mut self, memory: &SharedMemory, heads: &[u16]) -> Result<()> {
        let mut idx = self.avail_idx;
        for head in heads {
            let slot = u64::from(idx % self.size);
            memory.write(self.avail + 4 + 2 * slot, &head.to_le_bytes())?;
            idx = idx.wrapping_add(1);
        }
        self.set_avail_idx(memory, idx)
    }

    /// Publishes any available index.
    ///
    /// # Errors
    /// As [`SharedMemory::write`].
    pub fn set_avail_idx(&mut self, memory: &SharedMemory, idx: u16) -> Result<()> {
        fence(Ordering::SeqCst);
        memory.write(self.avail + 2, &idx.to_le_bytes())?;
        fence(Ordering::SeqCst);
        self.avail_idx = idx;
        Ok(())
    }

    /// Sets the available ring's flags; 1 suppresses calls (without EVENT_IDX).
    ///
    /// # Errors
    /// As [`SharedMemory::write`].
    pub fn set_avail_flags(&self, memory: &SharedMemory, flags: u16) -> Result<()> {
        memory.write(self.avail, &flags.to_le_bytes())
    }

    /// Sets `used_event`: requests a call when the used index passes `idx` (EVENT_IDX).
    ///
    /// # Errors
    /// As [`SharedMemory::write`].
    pub fn set_used_event(&self, memory: &SharedMemory, idx: u16) -> Result<()> {
        memory.write(self.avail + 4 + 2 * u64::from(self.size), &idx.to_le_bytes())?;
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Reads `avail_event`: the device wants a kick when the available index passes it.
    ///
    /// # Errors
    /// As [`SharedMemory::read`].
    pub fn avail_event(&self, memory: &SharedMemory) -> Result<u16> {
        fence(Ordering::SeqCst);
        memory.read_array(self.used + 4 + 8 * u64::from(self.size)).map(u16::from_le_bytes)
    }

    /// Reads the used ring's flags; 1 means that no kick is needed (without EVENT_IDX).
    ///
    /// # Errors
    /// As [`SharedMemory::read`].
    pub fn used_flags(&self, memory: &SharedMemory) -> Result<u16> {
        memory.read_array(self.used).map(u16::from_le_bytes)
    }

    /// Reads the used index.
    ///
    /// # Errors
    /// As [`SharedMemory::read`].
    pub fn used_idx(&self, memory: &SharedMemory) -> Result<u16> {
        let idx = memory.read_array(self.used + 2).map(u16::from_le_bytes);
        fence(Ordering::SeqCst);
        idx
    }

    /// Pops the next used element, if there is one.
    ///
    /// # Errors
    /// As [`SharedMemory::read`].
    pub fn pop_used(&mut self, memory: &SharedMemory) -> Result<Option<Used>> {
        if self.used_idx(memory)? == self.used_seen {
            return Ok(None);
        }
        let slot = u64::from(self.used_seen % self.size);
        let bytes: [u8; 8] = memory.read_array(self.used + 4 + 8 * slot)?;
        self.used_seen = self.used_seen.wrapping_add(1);
        let [a, b, c, d, e, f, g, h] = bytes;
        let (id, len) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        Ok(Some(Used { id, len }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_linked_and_ends() {
        let mut memory = SharedMemory::new(1 << 16).unwrap();
        let mut ring = SplitRing::new(&mut memory, 8).unwrap();
        let descs = [Desc::readable(1, 16), Desc::writable(2, 512), Desc::writable(3, 1)];
        assert_eq!(ring.add_chain(&memory, &descs).unwrap(), 0);
        assert_eq!(ring.add_chain(&memory, &descs).unwrap(), 3);
        // Two descriptors remain at the end, so the third chain starts again at 0.
        assert_eq!(ring.add_chain(&memory, &descs).unwrap(), 0);
        let linked = link(&descs, 5);
        assert_eq!((linked[0].next, linked[1].next), (6, 7));
        assert_eq!((linked[1].flags, linked[2].flags), (DESC_WRITE | DESC_NEXT, DESC_WRITE));
        assert!(ring.reserve(9).is_err());
    }

    #[test]
    fn used_elements_come_in_order_across_the_wrap() {
        let mut memory = SharedMemory::new(1 << 16).unwrap();
        let mut ring = SplitRing::new(&mut memory, 2).unwrap();
        ring.used_seen = u16::MAX;
        assert_eq!(memory.write(ring.used + 2, &u16::MAX.to_le_bytes()).ok(), Some(()));
        assert_eq!(ring.pop_used(&memory).unwrap(), None);
        let element = [7u32.to_le_bytes(), 9u32.to_le_bytes()].concat();
        memory.write(ring.used + 4 + 8, &element).unwrap();
        memory.write(ring.used + 2, &0u16.to_le_bytes()).unwrap();
        assert_eq!(ring.pop_used(&memory).unwrap(), Some(Used { id: 7, len: 9 }));
        assert_eq!(ring.pop_used(&memory).unwrap(), None);
    }
}
