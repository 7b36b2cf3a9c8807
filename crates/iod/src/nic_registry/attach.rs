//! Attach of NICs.

use std::sync::Arc;

use model::nic::{Locked, MAX_PAIRS, NicRate, NicSpec};
use model::rpc::{NicReply, RpcError};
use net::Mac;
use net::flow::QUEUES_MAX;
use net::port::{LockingMode, PortId, PortPolicy, Rate, RateLimiter, Vlan, VlanId};
use vhost_user::Listener;

use super::error::NicsError;
use super::preserved::access;
use super::{NicEntry, NicRegistry, busy, wrong_state};
use crate::error::failed;
use crate::limits::check_nic;
use crate::served_disk::SocketRole;
use crate::served_nic::{self, NicSessionThread, ServedNic, SwitchNetwork, flood_limit};

// The queue selector supports as many queues as the specification allows.
const _: () = assert!(MAX_PAIRS == QUEUES_MAX as u16);

impl NicRegistry {
    /// Plugs a NIC in and listens. When this returns, front-ends can connect. Other devices use
    /// `taken` of the `limit` open files.
    ///
    /// # Errors
    /// The id belongs to another NIC, a verb is running on it, or too few open files are free. The
    /// network is full or has another MTU, or the socket is unavailable.
    pub(crate) fn attach(
        &self,
        spec: NicSpec,
        limit: u64,
        taken: u64,
    ) -> Result<NicReply, RpcError> {
        if let Some(reply) = self.admit(&spec, limit, taken)? {
            return Ok(reply);
        }
        let started = self.start(&spec);
        if let Ok((_, nic_session_thread)) = &started {
            self.watch_socket(&spec, nic_session_thread);
        }
        let mut state = self.state();
        let reply = started.map(|(nic, nic_session_thread)| {
            let reply = reply(&spec, &nic);
            state.serve(&spec.id, nic, nic_session_thread);
            reply
        });
        if reply.is_err() {
            state.by_id.remove(&spec.id);
        }
        drop(state);
        self.ended.notify_all();
        Ok(reply?)
    }

    /// Creates an entry. Returns `Some` if an equal NIC is attached already.
    fn admit(&self, spec: &NicSpec, limit: u64, taken: u64) -> Result<Option<NicReply>, RpcError> {
        let held = self.is_held(&spec.id);
        let mut state = self.state();
        state.open()?;
        if let Some(entry) = state.by_id.get(&spec.id) {
            if let Some(participle) = entry.busy {
                return Err(busy(participle));
            }
            return match &entry.nic {
                Some(nic) if entry.is(spec) => Ok(Some(reply(spec, nic))),
                Some(_) => Err(wrong_state(
                    "a NIC of this id is attached already, with other parameters; detach it or \
                     choose another id",
                )),
                None => Err(wrong_state("the NIC is refused, see `stats`; detach it first")),
            };
        }
        // Check again: the NIC may have been detached since.
        if held && self.is_held(&spec.id) {
            return Err(wrong_state("a newer version preserved a NIC of this id; detach it first"));
        }
        check_nic(limit, taken, spec.queues).map_err(failed)?;
        state.by_id.insert(spec.id.clone(), NicEntry::new(spec.clone()));
        Ok(None)
    }

    /// Plugs a NIC in, listens, preserves it and serves it. A failure leaves nothing behind.
    fn start(&self, spec: &NicSpec) -> Result<(Arc<ServedNic>, NicSessionThread), NicsError> {
        let nic = self.plug(spec)?;
        let serving = self.announce(spec).map_err(NicsError::from);
        let nic_session_thread = serving.and_then(|()| self.listen(spec, &nic));
        if nic_session_thread.is_err() {
            self.unplug(spec, &nic);
            self.forget(&spec.id);
        }
        Ok((nic, nic_session_thread?))
    }

    fn listen(&self, spec: &NicSpec, nic: &Arc<ServedNic>) -> Result<NicSessionThread, NicsError> {
        let listener = Listener::bind(&spec.socket, &access(spec))?;
        self.hold(&resolved(spec, nic), &listener)?;
        Ok(nic.serve(SocketRole::Listen(Arc::new(listener)), None)?)
    }

