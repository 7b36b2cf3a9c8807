//! One thread's handle on a table.

use std::any::Any;
use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use crate::{MemoryError, Table};

/// Keeps memory mapped. Counted without atomics: it never leaves its thread.
pub(crate) type Pin = Rc<dyn Any>;

/// What a thread counts by itself, so that pins of different threads never share a counter.
#[derive(Debug)]
struct Local(Arc<Table>);

/// A table as one thread uses it. Cheap to ask, never contended.
#[derive(Clone, Debug)]
pub struct View {
    table: Rc<Local>,
    /// Region that the last address was in; the next one is nearly always there too.
    hint: Cell<usize>,
}

impl View {
    /// A view for the calling thread.
    pub fn new(table: Arc<Table>) -> Self {
        Self { table: Rc::new(Local(table)), hint: Cell::new(0) }
    }

    /// The table.
    pub fn table(&self) -> &Arc<Table> {
        &self.table.0
    }

    pub(crate) fn pin(&self) -> Pin {
        self.table.clone()
    }

    pub(crate) fn same_pin(&self, pin: &Pin) -> bool {
        std::ptr::eq(Rc::as_ptr(pin).cast::<u8>(), Rc::as_ptr(&self.table).cast::<u8>())
    }

    /// Address of guest byte `addr` and how many bytes follow it without a break.
    pub(crate) fn find(&self, addr: u64) -> Option<(NonNull<u8>, u64)> {
        let regions = self.table.0.regions();
        if let Some(found) = regions.get(self.hint.get()).and_then(|region| region.find(addr)) {
            return Some(found);
        }
        let index = self.table.0.index_of(addr)?;
        self.hint.set(index);
        regions.get(index)?.find(addr)
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
