//! Aligned memory for data that the storage cannot use where it is.
//!
//! All channels of the process share one bounded pool. Beside it, each channel may have one buffer
//! of its own, which it takes first. So a channel that gets none has a request in flight that will
//! return one, however many buffers other channels hold: nobody needs to be woken.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memory::{Buffers, Mapping};

/// Bytes of one bounce buffer: large misaligned requests go through it piece by piece.
pub(crate) const PIECE: usize = 256 << 10;
/// Bytes that the channels of the process share.
const SHARED: usize = 64 * PIECE;
/// Free buffers of each size that stay allocated beyond as many as are in use.
const SPARE: usize = 4;

/// The pool of this process.
static POOL: Pool = Pool(Mutex::new(Counts { sizes: BTreeMap::new(), shared: 0 }));

#[derive(Debug)]
struct Pool(Mutex<Counts>);

#[derive(Debug)]
struct Counts {
    /// Buffers by size in bytes.
    sizes: BTreeMap<usize, OfSize>,
    /// Bytes in use, without the channels' own buffers.
    shared: usize,
}

/// Buffers of one size.
#[derive(Debug, Default)]
struct OfSize {
    free: Vec<Arc<Mapping>>,
    used: usize,
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        // The counts change in complete steps.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One channel's access to the pool, for buffers of one size.
#[derive(Debug)]
pub struct BouncePool {
    pool: &'static Pool,
    size: usize,
    /// Whether the channel's own buffer is in use.
    own_used: Rc<Cell<bool>>,
}

/// Reason why there is no bounce buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoBuffer {
    /// The channel has buffers in use: one returns when a request of the channel completes.
    Busy,
    /// No buffer can be allocated, and the channel has none that would return.
    NoMemory,
}

/// A bounce buffer. It returns to the pool on drop.
#[derive(Debug)]
pub struct BounceBuffer {
    pool: &'static Pool,
    size: usize,
    mapping: Option<Arc<Mapping>>,
    /// Mark of the channel whose own buffer it is.
    own_used: Option<Rc<Cell<bool>>>,
}

impl Default for BouncePool {
    fn default() -> Self {
        Self::of_size(PIECE)
    }
}

impl BouncePool {
    /// Creates a channel's access to buffers of `size` bytes, at most 2 MiB.
    pub fn of_size(size: usize) -> Self {
        Self { pool: &POOL, size, own_used: Rc::default() }
    }

    /// Takes a buffer for one request. Its contents are undefined.
    ///
    /// # Errors
    /// There is none now ([`NoBuffer`]).
    pub fn take(&self) -> Result<BounceBuffer, NoBuffer> {
        let (size, is_own) = (self.size, !self.own_used.get());
        let mut counts = self.pool.lock();
        if !is_own && counts.shared + size > SHARED {
            return Err(NoBuffer::Busy);
        }
        counts.shared += if is_own { 0 } else { size };
        let of_size = counts.sizes.entry(size).or_default();
        of_size.used += 1;
        let mapping = of_size.free.pop();
        drop(counts);
        self.own_used.set(true);
        let own_used = is_own.then(|| Rc::clone(&self.own_used));
        let mut buffer = BounceBuffer { pool: self.pool, size, mapping, own_used };
        if buffer.mapping.is_none() {
            let made = Mapping::private(size);
            buffer.mapping = Some(made.map(Arc::new).map_err(|_| match is_own {
                true => NoBuffer::NoMemory,
                false => NoBuffer::Busy,
            })?);
        }
        Ok(buffer)
    }
}

impl BounceBuffer {
    /// Returns at most `len` bytes of the buffer, from byte `offset`.
    pub fn part(&self, offset: usize, len: usize) -> Buffers {
        let len = len.min(self.size.saturating_sub(offset));
        let part = self.mapping.as_ref().and_then(|it| Buffers::from_mapping(it, offset, len));
        part.unwrap_or_default()
    }
}

