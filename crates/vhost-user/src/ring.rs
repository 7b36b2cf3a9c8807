//! Settings of one ring, and whether they suffice to serve it.
//!
//! ```text
//!              every part known, and enabled
//!   stopped ---------------------------------> running
//!      ^                                          |
//!      +--- GET_VRING_BASE (forgets the kick) ----+
//!      +--- ENABLE(0) ----------------------------+
//!      +--- memory of the ring removed -----------+
//! ```
//! If a running ring must not see a change, the session stops the ring, applies the change and
//! starts it again.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use memory::Table;
use virtq::{Inflight, QueueConfig, QueueStart};

use crate::error::Refusal;
use crate::features::RING_EVENT_IDX;
use crate::message::RingAddr;

/// Notification of new entries by the guest.
#[derive(Debug, Default)]
pub(crate) enum Kick {
    /// The front-end has not set it, or not set it again after the ring stopped.
    #[default]
    Unset,
    /// The guest does not notify; the device polls the ring.
    Polled,
    /// The guest notifies through this eventfd.
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
    /// Value of the last `SET_VRING_ENABLE`. `None`: none was received.
    pub(crate) enabled: Option<bool>,
    /// Configuration with which the device serves the ring now. `None`: stopped.
    pub(crate) running: Option<QueueConfig>,
}

impl Ring {
    /// Returns whether all settings for a start are known and the ring is enabled.
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

    /// Translates the ring's addresses with `table`. Returns `None` while a part is unknown.
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

    /// Builds the parameters with which the device starts the queue.
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
