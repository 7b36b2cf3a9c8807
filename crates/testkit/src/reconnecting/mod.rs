//! A front-end that outlives its backend, and checks all its promises.
//!
//! # Words
//! - **Outage**: from the end of one backend's connection to the first completion by the next.
//! - **Stamp**: content that a write leaves in each of its sectors: the sector's number and a
//!   number that no other write has.
//!
//! # Model
//! One thread plays a guest with several queues under mixed load: reads, writes, flushes, discards
//! and zeroes of a few blocks each, drawn from a seed. Memory, rings and in-flight region stay over
//! a reconnect. As with QEMU, a ring starts again at its used index. The guest continues to offer
//! requests while no backend serves, like a driver that does not notice.
//!
//! The guest is as strict as a driver that sleeps. It polls for completions only after a call, and
//! kicks only if the backend wants it. So a lost call or kick is a hang, and a hang is an error
//! ([`Error::Timeout`]).
//!
//! Each completion must belong to a request in flight, arrive once, and have the right status and
//! length. Reads must return what was written last. Requests that change blocks never overlap other
//! requests in flight. So the expected data is known exactly, even if requests were executed twice.
//! After a discard a sector may have its former content or zeroes.
//!
//! # Example
//! ```no_run
//! use std::time::{Duration, Instant};
//! use testkit::reconnecting::{End, ReconnectingGuest, Shape};
//! # fn restart() {}
//! # fn main() -> testkit::Result<()> {
//! let mut guest = ReconnectingGuest::connect("/run/disk.sock".as_ref(), Shape::default())?;
//! while guest.run(Instant::now() + Duration::from_secs(1))? == End::Closed {
//!     restart();
//!     guest.reconnect()?;
//! }
//! guest.finish()?;
//! # Ok(())
//! # }
//! ```

mod content;
mod load;
mod queue;
mod random;
mod run;
mod stop;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use content::{BLOCK_BYTES, stamped};
pub use random::Random;
pub use run::End;
pub use stop::Stopped;

use crate::error::{Error, Result};
use crate::raw::frontend::InflightArea;
use crate::raw::wire::{Request, feature, protocol};
use crate::raw::{Frontend, Negotiated, SharedMemory, VringAddr};
use content::Content;
use queue::GuestQueue;

/// Time after which a request counts as lost, with a backend connected. It is long, so that no test
/// fails on a loaded machine.
pub const LOST_AFTER: Duration = Duration::from_secs(30);

/// Parameters of the guest and its load.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Number of queues.
    pub queues: u16,
    /// Descriptors of each queue.
    pub queue_size: u16,
    /// Requests in flight on each queue, at most [`Self::queue_size`].
    pub depth: u16,
    /// Most blocks of [`BLOCK_BYTES`] that a request covers.
    pub blocks_max: u32,
    /// Negotiate EVENT_IDX if it is offered.
    pub event_idx: bool,
    /// Send only reads and writes, for a disk that discards in another way.
    pub plain: bool,
    /// Send flushes. Without them nothing but a close makes writes durable.
    pub flushes: bool,
    /// Stamp of all sectors at first ([`stamped`]), 0 for zeroes.
    pub first_stamp: u64,
    /// Seed of the load.
    pub seed: u64,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            queues: 1,
            queue_size: 128,
            depth: 32,
            blocks_max: 4,
            event_idx: true,
            plain: false,
            flushes: true,
            first_stamp: 0,
            seed: 1,
        }
    }
}

/// Counts so far.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Number of completed requests.
    pub completed: u64,
    /// Number of reads among these whose content was compared.
    pub compared: u64,
    /// Number of requests that were in flight when a connection ended.
    pub survived: u64,
    /// Times from the end of a connection to the first completion by a later one, per queue.
    pub outages: Vec<Duration>,
    /// Times from the beginning of a reconnect to its first completion, per queue.
    pub pauses: Vec<Duration>,
    /// Longest time of a request since [`ReconnectingGuest::take_longest_request`].
    longest_request: Duration,
}

/// A guest that reconnects to its backend.
#[derive(Debug)]
pub struct ReconnectingGuest {
    shape: Shape,
    path: PathBuf,
    frontend: Option<Frontend>,
    negotiated: Negotiated,
    memory: SharedMemory,
    inflight: InflightArea,
    queues: Vec<GuestQueue>,
    content: Content,
    random: Random,
    tally: Tally,
}

