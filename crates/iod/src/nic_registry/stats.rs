//! Statistics of NICs and networks.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::report::{FrameCounts, NetworkStats, NicStats, PortStats, UplinkStats};
use net::Reason;
use nic::PortCounts;

use super::networks::Network;
use super::{NicEntry, NicRegistry};
use crate::metrics::Residence;
use crate::served_nic::{PortOwner, SwitchNetwork, ports, residences};
use crate::stats::StatsDetail;

impl NicRegistry {
    /// Returns the statistics of `wanted` NICs, by id.
    pub(crate) fn stats(&self, wanted: impl Fn(&str) -> bool) -> Vec<NicStats> {
        let state = self.state();
        let entries = state.by_id.values().filter(|entry| wanted(&entry.spec.id));
        entries.map(stats).collect()
    }

    /// Returns the switch port statistics of `wanted` NICs and uplinks.
    pub(crate) fn ports(
        &self,
        wanted: impl Fn(&str) -> bool,
        detail: StatsDetail,
    ) -> Vec<PortStats> {
        let Some((switch_network, all)) = self.plugged(&wanted) else { return Vec::new() };
        ports(&switch_network, &all, wanted, detail)
    }

    /// Returns the residence times of frames for the NICs.
    pub(crate) fn residences(&self) -> Vec<Residence> {
        self.plugged(|_| true)
            .map_or_else(Vec::new, |(switch_network, all)| residences(&switch_network, &all))
    }

    /// Returns the owners of all ports and one of their networks. `None` if no NIC is `wanted`.
    fn plugged(
        &self,
        wanted: impl Fn(&str) -> bool,
    ) -> Option<(Arc<SwitchNetwork>, Vec<PortOwner>)> {
        let state = self.state();
        let entries =
            || state.by_id.iter().filter_map(|(id, entry)| Some((id, entry.nic.as_ref()?)));
        let (_, nic) = entries().find(|(id, _)| wanted(id))?;
        let switch_network = Arc::clone(nic.lan());
        let mut all: Vec<_> = entries().map(|(id, nic)| PortOwner::nic(id, nic)).collect();
        drop(state);
        let networks = self.networks();
        let uplinks = networks.iter().filter_map(|(_, network)| network.uplink.as_ref());
        uplinks.for_each(|uplink| PortOwner::add_host(&mut all, uplink));
        drop(networks);
        Some((switch_network, all))
    }

    /// Returns the statistics of all networks by name. Waits while an uplink is set or removed.
    pub(crate) fn network_stats(&self) -> Vec<NetworkStats> {
        let to_stats = |(name, network): (&String, &Network)| NetworkStats {
            name: name.clone(),
            mtu: network.switch_network.mtu(),
            nics: network.nics as u64,
            uplink: network.uplink.as_ref().map(|uplink| UplinkStats {
                tap: uplink.name().into(),
                failed: uplink.failed(),
                frames: frames(&uplink.counts()),
            }),
        };
        self.networks().iter().map(to_stats).collect()
    }
}

fn stats(NicEntry { spec, nic, refused, .. }: &NicEntry) -> NicStats {
    let counts = nic.as_ref().map(|nic| nic.lan().counts(nic.port()));
    NicStats {
        id: spec.id.clone(),
        network: spec.network.clone(),
        socket: spec.socket.display().to_string(),
        mac: spec.mac,
        queues: nic.as_ref().map_or(spec.queues, |nic| nic.pairs()),
        vlan: spec.vlan,
        locked: spec.locked.is_some(),
        disabled: spec.disabled,
        rate: spec.rate,
        flood: spec.flood,
        connected: nic.as_ref().is_some_and(|nic| nic.is_connected()),
        refused: refused.clone(),
        frames: frames(&counts.unwrap_or_default()),
    }
}

fn frames(counts: &PortCounts) -> FrameCounts {
    let PortCounts { sent_frames, sent_bytes, got_frames, got_bytes, .. } = *counts;
    FrameCounts {
        tx_frames: sent_frames,
        tx_bytes: sent_bytes,
        rx_frames: got_frames,
        rx_bytes: got_bytes,
        tx_dropped: reasons(|reason| counts.refused(reason)),
        rx_dropped: reasons(|reason| counts.missed(reason)),
    }
}

fn reasons(count: impl Fn(Reason) -> u64) -> BTreeMap<String, u64> {
    let all = Reason::ALL.iter().map(|reason| (reason.name().to_owned(), count(*reason)));
    all.filter(|(_, count)| *count > 0).collect()
}
