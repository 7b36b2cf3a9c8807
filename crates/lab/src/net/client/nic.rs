//! NIC whose driver is this program.

use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use testkit::raw::ring::Desc;
use testkit::raw::wire::protocol;
use testkit::raw::{Guest, Setup};
use vm_memory::{FileOffset, MmapRegion};

use super::frame::{self, HEADER_BYTES};
use super::inlets::Inlets;
use super::ring::Ring;

/// Default queue size in descriptors.
pub(in crate::net) const QUEUE_SIZE: u16 = 256;
/// Alignment of buffers: pages, as in guests.
const PAGE: u64 = 4096;
/// Longest time for one frame. After it, the switch counts as hung.
const PATIENCE: Duration = Duration::from_secs(20);

/// Features that the driver accepts (virtio 1.2, 5.1.3 and 6): checksums, TCP segmentation both
/// ways, mergeable buffers, event indices. With several pairs also the control queue, which this
/// client does not use.
const FEATURES: u64 =
    1 | 1 << 1 | 1 << 7 | 1 << 8 | 1 << 11 | 1 << 12 | 1 << 15 | 1 << 28 | 1 << 29 | 1 << 32;
const MULTIQUEUE: u64 = 1 << 17 | 1 << 22;

/// Parameters of a NIC.
#[derive(Debug, Clone)]
pub(in crate::net) struct Spec {
    /// Number of its station.
    pub(in crate::net) station: u8,
    /// Queue pairs.
    pub(in crate::net) pairs: u16,
    /// Buffers of each queue, in each direction.
    pub(in crate::net) depth: u16,
    /// Queue size in descriptors. A sending NIC needs one more than buffers, for its announcement.
    pub(in crate::net) queue_size: u16,
    /// Length in bytes of the longest frame that it receives.
    pub(in crate::net) receive_bytes: u32,
    /// Frames to send, with headers. Buffer `i` holds frame `i` modulo their number.
    pub(in crate::net) frames: Vec<Vec<u8>>,
}

/// Running NIC. Dropping it disconnects.
pub(in crate::net) struct Nic {
    /// Receive queues of all pairs.
    receive: Inlets,
    /// Transmit queue of the first pair.
    send: Ring,
    /// Heads of buffers that may be sent, in order.
    free: VecDeque<u16>,
    /// Rings of the other pairs, and the connection.
    _guest: Guest,
}

impl Nic {
    /// Connects, posts all buffers, and announces the station to the switch.
    pub(in crate::net) fn connect(socket: &Path, spec: &Spec) -> Result<Self> {
        let guest = start(socket, spec)
            .with_context(|| format!("{}: cannot connect a NIC", socket.display()))?;
        let (mut guest, send_heads) = lay_out(guest, spec)?;
        let region = guest.memory.regions()[0];
        let file = FileOffset::new(guest.memory.file().try_clone()?, region.mmap_offset);
        let mapped = MmapRegion::from_file(file, usize::try_from(region.size)?)?;
        let mapped = Rc::new(mapped);
        let (mut receive, mut send) = (Vec::new(), None);
        for (index, queue) in guest.queues.drain(..).enumerate() {
            let ring = Ring::new(&mapped, region.guest_addr, queue)?;
            match index {
                _ if index % 2 == 0 => receive.push(ring),
                1 => send = Some(ring),
                _ => {}
            }
        }
        let send = send.context("no queue to send on")?;
        for ring in &mut receive {
            (0..spec.depth).try_for_each(|head| ring.offer(head))?;
            ring.publish()?;
        }
        let (receive, free) = (Inlets::new(receive), (0..send_heads).collect());
        let mut nic = Self { receive, send, free, _guest: guest };
        nic.announce(send_heads)?;
        Ok(nic)
    }

