//! Frames that are kept for a while, in memory of their own.

use memory::{Buffers, MemoryError, ThreadMapping};
use net::header::HEADER_BYTES;

use crate::frame_sink::EgressFrame;
use crate::ring_allocator::{PLACES_MAX, RingAllocator};

/// A frame that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredFrame {
    /// By this number it is given back.
    pub number: u64,
    at: usize,
    /// With its header.
    bytes: usize,
}

/// Memory for frames, each whole and with its header before it.
#[derive(Debug)]
pub struct FrameBuffer {
    thread_mapping: ThreadMapping,
    ring_allocator: RingAllocator,
}

impl FrameBuffer {
    /// Frames in it, at most.
    pub const FRAMES_MAX: usize = PLACES_MAX;

    /// Of so many bytes, of which the kernel gives those that are used.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn new(bytes: usize) -> Result<Self, MemoryError> {
        Ok(Self {
            thread_mapping: ThreadMapping::private(bytes)?,
            ring_allocator: RingAllocator::new(bytes),
        })
    }

    /// All that was kept has been given back.
    pub fn is_empty(&self) -> bool {
        self.ring_allocator.is_whole()
    }

    /// Copies a frame with its header, which `list` is then; nothing: there is no room for it.
    ///
    /// # Panics
    /// If `list` holds memory of something else.
    pub fn keep(&mut self, frame: &EgressFrame<'_>, list: &mut Buffers) -> Option<StoredFrame> {
        let bytes = HEADER_BYTES + frame.bytes();
        let (at, number) = self.ring_allocator.take(bytes)?;
        let head = at + HEADER_BYTES;
        list.clear();
        // The area is as large as the room.
        let _fits = self.thread_mapping.write(at, &frame.header)
            && self.thread_mapping.write(head, frame.head)
            && list.append_area(&self.thread_mapping, head + frame.head.len(), frame.body.len());
        list.copy_from_buffers(frame.body);
        let stored_frame = StoredFrame { number, at, bytes };
        self.show(stored_frame, 0, list);
        Some(stored_frame)
    }

    /// What was kept, without so many bytes at its front, as `list`.
    ///
    /// # Panics
    /// If `list` holds memory of something else.
    pub fn show(&self, stored_frame: StoredFrame, skip: usize, list: &mut Buffers) {
        let StoredFrame { at, bytes, .. } = stored_frame;
        let skip = skip.min(bytes);
        list.clear();
        let _fits = list.append_area(&self.thread_mapping, at + skip, bytes - skip);
    }

    /// A frame is kept no longer: in any order.
    pub fn give_back(&mut self, number: u64) {
        self.ring_allocator.give_back(number);
    }
}
