//! A guest in a few lines: connect, negotiate, share memory, start queues, run requests.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::config::BlkConfig;
use super::frontend::{Frontend, Negotiated, VringAddr};
use super::memory::SharedMemory;
use super::request::{Placed, Request as BlkRequest};
use super::ring::{SplitRing, Used};
use super::wire::{Request, feature, protocol};
use crate::error::{Error, Result};

/// How the memory is described to the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryBy {
    /// One SET_MEM_TABLE, as QEMU and User-Mode Linux do.
    Table,
    /// ADD_MEM_REG for each region.
    Slots,
}

/// What the guest looks like. Change what the test needs, keep the rest of the default.
#[derive(Debug)]
pub struct Setup {
    /// Queues to start.
    pub queues: u16,
    /// Descriptors of each queue.
    pub queue_size: u16,
    /// Virtio features to accept where offered.
    pub features: u64,
    /// Protocol features to accept where offered.
    pub protocol: u64,
    /// How memory is announced.
    pub memory_by: MemoryBy,
    /// Shared memory in bytes.
    pub memory_bytes: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            queues: 1,
            queue_size: 128,
            features: !(feature::RING_PACKED | feature::LOG_ALL),
            protocol: protocol::ALL_KNOWN,
            memory_by: MemoryBy::Table,
            memory_bytes: 8 << 20,
        }
    }
}

/// A started queue.
#[derive(Debug)]
pub struct Queue {
    /// The ring.
    pub ring: SplitRing,
    /// Tells the backend of new requests.
    pub kick: OwnedFd,
    /// Tells us of completions.
    pub call: OwnedFd,
    /// Tells us that the backend gave the queue up.
    pub err: OwnedFd,
    /// Kicks that we sent.
    pub kicks: u64,
    /// Calls that we received, as the eventfd counted them.
    pub calls: u64,
}

/// A request on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// Head of its chain.
    pub head: u16,
    /// Where it is.
    pub placed: Placed,
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// Status byte.
    pub status: u8,
    /// Bytes that the backend says it wrote, the status byte included.
    pub written: u32,
    /// What is in the buffers.
    pub data: Vec<u8>,
}

/// What a wait ended with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A used element.
    Used(Used),
    /// The backend signalled the queue's error descriptor.
    QueueError,
    /// The backend closed the connection.
    Closed,
    /// Nothing until the deadline.
    Silent,
}

/// A connected front-end with memory and queues.
#[derive(Debug)]
pub struct Guest {
    /// The protocol's side.
    pub frontend: Frontend,
    /// What is in force.
    pub negotiated: Negotiated,
    /// The shared memory.
    pub memory: SharedMemory,
    /// The queues.
    pub queues: Vec<Queue>,
}

impl Guest {
    /// Connects and starts the queues.
    ///
    /// # Errors
    /// Whatever the first failing step gives.
    pub fn start(path: &Path, setup: &Setup) -> Result<Self> {
        let memory = SharedMemory::new(setup.memory_bytes)?;
        Self::start_with(Frontend::connect(path)?, memory, setup)
    }

    /// The same on a given connection and memory.
    ///
    /// # Errors
    /// Whatever the first failing step gives.
    pub fn start_with(mut frontend: Frontend, memory: SharedMemory, setup: &Setup) -> Result<Self> {
        let negotiated = frontend.negotiate(setup.features, setup.protocol)?;
        match setup.memory_by {
            MemoryBy::Table => frontend.set_mem_table(&memory)?,
            MemoryBy::Slots => frontend.add_mem_regions(&memory)?,
        }
        let mut guest = Self { frontend, negotiated, memory, queues: Vec::new() };
        for index in 0..setup.queues {
            let ring = SplitRing::new(&mut guest.memory, setup.queue_size)?;
            guest.queues.push(Queue {
                ring,
                kick: event_fd()?,
                call: event_fd()?,
                err: event_fd()?,
                kicks: 0,
                calls: 0,
            });
            guest.start_queue(index.into(), 0)?;
        }
        Ok(guest)
    }

