//! Receive queues of a NIC.

use anyhow::Result;

use super::ring::Ring;

/// Polls between two polls of all queues. In between, only queues with recent frames are polled. So
/// a poll costs the same for any number of queues, as for a driver that receives calls.
const QUIET: u32 = 256;

/// Receive queue.
struct Inlet {
    ring: Ring,
    /// True if a frame has arrived since the last poll of all queues.
    is_busy: bool,
}

impl Inlet {
    /// Takes all received frames and posts their buffers again. Returns the number of frames with
    /// this length.
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

/// Receive queues of a NIC, one of each pair.
pub(super) struct Inlets {
    all: Vec<Inlet>,
    /// Polls left until all queues are polled.
    polls_left: u32,
    /// Indices of the queues to poll: those that were busy at the last poll of all queues. If none
    /// was busy, the previous ones stay. At first, all queues.
    busy: Vec<usize>,
}

impl Inlets {
    pub(super) fn new(rings: Vec<Ring>) -> Self {
        let busy = (0..rings.len()).collect();
        let all = rings.into_iter().map(|ring| Inlet { ring, is_busy: false }).collect();
        Self { all, polls_left: QUIET, busy }
    }

    /// Takes all received frames and posts their buffers again. Adds the frames of this length to
    /// the counts by queue.
    #[inline]
    pub(super) fn count_all(&mut self, bytes: u32, frames: &mut [u64]) -> Result<()> {
        if self.polls_left == 0 {
            return self.count_each(bytes, frames);
        }
        self.polls_left -= 1;
        for at in &self.busy {
            if let (Some(inlet), Some(frames)) = (self.all.get_mut(*at), frames.get_mut(*at)) {
                *frames += inlet.count(bytes)?;
            }
        }
        Ok(())
    }

    /// Polls all queues, also the quiet ones, and chooses the busy ones anew.
    #[inline(never)]
    fn count_each(&mut self, bytes: u32, frames: &mut [u64]) -> Result<()> {
        self.polls_left = QUIET;
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

    /// Returns the queue that receives frames without a flow.
    pub(super) fn first(&self) -> Option<&Ring> {
        self.all.first().map(|inlet| &inlet.ring)
    }

    /// Returns the same queue, mutable.
    pub(super) fn first_mut(&mut self) -> Option<&mut Ring> {
        self.all.first_mut().map(|inlet| &mut inlet.ring)
    }
}