impl Drop for BounceBuffer {
    fn drop(&mut self) {
        let mut counts = self.pool.lock();
        match &self.own_used {
            Some(own_used) => own_used.set(false),
            None => counts.shared = counts.shared.saturating_sub(self.size),
        }
        let OfSize { free, used } = counts.sizes.entry(self.size).or_default();
        *used = used.saturating_sub(1);
        let most = SPARE + *used;
        // While the kernel has the buffer, no other request may have it.
        if free.len() < most
            && let Some(mapping) = self.mapping.take_if(|it| Arc::get_mut(it).is_some())
        {
            free.push(mapping);
        }
        // Fewer are in use than before, so fewer stay. Unmapping takes long, so unlock first.
        let surplus = if free.len() > most { free.pop() } else { None };
        drop(counts);
        drop(surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns channels' accesses to a pool of their own.
    fn channels() -> [BouncePool; 2] {
        let counts = Counts { sizes: BTreeMap::new(), shared: 0 };
        let pool: &'static Pool = Box::leak(Box::new(Pool(Mutex::new(counts))));
        std::array::from_fn(|_| BouncePool { pool, size: PIECE, own_used: Rc::default() })
    }

    /// Number of buffers that channels share.
    const MOST: usize = SHARED / PIECE;

    fn free(channel: &BouncePool) -> usize {
        channel.pool.lock().sizes[&channel.size].free.len()
    }

    #[test]
    fn a_channel_without_buffers_gets_one_however_many_another_has() {
        let [greedy, other] = channels();
        let mut taken: Vec<_> = (0..=MOST).map(|_| greedy.take().unwrap()).collect();
        assert_eq!(greedy.take().unwrap_err(), NoBuffer::Busy);
        let own = other.take().unwrap();
        assert_eq!(other.take().unwrap_err(), NoBuffer::Busy);
        // What one channel returns another may take, and its own buffer is its own.
        assert!(taken.pop().is_some());
        let more = other.take().unwrap();
        assert_eq!(greedy.take().unwrap_err(), NoBuffer::Busy);
        drop((own, more));
        taken.push(greedy.take().unwrap());
        assert_eq!(greedy.take().unwrap_err(), NoBuffer::Busy);
        taken.clear();
        let counts = greedy.pool.lock();
        assert_eq!((counts.sizes[&PIECE].used, counts.shared), (0, 0));
    }

    #[test]
    fn large_and_small_buffers_share_the_bytes() {
        let [small, other] = channels();
        let large = BouncePool { size: 8 * PIECE, ..other };
        let taken: Vec<_> = std::iter::from_fn(|| large.take().ok()).collect();
        assert_eq!(taken.len(), 1 + MOST / 8);
        assert_eq!(taken[0].part(7 * PIECE, 2 * PIECE).len(), PIECE);
        let own = small.take().unwrap();
        assert_eq!(small.take().unwrap_err(), NoBuffer::Busy);
        drop(taken);
        let more: Vec<_> = std::iter::from_fn(|| small.take().ok()).collect();
        assert_eq!(more.len(), MOST);
        drop(own);
    }

    #[test]
    fn memory_goes_back_when_it_is_idle() {
        let [one, _] = channels();
        let mut taken: Vec<_> = (0..=MOST).map(|_| one.take().unwrap()).collect();
        taken.truncate(MOST / 2);
        assert_eq!(free(&one), MOST / 2 + 1, "a load that pauses finds them");
        taken.clear();
        assert_eq!(free(&one), SPARE);
        drop(one.take().unwrap());
        assert_eq!(free(&one), SPARE);
    }

    #[test]
    fn a_buffer_that_the_kernel_has_goes_to_no_other_request() {
        let [one, _] = channels();
        let buffer = one.take().unwrap();
        let in_kernel = buffer.part(4096, 100);
        drop(buffer);
        assert_eq!(free(&one), 0);
        in_kernel.write(b"late");
        let next = one.take().unwrap();
        assert_eq!(next.part(0, 2 * PIECE).len(), PIECE);
        assert_eq!(next.part(PIECE - 10, 20).len(), 10);
    }
}
