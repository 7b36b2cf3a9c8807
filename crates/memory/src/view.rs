//! Views: one thread's handle on a table.

use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use crate::frame::is_alone;
use crate::table::Span;
use crate::{Mapping, MemoryError, Table, lines};

/// Pin that keeps memory mapped. Counted without atomics, because it never leaves its thread. So
/// pins of different threads never share a counter.
pub(crate) type Pin = Rc<Pinned>;

/// Memory that a pin keeps mapped.
#[derive(Debug)]
pub(crate) enum Pinned {
    /// All memory of a guest.
    Table(#[expect(dead_code, reason = "held, not read")] Arc<Table>),
    /// A mapping of this process.
    Mapping(#[expect(dead_code, reason = "held, not read")] Arc<Mapping>),
}

/// A table as one thread uses it. Lookups are cheap and without contention.
#[derive(Clone, Debug)]
pub struct View {
    table: Arc<Table>,
    pin: Pin,
    /// Region of the last address. The next address is nearly always in the same region.
    last: Cell<Span>,
}

impl View {
    /// Creates a view for the calling thread.
    pub fn new(table: Arc<Table>) -> Self {
        let pin = Rc::new(Pinned::Table(table.clone()));
        Self { table, pin, last: Cell::new(Span::EMPTY) }
    }

    /// Returns the table.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    #[inline]
    pub(crate) fn pin(&self) -> Pin {
        self.pin.clone()
    }

    #[inline]
    pub(crate) fn same_pin(&self, pin: &Pin) -> bool {
        Rc::ptr_eq(pin, &self.pin)
    }

    /// Returns the host address of guest byte `addr`, and the number of contiguous bytes from
    /// there.
    #[inline]
    pub(crate) fn find(&self, addr: u64) -> Option<(NonNull<u8>, u64)> {
        self.last.get().find(addr).or_else(|| self.find_elsewhere(addr))
    }

    /// Finds an address in another region than the last address.
    #[inline(never)]
    fn find_elsewhere(&self, addr: u64) -> Option<(NonNull<u8>, u64)> {
        let span = self.table.span_of(addr)?;
        self.last.set(span);
        span.find(addr)
    }

    /// Prefetches the cache line at `addr` for reading and writing. Any address is allowed and has
    /// no other effect.
    #[inline]
    pub fn fetch(&self, addr: u64) {
        if let Some((ptr, _)) = self.last.get().find(addr) {
            crate::prefetch_to_write(ptr);
        }
    }

    /// Returns whether `len` bytes at `addr` lie in one region. If so, prefetches the first `bytes`
    /// of them, a header of N bytes and what follows it, for reading or for writing. Prefetches a
    /// header that [`View::write_frame`] compares before it writes for reading.
    #[inline]
    pub fn fetch_single<const N: usize>(
        &self,
        addr: u64,
        len: u32,
        bytes: usize,
        to_write: bool,
    ) -> bool {
        let Some((ptr, room)) = self.find(addr) else { return false };
        if u64::from(len) > room {
            return false;
        }
        let bytes = bytes.min(len as usize);
        if !to_write {
            lines(ptr, bytes, crate::prefetch);
        } else if is_alone::<N>(ptr)
            && let Some(rest) = bytes.checked_sub(N)
        {
            crate::prefetch(ptr);
            // SAFETY: N of `len` mapped bytes, or all of them.
            lines(unsafe { ptr.add(N) }, rest, crate::prefetch_to_write);
        } else {
            lines(ptr, bytes, crate::prefetch_to_write);
        }
        true
    }

    /// Returns a pointer to `count` values of `T` at guest address `addr`, in one region.
    ///
    /// The pointer is valid as long as this view, or a clone of it, lives. The guest may write the
    /// memory at any time: access it only by volatile reads and writes or atomics.
    ///
    /// # Errors
    /// [`MemoryError::Outside`], [`MemoryError::Misaligned`] (by the host address that backs it).
    pub fn array<T>(&self, addr: u64, count: usize) -> Result<NonNull<T>, MemoryError> {
        let len = (size_of::<T>() as u64).saturating_mul(count as u64);
        let outside = MemoryError::Outside { addr, len };
        let Some((ptr, room)) = self.find(addr) else { return Err(outside) };
        if room < len {
            return Err(outside);
        }
        let ptr = ptr.cast::<T>();
        if !ptr.is_aligned() {
            return Err(MemoryError::Misaligned { addr, align: align_of::<T>() });
        }
        Ok(ptr)
    }
}