    /// Sends the announcement, whose head follows all others, and waits until the switch has taken
    /// it.
    fn announce(&mut self, head: u16) -> Result<()> {
        self.send.offer(head)?;
        self.send.publish()?;
        let until = Instant::now() + PATIENCE;
        while self.send.take()?.is_none() {
            ensure!(Instant::now() < until, "the switch takes no frame");
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Sends one of its frames.
    pub(in crate::net) fn send_one(&mut self) -> Result<()> {
        ensure!(self.send_many(1)? == 1, "the switch returns no buffer");
        Ok(())
    }

    /// Reclaims sent buffers, then sends up to `most` frames. Returns the number of frames sent.
    #[inline]
    pub(super) fn send_many(&mut self, most: u64) -> Result<u64> {
        while let Some((head, _)) = self.send.take()? {
            self.free.push_back(head);
        }
        let mut sent = 0;
        while sent < most
            && let Some(head) = self.free.pop_front()
        {
            self.send.offer(head)?;
            sent += 1;
        }
        self.send.publish()?;
        Ok(sent)
    }

    /// Takes all received frames and posts their buffers again. Returns the number of frames with
    /// this length on the first queue.
    #[inline]
    pub(super) fn count(&mut self, bytes: u32) -> Result<u64> {
        let mut frames = [0];
        self.count_all(bytes, &mut frames)?;
        Ok(frames[0])
    }

    /// Does the same for every queue, and adds the frames to the counts.
    #[inline]
    pub(super) fn count_all(&mut self, bytes: u32, frames: &mut [u64]) -> Result<()> {
        self.receive.count_all(bytes, frames)
    }

    /// Takes the next frame with this length, if there is one. Discards other frames and posts
    /// their buffers again.
    pub(in crate::net) fn receive_one(&mut self, bytes: u32) -> Result<bool> {
        let Some(ring) = self.receive.first_mut() else { return Ok(false) };
        while let Some((head, len)) = ring.take()? {
            ring.offer(head)?;
            ring.publish()?;
            if len == bytes {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the queue that receives frames without a flow.
    pub(super) fn first(&self) -> Option<&Ring> {
        self.receive.first()
    }
}

fn start(socket: &Path, spec: &Spec) -> Result<Guest> {
    let several = spec.pairs > 1;
    let features = if several { FEATURES | MULTIQUEUE } else { FEATURES };
    let longest = spec.frames.iter().map(Vec::len).max().unwrap_or(0) as u64;
    let buffer = |bytes: u64| bytes.next_multiple_of(PAGE);
    let each = buffer(u64::from(spec.receive_bytes)) * u64::from(spec.pairs) + buffer(longest);
    let rings = u64::from(spec.pairs) * 64 * u64::from(spec.queue_size);
    let setup = Setup {
        queues: 2 * spec.pairs,
        queue_size: spec.queue_size,
        features,
        // Protocol features that current QEMU and DPDK accept.
        protocol: protocol::MQ | protocol::REPLY_ACK,
        memory_bytes: each * u64::from(spec.depth) + rings + 16 * PAGE,
        ..Setup::default()
    };
    Ok(Guest::start(socket, &setup)?)
}

/// Places buffers in every queue, one per chain. Returns the number of chains with frames. The
/// following chain holds the announcement.
fn lay_out(mut guest: Guest, spec: &Spec) -> Result<(Guest, u16)> {
    for pair in 0..usize::from(spec.pairs) {
        for head in 0..spec.depth {
            let at = guest.memory.alloc(spec.receive_bytes.into(), PAGE)?;
            // Writes the memory, because untouched memory is not allocated yet.
            guest.memory.write(at, &vec![0; spec.receive_bytes as usize])?;
            let desc = Desc::writable(at, spec.receive_bytes);
            guest.queues[2 * pair].ring.set_desc(&guest.memory, head, desc)?;
        }
    }
    let announcement = frame::announcement(spec.station);
    let sent = if spec.frames.is_empty() { 0 } else { spec.depth };
    let frames = spec.frames.iter().cycle().take(sent.into()).chain([&announcement]);
    for (head, frame) in (0..).zip(frames) {
        let at = guest.memory.alloc(frame.len() as u64, PAGE)?;
        guest.memory.write(at, frame)?;
        let desc = Desc::readable(at, u32::try_from(frame.len())?);
        guest.queues[1].ring.set_desc(&guest.memory, head, desc)?;
    }
    Ok((guest, sent))
}

/// Returns the bytes that a device writes for a frame of this size.
pub(in crate::net) fn with_header(frame_bytes: usize) -> u32 {
    u32::try_from(HEADER_BYTES + frame_bytes).unwrap_or(u32::MAX)
}
