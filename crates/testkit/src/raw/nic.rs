//! Frames over the queues of a [`Guest`]. The even queue of a pair receives and the odd one sends.
//! A control queue may follow all pairs.

use std::time::Duration;

use super::connection::ANSWER_DEADLINE;
use super::guest::{Guest, WaitEvent};
use super::ring::{DESC_BYTES, Desc, Used};
use crate::error::{Error, Result};

/// Bytes of the virtio-net header (virtio 1.2, 5.1.6).
pub const NET_HEADER_BYTES: usize = 12;
/// Header without any offload request.
pub const PLAIN: [u8; NET_HEADER_BYTES] = [0; NET_HEADER_BYTES];

/// A received frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Virtio-net header.
    pub header: [u8; NET_HEADER_BYTES],
    /// Bytes of the frame.
    pub bytes: Vec<u8>,
}

fn bad(what: String) -> Error {
    Error::Reply { request: "a frame".into(), what }
}

impl Guest {
    /// Posts receive buffers, all at once.
    ///
    /// # Errors
    /// [`Error::Full`] if memory or ring are used up.
    pub fn post_buffers(&mut self, pair: usize, count: u16, bytes: u32) -> Result<()> {
        let ring = &mut self.queues[2 * pair].ring;
        let mut heads = Vec::new();
        for _ in 0..count {
            let at = self.memory.alloc(bytes.into(), 16)?;
            heads.push(ring.add_chain(&self.memory, &[Desc::writable(at, bytes)])?);
        }
        ring.publish_all(&self.memory, &heads)?;
        // Frames may wait for buffers.
        self.kick(2 * pair)
    }

    /// Makes a frame with its header available for sending, and kicks.
    ///
    /// # Errors
    /// [`Error::Full`] if memory or ring are used up.
    pub fn offer_frame(
        &mut self,
        pair: usize,
        header: &[u8; NET_HEADER_BYTES],
        frame: &[u8],
    ) -> Result<()> {
        let bytes = [&header[..], frame].concat();
        let at = self.memory.alloc(bytes.len() as u64, 16)?;
        self.memory.write(at, &bytes)?;
        let ring = &mut self.queues[2 * pair + 1].ring;
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let head = ring.add_chain(&self.memory, &[Desc::readable(at, len)])?;
        ring.publish(&self.memory, head)?;
        self.kick(2 * pair + 1)
    }

    /// Sends a frame, and waits until its buffer is completed.
    ///
    /// # Errors
    /// As [`Guest::offer_frame`], and [`Error::Reply`] if it is not completed in 10 s.
    pub fn send_frame(
        &mut self,
        pair: usize,
        header: &[u8; NET_HEADER_BYTES],
        frame: &[u8],
    ) -> Result<()> {
        self.offer_frame(pair, header, frame)?;
        match self.wait(2 * pair + 1, ANSWER_DEADLINE)? {
            WaitEvent::Used(_) => Ok(()),
            other => Err(bad(format!("{other:?} after sending"))),
        }
    }

    /// Waits for a frame until the deadline. Returns `None` if none arrives.
    ///
    /// # Errors
    /// [`Error::Reply`] if the backend failed, or if it wrote no valid frame.
    pub fn receive_frame(&mut self, pair: usize, deadline: Duration) -> Result<Option<Frame>> {
        let used = match self.wait(2 * pair, deadline)? {
            WaitEvent::Used(used) => used,
            WaitEvent::Silent => return Ok(None),
            other => return Err(bad(format!("{other:?} instead of a frame"))),
        };
        let mut bytes = self.buffer_of(2 * pair, used)?;
        let short = |bytes: &[u8]| bad(format!("{} bytes are not a frame", bytes.len()));
        let header: [u8; NET_HEADER_BYTES] = *bytes.first_chunk().ok_or_else(|| short(&bytes))?;
        // The backend publishes all buffers of a frame at once.
        let buffers = u16::from_le_bytes([header[10], header[11]]);
        for _ in 1..buffers {
            let next = self.queues[2 * pair].ring.pop_used(&self.memory)?;
            let next = next.ok_or_else(|| bad(format!("less than {buffers} buffers")))?;
            bytes.extend(self.buffer_of(2 * pair, next)?);
        }
        Ok(Some(Frame { header, bytes: bytes.split_off(NET_HEADER_BYTES) }))
    }

    /// Receives a frame like [`Guest::receive_frame`], in one buffer, and posts that buffer again.
    ///
    /// # Errors
    /// As [`Guest::receive_frame`].
    pub fn take_frame(&mut self, pair: usize, deadline: Duration) -> Result<Option<Frame>> {
        let before = self.queues[2 * pair].ring.used_seen;
        let Some(frame) = self.receive_frame(pair, deadline)? else { return Ok(None) };
        let ring = &mut self.queues[2 * pair].ring;
        let place = ring.used + 4 + 8 * u64::from(before % ring.size);
        let id = u32::from_le_bytes(self.memory.read_array(place)?);
        let desc = ring.desc + DESC_BYTES * u64::from(id);
        let at = u64::from_le_bytes(self.memory.read_array(desc)?);
        let len = u32::from_le_bytes(self.memory.read_array(desc + 8)?);
        let head = ring.add_chain(&self.memory, &[Desc::writable(at, len)])?;
        ring.publish(&self.memory, head)?;
        Ok(Some(frame))
    }

    /// Sends a frame, waits until its buffer is completed, and releases its memory.
    ///
    /// # Errors
    /// As [`Guest::send_frame`].
    pub fn pass_frame(&mut self, pair: usize, frame: &[u8]) -> Result<()> {
        let mark = self.memory.mark();
        self.send_frame(pair, &PLAIN, frame)?;
        self.memory.release(mark);
        Ok(())
    }

    /// Sends a command to queue `control` like Linux, and waits for the reply.
    ///
    /// # Errors
    /// [`Error::Full`] if memory or ring are used up, [`Error::Reply`] if there is no reply of one
    /// byte in 10 s.
    pub fn command(&mut self, control: usize, command: &[u8]) -> Result<u8> {
        let at = self.memory.alloc(command.len() as u64 + 1, 16)?;
        self.memory.write(at, command)?;
        let (head, data) = command.split_at(command.len().min(2));
        let part = |from: usize, len: usize| {
            Desc::readable(at + from as u64, u32::try_from(len).unwrap_or(u32::MAX))
        };
        let answer = at + command.len() as u64;
        let parts = [part(0, head.len()), part(2, data.len()), Desc::writable(answer, 1)];
        let parts: Vec<_> = parts.into_iter().filter(|part| part.len > 0).collect();
        let ring = &mut self.queues[control].ring;
        let chain = ring.add_chain(&self.memory, &parts)?;
        ring.publish(&self.memory, chain)?;
        self.kick(control)?;
        match self.wait(control, ANSWER_DEADLINE)? {
            WaitEvent::Used(used) if used.len == 1 => {
                self.memory.read_array(answer).map(|[answer]: [u8; 1]| answer)
            }
            other => Err(bad(format!("{other:?} for a command"))),
        }
    }

    /// Returns the bytes that the backend wrote to a buffer.
    fn buffer_of(&self, queue: usize, used: Used) -> Result<Vec<u8>> {
        let desc = self.queues[queue].ring.desc + DESC_BYTES * u64::from(used.id);
        let at = u64::from_le_bytes(self.memory.read_array(desc)?);
        self.memory.read(at, used.len as usize)
    }
}
