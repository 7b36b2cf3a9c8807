//! NICs behind their sockets, the host at its TAP device, and the switch between them.

mod control;
mod flows;
mod handover_state;
mod poll;
mod ports;
mod quiesce;
mod ring_kind;
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

use memory::MemoryShare;
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

/// Reason why a NIC or an uplink is not served.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// The switch refuses it.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// Error of its socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The host's device cannot be opened.
    #[error(transparent)]
    Tap(#[from] tap::TapError),
    /// Frames cannot be exchanged with the host's device.
    #[error("TAP device {name} cannot be served")]
    Uplink {
        /// Name of the device.
        name: String,
        /// Cause of the failure.
        #[source]
        source: nic::QueueError,
    },
    /// The kernel does not complete I/O of the device.
    #[error("TAP device {name} did not end its I/O in time")]
    Restless {
        /// Name of the device.
        name: String,
    },
    /// The system refuses a resource.
    #[error("cannot {action}")]
    Os {
        /// Action that failed.
        action: &'static str,
        /// Error of the kernel.
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

/// Creates a switch without networks, on the reactors of a pool that have switches.
///
/// # Errors
/// The reactors cannot be linked.
pub fn switch(pool: &Pool) -> Result<Arc<Fabric>, NicError> {
    Ok(Fabric::new(pool.of_networks())?)
}

/// Returns the flood limit of a port in frames per second; see [`model::nic::NicSpec::flood`].
pub fn flood_limit(frames: Option<u32>) -> Option<Arc<RateLimiter>> {
    let per_second = u64::from(frames.unwrap_or(DEFAULT_FLOOD));
    let rate = Rate { per_second, burst: per_second };
    (per_second > 0).then(|| Arc::new(RateLimiter::new(rate, reactor::clock_ns())))
}

impl SwitchNetwork {
    /// Creates a switch with one network without ports, for packets of `mtu` bytes.
    ///
    /// # Errors
    /// The reactors cannot be linked.
    pub fn new(pool: Arc<Pool>, mtu: u16) -> Result<Arc<Self>, NicError> {
        let fabric = switch(&pool)?;
        Self::on(fabric, pool, NetworkId(0), mtu)
    }

    /// Creates a network of this number without ports, on the switch of a pool's reactors.
    ///
    /// # Errors
    /// A reactor has ended, or the number is out of range.
    pub fn on(
        fabric: Arc<Fabric>,
        pool: Arc<Pool>,
        network: NetworkId,
        mtu: u16,
    ) -> Result<Arc<Self>, NicError> {
        fabric.set_network(network, NetworkPolicy { mtu, ..NetworkPolicy::default() })?;
        Ok(Arc::new(Self { fabric, pool, network, mtu }))
    }

    /// Returns the policy of a port without limits.
    pub fn policy(&self) -> PortPolicy {
        PortPolicy::open(self.network)
    }

    /// Returns the number of the network in its switch.
    pub fn number(&self) -> NetworkId {
        self.network
    }

    /// Returns the largest packet in bytes.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Returns the sent and received frames and bytes of a port.
    pub fn counts(&self, port: PortId) -> PortCounts {
        self.fabric.counts(port)
    }

    /// Waits until all frames between reactors have arrived. No port sends any more.
    ///
    /// # Errors
    /// A reactor has ended.
    pub(crate) fn drain(&self) -> Result<(), NicError> {
        Ok(self.fabric.drain().map_err(FabricError::from)?)
    }

    /// Returns the learnt stations of all networks of its switch.
    ///
    /// # Errors
    /// A reactor has ended.
    pub(crate) fn stations(&self) -> Result<Vec<LearntStation>, Stopped> {
        self.fabric.stations()
    }

    /// Restores the stations that another process had learnt.
    ///
    /// # Errors
    /// A reactor has ended.
    pub(crate) fn restore_stations(&self, stations: &Arc<[LearntStation]>) -> Result<(), Stopped> {
        self.fabric.recall(stations)
    }

    /// Unplugs a port whose queues are stopped.
    fn unplug(&self, port: PortId) {
        // A reactor that has ended sends nothing to the port.
        let _ = self.fabric.remove_port(port);
    }

    /// Removes the network from its switch. All its ports are unplugged.
    pub fn remove(&self) {
        // A reactor that has ended has no networks.
        let _ = self.fabric.remove_network(self.network);
    }

    /// Sets how queues of its ports wait for frames.
    pub fn set_polling(&self, policy: PollPolicy) {
        self.fabric.set_polling(policy);
    }
}

/// Most queue pairs of a NIC. With its control queue they are 255 queues, and a front-end can
/// address 256 (`VHOST_USER_SET_VRING_KICK` has eight bits for the index).
pub const PAIRS_MAX: u16 = 127;

/// Parameters of a NIC.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// Number of its port, unique in its switch.
    pub port: PortId,
    /// Initial limits and VLAN.
    pub policy: PortPolicy,
    /// Path of its socket, also for logs.
    pub socket: PathBuf,
    /// Number of queue pairs, clamped to 1 to [`PAIRS_MAX`].
    pub pairs: u16,
    /// True to offer several pairs, if there are several, and a control queue.
    pub multiqueue: bool,
    /// MAC address that the driver reads, unless its front-end sets one.
    pub mac: Mac,
    /// Polling settings of this NIC.
    pub poll: PollSpec,
}

/// Limits of a NIC.
#[derive(Debug)]
struct NicPermissions {
    now: PortPolicy,
    /// Present policy, with the former caps where there are none now. `xe` changes a cap in two
    /// steps, and the used part of the cap must still count.
    last: PortPolicy,
}

/// One NIC behind its socket.
#[derive(Debug)]
pub struct ServedNic {
    switch_network: Arc<SwitchNetwork>,
    spec: NicConfig,
    offered_features: OfferedFeatures,
    config: Config,
    /// Connected front-end, if any.
    session: Mutex<Option<SessionHandle>>,
    /// Ends the session thread between sessions.
    stop: Mutex<StopSignal>,
    /// True if the session thread must end because the NIC is being quiesced. It leaves its session
    /// in `frozen`.
    still: AtomicBool,
    frozen: Mutex<Option<FrozenSession>>,
    poll: Mutex<PollOverrides>,
    nic_permissions: Mutex<NicPermissions>,
    /// Share of the memory that front-ends may map.
    memory_share: MemoryShare,
    made: SystemTime,
}

impl ServedNic {
    /// Plugs a NIC into its network.
    ///
    /// # Errors
    /// The network accepts no more ports, or no descriptors are left.
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
        let memory_share = switch_network.pool.memory_budget().join();
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
            memory_share,
            made,
        };
        nic.ask_poll(|_| ());
        Ok(Arc::new(nic))
    }

    /// Logs the sent and received frames and bytes.
    pub fn log_counts(&self) {
        log_counts(self.spec.socket.display(), &self.switch_network.fabric.counts(self.spec.port));
    }

    /// Disconnects the front-end and accepts no other. Does not wait.
    pub fn hang_up(&self) {
        self.stop().stop();
        if let Some(session) = &*self.session() {
            session.close();
        }
    }

    /// Replaces its limits. The used part of its caps still counts.
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

    /// Returns its port.
    pub fn port(&self) -> PortId {
        self.spec.port
    }

    /// Returns its network.
    pub fn lan(&self) -> &Arc<SwitchNetwork> {
        &self.switch_network
    }

    /// Returns the number of queue pairs that its driver may use.
    pub fn pairs(&self) -> u16 {
        self.offered_features.pairs
    }

    /// Returns whether a front-end is connected.
    pub fn is_connected(&self) -> bool {
        self.session().is_some()
    }

    /// Removes it from its network. Its session thread has ended.
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

/// Values behind these locks change in complete steps, so a panic elsewhere cannot leave them
/// inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Logs the sent and received frames and bytes of a port.
fn log_counts(nic: impl Display, counts: &PortCounts) {
    let PortCounts { sent_frames, sent_bytes, got_frames, got_bytes, .. } = *counts;
    let refused = reasons(|reason| counts.refused(reason));
    let missed = reasons(|reason| counts.missed(reason));
    tracing::info!(
        %nic, sent_frames, sent_bytes, got_frames, got_bytes, refused, missed, "was served"
    );
}

/// Formats the drop reasons with their counts.
fn reasons(count: impl Fn(Reason) -> u64) -> String {
    let some = Reason::ALL.iter().map(|reason| (reason.name(), count(*reason)));
    let some = some.filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}"));
    some.collect::<Vec<_>>().join(", ")
}
