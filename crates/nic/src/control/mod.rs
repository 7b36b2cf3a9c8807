//! Control queue of a port: applies the driver's commands on all hubs.
//!
//! ```text
//! control queue: pop -> parse -> ControlQueueState::take -> to every hub -> all applied: answer
//! ```
//! A command is answered after every hub has applied it. So a driver that stops using queues
//! receives nothing there after the answer (virtio 1.2, 5.1.6.5.5.1). No thread waits for that:
//! tasks carry the settings to the hubs, and the last of them wakes the queue. The queue then pops
//! the next command.

mod queue;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use net::Mac;
use net::control::{Command, CommandError, ControlFeatures, ControlSettings};
use net::port::PortId;
use reactor::Stopped;

use crate::fabric::Fabric;
pub(crate) use queue::{ControlQueue, PendingAck};

/// Settings that the driver of a port has requested, from the first start of its control queue to
/// the end of the [`crate::PortIncarnation`]. The control queue may be stopped and started in
/// between.
#[derive(Debug)]
pub struct ControlQueueState {
    fabric: Arc<Fabric>,
    port: PortId,
    control_features: ControlFeatures,
    control_settings: Mutex<ControlSettings>,
}

impl ControlQueueState {
    /// Creates the state without requests and applies it on all hubs: the port uses one queue pair.
    ///
    /// # Errors
    /// [`Stopped`] if a reactor has ended.
    pub fn open(
        fabric: &Arc<Fabric>,
        port: PortId,
        control_features: ControlFeatures,
        address: Mac,
    ) -> Result<Arc<Self>, Stopped> {
        Self::resume(fabric, port, control_features, ControlSettings::nothing(address))
    }

    /// Creates the state with these settings, possibly from another process, and applies it on all
    /// hubs.
    ///
    /// # Errors
    /// [`Stopped`] if a reactor has ended.
    pub fn resume(
        fabric: &Arc<Fabric>,
        port: PortId,
        control_features: ControlFeatures,
        control_settings: ControlSettings,
    ) -> Result<Arc<Self>, Stopped> {
        let fabric = Arc::clone(fabric);
        fabric.set_control_settings(port, Some(Arc::new(control_settings.clone())))?;
        Ok(Arc::new(Self {
            fabric,
            port,
            control_features,
            control_settings: Mutex::new(control_settings),
        }))
    }

    /// Removes the settings from all hubs. The control queue must be stopped.
    ///
    /// # Errors
    /// [`Stopped`] if a reactor has ended.
    pub fn close(&self) -> Result<(), Stopped> {
        self.fabric.set_control_settings(self.port, None)
    }

    /// Returns all requested settings.
    pub fn all_asked(&self) -> ControlSettings {
        self.asked().clone()
    }

    /// Returns the port's address, as its driver has set it last.
    pub fn address(&self) -> Mac {
        self.asked().address()
    }

    /// Returns the fabric with the hubs of the port.
    pub(crate) fn fabric(&self) -> &Arc<Fabric> {
        &self.fabric
    }

    /// Returns the port of the control queue.
    pub(crate) fn port(&self) -> PortId {
        self.port
    }

    /// Applies a command and returns the resulting settings.
    fn take(&self, bytes: &[u8]) -> Result<ControlSettings, CommandError> {
        let command = Command::parse(bytes, self.control_features)?;
        let mut control_settings = self.asked();
        control_settings.apply(command);
        Ok(control_settings.clone())
    }

    fn asked(&self) -> MutexGuard<'_, ControlSettings> {
        // A poisoned lock is usable: every change is a single step.
        self.control_settings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
