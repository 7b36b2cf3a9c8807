//! The buffers of one request.

use memory::{Buffers, View};

use crate::RingError;
use crate::ring::{DESC_BYTES, DESC_INDIRECT, DESC_NEXT, DESC_WRITE, DescTable, Descriptor};

/// Most descriptors in one chain. Linux makes chains longer than the ring when they are indirect
/// (segments plus header and status); QEMU's limit is the same 1024.
pub const MAX_CHAIN: u32 = 1024;

/// A request popped from the ring. It must go back by [`crate::Queue::push`], or, when the ring
/// is given up, by [`Chain::abandon`].
#[derive(Debug)]
pub struct Chain {
    pub(crate) head: u16,
    pub(crate) returned: bool,
    /// What the device may read, in order.
    pub readable: Buffers,
    /// What the device may write, in order.
    pub writable: Buffers,
}

impl Chain {
    pub(crate) fn new() -> Self {
        let (readable, writable) = (Buffers::with_capacity(4), Buffers::with_capacity(4));
        Self { head: 0, returned: true, readable, writable }
    }

    /// Index of the first descriptor: unique among the chains in flight of one queue.
    pub fn head(&self) -> u16 {
        self.head
    }

    /// Gives the chain up without completing it: the ring failed, or is being reset.
    pub fn abandon(mut self) {
        self.returned = true;
    }

    /// Walks the descriptors from `head` on into this chain.
    pub(crate) fn fill(
        &mut self,
        view: &View,
        table: &DescTable,
        head: u16,
    ) -> Result<(), RingError> {
        self.head = head;
        let mut walk = Walk { chain: self, view, head, count: 0, bytes: 0 };
        let first = table.get(head).ok_or(RingError::BadIndex { index: head, size: table.size })?;
        if first.flags & DESC_INDIRECT != 0 {
            let inner = walk.indirect_table(&first)?;
            return walk.follow(&inner, 0, MAX_CHAIN, false);
        }
        walk.follow(table, head, table.size.min(MAX_CHAIN), true)
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        debug_assert!(
            self.returned || std::thread::panicking(),
            "chain {} dropped without completion",
            self.head
        );
    }
}

struct Walk<'a> {
    chain: &'a mut Chain,
    view: &'a View,
    head: u16,
    count: u32,
    bytes: u32,
}

impl Walk<'_> {
    /// Follows `next` through `table` from `index` on; at most `limit` descriptors in all.
    fn follow(
        &mut self,
        table: &DescTable,
        index: u16,
        limit: u32,
        outer: bool,
    ) -> Result<(), RingError> {
        let mut index = index;
        loop {
            let bad = RingError::BadIndex { index, size: table.size };
            let descriptor = table.get(index).ok_or(bad)?;
            if descriptor.flags & DESC_INDIRECT != 0 {
                if !outer {
                    return Err(RingError::Indirect { head: self.head });
                }
                // A table may end a chain of plain descriptors (virtio 1.2, 2.7.5.3.1).
                let inner = self.indirect_table(&descriptor)?;
                return self.follow(&inner, 0, MAX_CHAIN, false);
            }
            self.count += 1;
            if self.count > limit {
                return Err(RingError::TooLong { head: self.head, limit });
            }
            self.append(&descriptor)?;
            if descriptor.flags & DESC_NEXT == 0 {
                return Ok(());
            }
            index = descriptor.next;
        }
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

    fn append(&mut self, descriptor: &Descriptor) -> Result<(), RingError> {
        let Descriptor { addr, len, flags, .. } = *descriptor;
        let head = self.head;
        if len == 0 {
            return Err(RingError::Empty { head });
        }
        self.bytes = self.bytes.checked_add(len).ok_or(RingError::TooLarge { head })?;
        let list = if flags & DESC_WRITE != 0 {
            &mut self.chain.writable
        } else if self.chain.writable.is_empty() {
            &mut self.chain.readable
        } else {
            return Err(RingError::Order { head });
        };
        list.append(self.view, addr, len)
            .map_err(|source| RingError::Memory { part: "buffer", source })
    }
}
