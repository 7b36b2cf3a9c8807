//! What a front-end has said about one ring, and whether that is enough to serve it.
//!
//! ```text
//!              every part known, and enabled
//!   stopped ---------------------------------> running
//!      ^                                          |
//!      +--- GET_VRING_BASE (forgets the kick) ----+
//!      +--- ENABLE(0) ----------------------------+
//!      +--- memory of the ring taken away --------+
//! ```
//! A change that a running ring must not see stops it first and starts it again after.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use memory::Table;
use virtq::{Inflight, QueueConfig, QueueStart};

use crate::error::Refusal;
use crate::features::RING_EVENT_IDX;
use crate::message::RingAddr;

/// How the guest announces new entries.
#[derive(Debug, Default)]
pub(crate) enum Kick {
    /// Not said yet, or the ring was stopped since.
    #[default]
    Unset,
    /// It does not: the ring is to be polled.
    Polled,
    /// Through this eventfd.
    Event(Arc<OwnedFd>),
}

/// One ring of a session.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    pub(crate) size: Option<u16>,
    pub(crate) addr: Option<RingAddr>,
    pub(crate) next_avail: Option<u16>,
    pub(crate) kick: Kick,
    pub(crate) call: Option<Arc<OwnedFd>>,
    pub(crate) err: Option<Arc<OwnedFd>>,
    /// What `SET_VRING_ENABLE` said last, if it ever came.
    pub(crate) enabled: Option<bool>,
    /// The ring as the device serves it now.
    pub(crate) running: Option<QueueConfig>,
}

impl Ring {
    /// Everything that is needed to start is known, and it may run.
    ///
    /// A ring starts disabled only if protocol features were negotiated.
    pub(crate) fn ready(&self, starts_enabled: bool) -> bool {
        self.running.is_none()
            && self.enabled.unwrap_or(starts_enabled)
            && self.size.is_some()
            && self.addr.is_some()
            && self.next_avail.is_some()
            && !matches!(self.kick, Kick::Unset)
    }

    /// The ring with its addresses as `table` has them; `None` while a part is unknown.
    ///
    /// # Errors
    /// [`Refusal::RingOutside`].
    pub(crate) fn resolve(
        &self,
        index: usize,
        table: &Table,
        features: u64,
    ) -> Result<Option<QueueConfig>, Refusal> {
        let (Some(size), Some(addr), Some(next_avail)) = (self.size, self.addr, self.next_avail)
        else {
            return Ok(None);
        };
        let guest = |part, addr| {
            table.user_to_guest(addr).ok_or(Refusal::RingOutside { index, part, addr })
        };
        Ok(Some(QueueConfig {
            size,
            desc: guest("descriptor table", addr.desc)?,
            avail: guest("available ring", addr.avail)?,
            used: guest("used ring", addr.used)?,
            next_avail,
            event_idx: features & RING_EVENT_IDX != 0,
        }))
    }

    /// Everything that the device gets.
    pub(crate) fn start(
        &self,
        index: u16,
        ring: QueueConfig,
        table: &Arc<Table>,
        features: u64,
        inflight: Option<Inflight>,
    ) -> QueueStart {
        let kick = match &self.kick {
            Kick::Event(fd) => Some(Arc::clone(fd)),
            Kick::Polled | Kick::Unset => None,
        };
        QueueStart {
            index,
            ring,
            table: Arc::clone(table),
            kick,
            call: self.call.clone(),
            err: self.err.clone(),
            features,
            inflight,
        }
    }
}
