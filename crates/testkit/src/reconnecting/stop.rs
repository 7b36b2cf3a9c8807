//! The machine of the guest is stopped and continued.

use super::ReconnectingGuest;
use crate::error::{Error, Result};
use crate::raw::Frontend;
use crate::raw::wire::Request;

/// A machine that does not run: its front-end stays connected, its rings are stopped.
#[derive(Debug)]
pub struct Stopped {
    frontend: Frontend,
    bases: Vec<u16>,
}

impl ReconnectingGuest {
    /// As QEMU's `stop`: disables every ring, then asks where each would go on. What is out stays
    /// out.
    ///
    /// # Errors
    /// [`Error::Closed`] without a connection, or when it ends instead of an answer.
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

    /// As QEMU's `cont`: brings the region and the rings again, from where they were stopped.
    ///
    /// # Errors
    /// Whatever the first failing step gives.
    pub fn cont(&mut self, stopped: Stopped) -> Result<()> {
        let Stopped { frontend, bases } = stopped;
        self.start(frontend, Some(&bases))
    }
}
