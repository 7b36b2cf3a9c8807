//! An independent front-end and driver: the `virtio-driver` crate, used as in libblkio.
//!
//! # Model
//! [`Driver::connect`] returns [`Queue`]s. A queue submits, kicks, and returns completions with the
//! number given at submission. A client either sleeps on the call eventfd ([`Queue::sleep`], with
//! calls requested) or polls the used ring. Buffers are slots of equal size in a memfd. The device
//! writes there; [`Queue::buffer`] and [`Queue::fill`] read and write them through the file.
//!
//! # Invariants
//! The crate requires `&mut [u8]` buffers and uses their addresses as guest addresses. This module
//! passes slices of an address range to which nothing stores (`shadow`), and registers the memfd at
//! that range. So the device and the test never touch the same mapping, and this code needs no
//! `unsafe`. A queue keeps the transport alive, whose mapping contains its rings.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use virtio_driver::{
    EventFd, QueueNotifier, VhostUser, VirtioBlkConfig, VirtioBlkFeatureFlags, VirtioBlkQueue,
    VirtioBlkReqBuf, VirtioFeatureFlags, VirtioTransport,
};

use crate::error::{Error, Result};
use crate::raw::guest::wait_readable;

type Transport = VhostUser<VirtioBlkConfig, VirtioBlkReqBuf>;

/// Alignment of the buffers' guest addresses, in bytes.
const PAGE_BYTES: usize = 4096;

/// Parameters of a connection.
#[derive(Debug, Clone)]
pub struct Options {
    /// Number of queues.
    pub queues: u16,
    /// Descriptors per queue. A request takes three: the crate does not use indirect tables.
    pub queue_size: u16,
    /// Buffers per queue, which limit the useful queue depth.
    pub slots: u16,
    /// Bytes of one buffer, a multiple of 512.
    pub slot_bytes: usize,
    /// Accept EVENT_IDX if offered.
    pub event_idx: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { queues: 1, queue_size: 128, slots: 32, slot_bytes: 4096, event_idx: true }
    }
}

/// Properties of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    /// Negotiated virtio features.
    pub features: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Block size in bytes, 512 if the disk does not report one.
    pub block_bytes: u32,
    /// Number of queues that the disk has.
    pub queues: u16,
    /// True if the disk refuses writes.
    pub read_only: bool,
}

/// A connected front-end.
pub struct Driver {
    /// Properties of the disk.
    pub disk: Disk,
    /// Started queues. Move them out to use them from several threads.
    pub queues: Vec<Queue>,
}

impl Driver {
    /// Connects to a backend, negotiates, and starts the queues.
    ///
    /// # Errors
    /// [`Error::Io`] with the crate's reason.
    pub fn connect(socket: &Path, options: &Options) -> Result<Self> {
        let path = socket.to_string_lossy();
        let mut transport = Transport::new(&path, wanted_features(options.event_idx))
            .map_err(|e| Error::io(format!("virtio-driver cannot connect to {path}"), e))?;
        let disk = describe(&transport)?;
        let mut arenas = Vec::new();
        for _ in 0..options.queues {
            arenas.push(Arena::new(&mut transport, options)?);
        }
        let queues =
            VirtioBlkQueue::setup_queues(&mut transport, options.queues.into(), options.queue_size)
                .map_err(|e| Error::io("virtio-driver cannot set its queues up", e))?;
        let notifiers: Vec<_> = (0..queues.len())
            .map(|i| (transport.get_submission_notifier(i), transport.get_completion_fd(i)))
            .collect();
        let transport = Arc::new(Mutex::new(transport));
        let queues = queues.into_iter().zip(arenas).zip(notifiers);
        let queues = queues.map(|((rings, arena), (kick, call))| Queue {
            rings,
            kick,
            call,
            arena,
            kicks: 0,
            calls: 0,
            transport: Arc::clone(&transport),
        });
        Ok(Self { disk, queues: queues.collect() })
    }

    /// Returns the first queue, for a client with one.
    ///
    /// # Errors
    /// [`Error::Full`] if it was taken, or if no queue was requested.
    pub fn into_queue(mut self) -> Result<Queue> {
        let none = || Error::Full { what: "a queue".into() };
        if self.queues.is_empty() { Err(none()) } else { Ok(self.queues.swap_remove(0)) }
    }
}

fn wanted_features(event_idx: bool) -> u64 {
    let ring = VirtioFeatureFlags::VERSION_1.bits();
    let event = if event_idx { VirtioFeatureFlags::RING_EVENT_IDX.bits() } else { 0 };
    let blk = VirtioBlkFeatureFlags::SEG_MAX
        | VirtioBlkFeatureFlags::RO
        | VirtioBlkFeatureFlags::BLK_SIZE
        | VirtioBlkFeatureFlags::FLUSH
        | VirtioBlkFeatureFlags::TOPOLOGY
        | VirtioBlkFeatureFlags::MQ
        | VirtioBlkFeatureFlags::DISCARD
        | VirtioBlkFeatureFlags::WRITE_ZEROES;
    ring | event | blk.bits()
}

