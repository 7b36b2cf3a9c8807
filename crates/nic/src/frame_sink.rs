//! Receivers of frames on a reactor.

use memory::Buffers;
use net::Reason;
use net::header::HEADER_BYTES;
use reactor::Context;

/// Frame as its receiver gets it: all decisions about it are made.
#[derive(Clone, Copy, Debug)]
pub struct EgressFrame<'a> {
    /// The virtio-net header. `num_buffers`, its last two bytes, is 1: a receiver that spreads the
    /// frame over several buffers sets it.
    pub header: [u8; HEADER_BYTES],
    /// First bytes of the frame, in private memory.
    pub head: &'a [u8],
    /// Rest of the frame, possibly in a guest's memory: it is copied, but never parsed.
    pub body: &'a Buffers,
    /// Time at which the frame was popped from its sender's ring, in nanoseconds of
    /// [`reactor::clock_ns`].
    pub since_ns: u64,
}

impl EgressFrame<'_> {
    /// Returns the length of the frame without its header.
    pub fn bytes(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

/// Receiver of frames on its reactor.
pub trait FrameSink {
    /// Accepts a frame or has no room for it; never waits. An accepted frame is copied before this
    /// returns. Adds to `more` the number of pieces beyond the first that the frame was copied to.
    /// The receiver knows this cost, and the caller limits it. The number is not part of the
    /// result: it is zero for most frames, and returning a single byte is cheaper.
    ///
    /// # Errors
    /// Reason why the frame is dropped.
    fn deliver(&mut self, frame: &EgressFrame<'_>, more: &mut usize) -> Result<(), Reason>;

    /// Ends the batch: publishes all of it to the receiver's driver and notifies the driver at most
    /// once. [`Context::now_ns`] is the end of the batch.
    fn flush(&mut self, context: &mut Context<'_>);

    /// Polls how far the driver has consumed the frames, if a hub requests that. Returns true if
    /// this must be called again after the next batch, whichever receiver that batch is for.
    fn poll_consumption(&mut self) -> bool {
        false
    }
}
