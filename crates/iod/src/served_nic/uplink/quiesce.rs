//! An uplink that rests, so that another process goes on with its device, or this one.
//!
//! ```text
//!   served --begin_rest--> nothing comes of the host --end_rest--> resting --attach, begin--> served
//! ```
//! In between the switch passes on what has come. What the host sends meanwhile waits in the device.

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

/// What an inlet does until it is done with something.
type Step = fn(&mut TapReader, &mut Context<'_>) -> bool;

impl Uplink {
    /// A device at port `port`, where nothing comes and goes before [`Self::attach`] and
    /// [`Self::begin`].
    ///
    /// # Errors
    /// The switch does not take it.
    pub(crate) fn resting(
        switch_network: &Arc<SwitchNetwork>,
        port: PortId,
        tap: Tap,
    ) -> Result<Self, NicError> {
        let (uplink_exit, name) = (UplinkExit::new()?, tap.name().to_owned());
        let queues = tap.queues();
        // All that the host reaches is behind it.
        let policy = PortPolicy { stations: Some(u32::MAX), ..switch_network.policy() };
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

    /// The same of a device that another process has opened by this name.
    ///
    /// # Errors
    /// They are no queues of a device, or the switch does not take it.
    pub(crate) fn adopt(
        switch_network: &Arc<SwitchNetwork>,
        port: PortId,
        name: &str,
        queues: Vec<OwnedFd>,
    ) -> Result<Self, NicError> {
        Self::resting(switch_network, port, Tap::adopt(name, queues)?)
    }

    /// Takes nothing more of the host, and passes on what was taken. One that has failed does not
    /// rest: it is no more.
    ///
    /// # Errors
    /// It is not done by `deadline`.
    pub(crate) fn begin_quiesce(&mut self, deadline: Instant) -> Result<(), NicError> {
        self.uplink_exit.rests.store(true, Ordering::Release);
        self.uplink_exit.end.stop();
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            self.rest = thread.join().ok().flatten();
        }
        self.all(TapReader::rest, deadline)
    }

    /// Gives the host nothing more; what was given has arrived.
    ///
    /// # Errors
    /// It is not done by `deadline`.
    pub(crate) fn finish_quiesce(&mut self, deadline: Instant) -> Result<(), NicError> {
        self.all(TapReader::has_given, deadline)?;
        let queues = self.rest.iter_mut().flat_map(|served| served.queues.drain(..));
        queues.for_each(stop);
        Ok(())
    }

    /// Its device while it rests.
    pub(crate) fn device(&self) -> Option<&Tap> {
        self.rest.as_ref().map(|served| &served.tap)
    }

    /// The host gets frames from now on; none come of it before [`Self::begin`].
    ///
    /// # Errors
    /// No descriptors or no memory.
    pub(crate) fn attach(&mut self) -> Result<(), NicError> {
        let Some(served) = &mut self.rest else { return Ok(()) };
        // Whoever did not come to rest begins anew.
        served.queues.drain(..).for_each(stop);
        self.uplink_exit = UplinkExit::new()?;
        served.attach(&self.uplink_exit)
    }

    /// After [`Self::attach`]: takes what the host sends.
    ///
    /// # Errors
    /// The process can have no more threads.
    pub(crate) fn begin(&mut self) -> Result<(), NicError> {
        let Some(served) = self.rest.take() else { return Ok(()) };
        for queue in &served.queues {
            queue
                .with(|tap_reader: &mut TapReader, _| tap_reader.go_on())
                .map_err(FabricError::from)?;
        }
        tracing::info!(tap = self.name, queues = served.queues.len(), "the host is at a port");
        let uplink_exit = Arc::clone(&self.uplink_exit);
        let thread = std::thread::Builder::new().name("uplink".into());
        let thread = thread.spawn(move || served.until(&uplink_exit));
        let switch_network = &self.switch_network;
        let failed = |_: &NicError| switch_network.unplug(self.port);
        self.thread = Some(thread.map_err(os("start a control thread")).inspect_err(failed)?);
        Ok(())
    }

    /// Another process has the device: closes what is left of it here.
    pub(crate) fn part(&mut self) {
        self.rest = None;
    }

    /// Has all inlets do something until they are done with it.
    fn all(&self, step: Step, deadline: Instant) -> Result<(), NicError> {
        for queue in self.rest.iter().flat_map(|served| &served.queues) {
            // Each call is a turn of the reactor, at the end of which the kernel has its due.
            while !queue.with(step).map_err(FabricError::from)? {
                if Instant::now() >= deadline {
                    return Err(NicError::Restless { name: self.name.clone() });
                }
            }
        }
        Ok(())
    }
}

/// Takes and gives nothing more.
fn stop(queue: HostQueue) {
    // A reactor that has ended has ended its queue.
    let _ = queue.stop();
}