    /// Hands a queue to the backend, from available index `base`, and enables it.
    ///
    /// # Errors
    /// As [`Frontend::tell`].
    pub fn start_queue(&mut self, queue: usize, base: u16) -> Result<()> {
        let index = index_u32(queue);
        let at = &self.queues[queue];
        let (ring, front) = (&at.ring, &mut self.frontend);
        front.set_vring(Request::SET_VRING_NUM, index, ring.size.into())?;
        front.set_vring(Request::SET_VRING_BASE, index, base.into())?;
        front.set_vring_addr(&VringAddr {
            index,
            flags: 0,
            desc: self.memory.user_addr(ring.desc)?,
            used: self.memory.user_addr(ring.used)?,
            avail: self.memory.user_addr(ring.avail)?,
            log: 0,
        })?;
        front.set_vring_fd(Request::SET_VRING_ERR, index.into(), Some(at.err.as_fd()))?;
        front.set_vring_fd(Request::SET_VRING_CALL, index.into(), Some(at.call.as_fd()))?;
        front.set_vring_fd(Request::SET_VRING_KICK, index.into(), Some(at.kick.as_fd()))?;
        if self.negotiated.features & feature::PROTOCOL_FEATURES != 0 {
            front.set_vring(Request::SET_VRING_ENABLE, index, 1)?;
        }
        Ok(())
    }

    /// Stops a queue; gives the available index at which the backend would go on.
    ///
    /// # Errors
    /// As [`Frontend::get_vring_base`].
    pub fn stop_queue(&mut self, queue: usize) -> Result<u16> {
        let base = self.frontend.get_vring_base(index_u32(queue))?;
        u16::try_from(base).map_err(|_| Error::Reply {
            request: Request::GET_VRING_BASE.name(),
            what: format!("index {base} is more than 16 bits"),
        })
    }

    /// Reads and parses the disk's configuration.
    ///
    /// # Errors
    /// As [`Frontend::get_config`].
    pub fn config(&mut self) -> Result<BlkConfig> {
        self.frontend.get_config(BlkConfig::BYTES).map(|bytes| BlkConfig::parse(&bytes))
    }

    /// Makes a well-formed request available; does not kick.
    ///
    /// # Errors
    /// [`Error::Full`] if memory or ring are used up.
    pub fn submit(&mut self, queue: usize, request: &BlkRequest) -> Result<Pending> {
        let mut all = self.submit_all(queue, std::slice::from_ref(request))?;
        Ok(all.swap_remove(0))
    }

    /// Makes requests available all at once; does not kick.
    ///
    /// # Errors
    /// [`Error::Full`] if memory or ring are used up.
    pub fn submit_all(&mut self, queue: usize, requests: &[BlkRequest]) -> Result<Vec<Pending>> {
        let ring = &mut self.queues[queue].ring;
        let mut all = Vec::new();
        for request in requests {
            let placed = request.place(&mut self.memory)?;
            let head = ring.add_chain(&self.memory, &placed.descs())?;
            all.push(Pending { head, placed });
        }
        let heads: Vec<u16> = all.iter().map(|pending| pending.head).collect();
        ring.publish_all(&self.memory, &heads)?;
        Ok(all)
    }

    /// Kicks, needed or not.
    ///
    /// # Errors
    /// [`Error::Io`] if the eventfd fails.
    pub fn kick(&mut self, queue: usize) -> Result<()> {
        let at = &mut self.queues[queue];
        at.kicks += 1;
        rustix::io::write(&at.kick, &1u64.to_ne_bytes())
            .map(drop)
            .map_err(|e| Error::io("cannot kick", e))
    }

