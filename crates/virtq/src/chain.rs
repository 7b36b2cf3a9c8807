//! Descriptor chains: the buffers of one request.

use std::ops::{Deref, DerefMut};

use memory::{Buffers, View};

use crate::RingError;
use crate::ring::{DESC_BYTES, DESC_INDIRECT, DESC_NEXT, DESC_WRITE, DescTable, Descriptor};

/// Most descriptors in one chain. Indirect chains of Linux can be longer than the ring (segments
/// plus header and status). QEMU's limit is the same 1024.
pub const MAX_CHAIN: u32 = 1024;

/// A request popped from the ring. Its owner must complete it with [`crate::Queue::push`], or call
/// [`Chain::abandon`] if the ring is no longer served.
///
/// The value is one pointer, because a request changes owners often.
#[derive(Debug)]
pub struct Chain(Box<Parts>);

/// Contents of a chain.
#[derive(Debug)]
pub struct Parts {
    head: u16,
    returned: bool,
    /// Buffers that the device may read, in order.
    pub readable: Buffers,
    /// Buffers that the device may write, in order.
    pub writable: Buffers,
}

impl Deref for Chain {
    type Target = Parts;

    #[inline]
    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl DerefMut for Chain {
    #[inline]
    fn deref_mut(&mut self) -> &mut Parts {
        &mut self.0
    }
}

impl Chain {
    pub(crate) fn new() -> Self {
        let (readable, writable) = (Buffers::with_capacity(4), Buffers::with_capacity(4));
        Self(Box::new(Parts { head: 0, returned: true, readable, writable }))
    }

    /// Returns the index of the first descriptor, unique among the chains in flight of a queue.
    #[inline]
    pub fn head(&self) -> u16 {
        self.0.head
    }

    /// Prefetches the first `bytes` that the device reads, or those it writes if it reads none.
    pub(crate) fn fetch(&self, bytes: usize) {
        if self.readable.is_empty() {
            self.writable.fetch_to_write(bytes);
        } else {
            self.readable.fetch(bytes);
        }
    }

    /// Drops the chain without completing it, because the ring failed or is being reset.
    pub fn abandon(mut self) {
        self.0.returned = true;
    }

    /// Marks the chain as in flight.
    #[inline]
    pub(crate) fn mark_in_flight(&mut self) {
        self.0.returned = false;
    }

    /// Marks the chain as completed and unpins its memory.
    #[inline]
    pub(crate) fn mark_completed(&mut self) {
        self.0.returned = true;
        self.0.readable.clear();
        self.0.writable.clear();
    }

    /// Walks the descriptors from `head` into this chain. `beside`: the driver places the status
    /// beside the header that is read first. Fetching that cache line for writing at once saves a
    /// message to the driver's CPU.
    #[inline]
    pub(crate) fn fill(
        &mut self,
        view: &View,
        table: &DescTable,
        head: u16,
        beside: bool,
    ) -> Result<(), RingError> {
        let parts = &mut *self.0;
        parts.head = head;
        let first = table.get(head).ok_or_else(|| table.has_no(head))?;
        let mut walk = Walk { parts, view, head, beside, count: 0, bytes: 0 };
        walk.begin(&first);
        walk.follow(table, first, table.size.min(MAX_CHAIN), true)
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        debug_assert!(
            self.0.returned || std::thread::panicking(),
            "chain {} dropped without completion",
            self.0.head
        );
    }
}

struct Walk<'a> {
    parts: &'a mut Parts,
    view: &'a View,
    head: u16,
    beside: bool,
    count: u32,
    bytes: u32,
}

impl Walk<'_> {
    /// Prefetches the buffer of the first descriptor, in the ring's or an indirect table. Skips a
    /// descriptor that refers to an indirect table, because the device only reads the table.
    #[inline]
    fn begin(&self, first: &Descriptor) {
        if self.beside && first.flags & DESC_INDIRECT == 0 {
            self.view.fetch(first.addr);
        }
    }

    /// Follows `next` through `table`, starting with `descriptor`, over at most `limit`
    /// descriptors.
    #[inline]
    fn follow(
        &mut self,
        table: &DescTable,
        mut descriptor: Descriptor,
        limit: u32,
        outer: bool,
    ) -> Result<(), RingError> {
        loop {
            if descriptor.flags & DESC_INDIRECT != 0 {
                if !outer {
                    return Err(RingError::Indirect { head: self.head });
                }
                // A chain of plain descriptors may end with an indirect table (virtio 1.2,
                // 2.7.5.3.1).
                return self.follow_indirect(&descriptor);
            }
            self.count += 1;
            if self.count > limit {
                return Err(RingError::TooLong { head: self.head, limit });
            }
            self.append(&descriptor)?;
            if descriptor.flags & DESC_NEXT == 0 {
                return Ok(());
            }
            let next = descriptor.next;
            descriptor = table.get(next).ok_or_else(|| table.has_no(next))?;
        }
    }

    /// Continues in the table to which `descriptor` points.
    #[inline(never)]
    fn follow_indirect(&mut self, descriptor: &Descriptor) -> Result<(), RingError> {
        let inner = self.indirect_table(descriptor)?;
        let first = inner.get(0).ok_or_else(|| inner.has_no(0))?;
        self.begin(&first);
        self.follow(&inner, first, MAX_CHAIN, false)
    }

    fn indirect_table(&self, descriptor: &Descriptor) -> Result<DescTable, RingError> {
        let malformed = RingError::Indirect { head: self.head };
        let Descriptor { addr, len, flags, .. } = *descriptor;
        if flags & (DESC_NEXT | DESC_WRITE) != 0 || len == 0 || len % DESC_BYTES != 0 {
            return Err(malformed);
        }
        let count = len / DESC_BYTES;
        if count > MAX_CHAIN {
            return Err(RingError::TooLong { head: self.head, limit: MAX_CHAIN });
        }
        DescTable::new(self.view, addr, count)
            .map_err(|source| RingError::Memory { part: "indirect table", source })
    }

    #[inline]
    fn append(&mut self, descriptor: &Descriptor) -> Result<(), RingError> {
        let Descriptor { addr, len, flags, .. } = *descriptor;
        let head = self.head;
        if len == 0 {
            return Err(RingError::Empty { head });
        }
        self.bytes = self.bytes.checked_add(len).ok_or(RingError::TooLarge { head })?;
        let list = if flags & DESC_WRITE != 0 {
            &mut self.parts.writable
        } else if self.parts.writable.is_empty() {
            &mut self.parts.readable
        } else {
            return Err(RingError::Order { head });
        };
        match list.append(self.view, addr, len) {
            Ok(()) => Ok(()),
            Err(source) => Err(RingError::Memory { part: "buffer", source }),
        }
    }
}