fn describe(transport: &Transport) -> Result<Disk> {
    let config = transport
        .get_config()
        .map_err(|e| Error::io("virtio-driver cannot read the configuration", e))?;
    let features = transport.get_features();
    let flags = VirtioBlkFeatureFlags::from_bits_truncate(features);
    let has_size = flags.contains(VirtioBlkFeatureFlags::BLK_SIZE);
    let has_mq = flags.contains(VirtioBlkFeatureFlags::MQ);
    Ok(Disk {
        features,
        bytes: { config.capacity }.to_native().saturating_mul(512),
        block_bytes: if has_size { { config.blk_size }.to_native() } else { 512 },
        queues: if has_mq { { config.num_queues }.to_native() } else { 1 },
        read_only: flags.contains(VirtioBlkFeatureFlags::RO),
    })
}

/// Buffers of one queue: a memfd, and the address range at which the backend knows it.
struct Arena {
    file: File,
    shadow: Vec<u8>,
    start: usize,
    slots: usize,
    slot_bytes: usize,
}

impl Arena {
    fn new(transport: &mut Transport, options: &Options) -> Result<Self> {
        let (slots, slot_bytes) = (usize::from(options.slots), options.slot_bytes);
        let bytes = (slots * slot_bytes).next_multiple_of(PAGE_BYTES);
        let fd = memfd_create("testkit-buffers", MemfdFlags::CLOEXEC)
            .map_err(|e| Error::io("cannot create a memfd", e))?;
        let file = File::from(fd);
        // Written once, so that no page is allocated during a measurement.
        file.write_all_at(&vec![0; bytes], 0)
            .map_err(|e| Error::io(format!("cannot get {bytes} bytes of shared memory"), e))?;
        let shadow = vec![0; bytes + PAGE_BYTES];
        let start = shadow.as_ptr().align_offset(PAGE_BYTES);
        let address = shadow.as_ptr() as usize + start;
        transport
            .map_mem_region(address, bytes, file.as_raw_fd(), 0)
            .map_err(|e| Error::io("the backend does not take the buffers' memory", e))?;
        Ok(Self { file, shadow, start, slots, slot_bytes })
    }

    /// Returns the slice that stands for a slot's first `len` bytes.
    fn slice(&mut self, slot: u16, len: usize) -> Result<&mut [u8]> {
        let start = self.start + usize::from(slot) * self.slot_bytes;
        let full = || Error::Full { what: format!("{len} bytes in slot {slot}") };
        if usize::from(slot) >= self.slots || len > self.slot_bytes {
            return Err(full());
        }
        self.shadow.get_mut(start..start + len).ok_or_else(full)
    }

    fn offset(&self, slot: u16) -> u64 {
        u64::from(slot) * self.slot_bytes as u64
    }
}

/// One queue of a disk.
pub struct Queue {
    rings: VirtioBlkQueue<'static, u16>,
    kick: Box<dyn QueueNotifier>,
    call: Arc<EventFd>,
    arena: Arena,
    /// Number of kicks sent.
    pub kicks: u64,
    /// Number of calls received, as the eventfd counted them.
    pub calls: u64,
    /// Transport, whose mapping contains the rings, so it is dropped last.
    transport: Arc<Mutex<Transport>>,
}

/// Handle that wakes a queue's sleeping client from another thread.
#[derive(Debug, Clone)]
pub struct Waker(Arc<EventFd>);

impl Waker {
    /// Wakes the client like a call. The client finds no new completion.
    ///
    /// # Errors
    /// [`Error::Io`] if the eventfd fails.
    pub fn wake(&self) -> Result<()> {
        self.0.write(1).map_err(|e| Error::io("cannot wake a client", e))
    }
}

impl Queue {
    /// Submits a read of `len` bytes at byte `offset` into a slot. Completes with the slot's
    /// number.
    ///
    /// # Errors
    /// [`Error::Full`] for a bad slot, [`Error::Io`] if the ring is full.
    pub fn read(&mut self, offset: u64, slot: u16, len: usize) -> Result<()> {
        let buffer = self.arena.slice(slot, len)?;
        self.rings.read(offset, buffer, slot).map_err(|e| Error::io("cannot submit a read", e))
    }

    /// Submits a write of a slot's first `len` bytes.
    ///
    /// # Errors
    /// As [`Queue::read`].
    pub fn write(&mut self, offset: u64, slot: u16, len: usize) -> Result<()> {
        let buffer = self.arena.slice(slot, len)?;
        self.rings.write(offset, buffer, slot).map_err(|e| Error::io("cannot submit a write", e))
    }

    /// Submits a flush.
    ///
    /// # Errors
    /// [`Error::Io`] if the ring is full.
    pub fn flush(&mut self, tag: u16) -> Result<()> {
        self.rings.flush(tag).map_err(|e| Error::io("cannot submit a flush", e))
    }

