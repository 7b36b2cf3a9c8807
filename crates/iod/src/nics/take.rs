//! NICs of another process, which this one goes on with.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::Context;
use model::nic::NicSpec;
use net::Mac;
use net::port::PortId;
use net::switch::LearntStation;
use reactor::clock_ns;

use super::networks::Networks;
use super::upgrade::{StillNic, StillNics};
use super::written::{MILLISECOND_NS, WrittenNetwork, WrittenNic, WrittenStation};
use super::{Entry, Nics};
use crate::error::text;
use crate::nic::{Nic, Taken, Uplink};

/// NICs of another process, ready to be gone on with. They stand still there, and nothing of them is
/// ours yet.
#[derive(Debug, Default)]
pub(crate) struct TakenNics(Vec<TakenNic>);

#[derive(Debug)]
struct TakenNic {
    spec: NicSpec,
    nic: Arc<Nic>,
    taken: Taken,
}

impl Nics {
    /// Makes ports of what another process has written. Nobody at them is served yet.
    ///
    /// # Errors
    /// What came does not fit together, or not to what is held.
    pub(crate) fn prepare(
        &self,
        networks: Vec<(WrittenNetwork, Vec<OwnedFd>)>,
        nics: Vec<(WrittenNic, Vec<OwnedFd>)>,
    ) -> anyhow::Result<TakenNics> {
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
        Ok(TakenNics(all))
    }

    fn take(&self, written: WrittenNic, fds: Vec<OwnedFd>) -> anyhow::Result<TakenNic> {
        let (spec, listener) = self.held_nic(&written.id)?;
        let nic = self.plug(&spec)?;
        let taken = nic.take(written.session, written.owed_ns, fds, listener)?;
        Ok(TakenNic { spec, nic, taken })
    }

    fn take_network(
        &self,
        written: WrittenNetwork,
        fds: Vec<OwnedFd>,
        all: &[TakenNic],
    ) -> anyhow::Result<()> {
        let WrittenNetwork { name, tap, nics, stations, .. } = written;
        let mut networks = self.networks();
        let mut ports = Vec::new();
        for id in &nics {
            let nic = all.iter().find(|one| one.spec.id == *id && one.spec.network == name);
            ports.push(nic.with_context(|| format!("NIC {id:?} is not in it"))?.nic.port());
        }
        if let Some(tap) = tap {
            ports.push(networks.adopt_uplink(&name, &tap, fds)?);
            self.count_uplinks(&networks);
        }
        let lan = networks.lan(&name).context("no NIC is in it")?;
        let now_ns = clock_ns();
        let station = |WrittenStation(place, vlan, mac, silent_ms): WrittenStation| {
            let seen_ns = now_ns.saturating_sub(silent_ms.saturating_mul(MILLISECOND_NS));
            let port = *ports.get(usize::from(place))?;
            Some(LearntStation { network: lan.number(), port, vlan, mac: Mac(mac), seen_ns })
        };
        let stations: Option<Arc<[LearntStation]>> = stations.into_iter().map(station).collect();
        lan.recall(&stations.context("a station that is nowhere")?)?;
        Ok(())
    }

    /// Goes on with them: the other process never will.
    pub(crate) fn take_over(&self, taken: TakenNics) {
        let mut still = Vec::new();
        for TakenNic { spec, nic, taken } in taken.0 {
            let id = spec.id.clone();
            self.state().by_id.insert(id.clone(), Entry::new(spec.clone()));
            match taken.own() {
                Ok(one) => still.push(StillNic { id, nic, still: one }),
                Err(error) => {
                    self.unplug(&spec, &nic);
                    self.state().refuse(&id, &text(&error));
                }
            }
        }
        self.go_on(StillNics(still));
    }
}

impl Networks {
    /// Gives a network the uplink that another process has had, at a port of its own. Nothing comes
    /// and goes there yet.
    fn adopt_uplink(
        &mut self,
        name: &str,
        tap: &str,
        queues: Vec<OwnedFd>,
    ) -> anyhow::Result<PortId> {
        let lan = Arc::clone(self.lan(name).context("no NIC is in it")?);
        let port = self.free_port()?;
        let uplink = Uplink::adopt(&lan, port, tap, queues)?;
        self.insert_uplink(name, port, uplink);
        Ok(port)
    }
}
