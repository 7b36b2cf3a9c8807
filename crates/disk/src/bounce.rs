//! Aligned memory for guests whose buffers direct I/O cannot use.

use std::sync::Arc;

use memory::{Buffers, Mapping};

/// Bytes of one bounce buffer: large misaligned requests go through it piece by piece.
pub(crate) const PIECE: usize = 256 << 10;
/// Bounce buffers of one channel. While all are in use, the queue waits.
const LIMIT: usize = 8;

/// Bounded pool of bounce buffers, allocated on demand.
#[derive(Debug, Default)]
pub(crate) struct BouncePool {
    free: Vec<Arc<Mapping>>,
    made: usize,
}

/// Reason why there is no bounce buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoBuffer {
    /// All buffers are in use: one returns when a request completes.
    Busy,
    /// No buffer can be allocated and none will return.
    NoMemory,
}

impl BouncePool {
    /// Takes a buffer for one request.
    pub(crate) fn take(&mut self) -> Result<Arc<Mapping>, NoBuffer> {
        if let Some(mapping) = self.free.pop() {
            return Ok(mapping);
        }
        if self.made == LIMIT {
            return Err(NoBuffer::Busy);
        }
        match Mapping::private(PIECE) {
            Ok(mapping) => {
                self.made += 1;
                Ok(Arc::new(mapping))
            }
            Err(_) if self.made > 0 => Err(NoBuffer::Busy),
            Err(_) => Err(NoBuffer::NoMemory),
        }
    }

    /// Returns a buffer to the pool.
    pub(crate) fn put(&mut self, mapping: Arc<Mapping>) {
        self.free.push(mapping);
    }
}

/// Returns the first `len` bytes of a bounce buffer.
pub(crate) fn piece(mapping: &Arc<Mapping>, len: usize) -> Buffers {
    Buffers::from_mapping(mapping, 0, len.min(PIECE)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_pool_says_that_a_buffer_comes_back() {
        let mut pool = BouncePool::default();
        let taken: Vec<_> = (0..LIMIT).map(|_| pool.take().unwrap()).collect();
        assert_eq!(pool.take().unwrap_err(), NoBuffer::Busy);
        for buffer in taken {
            pool.put(buffer);
        }
        assert!(pool.take().is_ok());
    }
}
