//! Quiescing of an uplink, so that another process or this one can continue with its device.
//!
//! ```text
//!   served --begin_quiesce--> nothing read from the host --finish_quiesce--> quiesced
//!      ^                                                                        |
//!      +---------------------------attach, begin--------------------------------+
//! ```
//! In between, the switch forwards the frames that have arrived. New frames of the host wait in the
//! device.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime};

use net::port::{PortId, PortPolicy};
use nic::{FabricError, HostQueue};
use reactor::Context;
use tap::Tap;

use super::{Served, TapReader, Uplink, UplinkExit, os};
use crate::served_nic::{NicError, SwitchNetwork};

/// Step of a reader, repeated until it returns true.
type Step = fn(&mut TapReader, &mut Context<'_>) -> bool;

impl Uplink {
    /// Creates an uplink at port `port` without traffic. [`Self::attach`] and [`Self::begin`] start
    /// it.
    ///
    /// # Errors
    /// The switch refuses it.
    pub(crate) fn resting(
        switch_network: &Arc<SwitchNetwork>,
        port: PortId,
        tap: Tap,
    ) -> Result<Self, NicError> {
        let (uplink_exit, name) = (UplinkExit::new()?, tap.name().to_owned());
        let queues = tap.queues();
        // All stations that the host can reach are behind this port.
        let policy = PortPolicy { max_stations: Some(u32::MAX), ..switch_network.policy() };
        let plugged = switch_network.fabric.set_port(port, &policy);
        plugged.inspect_err(|_| switch_network.unplug(port))?;
        let rest = Some(Served {
            switch_network: Arc::clone(switch_network),
            port,
            tap,
            queues: Vec::new(),
        });
        let (switch_network, made) = (Arc::clone(switch_network), SystemTime::now());
        Ok(Self { switch_network, port, name, queues, uplink_exit, made, thread: None, rest })
    }

    /// Creates an uplink without traffic for a device that another process has opened by this name.
    ///
    /// # Errors
    /// The descriptors are not queues of a device, or the switch refuses it.
    pub(crate) fn adopt(
        switch_network: &Arc<SwitchNetwork>,
        port: PortId,
        name: &str,
        queues: Vec<OwnedFd>,
    ) -> Result<Self, NicError> {
        Self::resting(switch_network, port, Tap::adopt(name, queues)?)
    }

    /// Stops reading from the host, and forwards the frames that were read. A failed uplink is not
    /// quiesced, because it has ended.
    ///
    /// # Errors
    /// It is not done by `deadline`.
    pub(crate) fn begin_quiesce(&mut self, deadline: Instant) -> Result<(), NicError> {
        self.uplink_exit.rests.store(true, Ordering::Release);
        self.uplink_exit.end.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported already.
            self.rest = thread.join().ok().flatten();
        }
        self.all(TapReader::rest, deadline)
    }

    /// Stops writing to the host, after all accepted frames have been written.
    ///
    /// # Errors
    /// It is not done by `deadline`.
    pub(crate) fn finish_quiesce(&mut self, deadline: Instant) -> Result<(), NicError> {
        self.all(TapReader::has_given, deadline)?;
        let queues = self.rest.iter_mut().flat_map(|served| served.queues.drain(..));
        queues.for_each(stop);
        Ok(())
    }

    /// Returns its device while it is quiesced.
    pub(crate) fn device(&self) -> Option<&Tap> {
        self.rest.as_ref().map(|served| &served.tap)
    }

    /// Writes frames to the host from now on. No frames are read from it before [`Self::begin`].
    ///
    /// # Errors
    /// No descriptors or no memory is left.
    pub(crate) fn attach(&mut self) -> Result<(), NicError> {
        let Some(served) = &mut self.rest else { return Ok(()) };
        // An uplink that was not completely quiesced starts again.
        served.queues.drain(..).for_each(stop);
        self.uplink_exit = UplinkExit::new()?;
        served.attach(&self.uplink_exit)
    }

    /// Reads frames from the host, after [`Self::attach`].
    ///
    /// # Errors
    /// The process cannot start more threads.
    pub(crate) fn begin(&mut self) -> Result<(), NicError> {
        let Some(served) = self.rest.take() else { return Ok(()) };
        for queue in &served.queues {
            queue
                .with(|tap_reader: &mut TapReader, _| tap_reader.unquiesce())
                .map_err(FabricError::from)?;
        }
        tracing::info!(tap = self.name, queues = served.queues.len(), "uplink attached");
        let uplink_exit = Arc::clone(&self.uplink_exit);
        let thread = std::thread::Builder::new().name("uplink".into());
        let thread = thread.spawn(move || served.until(&uplink_exit));
        let switch_network = &self.switch_network;
        let failed = |_: &NicError| switch_network.unplug(self.port);
        self.thread = Some(thread.map_err(os("start a control thread")).inspect_err(failed)?);
        Ok(())
    }

    /// Closes the rest of the device here, because another process uses it.
    pub(crate) fn close_handed_over(&mut self) {
        self.rest = None;
    }

    /// Repeats a step on all readers until it is done.
    fn all(&self, step: Step, deadline: Instant) -> Result<(), NicError> {
        for queue in self.rest.iter().flat_map(|served| &served.queues) {
            // Each call is one turn of the reactor, which submits to the kernel at its end.
            while !queue.with(step).map_err(FabricError::from)? {
                if Instant::now() >= deadline {
                    return Err(NicError::Restless { name: self.name.clone() });
                }
            }
        }
        Ok(())
    }
}

/// Stops reading and writing.
fn stop(queue: HostQueue) {
    // A reactor that has ended has stopped its queue.
    let _ = queue.stop();
}
