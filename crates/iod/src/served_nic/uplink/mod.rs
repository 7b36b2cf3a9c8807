//! The host at a network: a TAP device whose queues are a port of the switch, one on each of its reactors.

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

/// A TAP device at a network. Dropping it unplugs the device, and waits for that.
#[derive(Debug)]
pub struct Uplink {
    switch_network: Arc<SwitchNetwork>,
    port: PortId,
    name: String,
    queues: usize,
    uplink_exit: Arc<UplinkExit>,
    made: SystemTime,
    /// Sleeps until the end.
    thread: Option<JoinHandle<Option<Served>>>,
    /// What the control thread had, while there is none.
    rest: Option<Served>,
}

/// How an uplink ends: once, by whoever is first.
#[derive(Debug)]
struct UplinkExit {
    end: StopSignal,
    /// It does not end: it is to rest ([`rest`]).
    rests: AtomicBool,
    /// Why, if nobody wants it to.
    error: OnceLock<QueueError>,
}

impl UplinkExit {
    fn new() -> Result<Arc<Self>, NicError> {
        let end = StopSignal::new().map_err(os("make a signal"))?;
        Ok(Arc::new(Self { end, rests: AtomicBool::new(false), error: OnceLock::new() }))
    }

    /// One of the queues goes on no more. Never waits: reactors call it.
    fn fail(&self, error: QueueError) {
        // The others fail for the same reason.
        let _ = self.error.set(error);
        self.end.stop();
    }
}

fn os(action: &'static str) -> impl Fn(std::io::Error) -> NicError {
    move |source| NicError::Os { action, source }
}

/// What the control thread has.
#[derive(Debug)]
struct Served {
    switch_network: Arc<SwitchNetwork>,
    port: PortId,
    tap: Tap,
    queues: Vec<HostQueue>,
}

impl Uplink {
    /// Plugs the device of this name in as port `port`. It is made if it is not there, and goes with
    /// this then. If somebody has it, that may go on for `patience`.
    ///
    /// # Errors
    /// [`NicError`], which names the device and what to do.
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

    /// Name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Queues that the device has: a process before may have had more reactors than this one.
    pub fn queues(&self) -> usize {
        self.queues
    }

    /// Its port.
    pub fn port(&self) -> PortId {
        self.port
    }

    /// When it was plugged in.
    pub(super) fn made(&self) -> SystemTime {
        self.made
    }

    /// Why the host is at no port any more, if it is not.
    pub fn failed(&self) -> Option<String> {
        self.uplink_exit.error.get().map(ToString::to_string)
    }

    /// What the host has sent and got, until it is at no port any more.
    pub fn counts(&self) -> PortCounts {
        self.switch_network.counts(self.port)
    }
}

impl Drop for Uplink {
    fn drop(&mut self) {
        self.uplink_exit.end.stop();
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
        if let Some(served) = self.rest.take() {
            served.end(&self.uplink_exit);
        }
    }
}

impl Served {
    /// Serves each queue of the device by a reactor. Nothing comes of the host yet.
    fn attach(&mut self, uplink_exit: &Arc<UplinkExit>) -> Result<(), NicError> {
        let name = self.tap.name();
        let port_incarnation = PortIncarnation::host(self.port, Offloads::KERNEL);
        let fds = (0..self.tap.queues()).filter_map(|number| self.tap.queue(number));
        // A process before may have had more reactors than this one.
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

    /// Sleeps until the end, which it sees to, or until it is to rest: then all is left as it is.
    fn until(self, uplink_exit: &UplinkExit) -> Option<Self> {
        if let Err(error) = uplink_exit.end.wait(None, None) {
            let tap = self.tap.name();
            tracing::error!(tap, %error, "nobody can wait for the end of the uplink");
        }
        if uplink_exit.rests.load(Ordering::Acquire) && uplink_exit.error.get().is_none() {
            return Some(self);
        }
        self.end(uplink_exit);
        None
    }

    /// The device's queues are stopped, and the port is gone. Others go on.
    fn end(self, uplink_exit: &UplinkExit) {
        let Self { switch_network, port, tap, queues } = self;
        let name = tap.name();
        if let Some(error) = uplink_exit.error.get() {
            let next = "other ports go on; give the network its uplink again (network.uplink), or \
                        start ringway-net again";
            tracing::error!(tap = name, "the host is at no port any more: {error}; {next}");
        }
        for queue in queues {
            // A reactor that has ended has ended its queue.
            let _ = queue.stop();
        }
        log_counts(format_args!("tap:{name}"), &switch_network.fabric.counts(port));
        switch_network.unplug(port);
    }
}