    /// Waits for the next used element of a queue, asleep on call, error and socket.
    ///
    /// # Errors
    /// [`Error::Io`] if a descriptor fails.
    pub fn wait(&mut self, queue: usize, deadline: Duration) -> Result<Event> {
        let until = Instant::now() + deadline;
        loop {
            let at = &mut self.queues[queue];
            at.ring.set_used_event(&self.memory, at.ring.used_seen)?;
            if let Some(used) = at.ring.pop_used(&self.memory)? {
                return Ok(Event::Used(used));
            }
            let fds = [at.call.as_fd(), at.err.as_fd(), self.frontend.connection.as_fd()];
            let left = until.saturating_duration_since(Instant::now());
            match wait_readable(&fds, left)? {
                None => return Ok(Event::Silent),
                Some(0) => at.calls += drain(&at.call)?,
                Some(1) => return Ok(Event::QueueError),
                Some(_) => return Ok(Event::Closed),
            }
        }
    }

    /// Runs one request from start to end.
    ///
    /// # Errors
    /// [`Error::Timeout`] if it does not complete in 10 s, [`Error::Closed`] or [`Error::Reply`] if
    /// the backend gives up.
    pub fn run(&mut self, queue: usize, request: &BlkRequest) -> Result<Done> {
        let mark = self.memory.mark();
        let pending = self.submit(queue, request)?;
        self.kick(queue)?;
        let done = self.finish(queue, &pending)?;
        self.memory.release(mark);
        Ok(done)
    }

    /// Waits for a submitted request, which must be the queue's next to complete.
    ///
    /// # Errors
    /// As [`Guest::run`].
    pub fn finish(&mut self, queue: usize, pending: &Pending) -> Result<Done> {
        let what = || format!("a request on queue {queue}");
        let deadline = super::connection::ANSWER_DEADLINE;
        let bad = |what: String| Error::Reply { request: "a virtio-blk request".into(), what };
        match self.wait(queue, deadline)? {
            Event::Used(used) if used.id == u32::from(pending.head) => Ok(Done {
                status: pending.placed.status(&self.memory)?,
                written: used.len,
                data: pending.placed.data(&self.memory)?,
            }),
            Event::Used(used) => Err(bad(format!("{used:?} instead of head {}", pending.head))),
            Event::QueueError => Err(bad("the queue's error was signalled".into())),
            Event::Closed => Err(Error::Closed { what: what() }),
            Event::Silent => Err(Error::Timeout { what: what(), after_ms: deadline.as_millis() }),
        }
    }
}

fn index_u32(queue: usize) -> u32 {
    u32::try_from(queue).unwrap_or(u32::MAX)
}

/// A new non-blocking eventfd.
///
/// # Errors
/// [`Error::Io`] if the system has none.
pub fn event_fd() -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|e| Error::io("cannot create an eventfd", e))
}

/// Sleeps until one of the descriptors is readable or hung up; gives the first such, `None` past
/// the deadline.
///
/// # Errors
/// [`Error::Io`] if the wait fails.
pub fn wait_readable(fds: &[BorrowedFd<'_>], deadline: Duration) -> Result<Option<usize>> {
    let until = Instant::now() + deadline;
    loop {
        let mut polled: Vec<_> =
            fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let left = until.saturating_duration_since(Instant::now());
        let timeout = rustix::event::Timespec::try_from(left)
            .map_err(|_| Error::Full { what: "a deadline of many years".into() })?;
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) => return Ok(polled.iter().position(|p| !p.revents().is_empty())),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Error::io("cannot wait for descriptors", e)),
        }
    }
}

/// Reads an eventfd's count; 0 if it was not signalled.
///
/// # Errors
/// [`Error::Io`] if the descriptor fails.
pub fn drain(fd: &OwnedFd) -> Result<u64> {
    let mut bytes = [0; 8];
    match rustix::io::read(fd, &mut bytes) {
        Ok(_) => Ok(u64::from_ne_bytes(bytes)),
        Err(rustix::io::Errno::AGAIN) => Ok(0),
        Err(e) => Err(Error::io("cannot read an eventfd", e)),
    }
}
