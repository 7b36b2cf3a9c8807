//! Stop and continue of the guest's machine.

use super::ReconnectingGuest;
use crate::error::{Error, Result};
use crate::raw::Frontend;
use crate::raw::wire::Request;

/// A stopped machine: its front-end stays connected, its rings are stopped.
#[derive(Debug)]
pub struct Stopped {
    frontend: Frontend,
    bases: Vec<u16>,
}

impl ReconnectingGuest {
    /// Stops the machine like QEMU's `stop`: disables every ring, then reads the base of each.
    /// Requests in flight stay in flight.
    ///
    /// # Errors
    /// [`Error::Closed`] without a connection, or if it ends before the reply.
    pub fn stop(&mut self) -> Result<Stopped> {
        let closed = || Error::Closed { what: "the stop of the machine".into() };
        let mut frontend = self.frontend.take().ok_or_else(closed)?;
        let queues = 0..u32::from(self.shape.queues);
        for index in queues.clone() {
            frontend.set_vring(Request::SET_VRING_ENABLE, index, 0)?;
        }
        let mut bases = Vec::new();
        for index in queues {
            let base = frontend.get_vring_base(index)?;
            bases.push(u16::try_from(base).map_err(|_| Error::Reply {
                request: Request::GET_VRING_BASE.name(),
                what: format!("index {base} is more than 16 bits"),
            })?);
        }
        Ok(Stopped { frontend, bases })
    }

    /// Continues the machine like QEMU's `cont`: sends the region and the rings again, which
    /// continue where they stopped.
    ///
    /// # Errors
    /// The error of the first step that fails.
    pub fn cont(&mut self, stopped: Stopped) -> Result<()> {
        let Stopped { frontend, bases } = stopped;
        self.start(frontend, Some(&bases))
    }
}