impl ReconnectingGuest {
    /// Connects to a backend whose disk has the shape's first content, requests an in-flight region and starts
    /// all queues.
    ///
    /// # Errors
    /// The error of the first step that fails; [`Error::Reply`] if no in-flight region is offered.
    pub fn connect(path: &Path, shape: Shape) -> Result<Self> {
        let (mut frontend, negotiated) = greet(path, &shape)?;
        let config = frontend.get_config(crate::raw::config::BlkConfig::BYTES)?;
        let sectors = crate::raw::config::BlkConfig::parse(&config).capacity_sectors;
        let inflight = frontend.get_inflight(shape.queues, shape.queue_size)?;
        let bytes = u64::from(shape.queues) * queue::bytes(&shape);
        let mut memory = SharedMemory::new(bytes.next_multiple_of(BLOCK_BYTES))?;
        let queues = (0..shape.queues).map(|_| GuestQueue::new(&mut memory, &shape));
        let mut guest = Self {
            queues: queues.collect::<Result<_>>()?,
            content: Content::new(sectors, shape.first_stamp),
            random: Random::new(shape.seed),
            shape,
            path: path.to_owned(),
            frontend: None,
            negotiated,
            memory,
            inflight,
            tally: Tally::default(),
        };
        guest.start(frontend, None)?;
        Ok(guest)
    }

    /// Connects again, sends memory and region, and starts each ring at its used index.
    ///
    /// # Errors
    /// The error of the first step that fails.
    pub fn reconnect(&mut self) -> Result<()> {
        self.queues.iter_mut().for_each(|queue| queue.pause = Some(Instant::now()));
        let (frontend, negotiated) = greet(&self.path, &self.shape)?;
        if negotiated != self.negotiated {
            let what = format!("{negotiated:?} after {:?}", self.negotiated);
            return Err(Error::Reply { request: "the features of a reconnect".into(), what });
        }
        self.start(frontend, None)
    }

    /// Sends region, memory and rings, in QEMU's order. Rings begin at `bases`, or else at their
    /// used index.
    fn start(&mut self, mut frontend: Frontend, bases: Option<&[u16]>) -> Result<()> {
        frontend.set_inflight(&self.inflight)?;
        frontend.set_mem_table(&self.memory)?;
        for (index, queue) in (0u32..).zip(&mut self.queues) {
            let ring = &queue.ring;
            // The used index is the backend's position. The region has the requests in flight.
            let used = ring.used_idx(&self.memory)?;
            let base = bases.and_then(|bases| bases.get(index as usize)).copied().unwrap_or(used);
            queue.resumed = used;
            // Uncollected completions of the former backend do not shorten the pause.
            queue.called = queue.called.map(|_| Instant::now());
            frontend.set_vring(Request::SET_VRING_NUM, index, ring.size.into())?;
            frontend.set_vring(Request::SET_VRING_BASE, index, base.into())?;
            frontend.set_vring_addr(&VringAddr {
                index,
                flags: 0,
                desc: self.memory.user_addr(ring.desc)?,
                used: self.memory.user_addr(ring.used)?,
                avail: self.memory.user_addr(ring.avail)?,
                log: 0,
            })?;
            let fds: [(Request, &OwnedFd); 3] = [
                (Request::SET_VRING_ERR, &queue.err),
                (Request::SET_VRING_CALL, &queue.call),
                (Request::SET_VRING_KICK, &queue.kick),
            ];
            for (request, fd) in fds {
                frontend.set_vring_fd(request, index.into(), Some(fd.as_fd()))?;
            }
            frontend.set_vring(Request::SET_VRING_ENABLE, index, 1)?;
        }
        self.frontend = Some(frontend);
        Ok(())
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Returns the longest time from the offer of a request to its collection since the last call.
    pub fn take_longest_request(&mut self) -> Duration {
        std::mem::take(&mut self.tally.longest_request)
    }

    /// Returns the number of requests in flight.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.queues.iter().map(GuestQueue::outstanding).sum()
    }

    /// Returns the in-flight region, as a front-end sees it.
    #[must_use]
    pub fn inflight(&self) -> &InflightArea {
        &self.inflight
    }

    /// Returns the connection, to send other messages over it.
    pub fn frontend(&mut self) -> Option<&mut Frontend> {
        self.frontend.as_mut()
    }

    /// Returns whether there is a connection, as far as the guest knows.
    #[must_use]
    pub fn connected(&self) -> bool {
        self.frontend.is_some()
    }
}

/// Connects and negotiates.
fn greet(path: &Path, shape: &Shape) -> Result<(Frontend, Negotiated)> {
    let mut frontend = Frontend::connect(path)?;
    let event_idx = if shape.event_idx { 0 } else { feature::RING_EVENT_IDX };
    let features = !(feature::RING_PACKED | feature::LOG_ALL | event_idx);
    let protocol = protocol::ALL_KNOWN | protocol::INFLIGHT_SHMFD;
    let negotiated = frontend.negotiate(features, protocol)?;
    if negotiated.protocol & protocol::INFLIGHT_SHMFD == 0 {
        let what = "no in-flight region is offered".into();
        return Err(Error::Reply { request: Request::GET_PROTOCOL_FEATURES.name(), what });
    }
    Ok((frontend, negotiated))
}
