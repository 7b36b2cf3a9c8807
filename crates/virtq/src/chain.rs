//! Descriptor chains: the buffers of one request.

use std::ops::{Deref, DerefMut};

use memory::{Buffers, MemoryError, View};

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
    state: State,
    /// First range outside memory: address and length in bytes. Valid in [`State::Outside`].
    outside: (u64, u64),
    /// Buffers that the device may read, in order.
    pub readable: Buffers,
    /// Buffers that the device may write, in order.
    pub writable: Buffers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Completed or abandoned.
    Returned,
    InFlight,
    /// In flight, and a buffer is outside memory.
    Outside,
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
        let (state, outside) = (State::Returned, (0, 0));
        Self(Box::new(Parts { head: 0, state, outside, readable, writable }))
    }

    /// Returns the index of the first descriptor, unique among the chains in flight of a queue.
    #[inline]
    pub fn head(&self) -> u16 {
        self.0.head
    }

    /// Returns the first range of the chain that is outside memory. Such a chain has no readable
    /// bytes. Of its writable bytes it has the last one, for the answer that the request failed, or
    /// none if that is outside too.
    pub fn outside(&self) -> Option<MemoryError> {
        let (addr, len) = self.0.outside;
        (self.0.state == State::Outside).then_some(MemoryError::Outside { addr, len })
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
        self.0.state = State::Returned;
    }

    /// Marks the chain as completed and unpins its memory.
    #[inline]
    pub(crate) fn mark_completed(&mut self) {
        self.0.state = State::Returned;
        self.0.readable.clear();
        self.0.writable.clear();
    }

    /// Walks the descriptors from `head` into this chain, which is in flight then. `beside`: the
    /// driver places the status beside the header that is read first. Fetching that cache line for
    /// writing at once saves a message to the driver's CPU.
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
        let (count, bytes, last_writable) = (0, 0, None);
        let mut walk = Walk::<false> { parts, view, head, beside, count, bytes, last_writable };
        walk.begin(&first);
        walk.follow(table, first, table.size.min(MAX_CHAIN), true)?;
        walk.parts.state = State::InFlight;
        Ok(())
    }

    /// Walks the descriptors of a chain with a buffer outside memory again, and keeps its last
    /// writable byte. The chain is in flight then. `error` is what [`Chain::fill`] returned.
    ///
    /// # Errors
    /// `error` if it has another cause, or if the device `must_answer` and cannot: a driver that
    /// sees the request complete reads a status that the device has not written. Linux then finds
    /// the status of an earlier request, which may be success.
    #[cold]
    pub(crate) fn fill_outside(
        &mut self,
        (view, table): (&View, &DescTable),
        head: u16,
        error: RingError,
        must_answer: bool,
    ) -> Result<(), RingError> {
        let RingError::Memory { part: BUFFER, source: MemoryError::Outside { addr, len } } = error
        else {
            return Err(error);
        };
        let parts = &mut *self.0;
        parts.readable.clear();
        parts.writable.clear();
        let first = table.get(head).ok_or_else(|| table.has_no(head))?;
        let (beside, count, bytes, last_writable) = (false, 0, 0, None);
        let mut walk = Walk::<true> { parts, view, head, beside, count, bytes, last_writable };
        walk.follow(table, first, table.size.min(MAX_CHAIN), true)?;
        let last_writable = walk.last_writable;
        let is_kept = last_writable.is_some_and(|at| parts.writable.append(view, at, 1).is_ok());
        if must_answer && !is_kept {
            return Err(error);
        }
        (parts.state, parts.outside) = (State::Outside, (addr, len));
        Ok(())
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        debug_assert!(
            self.0.state == State::Returned || std::thread::panicking(),
            "chain {} dropped without completion",
            self.0.head
        );
    }
}

/// Name of a chain's buffers in errors.
const BUFFER: &str = "buffer";

/// A walk over the descriptors of a chain. With `LAST`, it keeps only the address of the last
/// writable byte.
struct Walk<'a, const LAST: bool> {
    parts: &'a mut Parts,
    view: &'a View,
    head: u16,
    beside: bool,
    count: u32,
    bytes: u32,
    /// Address of the last writable byte, with `LAST`.
    last_writable: Option<u64>,
}

impl<const LAST: bool> Walk<'_, LAST> {
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
        if LAST {
            return self.keep_last(descriptor);
        }
        let list = if flags & DESC_WRITE != 0 {
            &mut self.parts.writable
        } else if self.parts.writable.is_empty() {
            &mut self.parts.readable
        } else {
            return Err(RingError::Order { head });
        };
        match list.append(self.view, addr, len) {
            Ok(()) => Ok(()),
            Err(source) => Err(RingError::Memory { part: BUFFER, source }),
        }
    }

    fn keep_last(&mut self, descriptor: &Descriptor) -> Result<(), RingError> {
        if descriptor.flags & DESC_WRITE != 0 {
            // No memory contains the last address, so one that wraps around is outside.
            self.last_writable = Some(descriptor.addr.saturating_add((descriptor.len - 1).into()));
        } else if self.last_writable.is_some() {
            return Err(RingError::Order { head: self.head });
        }
        Ok(())
    }
}
