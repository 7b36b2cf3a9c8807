//! NICs that another process hands over to this one.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::Context;
use model::nic::NicSpec;
use net::Mac;
use net::port::PortId;
use net::switch::LearntStation;
use reactor::clock_ns;

use super::handover_state::{MILLISECOND_NS, NetworkHandoverState, NicHandoverState, StationState};
use super::networks::Networks;
use super::upgrade::{QuiescedNicEntry, QuiescedNics};
use super::{NicEntry, NicRegistry};
use crate::error::error_chain;
use crate::served_nic::{IncomingNic, ServedNic, Uplink};

/// NICs of another process, ready to be taken over. They are quiesced there, and not owned by this
/// process yet.
#[derive(Debug, Default)]
pub(crate) struct IncomingNics(Vec<IncomingNicEntry>);

#[derive(Debug)]
struct IncomingNicEntry {
    spec: NicSpec,
    nic: Arc<ServedNic>,
    incoming_nic: IncomingNic,
}

impl NicRegistry {
    /// Creates ports from the data of another process. None of them is served yet.
    ///
    /// # Errors
    /// The data is inconsistent, or contradicts the preserved records.
    pub(crate) fn prepare(
        &self,
        networks: Vec<(NetworkHandoverState, Vec<OwnedFd>)>,
        nics: Vec<(NicHandoverState, Vec<OwnedFd>)>,
    ) -> anyhow::Result<IncomingNics> {
        let mut all = Vec::new();
        for (written, fds) in nics {
            let id = written.id.clone();
            let taken = self.take(written, fds).with_context(|| format!("NIC {id:?}"))?;
            all.push(taken);
        }
        for (written, fds) in networks {
            let name = written.name.clone();
            let taken = self.take_network(written, fds, &all);
            taken.with_context(|| format!("network {name:?}"))?;
        }
        Ok(IncomingNics(all))
    }

    fn take(
        &self,
        written: NicHandoverState,
        fds: Vec<OwnedFd>,
    ) -> anyhow::Result<IncomingNicEntry> {
        let (spec, listener) = self.held_nic(&written.id)?;
        let nic = self.plug(&spec)?;
        nic.restore_broken_rings(written.broken.unwrap_or_default());
        let incoming_nic = nic.take(written.session, written.owed_ns, fds, listener)?;
        Ok(IncomingNicEntry { spec, nic, incoming_nic })
    }

    fn take_network(
        &self,
        written: NetworkHandoverState,
        fds: Vec<OwnedFd>,
        all: &[IncomingNicEntry],
    ) -> anyhow::Result<()> {
        let NetworkHandoverState { name, tap, nics, stations, .. } = written;
        let mut networks = self.networks();
        let mut ports = Vec::new();
        for id in &nics {
            let nic = all.iter().find(|one| one.spec.id == *id && one.spec.network == name);
            ports
                .push(nic.with_context(|| format!("NIC {id:?} is not in the network"))?.nic.port());
        }
        if let Some(tap) = tap {
            ports.push(networks.adopt_uplink(&name, &tap, fds)?);
            self.count_uplinks(&networks);
        }
        let switch_network = networks.lan(&name).context("the network has no NIC")?;
        let now_ns = clock_ns();
        let station = |StationState(place, vlan, mac, silent_ms): StationState| {
            let seen_ns = now_ns.saturating_sub(silent_ms.saturating_mul(MILLISECOND_NS));
            let port = *ports.get(usize::from(place))?;
            Some(LearntStation {
                network: switch_network.number(),
                port,
                vlan,
                mac: Mac(mac),
                seen_ns,
            })
        };
        let stations: Option<Arc<[LearntStation]>> = stations.into_iter().map(station).collect();
        switch_network.restore_stations(&stations.context("a station has an unknown port")?)?;
        Ok(())
    }

    /// Continues with the NICs. The other process never will.
    pub(crate) fn take_over(&self, taken: IncomingNics) {
        let mut still = Vec::new();
        for IncomingNicEntry { spec, nic, incoming_nic: taken } in taken.0 {
            let id = spec.id.clone();
            self.state().by_id.insert(id.clone(), NicEntry::new(spec.clone()));
            match taken.take_ownership() {
                Ok(one) => still.push(QuiescedNicEntry { id, nic, quiesced_nic: one }),
                Err(error) => {
                    self.unplug(&spec, &nic);
                    self.state().refuse(&id, &error_chain(&error));
                }
            }
        }
        self.unquiesce(QuiescedNics(still));
    }
}

impl Networks {
    /// Adds another process's uplink to a network, at a port of its own. It carries no frames yet.
    fn adopt_uplink(
        &mut self,
        name: &str,
        tap: &str,
        queues: Vec<OwnedFd>,
    ) -> anyhow::Result<PortId> {
        let switch_network = Arc::clone(self.lan(name).context("the network has no NIC")?);
        let port = self.free_port()?;
        let uplink = Uplink::adopt(&switch_network, port, tap, queues)?;
        self.insert_uplink(name, port, uplink);
        Ok(port)
    }
}
