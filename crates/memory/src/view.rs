//! One thread's handle on a table.

use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use crate::frame::is_alone;
use crate::table::Span;
use crate::{Mapping, MemoryError, Table, lines};

/// Keeps memory mapped. Counted without atomics: it never leaves its thread, so that pins of
/// different threads never share a counter.
pub(crate) type Pin = Rc<Pinned>;

/// What a pin keeps.
#[derive(Debug)]
pub(crate) enum Pinned {
    /// All memory of a guest.
    Table(#[expect(dead_code, reason = "held, not read")] Arc<Table>),
    /// A mapping of ours.
    Mapping(#[expect(dead_code, reason = "held, not read")] Arc<Mapping>),
}

/// A table as one thread uses it. Cheap to ask, never contended.
#[derive(Clone, Debug)]
pub struct View {
    table: Arc<Table>,
    pin: Pin,
    /// Region that the last address was in; the next one is nearly always there too.
    last: Cell<Span>,
}

impl View {
    /// A view for the calling thread.
    pub fn new(table: Arc<Table>) -> Self {
        let pin = Rc::new(Pinned::Table(table.clone()));
        Self { table, pin, last: Cell::new(Span::EMPTY) }
    }

    /// The table.
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

    /// Address of guest byte `addr` and how many bytes follow it without a break.
    #[inline]
    pub(crate) fn find(&self, addr: u64) -> Option<(NonNull<u8>, u64)> {
        self.last.get().find(addr).or_else(|| self.find_elsewhere(addr))
    }

    /// In another region than the last address.
    #[inline(never)]
    fn find_elsewhere(&self, addr: u64) -> Option<(NonNull<u8>, u64)> {
        let span = self.table.span_of(addr)?;
        self.last.set(span);
        span.find(addr)
    }

    /// The bytes around `addr` will be read and written soon: brings them closer. Whatever the
    /// address is, nothing else happens.
    #[inline]
    pub fn fetch(&self, addr: u64) {
        if let Some((ptr, _)) = self.last.get().find(addr) {
            crate::prefetch_to_write(ptr);
        }
    }

    /// Whether `len` bytes from `addr` on lie in one region. If so the first `bytes` of them, a header of N and
    /// what follows it, will be read soon, or written: brings them closer. A header that
    /// [`View::write_frame`] looks at before it writes comes closer to be read.
    #[inline]
    pub fn fetch_piece<const N: usize>(
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
            // SAFETY: N of `len` bytes that are mapped, or all of them.
            lines(unsafe { ptr.add(N) }, rest, crate::prefetch_to_write);
        } else {
            lines(ptr, bytes, crate::prefetch_to_write);
        }
        true
    }

    /// Pointer to `count` values of `T` that lie at guest address `addr` in one region.
    ///
    /// The pointer is good as long as this view, or a clone of it, lives. The guest may write
    /// the memory at any time: access it only by volatile reads and writes or atomics.
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
