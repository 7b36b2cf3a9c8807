//! The host at a network: a TAP device whose queues are a port of the switch, one on each reactor.

mod line;
mod room;

use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::SystemTime;

use net::flow::QUEUES_MAX;
use net::header::Offloads;
use net::port::PortId;
use nic::{Attached, Life, PortCounts};
use reactor::Context;
use tap::{Origin, QueueError, Tap};
use vhost_user::Stop;

use super::{Lan, NicError, tell_counts};

/// A TAP device at a network. Dropping it unplugs the device, and waits for that.
#[derive(Debug)]
pub struct Uplink {
    lan: Arc<Lan>,
    port: PortId,
    name: String,
    fate: Arc<Fate>,
    made: SystemTime,
    thread: Option<JoinHandle<()>>,
}

/// How an uplink ends: once, by whoever is first.
#[derive(Debug)]
struct Fate {
    end: Stop,
    /// Why, if nobody wants it to.
    error: OnceLock<QueueError>,
}

impl Fate {
    /// One of the queues goes on no more. Never waits: reactors call it.
    fn fail(&self, error: QueueError) {
        // The others fail for the same reason.
        let _ = self.error.set(error);
        self.end.stop();
    }
}

/// What the control thread has.
struct Served {
    lan: Arc<Lan>,
    port: PortId,
    tap: Tap,
    queues: Vec<Attached>,
}

impl Uplink {
    /// Plugs the device of this name in as port `port`. It is made if it is not there, and goes with
    /// this then.
    ///
    /// # Errors
    /// [`NicError`], which names the device and what to do.
    pub fn open(lan: &Arc<Lan>, port: PortId, name: &str) -> Result<Self, NicError> {
        let os = |action| move |source| NicError::Os { action, source };
        let end = Stop::new().map_err(os("make a signal"))?;
        let fate = Arc::new(Fate { end, error: OnceLock::new() });
        let served = Served::start(lan, port, name, &fate)?;
        tracing::info!(tap = name, queues = served.queues.len(), "the host is at a port");
        let ends = Arc::clone(&fate);
        let thread = std::thread::Builder::new().name("uplink".into());
        let thread = thread.spawn(move || served.until(&ends));
        let thread = thread.map_err(os("start a control thread"));
        let thread = Some(thread.inspect_err(|_| lan.unplug(port))?);
        let made = SystemTime::now();
        Ok(Self { lan: Arc::clone(lan), port, name: name.into(), fate, made, thread })
    }

    /// Name of the device.
    pub fn name(&self) -> &str {
        &self.name
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
        self.fate.error.get().map(ToString::to_string)
    }

    /// What the host has sent and got, until it is at no port any more.
    pub fn counts(&self) -> PortCounts {
        self.lan.counts(self.port)
    }
}

impl Drop for Uplink {
    fn drop(&mut self) {
        self.fate.end.stop();
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Served {
    fn start(lan: &Arc<Lan>, port: PortId, name: &str, fate: &Arc<Fate>) -> Result<Self, NicError> {
        let reactors = lan.pool.reactors().len();
        let tap = Tap::open(name, reactors.min(QUEUES_MAX.into()), Origin::Either)?;
        let queues = lan.fabric.set_port(port, &lan.policy()).map_err(NicError::from);
        let queues = queues.and_then(|()| Self::queues(lan, port, &tap, fate));
        let queues = queues.inspect_err(|_| lan.unplug(port))?;
        Ok(Self { lan: Arc::clone(lan), port, tap, queues })
    }

    fn queues(
        lan: &Lan,
        port: PortId,
        tap: &Tap,
        fate: &Arc<Fate>,
    ) -> Result<Vec<Attached>, NicError> {
        let name = tap.name();
        let life = Life::host(port, Offloads::KERNEL);
        let fds = (0..tap.queues()).filter_map(|number| tap.queue(number));
        let mut queues = Vec::new();
        for ((number, fd), (reactor, _)) in (0..).zip(fds).zip(lan.pool.reactors()) {
            let (kick, fate) = (Arc::clone(&fd), Arc::clone(fate));
            let make =
                move |context: &mut Context<'_>, hub| line::make(context, hub, life, fd, fate);
            let queue = Attached::new(&lan.fabric, reactor, life, number, Some(kick), make);
            queues.push(queue.map_err(|source| NicError::Uplink { name: name.into(), source })?);
        }
        Ok(queues)
    }

    /// Sleeps until the end, which it sees to: the device's queues are stopped, and the port is
    /// gone. Others go on.
    fn until(self, fate: &Fate) {
        let Self { lan, port, tap, queues } = self;
        let waited = fate.end.wait(None, None);
        let name = tap.name();
        if let Some(error) = fate.error.get() {
            let next = "other ports go on; give the network its uplink again (network.uplink), or \
                        start ringway-net again";
            tracing::error!(tap = name, "the host is at no port any more: {error}; {next}");
        }
        if let Err(error) = waited {
            tracing::error!(tap = name, %error, "nobody can wait for the end of the uplink");
        }
        for queue in queues {
            // A reactor that has ended has ended its queue.
            let _ = queue.stop();
        }
        tell_counts(format_args!("tap:{name}"), &lan.fabric.counts(port));
        lan.unplug(port);
    }
}
