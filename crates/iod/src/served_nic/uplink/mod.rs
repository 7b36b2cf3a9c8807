//! The host at a network: a TAP device whose queues form one switch port, one queue on each of its
//! reactors.

mod quiesce;
mod tap_queue;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use net::flow::QUEUES_MAX;
use net::header::Offloads;
use net::port::PortId;
use nic::{HostQueue, PortCounts, PortIncarnation};
use reactor::Context;
use tap::{QueueError, Tap, TapOrigin};
use vhost_user::StopSignal;

use super::{NicError, SwitchNetwork, log_counts};
use tap_queue::TapReader;

/// TAP device at a network. Dropping it unplugs the device, and waits until that is done.
#[derive(Debug)]
pub struct Uplink {
    switch_network: Arc<SwitchNetwork>,
    port: PortId,
    name: String,
    queues: usize,
    uplink_exit: Arc<UplinkExit>,
    made: SystemTime,
    /// Control thread, which sleeps until the end.
    thread: Option<JoinHandle<Option<Served>>>,
    /// Queues and device, while there is no control thread.
    rest: Option<Served>,
}

/// End of an uplink. It happens once, by the first cause.
#[derive(Debug)]
struct UplinkExit {
    end: StopSignal,
    /// True if the uplink is being quiesced and does not end ([`quiesce`]).
    rests: AtomicBool,
    /// Error that ended the uplink.
    error: OnceLock<QueueError>,
}

impl UplinkExit {
    fn new() -> Result<Arc<Self>, NicError> {
        let end = StopSignal::new().map_err(os("make a signal"))?;
        Ok(Arc::new(Self { end, rests: AtomicBool::new(false), error: OnceLock::new() }))
    }

    /// Ends the uplink after a failure of one queue. Never waits, because reactors call it.
    fn fail(&self, error: QueueError) {
        // The other queues fail for the same reason.
        let _ = self.error.set(error);
        self.end.stop();
    }
}

fn os(action: &'static str) -> impl Fn(std::io::Error) -> NicError {
    move |source| NicError::Os { action, source }
}

/// Queues and device of the control thread.
#[derive(Debug)]
struct Served {
    switch_network: Arc<SwitchNetwork>,
    port: PortId,
    tap: Tap,
    queues: Vec<HostQueue>,
}

impl Uplink {
    /// Plugs the device of this name in as port `port`. A device that does not exist is created,
    /// and removed at the end. If another process still uses the device, the call waits up to
    /// `patience`.
    ///
    /// # Errors
    /// [`NicError`], which names the device and the remedy.
    pub fn open(
        switch_network: &Arc<SwitchNetwork>,
        port: PortId,
        name: &str,
        patience: Duration,
    ) -> Result<Self, NicError> {
        let queues = switch_network.pool.of_networks().len().min(QUEUES_MAX.into());
        let tap = Tap::open_within(name, queues, TapOrigin::Either, patience)?;
        let mut uplink = Self::resting(switch_network, port, tap)?;
        uplink.attach()?;
        uplink.begin()?;
        Ok(uplink)
    }

    /// Returns the name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of queues of the device. A former process may have used more reactors
    /// than this one.
    pub fn queues(&self) -> usize {
        self.queues
    }

    /// Returns its port.
    pub fn port(&self) -> PortId {
        self.port
    }

    /// Returns the time when it was plugged in.
    pub(super) fn made(&self) -> SystemTime {
        self.made
    }

    /// Returns the reason why the uplink has failed, if it has.
    pub fn failed(&self) -> Option<String> {
        self.uplink_exit.error.get().map(ToString::to_string)
    }

    /// Returns the sent and received frames and bytes of the host, until the uplink ends.
    pub fn counts(&self) -> PortCounts {
        self.switch_network.counts(self.port)
    }
}

impl Drop for Uplink {
    fn drop(&mut self) {
        self.uplink_exit.end.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported already.
            let _ = thread.join();
        }
        if let Some(served) = self.rest.take() {
            served.end(&self.uplink_exit);
        }
    }
}

impl Served {
    /// Serves each queue of the device on a reactor. No frames are read from the host yet.
    fn attach(&mut self, uplink_exit: &Arc<UplinkExit>) -> Result<(), NicError> {
        let name = self.tap.name();
        let port_incarnation = PortIncarnation::host(self.port, Offloads::KERNEL);
        let fds = (0..self.tap.queues()).filter_map(|number| self.tap.queue(number));
        // A former process may have used more reactors than this one.
        let reactors = self.switch_network.pool.of_networks();
        let places = reactors.iter().cycle();
        for ((number, fd), reactor) in (0..).zip(fds).zip(places) {
            let (kick, uplink_exit) = (Arc::clone(&fd), Arc::clone(uplink_exit));
            let make = move |context: &mut Context<'_>, hub| {
                tap_queue::make(context, hub, port_incarnation, fd, uplink_exit)
            };
            let made = HostQueue::new(
                &self.switch_network.fabric,
                reactor,
                port_incarnation,
                number,
                Some(kick),
                make,
            );
            let failed = |source| NicError::Uplink { name: name.into(), source };
            self.queues.push(made.map_err(failed)?);
        }
        Ok(())
    }

    /// Sleeps until the uplink ends, and ends it. If it is being quiesced, returns queues and
    /// device instead.
    fn until(self, uplink_exit: &UplinkExit) -> Option<Self> {
        if let Err(error) = uplink_exit.end.wait(None, None) {
            let tap = self.tap.name();
            tracing::error!(tap, %error, "cannot wait for the end of the uplink");
        }
        if uplink_exit.rests.load(Ordering::Acquire) && uplink_exit.error.get().is_none() {
            return Some(self);
        }
        self.end(uplink_exit);
        None
    }

    /// Stops the device's queues and removes the port. Other ports continue.
    fn end(self, uplink_exit: &UplinkExit) {
        let Self { switch_network, port, tap, queues } = self;
        let name = tap.name();
        if let Some(error) = uplink_exit.error.get() {
            let next = "other ports continue; set the network's uplink again (network.uplink), or \
                        restart ringway-net";
            tracing::error!(tap = name, "uplink closed: {error}; {next}");
        }
        for queue in queues {
            // A reactor that has ended has stopped its queue.
            let _ = queue.stop();
        }
        log_counts(format_args!("tap:{name}"), &switch_network.fabric.counts(port));
        switch_network.unplug(port);
    }
}
