//! NICs under their sockets, the host at its device, and the switch between them.

mod control;
mod flows;
mod handover_state;
mod poll;
mod ports;
mod quiesce;
mod scrape;
mod serve;
mod session_backend;
mod start_barrier;
mod switch_report;
mod uplink;

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use model::nic::DEFAULT_FLOOD;
use model::spec::PollSpec;
use net::config::Config;
use net::features::OfferedFeatures;
use net::port::{PortId, PortPolicy, Rate, RateLimiter};
use net::switch::{LearntStation, NetworkId, NetworkPolicy};
use net::{Mac, Reason};
use nic::{Fabric, FabricError, PortCounts};
use reactor::{PollPolicy, Stopped};
use vhost_user::{SessionHandle, SocketError, StopSignal};

use crate::pool::Pool;
use crate::served_disk::PollOverrides;
pub use control::NetControl;
pub(crate) use handover_state::{IncomingNic, NicSessionState, WriteError};
pub(crate) use ports::{PortOwner, ports, residences};
use quiesce::FrozenSession;
pub(crate) use quiesce::QuiescedNic;
pub use scrape::NetMetrics;
pub use serve::NicSessionThread;
pub(crate) use start_barrier::StartBarrier;
pub use switch_report::SwitchReporter;
pub use uplink::Uplink;

/// Why a NIC or an uplink is not served.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// The switch does not take it.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// Its socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The host's device cannot be opened.
    #[error(transparent)]
    Tap(#[from] tap::TapError),
    /// No frames can be taken of the host's device or given to it.
    #[error("TAP device {name} cannot be served")]
    Uplink {
        /// Name of the device.
        name: String,
        /// Why not.
        #[source]
        source: nic::QueueError,
    },
    /// The kernel does not end what it was given.
    #[error("TAP device {name} does not come to rest")]
    Restless {
        /// Name of the device.
        name: String,
    },
    /// The system refuses something that it needs.
    #[error("cannot {action}")]
    Os {
        /// What was tried.
        action: &'static str,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
}

/// One network of a switch, and the reactors that serve it.
#[derive(Debug)]
pub struct SwitchNetwork {
    fabric: Arc<Fabric>,
    pool: Arc<Pool>,
    network: NetworkId,
    mtu: u16,
}

/// A switch on those reactors of a pool that have switches, without networks.
///
/// # Errors
/// The reactors cannot be linked.
pub fn switch(pool: &Pool) -> Result<Arc<Fabric>, NicError> {
    Ok(Fabric::new(pool.of_networks())?)
}

/// The limit of what a port sends to many; see [`model::served_nic::NicConfig::flood`].
pub fn flood_limit(frames: Option<u32>) -> Option<Arc<RateLimiter>> {
    let per_second = u64::from(frames.unwrap_or(DEFAULT_FLOOD));
    let rate = Rate { per_second, burst: per_second };
    (per_second > 0).then(|| Arc::new(RateLimiter::new(rate, reactor::clock_ns())))
}

impl SwitchNetwork {
    /// A switch with one network without ports, for packets of `mtu` bytes.
    ///
    /// # Errors
    /// The reactors cannot be linked.
    pub fn new(pool: Arc<Pool>, mtu: u16) -> Result<Arc<Self>, NicError> {
        let fabric = switch(&pool)?;
        Self::on(fabric, pool, NetworkId(0), mtu)
    }

    /// A network without ports, of this number, on the switch of a pool's reactors.
    ///
    /// # Errors
    /// A reactor has ended, or there is no such number.
    pub fn on(
        fabric: Arc<Fabric>,
        pool: Arc<Pool>,
        network: NetworkId,
        mtu: u16,
    ) -> Result<Arc<Self>, NicError> {
        fabric.set_network(network, NetworkPolicy { mtu, ..NetworkPolicy::default() })?;
        Ok(Arc::new(Self { fabric, pool, network, mtu }))
    }

    /// What a port of it is that has no limits.
    pub fn policy(&self) -> PortPolicy {
        PortPolicy::open(self.network)
    }

    /// Number of the network in its switch.
    pub fn number(&self) -> NetworkId {
        self.network
    }

    /// Most bytes of a packet.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// What a port has sent and got.
    pub fn counts(&self, port: PortId) -> PortCounts {
        self.fabric.counts(port)
    }

    /// Has all that is on its way between reactors arrive. Nobody sends any more.
    ///
    /// # Errors
    /// A reactor has ended.
    pub(crate) fn drain(&self) -> Result<(), NicError> {
        Ok(self.fabric.drain().map_err(FabricError::from)?)
    }

    /// Where stations are, in all networks of its switch.
    ///
    /// # Errors
    /// A reactor has ended.
    pub(crate) fn stations(&self) -> Result<Vec<LearntStation>, Stopped> {
        self.fabric.stations()
    }

    /// Stations are where another process knew them to be.
    ///
    /// # Errors
    /// A reactor has ended.
    pub(crate) fn restore_stations(&self, stations: &Arc<[LearntStation]>) -> Result<(), Stopped> {
        self.fabric.recall(stations)
    }

    /// Unplugs a port whose queues are stopped.
    fn unplug(&self, port: PortId) {
        // On a reactor that has ended nobody sends to it.
        let _ = self.fabric.remove_port(port);
    }

    /// Takes the network out of its switch. All its ports are unplugged.
    pub fn remove(&self) {
        // A reactor that has ended has none.
        let _ = self.fabric.remove_network(self.network);
    }

    /// How queues of its ports wait for frames.
    pub fn set_polling(&self, policy: PollPolicy) {
        self.fabric.set_polling(policy);
    }
}

/// Most pairs of queues of a NIC: with its control queue they are 255, and a front-end can name 256
/// (`VHOST_USER_SET_VRING_KICK` has eight bits for that).
pub const PAIRS_MAX: u16 = 127;

/// What a NIC is to be.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// Number of its port, unique in its switch.
    pub port: PortId,
    /// What it may do at first.
    pub policy: PortPolicy,
    /// Its socket, for logs too.
    pub socket: PathBuf,
    /// Pairs of queues, taken for 1 to [`PAIRS_MAX`].
    pub pairs: u16,
    /// Offer several pairs to drivers, if there are several, and a control queue.
    pub multiqueue: bool,
    /// What its driver reads, if its front-end has no address of its own for it.
    pub mac: Mac,
    /// How its queues wait, where that is asked of it alone.
    pub poll: PollSpec,
}