    /// Takes a port of the NIC's network.
    pub(super) fn plug(&self, spec: &NicSpec) -> Result<Arc<ServedNic>, NicsError> {
        let mut networks = self.networks();
        let (switch_network, port) = networks.join(&spec.network, spec.mtu)?;
        let nic = made(spec, &switch_network, port);
        if nic.is_err() {
            networks.leave(&spec.network, port);
        }
        nic
    }

    /// Releases the port of a NIC.
    pub(super) fn unplug(&self, spec: &NicSpec, nic: &ServedNic) {
        let mut networks = self.networks();
        nic.unplug();
        if networks.leave(&spec.network, nic.port()) {
            self.forget_uplink(&spec.network);
        }
    }
}

impl NicEntry {
    /// Creates the entry of a NIC that is being attached.
    pub(super) fn new(spec: NicSpec) -> Self {
        Self { spec, busy: Some("attached"), nic: None, nic_session_thread: None, refused: None }
    }

    /// Records that the NIC is served.
    pub(super) fn serve(&mut self, nic: Arc<ServedNic>, nic_session_thread: NicSessionThread) {
        self.spec = resolved(&self.spec, &nic);
        (self.nic, self.nic_session_thread, self.busy) =
            (Some(nic), Some(nic_session_thread), None);
    }

    /// Returns whether the entry matches a request.
    fn is(&self, asked: &NicSpec) -> bool {
        // Polling may have been changed since.
        let asked = asked.clone().with_polling(self.spec.polling());
        NicSpec { mtu: asked.mtu.or(self.spec.mtu), ..asked } == self.spec
    }
}

/// Adds the MTU of the network: after a crash, the first attached NIC must create the network with
/// the same MTU.
fn resolved(spec: &NicSpec, nic: &ServedNic) -> NicSpec {
    NicSpec { mtu: Some(nic.lan().mtu()), ..spec.clone() }
}

pub(super) fn reply(spec: &NicSpec, nic: &ServedNic) -> NicReply {
    let (id, network) = (spec.id.clone(), spec.network.clone());
    NicReply { id, network, mtu: nic.lan().mtu(), queues: nic.pairs() }
}

fn made(
    spec: &NicSpec,
    switch_network: &Arc<SwitchNetwork>,
    port: PortId,
) -> Result<Arc<ServedNic>, NicsError> {
    let spec = served_nic::NicConfig {
        port,
        policy: policy(spec, switch_network)?,
        socket: spec.socket.clone(),
        pairs: spec.queues,
        multiqueue: spec.mq,
        mac: Mac(spec.mac.bytes()),
        poll: spec.polling(),
    };
    Ok(ServedNic::new(switch_network, spec)?)
}

/// Returns the limits and VLAN of its port.
pub(super) fn policy(
    spec: &NicSpec,
    switch_network: &SwitchNetwork,
) -> Result<PortPolicy, NicsError> {
    let vlan = spec.vlan.map(VlanId::try_from).transpose()?.map_or(Vlan::Trunk, Vlan::Access);
    let pace = |rate| Arc::new(RateLimiter::new(in_bytes(rate), reactor::clock_ns()));
    let (rate, flood) = (spec.rate.map(pace), flood_limit(spec.flood));
    let policy = PortPolicy { vlan, rate, flood, ..switch_network.policy() };
    Ok(match &spec.locked {
        _ if spec.disabled => PortPolicy { locking_mode: LockingMode::Disabled, ..policy },
        Some(Locked { ipv4, ipv6 }) => policy.locked(Mac(spec.mac.bytes()), ipv4, ipv6)?,
        None => policy,
    })
}

fn in_bytes(NicRate { bytes_per_second, bytes_burst }: NicRate) -> Rate {
    let usual = Rate::bytes(bytes_per_second);
    let burst = bytes_burst.map_or(usual.burst, |burst| burst.max(Rate::BURST_MIN_BYTES));
    Rate { burst, ..usual }
}
