//! Driver side of a split ring, through a mapping of the shared memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};

use anyhow::{Context, Result};
use testkit::raw::guest::{Queue, drain};
use vm_memory::{MmapRegion, VolatileMemory};

/// Queue of a running NIC.
pub(super) struct Ring {
    memory: Rc<MmapRegion>,
    size: u16,
    /// Offsets of the available and the used ring in the memory.
    avail: usize,
    used: usize,
    next_avail: u16,
    published: u16,
    next_used: u16,
    kick: OwnedFd,
    call: OwnedFd,
}

impl Ring {
    /// Adopts a queue that a front-end has started. `base` is the guest address at which the memory
    /// starts.
    pub(super) fn new(memory: &Rc<MmapRegion>, base: u64, queue: Queue) -> Result<Self> {
        let offset = |at: u64| usize::try_from(at - base).context("a ring outside of the memory");
        let ring = Self {
            memory: Rc::clone(memory),
            size: queue.ring.size,
            avail: offset(queue.ring.avail)?,
            used: offset(queue.ring.used)?,
            next_avail: 0,
            published: 0,
            next_used: 0,
            kick: queue.kick,
            call: queue.call,
        };
        ring.want_calls(false)?;
        Ok(ring)
    }

    #[inline]
    fn word(&self, at: usize) -> Result<&AtomicU16> {
        Ok(self.memory.get_atomic_ref(at)?)
    }

    /// Adds a chain, which the next [`Ring::publish`] makes available.
    #[inline]
    pub(super) fn offer(&mut self, head: u16) -> Result<()> {
        let slot = usize::from(self.next_avail % self.size);
        self.word(self.avail + 4 + 2 * slot)?.store(head, Ordering::Relaxed);
        self.next_avail = self.next_avail.wrapping_add(1);
        Ok(())
    }

    /// Publishes the added chains, and kicks if the device needs it (virtio 1.2, 2.7.10).
    #[inline]
    pub(super) fn publish(&mut self) -> Result<()> {
        let (old, new) = (self.published, self.next_avail);
        if old == new {
            return Ok(());
        }
        self.word(self.avail + 2)?.store(new, Ordering::Release);
        self.published = new;
        fence(Ordering::SeqCst);
        let event = self.word(self.used + 4 + 8 * usize::from(self.size))?.load(Ordering::Relaxed);
        if new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old) {
            rustix::io::write(&self.kick, &1u64.to_ne_bytes()).context("cannot kick")?;
        }
        Ok(())
    }

    /// Returns the next used chain: its head, and the number of bytes written to it.
    #[inline]
    pub(super) fn take(&mut self) -> Result<Option<(u16, u32)>> {
        if self.word(self.used + 2)?.load(Ordering::Acquire) == self.next_used {
            return Ok(None);
        }
        let slot = self.used + 4 + 8 * usize::from(self.next_used % self.size);
        let head: &AtomicU32 = self.memory.get_atomic_ref(slot)?;
        let len: &AtomicU32 = self.memory.get_atomic_ref(slot + 4)?;
        let head = u16::try_from(head.load(Ordering::Relaxed)).context("no such chain")?;
        let len = len.load(Ordering::Relaxed);
        self.next_used = self.next_used.wrapping_add(1);
        Ok(Some((head, len)))
    }

    /// Sets whether the device calls for the next used chain. Without calls, the driver polls.
    pub(super) fn want_calls(&self, wanted: bool) -> Result<()> {
        // The index was already passed, so the counter must wrap before the device passes it again.
        let event = if wanted { self.next_used } else { self.next_used.wrapping_sub(1) };
        self.word(self.avail + 4 + 2 * usize::from(self.size))?.store(event, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Returns the call eventfd.
    pub(super) fn call(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }

    /// Clears the call eventfd.
    pub(super) fn called(&self) -> Result<()> {
        drain(&self.call)?;
        Ok(())
    }
}