    /// Submits a discard of `len` bytes.
    ///
    /// # Errors
    /// [`Error::Io`] if the range is not in sectors or the ring is full.
    pub fn discard(&mut self, offset: u64, len: u64, tag: u16) -> Result<()> {
        let done = self.rings.discard(offset, len, tag);
        done.map_err(|e| Error::io("cannot submit a discard", e))
    }

    /// Submits a write of `len` zero bytes.
    ///
    /// # Errors
    /// [`Error::Io`] if the range is not in sectors or the ring is full.
    pub fn write_zeroes(&mut self, offset: u64, len: u64, unmap: bool, tag: u16) -> Result<()> {
        let done = self.rings.write_zeroes(offset, len, unmap, tag);
        done.map_err(|e| Error::io("cannot submit a write of zeroes", e))
    }

    /// Kicks if the backend wants it.
    ///
    /// # Errors
    /// [`Error::Io`] if the eventfd fails.
    #[inline]
    pub fn kick(&mut self) -> Result<()> {
        if !self.rings.avail_notif_needed() {
            return Ok(());
        }
        self.kicks += 1;
        self.kick.notify().map_err(|e| Error::io("cannot kick", e))
    }

    /// Passes all available completions to `each` as (number, 0 or negative errno). Returns how
    /// many.
    #[inline]
    pub fn completions(&mut self, mut each: impl FnMut(u16, i32)) -> u32 {
        let mut count = 0;
        for completion in self.rings.completions() {
            each(completion.context, completion.ret);
            count += 1;
        }
        count
    }

    /// Returns whether a completion is available.
    #[inline]
    pub fn has_completion(&mut self) -> bool {
        self.rings.completions().has_next()
    }

    /// Requests or suppresses calls. A client that sleeps must request them.
    pub fn want_calls(&mut self, wanted: bool) {
        self.rings.set_used_notif_enabled(wanted);
    }

    /// Sleeps until a call or a [`Waker`] wakes it, without a deadline.
    ///
    /// Waits and reads in two steps, because a backend may have made the eventfd non-blocking. That
    /// setting applies to both ends.
    ///
    /// # Errors
    /// [`Error::Io`] if the eventfd fails.
    #[inline]
    pub fn sleep(&mut self) -> Result<()> {
        let mut fds = [PollFd::new(&*self.call, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) => self.take_calls(),
            Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Error::io("cannot wait for a call", error)),
        }
    }

    fn take_calls(&mut self) -> Result<()> {
        match self.call.read() {
            Ok(count) => self.calls += count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(Error::io("cannot read the call eventfd", error)),
        }
        Ok(())
    }

    /// Sleeps until a call comes or the deadline passes. Returns false past the deadline.
    ///
    /// # Errors
    /// [`Error::Io`] if the eventfd fails.
    pub fn sleep_until(&mut self, deadline: Duration) -> Result<bool> {
        if wait_readable(&[self.call.as_fd()], deadline)?.is_none() {
            return Ok(false);
        }
        self.take_calls().map(|()| true)
    }

    /// Kicks and sleeps until one completion is available; for tests. Requests calls from then on.
    ///
    /// # Errors
    /// [`Error::Timeout`] if nothing completes in 10 s.
    pub fn finish_one(&mut self) -> Result<(u16, i32)> {
        self.want_calls(true);
        self.kick()?;
        let deadline = crate::raw::connection::ANSWER_DEADLINE;
        loop {
            if let Some(done) = self.rings.completions().next() {
                return Ok((done.context, done.ret));
            }
            if !self.sleep_until(deadline)? {
                let what = "a completion".to_owned();
                return Err(Error::Timeout { what, after_ms: deadline.as_millis() });
            }
        }
    }

    /// Returns a handle that wakes [`Queue::sleep`].
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.call))
    }

    /// Returns the first `len` bytes of a slot as the device left them.
    ///
    /// # Errors
    /// [`Error::Io`] past the end of the buffers.
    pub fn buffer(&self, slot: u16, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let read = self.arena.file.read_exact_at(&mut bytes, self.arena.offset(slot));
        read.map_err(|e| Error::io(format!("cannot read slot {slot}"), e))?;
        Ok(bytes)
    }

    /// Writes bytes into a slot.
    ///
    /// # Errors
    /// [`Error::Full`] if they do not fit.
    pub fn fill(&mut self, slot: u16, bytes: &[u8]) -> Result<()> {
        self.arena.slice(slot, bytes.len())?;
        let written = self.arena.file.write_all_at(bytes, self.arena.offset(slot));
        written.map_err(|e| Error::io(format!("cannot write slot {slot}"), e))
    }

    /// Reads the configuration again, for example after a resize.
    ///
    /// # Errors
    /// [`Error::Io`] if the backend does not answer.
    pub fn disk(&self) -> Result<Disk> {
        describe(&self.transport.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
