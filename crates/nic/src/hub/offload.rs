//! Software offloads for receivers that do not accept what the sender left undone.

use memory::Buffers;
use net::Reason;
use net::checksum;
use net::frame::{FRAME_MAX, Frame, TAG_BYTES};
use net::header::{Checksum, Header};
use net::segment::Segments;

/// Length of the longest frame, with an inserted tag.
const WHOLE_BYTES: usize = FRAME_MAX as usize + TAG_BYTES as usize;

/// Private memory in which a frame is completed.
pub(super) struct OffloadScratch {
    whole: Box<[u8]>,
    piece: Box<[u8]>,
}

impl Default for OffloadScratch {
    fn default() -> Self {
        let room = || vec![0; WHOLE_BYTES].into();
        Self { whole: room(), piece: room() }
    }
}

impl OffloadScratch {
    /// Completes the checksum of a frame.
    ///
    /// # Errors
    /// The checksum field is not in the frame.
    pub(super) fn complete(
        &mut self,
        head: &[u8],
        body: &Buffers,
        header: &Header,
    ) -> Result<&[u8], Reason> {
        let whole = gather(&mut self.whole, head, body)?;
        if let Checksum::Partial { start, offset } = header.checksum() {
            checksum::finish(whole, start, offset).ok_or(Reason::ChecksumRange)?;
        }
        Ok(whole)
    }

    /// Cuts a frame into at most `most` segments, and passes each to `each`.
    ///
    /// # Errors
    /// The frame cannot be cut, or not into so few segments.
    pub(super) fn cut(
        &mut self,
        head: &[u8],
        body: &Buffers,
        header: &Header,
        most: usize,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), Reason> {
        let whole = &*gather(&mut self.whole, head, body)?;
        // With its tag inserted or removed.
        let parsed = Frame::parse(whole, whole.len())?;
        let mut segments = Segments::new(whole, &parsed, header).ok_or(Reason::GsoMismatch)?;
        if segments.left() > most {
            return Err(Reason::ManySegments);
        }
        while let Some(bytes) =
            segments.write_next(&mut self.piece).map_err(|_| Reason::LongFrame)?
        {
            each(self.piece.get(..bytes).unwrap_or_default());
        }
        Ok(())
    }
}

/// Copies the whole frame to `room`.
fn gather<'a>(room: &'a mut [u8], head: &[u8], body: &Buffers) -> Result<&'a mut [u8], Reason> {
    let bytes = head.len() + body.len();
    let whole = room.get_mut(..bytes).ok_or(Reason::LongFrame)?;
    let (front, rest) = whole.split_at_mut_checked(head.len()).ok_or(Reason::LongFrame)?;
    front.copy_from_slice(head);
    body.peek(rest);
    Ok(whole)
}
