//! The receive queues of a NIC.

use anyhow::Result;

use super::ring::Ring;

/// All queues are looked at once in so many looks, else those on which something came in that time: what a
/// look costs is then the same however many queues a NIC has, as it is for a driver that is called.
const QUIET: u32 = 256;

/// A receive queue.
struct Inlet {
    ring: Ring,
    /// Something came since all were looked at.
    is_busy: bool,
}

impl Inlet {
    /// Takes all that has come, and posts its buffers again; how many frames of one length it were.
    #[inline]
    fn count(&mut self, bytes: u32) -> Result<u64> {
        let mut frames = 0;
        while let Some((head, len)) = self.ring.take()? {
            frames += u64::from(len == bytes);
            self.ring.offer(head)?;
            self.is_busy = true;
        }
        self.ring.publish()?;
        Ok(frames)
    }
}

/// The receive queues of a NIC, one of each pair.
pub(super) struct Inlets {
    all: Vec<Inlet>,
    /// Looks until all of them are looked at.
    looks_left: u32,
    /// Those that are looked at: all that are busy, or were when any was; at first all.
    busy: Vec<usize>,
}

impl Inlets {
    pub(super) fn new(rings: Vec<Ring>) -> Self {
        let busy = (0..rings.len()).collect();
        let all = rings.into_iter().map(|ring| Inlet { ring, is_busy: false }).collect();
        Self { all, looks_left: QUIET, busy }
    }

    /// Takes all that has come, and posts its buffers again. Frames of one length are added to what was
    /// counted of each queue before.
    #[inline]
    pub(super) fn count_all(&mut self, bytes: u32, frames: &mut [u64]) -> Result<()> {
        if self.looks_left == 0 {
            return self.count_each(bytes, frames);
        }
        self.looks_left -= 1;
        for at in &self.busy {
            if let (Some(inlet), Some(frames)) = (self.all.get_mut(*at), frames.get_mut(*at)) {
                *frames += inlet.count(bytes)?;
            }
        }
        Ok(())
    }

    /// The same, with a look at those that are quiet, too.
    #[inline(never)]
    fn count_each(&mut self, bytes: u32, frames: &mut [u64]) -> Result<()> {
        self.looks_left = QUIET;
        for (inlet, frames) in self.all.iter_mut().zip(frames) {
            *frames += inlet.count(bytes)?;
        }
        let is_busy =
            |(at, inlet): (usize, &mut Inlet)| std::mem::take(&mut inlet.is_busy).then_some(at);
        let mut busy = self.all.iter_mut().enumerate().filter_map(is_busy).peekable();
        if busy.peek().is_some() {
            self.busy.clear();
            self.busy.extend(busy);
        }
        Ok(())
    }

    /// The queue on which frames without a flow come.
    pub(super) fn first(&self) -> Option<&Ring> {
        self.all.first().map(|inlet| &inlet.ring)
    }

    /// The same, to be changed.
    pub(super) fn first_mut(&mut self) -> Option<&mut Ring> {
        self.all.first_mut().map(|inlet| &mut inlet.ring)
    }
}