/// What a NIC may do.
#[derive(Debug)]
struct NicPermissions {
    now: PortPolicy,
    /// The same, with the last caps that there were where there are none now: `xe` changes one in two
    /// steps, and what was used of it counts.
    last: PortPolicy,
}

/// One NIC.
#[derive(Debug)]
pub struct ServedNic {
    switch_network: Arc<SwitchNetwork>,
    spec: NicConfig,
    offered_features: OfferedFeatures,
    config: Config,
    /// The front-end that is connected now, if any.
    session: Mutex<Option<SessionHandle>>,
    /// Ends the control thread between sessions.
    stop: Mutex<StopSignal>,
    /// The control thread ends because the NIC is to stand still, and leaves its session here.
    still: AtomicBool,
    frozen: Mutex<Option<FrozenSession>>,
    poll: Mutex<PollOverrides>,
    nic_permissions: Mutex<NicPermissions>,
    made: SystemTime,
}

impl ServedNic {
    /// Plugs it into its network.
    ///
    /// # Errors
    /// The network takes no more ports, or there are no descriptors.
    pub fn new(
        switch_network: &Arc<SwitchNetwork>,
        spec: NicConfig,
    ) -> Result<Arc<Self>, NicError> {
        let make = |source| NicError::Os { action: "make a signal", source };
        let stop = Mutex::new(StopSignal::new().map_err(make)?);
        switch_network
            .fabric
            .set_port(spec.port, &spec.policy)
            .inspect_err(|_| switch_network.unplug(spec.port))?;
        let pairs = if spec.multiqueue { spec.pairs.clamp(1, PAIRS_MAX) } else { 1 };
        let control = spec.multiqueue;
        let offered_features =
            OfferedFeatures { offloads: true, mergeable: true, pairs, control, mtu: true };
        let config =
            Config { mac: spec.mac, link: true, announce: false, pairs, mtu: switch_network.mtu };
        let (switch_network, session) = (Arc::clone(switch_network), Mutex::default());
        let (poll, made) = (Mutex::new(PollOverrides::of(spec.poll)), SystemTime::now());
        let (still, frozen) = (AtomicBool::new(false), Mutex::default());
        let nic_permissions =
            NicPermissions { now: spec.policy.clone(), last: spec.policy.clone() };
        let nic_permissions = Mutex::new(nic_permissions);
        let nic = Self {
            switch_network,
            spec,
            offered_features,
            config,
            session,
            stop,
            still,
            frozen,
            poll,
            nic_permissions,
            made,
        };
        nic.ask_poll(|_| ());
        Ok(Arc::new(nic))
    }

