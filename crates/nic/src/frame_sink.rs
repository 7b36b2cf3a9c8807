//! Whoever takes frames on a reactor.

use memory::Buffers;
use net::Reason;
use net::header::HEADER_BYTES;
use reactor::Context;

/// A frame as its receiver gets it: nothing is left to be decided about it.
#[derive(Clone, Copy, Debug)]
pub struct EgressFrame<'a> {
    /// The virtio-net header. `num_buffers`, its last two bytes, is 1: a receiver who spreads the frame sets it.
    pub header: [u8; HEADER_BYTES],
    /// The first bytes of the frame, in private memory.
    pub head: &'a [u8],
    /// The rest, perhaps in a guest's memory: it is copied, and never looked at.
    pub body: &'a Buffers,
    /// When it was taken of its sender's ring, in nanoseconds of [`reactor::clock_ns`].
    pub since_ns: u64,
}

impl EgressFrame<'_> {
    /// Bytes of the frame, without its header.
    pub fn bytes(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

/// Takes frames on its reactor.
pub trait FrameSink {
    /// Takes a frame, or has no room: it never waits. What it takes it has copied when it returns. Adds to
    /// `more` how many pieces more than one the frame was copied to: what that costs others is for its
    /// receiver to say, and for whoever gives frames to bound. It is no part of what is returned, since
    /// for most frames it is nothing, and a byte is returned for less.
    ///
    /// # Errors
    /// Why the frame is lost.
    fn deliver(&mut self, frame: &EgressFrame<'_>, more: &mut usize) -> Result<(), Reason>;

    /// The batch is over: whoever waits behind this is shown all of it, and called at most once.
    /// [`Context::now_ns`] is the batch's end.
    fn flush(&mut self, context: &mut Context<'_>);

    /// Looks how far what it gave has been taken, if somebody asks for that. True: it is to look
    /// again after the next batch, whoever that is for.
    fn poll_consumption(&mut self) -> bool {
        false
    }
}
