//! Temporary storage of whole frames.

use memory::{Buffers, MemoryError, ThreadMapping};
use net::header::HEADER_BYTES;

use crate::frame_sink::EgressFrame;
use crate::ring_allocator::{PLACES_MAX, RingAllocator};

/// Frame in a [`FrameBuffer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredFrame {
    /// Number by which the frame is released.
    pub number: u64,
    at: usize,
    /// Length with the header.
    bytes: usize,
}

/// Memory for whole frames, each with its header before it.
#[derive(Debug)]
pub struct FrameBuffer {
    thread_mapping: ThreadMapping,
    ring_allocator: RingAllocator,
}

impl FrameBuffer {
    /// Most frames in the buffer.
    pub const FRAMES_MAX: usize = PLACES_MAX;

    /// Creates a buffer of `bytes` bytes. The kernel allocates pages when they are used.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new(bytes: usize) -> Result<Self, MemoryError> {
        Ok(Self {
            thread_mapping: ThreadMapping::private(bytes)?,
            ring_allocator: RingAllocator::new(bytes),
        })
    }

    /// Returns whether all stored frames have been released.
    pub fn is_empty(&self) -> bool {
        self.ring_allocator.is_whole()
    }

    /// Copies a frame with its header into the buffer and makes `list` refer to the copy. Returns
    /// `None` if there is no room.
    ///
    /// # Panics
    /// Panics if `list` refers to other memory.
    pub fn keep(&mut self, frame: &EgressFrame<'_>, list: &mut Buffers) -> Option<StoredFrame> {
        let bytes = HEADER_BYTES + frame.bytes();
        let (at, number) = self.ring_allocator.take(bytes)?;
        let head = at + HEADER_BYTES;
        list.clear();
        // The allocated area is large enough.
        let _fits = self.thread_mapping.write(at, &frame.header)
            && self.thread_mapping.write(head, frame.head)
            && list.append_mapping(&self.thread_mapping, head + frame.head.len(), frame.body.len());
        list.copy_from_buffers(frame.body);
        let stored_frame = StoredFrame { number, at, bytes };
        self.show(stored_frame, 0, list);
        Some(stored_frame)
    }

    /// Makes `list` refer to a stored frame, without its first `skip` bytes.
    ///
    /// # Panics
    /// Panics if `list` refers to other memory.
    pub fn show(&self, stored_frame: StoredFrame, skip: usize, list: &mut Buffers) {
        let StoredFrame { at, bytes, .. } = stored_frame;
        let skip = skip.min(bytes);
        list.clear();
        let _fits = list.append_mapping(&self.thread_mapping, at + skip, bytes - skip);
    }

    /// Releases a frame; in any order.
    pub fn give_back(&mut self, number: u64) {
        self.ring_allocator.give_back(number);
    }
}
