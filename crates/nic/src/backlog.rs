//! Backlog of frames for which a guest has no buffers yet.
//!
//! A guest posts buffers in bursts, and TCP sends in bursts. If the two do not match, a frame that
//! waits for some microseconds costs a copy. A lost frame costs a round trip and half of a window.
//! xen-netback queues frames in the same way (`xenvif_rx_queue_tail`: half of a ring of pages;
//! drained after `rx_drain_timeout_msecs`).

use std::collections::VecDeque;

use memory::Buffers;
use net::header::HEADER_BYTES;

use crate::frame_buffer::{FrameBuffer, StoredFrame};
use crate::frame_sink::EgressFrame;

/// Most bytes that wait, including headers: as many as a ring of 256 pages holds.
pub(crate) const BACKLOG_BYTES: usize = 1 << 20;
/// Time after which a waiting frame is useless and dropped, in nanoseconds: as in xen-netback.
const OLD_NS: u64 = 10_000_000_000;
/// Longest time that the first frame waits while there are buffers, but too few for it, in
/// nanoseconds. Some guests post more buffers only after they receive a frame.
const STALL_NS: u64 = 50_000_000;
/// Time without waiting frames after which the memory is released, in nanoseconds.
const IDLE_NS: u64 = 1_000_000_000;

/// Waiting frame.
#[derive(Debug)]
struct Waiting {
    stored_frame: StoredFrame,
    header: [u8; HEADER_BYTES],
    since_ns: u64,
}

/// Waiting frames, oldest first. Allocates no memory before the first frame waits.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    frame_buffer: Option<FrameBuffer>,
    frames: VecDeque<Waiting>,
    list: Buffers,
    /// Time since which the first frame is the first, or since which no frame waits.
    since_ns: u64,
}

impl Backlog {
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Appends a frame; returns false if there is no room.
    #[cold]
    pub(crate) fn hold(&mut self, frame: &EgressFrame<'_>) -> bool {
        if self.frame_buffer.is_none() {
            self.frame_buffer = FrameBuffer::new(BACKLOG_BYTES).ok();
            self.frames.reserve(FrameBuffer::FRAMES_MAX);
        }
        let Some(frame_buffer) = &mut self.frame_buffer else { return false };
        let Some(stored_frame) = frame_buffer.keep(frame, &mut self.list) else { return false };
        let EgressFrame { header, since_ns, .. } = *frame;
        if self.frames.is_empty() {
            self.since_ns = since_ns;
        }
        self.frames.push_back(Waiting { stored_frame, header, since_ns });
        true
    }

    /// Returns the oldest waiting frame.
    pub(crate) fn first(&mut self) -> Option<EgressFrame<'_>> {
        let (frame_buffer, first) = (self.frame_buffer.as_ref()?, self.frames.front()?);
        frame_buffer.show(first.stored_frame, HEADER_BYTES, &mut self.list);
        let Waiting { header, since_ns, .. } = *first;
        Some(EgressFrame { header, head: &[], body: &self.list, since_ns })
    }

    /// Returns when the oldest frame will have waited too long; `None` if no frame waits.
    pub(crate) fn old_at_ns(&self) -> Option<u64> {
        self.frames.front().map(|first| first.since_ns.saturating_add(OLD_NS + 1))
    }

    /// Returns whether the oldest frame has waited too long at `now_ns`.
    pub(crate) fn is_old(&self, now_ns: u64) -> bool {
        self.old_at_ns().is_some_and(|old_ns| now_ns >= old_ns)
    }

    /// Returns until when the oldest frame may stay the first although there are buffers.
    pub(crate) fn stalls_at_ns(&self) -> u64 {
        self.since_ns.saturating_add(STALL_NS)
    }

    /// Returns when the memory is to be released; `None` if there is none or a frame is in it.
    pub(crate) fn idle_at_ns(&self) -> Option<u64> {
        let is_idle = self.frame_buffer.is_some() && self.is_empty();
        is_idle.then(|| self.since_ns.saturating_add(IDLE_NS))
    }

    /// Releases the memory if no frame waits.
    pub(crate) fn release(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }

    /// Removes the oldest frame at `now_ns`.
    pub(crate) fn pass(&mut self, now_ns: u64) {
        self.since_ns = now_ns;
        if let (Some(frame_buffer), Some(first)) = (&mut self.frame_buffer, self.frames.pop_front())
        {
            frame_buffer.give_back(first.stored_frame.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame<'a>(head: &'a [u8], body: &'a Buffers, since_ns: u64) -> EgressFrame<'a> {
        EgressFrame { header: [since_ns as u8; HEADER_BYTES], head, body, since_ns }
    }

    #[test]
    fn what_waits_comes_in_order_and_whole() {
        let mut backlog = Backlog::default();
        assert!(backlog.first().is_none() && backlog.frame_buffer.is_none());
        let body = Buffers::alloc(3000).unwrap();
        for round in 0..50u8 {
            for number in 0..20u8 {
                let head = vec![round ^ number; 60 + usize::from(number)];
                body.write(&[number; 3000]);
                assert!(backlog.hold(&frame(&head, &body, number.into())));
            }
            for number in 0..20u8 {
                let first = backlog.first().unwrap();
                let front = 60 + usize::from(number);
                assert_eq!((first.header, first.since_ns), ([number; 12], number.into()));
                let mut bytes = vec![0; 5000];
                assert_eq!(first.body.peek(&mut bytes), front + 3000);
                assert!(bytes[..front].iter().all(|byte| *byte == round ^ number));
                assert!(bytes[front..front + 3000].iter().all(|byte| *byte == number));
                backlog.pass(7);
            }
            assert!(backlog.is_empty());
        }
        assert_eq!(backlog.idle_at_ns(), Some(7 + IDLE_NS));
        backlog.release();
        assert!(backlog.frame_buffer.is_none() && backlog.idle_at_ns().is_none());
    }

    #[test]
    fn what_has_waited_for_ten_seconds_is_old() {
        let (mut backlog, nothing) = (Backlog::default(), Buffers::default());
        assert!(!backlog.is_old(u64::MAX));
        for since in [5, 7] {
            assert!(backlog.hold(&frame(&[0; 60], &nothing, since)));
        }
        let old = 5 + 10_000_000_000;
        assert!(!backlog.is_old(0) && !backlog.is_old(old) && backlog.is_old(old + 1));
        assert_eq!(backlog.stalls_at_ns(), 5 + STALL_NS);
        backlog.pass(100);
        assert!(!backlog.is_old(old + 1));
        // The next frame has been the first since then, however long it has waited.
        assert_eq!((backlog.stalls_at_ns(), backlog.idle_at_ns()), (100 + STALL_NS, None));
    }

    #[test]
    fn bytes_and_frames_are_bounded() {
        let (mut backlog, nothing) = (Backlog::default(), Buffers::default());
        let small = |backlog: &mut Backlog| backlog.hold(&frame(&[0; 60], &nothing, 0));
        let held = (0..).take_while(|_| small(&mut backlog)).count();
        assert_eq!((held, backlog.len()), (FrameBuffer::FRAMES_MAX, held));
        backlog.pass(0);
        assert!(small(&mut backlog) && !small(&mut backlog));
        let mut backlog = Backlog::default();
        let body = Buffers::alloc(65_000).unwrap();
        let held = (0..).take_while(|_| backlog.hold(&frame(&[], &body, 0))).count();
        assert_eq!(held, BACKLOG_BYTES / (65_000 + HEADER_BYTES));
    }
}