    /// Says what it has sent and got.
    pub fn log_counts(&self) {
        log_counts(self.spec.socket.display(), &self.switch_network.fabric.counts(self.spec.port));
    }

    /// Sends the front-end away and takes no other one; does not wait.
    pub fn hang_up(&self) {
        self.stop().stop();
        if let Some(session) = &*self.session() {
            session.close();
        }
    }

    /// It may do this from now on, and no more. What it has used of its caps counts.
    ///
    /// # Errors
    /// [`NicError::Fabric`]: a reactor has ended.
    pub fn limit(&self, policy: PortPolicy) -> Result<(), NicError> {
        let mut nic_permissions = self.allowed();
        let now = policy.following(&nic_permissions.last, reactor::clock_ns());
        let rate = now.rate.clone().or_else(|| nic_permissions.last.rate.take());
        let flood = now.flood.clone().or_else(|| nic_permissions.last.flood.take());
        nic_permissions.last = PortPolicy { rate, flood, ..now.clone() };
        nic_permissions.now = now;
        Ok(self.switch_network.fabric.set_port(self.spec.port, &nic_permissions.now)?)
    }

    /// Its port.
    pub fn port(&self) -> PortId {
        self.spec.port
    }

    /// Its network.
    pub fn lan(&self) -> &Arc<SwitchNetwork> {
        &self.switch_network
    }

    /// Pairs of queues that its driver may use.
    pub fn pairs(&self) -> u16 {
        self.offered_features.pairs
    }

    /// A front-end is connected.
    pub fn is_connected(&self) -> bool {
        self.session().is_some()
    }

    /// Takes it out of its network. Its control thread has ended.
    pub fn unplug(&self) {
        self.switch_network.unplug(self.spec.port);
    }

    fn session(&self) -> MutexGuard<'_, Option<SessionHandle>> {
        lock(&self.session)
    }

    fn stop(&self) -> MutexGuard<'_, StopSignal> {
        lock(&self.stop)
    }

    fn allowed(&self) -> MutexGuard<'_, NicPermissions> {
        lock(&self.nic_permissions)
    }

    fn frozen(&self) -> MutexGuard<'_, Option<FrozenSession>> {
        lock(&self.frozen)
    }
}

/// Every value behind these locks is set in whole steps, so a panic elsewhere leaves it whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says what a port has sent and got.
fn log_counts(nic: impl Display, counts: &PortCounts) {
    let PortCounts { sent_frames, sent_bytes, got_frames, got_bytes, .. } = *counts;
    let refused = reasons(|reason| counts.refused(reason));
    let missed = reasons(|reason| counts.missed(reason));
    tracing::info!(
        %nic, sent_frames, sent_bytes, got_frames, got_bytes, refused, missed, "was served"
    );
}

/// Why frames were lost, and how many.
fn reasons(count: impl Fn(Reason) -> u64) -> String {
    let some = Reason::ALL.iter().map(|reason| (reason.name(), count(*reason)));
    let some = some.filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}"));
    some.collect::<Vec<_>>().join(", ")
}
