//! A simple guest: connects, negotiates, shares memory, starts queues, runs requests.

mod requests;

pub use requests::{Done, Pending};

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::config::BlkConfig;
use super::frontend::{Frontend, Negotiated, VringAddr};
use super::memory::SharedMemory;
use super::ring::{SplitRing, Used};
use super::wire::{Request, feature, protocol};
use crate::error::{Error, Result};

/// Messages that describe the memory to the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryBy {
    /// A single SET_MEM_TABLE, as from QEMU and User-Mode Linux.
    Table,
    /// ADD_MEM_REG for each region.
    Slots,
}

/// Parameters of a guest. Change the fields that the test needs, and keep the other defaults.
#[derive(Debug)]
pub struct Setup {
    /// Number of queues to start.
    pub queues: u16,
    /// Descriptors of each queue.
    pub queue_size: u16,
    /// Virtio features to accept if offered.
    pub features: u64,
    /// Protocol features to accept if offered.
    pub protocol: u64,
    /// Messages that describe the memory.
    pub memory_by: MemoryBy,
    /// Size of the shared memory in bytes.
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
    /// Ring of the queue.
    pub ring: SplitRing,
    /// Eventfd that notifies the backend of new requests.
    pub kick: OwnedFd,
    /// Eventfd with which the backend notifies of completions.
    pub call: OwnedFd,
    /// Eventfd with which the backend reports that the queue has failed.
    pub err: OwnedFd,
    /// Number of kicks sent.
    pub kicks: u64,
    /// Number of calls received, as the eventfd counted them.
    pub calls: u64,
}

/// Event that ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitEvent {
    /// The backend published a used element.
    Used(Used),
    /// The backend signalled the queue's error descriptor.
    QueueError,
    /// The backend closed the connection.
    Closed,
    /// Nothing happened until the deadline.
    Silent,
}

/// A connected front-end with memory and queues.
#[derive(Debug)]
pub struct Guest {
    /// Connection to the backend.
    pub frontend: Frontend,
    /// Negotiated features.
    pub negotiated: Negotiated,
    /// Memory shared with the backend.
    pub memory: SharedMemory,
    /// Started queues.
    pub queues: Vec<Queue>,
}

impl Guest {
    /// Connects and starts the queues.
    ///
    /// # Errors
    /// The error of the first step that fails.
    pub fn start(path: &Path, setup: &Setup) -> Result<Self> {
        let memory = SharedMemory::new(setup.memory_bytes)?;
        Self::start_with(Frontend::connect(path)?, memory, setup)
    }

    /// Starts the queues on a given connection and memory.
    ///
    /// # Errors
    /// The error of the first step that fails.
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

    /// Starts a queue in the backend at available index `base`, and enables it.
    ///
    /// # Errors
    /// As [`Frontend::send`].
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

    /// Stops a queue. Returns the available index at which the backend would continue.
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

    /// Kicks, whether or not the backend wants it.
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

    /// Waits for the next used element of a queue. Sleeps on call, error and socket.
    ///
    /// # Errors
    /// [`Error::Io`] if a descriptor fails.
    pub fn wait(&mut self, queue: usize, deadline: Duration) -> Result<WaitEvent> {
        let until = Instant::now() + deadline;
        loop {
            let at = &mut self.queues[queue];
            at.ring.set_used_event(&self.memory, at.ring.used_seen)?;
            if let Some(used) = at.ring.pop_used(&self.memory)? {
                return Ok(WaitEvent::Used(used));
            }
            let fds = [at.call.as_fd(), at.err.as_fd(), self.frontend.connection.as_fd()];
            let left = until.saturating_duration_since(Instant::now());
            match wait_readable(&fds, left)? {
                None => return Ok(WaitEvent::Silent),
                Some(0) => at.calls += drain(&at.call)?,
                Some(1) => return Ok(WaitEvent::QueueError),
                Some(_) => return Ok(WaitEvent::Closed),
            }
        }
    }
}

fn index_u32(queue: usize) -> u32 {
    u32::try_from(queue).unwrap_or(u32::MAX)
}

/// Creates a non-blocking eventfd.
///
/// # Errors
/// [`Error::Io`] if the system call fails.
pub fn event_fd() -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|e| Error::io("cannot create an eventfd", e))
}

/// Sleeps until one of the descriptors is readable or hung up. Returns the index of the first one,
/// or `None` past the deadline.
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

/// Reads an eventfd's count. Returns 0 if it was not signalled.
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
