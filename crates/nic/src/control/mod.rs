//! The control queue of a port: what its driver asks for, told to all hubs.
//!
//! ```text
//! control queue: pop -> parse -> Desk::take -> to every hub -> when all have heard it: answer
//! ```
//! The command is answered when every hub does as it says, so that a driver that gives up queues gets
//! nothing there after that (virtio 1.2, 5.1.6.5.5.1). Nobody waits for it: the hubs are told by
//! letters, and the last of them wakes the queue. The next command is popped after that.

mod queue;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use net::Mac;
use net::control::{Command, CommandError, ControlFeatures, ControlSettings};
use net::port::PortId;
use reactor::Stopped;

use crate::fabric::Fabric;
pub(crate) use queue::{ControlQueue, PendingAck};

/// What the driver of a port asks for, from the first start of its control queue to the end of the
/// port's [`crate::PortIncarnation`]. The control queue may be stopped and started in between.
#[derive(Debug)]
pub struct ControlQueueState {
    fabric: Arc<Fabric>,
    port: PortId,
    control_features: ControlFeatures,
    control_settings: Mutex<ControlSettings>,
}

impl ControlQueueState {
    /// Nothing was asked for yet, and all hubs know that: the port uses one pair of queues.
    ///
    /// # Errors
    /// [`Stopped`]: a reactor has ended.
    pub fn open(
        fabric: &Arc<Fabric>,
        port: PortId,
        control_features: ControlFeatures,
        address: Mac,
    ) -> Result<Arc<Self>, Stopped> {
        Self::resume(fabric, port, control_features, ControlSettings::nothing(address))
    }

    /// This was asked for, of another process perhaps, and all hubs know it.
    ///
    /// # Errors
    /// [`Stopped`]: a reactor has ended.
    pub fn resume(
        fabric: &Arc<Fabric>,
        port: PortId,
        control_features: ControlFeatures,
        control_settings: ControlSettings,
    ) -> Result<Arc<Self>, Stopped> {
        let fabric = Arc::clone(fabric);
        fabric.set_asked(port, Some(Arc::new(control_settings.clone())))?;
        Ok(Arc::new(Self {
            fabric,
            port,
            control_features,
            control_settings: Mutex::new(control_settings),
        }))
    }

    /// Nobody asks for anything any more, and all hubs know that. The control queue is stopped.
    ///
    /// # Errors
    /// [`Stopped`]: a reactor has ended.
    pub fn close(&self) -> Result<(), Stopped> {
        self.fabric.set_asked(self.port, None)
    }

    /// All that was asked for.
    pub fn all_asked(&self) -> ControlSettings {
        self.asked().clone()
    }

    /// The port's address, as its driver has set it last.
    pub fn address(&self) -> Mac {
        self.asked().address()
    }

    /// The hubs that know of it.
    pub(crate) fn fabric(&self) -> &Arc<Fabric> {
        &self.fabric
    }

    /// Whose desk it is.
    pub(crate) fn port(&self) -> PortId {
        self.port
    }

    /// Takes a command; what all of them come to then.
    fn take(&self, bytes: &[u8]) -> Result<ControlSettings, CommandError> {
        let command = Command::parse(bytes, self.control_features)?;
        let mut control_settings = self.asked();
        control_settings.apply(command);
        Ok(control_settings.clone())
    }

    fn asked(&self) -> MutexGuard<'_, ControlSettings> {
        // Every change is a whole step.
        self.control_settings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
