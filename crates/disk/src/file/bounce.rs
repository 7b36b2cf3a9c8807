//! Aligned memory for guests whose buffers direct I/O cannot use.

use std::sync::Arc;

use memory::{Buffers, Mapping};

/// Bytes of one bounce buffer: large misaligned requests go through it piece by piece.
pub(crate) const PIECE: usize = 256 << 10;
/// Bounce buffers of one channel. An empty pool holds the queue.
const LIMIT: usize = 8;

/// A bounded pool, filled as it is needed.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    free: Vec<Arc<Mapping>>,
    made: usize,
}

impl Pool {
    /// A buffer, or `None` when all are in use or memory is short.
    pub(crate) fn take(&mut self) -> Option<Arc<Mapping>> {
        if let Some(mapping) = self.free.pop() {
            return Some(mapping);
        }
        if self.made == LIMIT {
            return None;
        }
        let mapping = Mapping::memfd("ringway-bounce", PIECE as u64).ok()?;
        self.made += 1;
        Some(Arc::new(mapping))
    }

    /// Gives a buffer back.
    pub(crate) fn put(&mut self, mapping: Arc<Mapping>) {
        self.free.push(mapping);
    }
}

/// The first `len` bytes of a bounce buffer.
pub(crate) fn piece(mapping: &Arc<Mapping>, len: usize) -> Buffers {
    Buffers::within(mapping, 0, len.min(PIECE)).unwrap_or_default()
}
