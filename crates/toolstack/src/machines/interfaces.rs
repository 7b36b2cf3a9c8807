//! Plan steps of network interfaces.
//!
//! An interface's backend is a NIC of the switch, in the network of its bridge. A TAP device, the
//! uplink, connects that network with the bridge. The first interface of the network creates it,
//! and the last one removes it.

use std::collections::BTreeSet;

use model::id::VifId;
use model::nic::NicSpec;
use model::plan::{RunState, StepAction};
use model::report::Stats;
use model::vif::MAX_QUEUES;

use super::step_runner::{MachineStepRunner, missing};
use super::{Machines, StepError, UPLINK_PREFIX, VifRecord, names};
use crate::hv::{DomainInfo, NicPlug};

impl MachineStepRunner {
    pub(super) async fn vif(&self, verb: StepAction) -> Result<(), StepError> {
        match verb {
            StepAction::VifCreate(vif) => self.create_port(self.interface(vif)?).await,
            StepAction::VifPlug(vif) => self.plug_nic(self.interface(vif)?).await,
            StepAction::VifUnplug(vif) => {
                self.hv().unplug_nic(self.machine.vm, vif).await?;
                self.machines.drivers.net.unwatch(vif);
                Ok(())
            }
            StepAction::VifDestroy(vif) => self.destroy_port(vif).await,
            _ => Ok(()),
        }
    }

    async fn create_port(&self, of: &VifRecord) -> Result<(), StepError> {
        let VifRecord { vif, bridge, mtu, .. } = of;
        let drivers = &self.machines.drivers;
        let uplink = names::uplink(&self.machines.settings.run, bridge);
        let _turn = self.machines.networks.of(bridge).await;
        self.machine.observed().ports.insert(*vif, bridge.clone());
        drivers.net.create_bridge(bridge, *mtu).await?;
        drivers.net.create_tap(&uplink, bridge, *mtu).await?;
        // From here on, callers that change the limits apply them at the switch.
        let _teller = self.machines.lock_settings(&vif.to_string()).await;
        drivers.switch.attach(&self.nic(&self.now(of))?, &uplink).await?;
        Ok(())
    }

    /// Returns the record with the present limits.
    fn now(&self, of: &VifRecord) -> VifRecord {
        let limits = self.machines.records.vif_limits(of.vif);
        VifRecord { limits: limits.unwrap_or_else(|| of.limits.clone()), ..of.clone() }
    }

    async fn plug_nic(&self, of: &VifRecord) -> Result<(), StepError> {
        // Before the guest has the interface, so that its first address claims are seen.
        let teller = self.machines.lock_settings(&of.vif.to_string()).await;
        self.machines.watch(&self.now(of)).await;
        drop(teller);
        let VifRecord { vif, device, mac, boot_index, .. } = of.clone();
        let socket = names::port(&self.machines.settings.run, vif);
        let (queues, mtu) = (self.pairs(of), u16::try_from(of.mtu).ok());
        let nic = NicPlug { vif, device, socket, queues, mac, mtu, boot_index };
        self.hv().plug_nic(self.machine.vm, &nic).await?;
        Ok(())
    }

    async fn destroy_port(&self, vif: VifId) -> Result<(), StepError> {
        let net = &self.machines.drivers.net;
        net.unwatch(vif);
        let bridge = self.machine.observed().ports.get(&vif).cloned();
        let Some(bridge) = bridge else { return Ok(()) };
        let _turn = self.machines.networks.of(&bridge).await;
        let switch = &self.machines.drivers.switch;
        switch.detach(&vif.to_string()).await?;
        if !has_network(switch.stats().await?.as_ref(), &bridge) {
            net.remove_tap(&names::uplink(&self.machines.settings.run, &bridge)).await?;
        }
        self.machine.observed().ports.remove(&vif);
        Ok(())
    }

    /// Returns the specification of an interface's NIC for the switch.
    fn nic(&self, of: &VifRecord) -> Result<NicSpec, StepError> {
        let mac = of.mac.parse().map_err(|error| missing("invalid MAC address:", error))?;
        let socket = names::port(&self.machines.settings.run, of.vif);
        let (queues, mtu) = (self.pairs(of), u16::try_from(of.mtu).ok());
        let spec = NicSpec::new(of.vif.to_string(), socket, &of.bridge, mac);
        Ok(NicSpec { queues, mtu, ..spec.with_limits(of.limits.clone()) })
    }

    /// Returns the number of queue pairs of an interface.
    fn pairs(&self, of: &VifRecord) -> u16 {
        pairs(of.queues, self.machine_record.spec.vcpus, self.machines.settings.host_cpus)
    }

    fn interface(&self, vif: VifId) -> Result<&VifRecord, StepError> {
        let found = self.machine_record.vifs.iter().find(|one| one.vif == vif);
        found.ok_or_else(|| missing("no record of interface", vif))
    }
}

/// Returns the configured number. By default it is the guest's CPUs, but at most the host's CPUs.
fn pairs(set: Option<u16>, vcpus: u16, host_cpus: u16) -> u16 {
    set.unwrap_or(vcpus.min(host_cpus)).clamp(1, MAX_QUEUES)
}

fn has_network(stats: Option<&Stats>, bridge: &str) -> bool {
    stats.is_some_and(|stats| stats.networks.iter().any(|one| one.name == bridge))
}

/// Removes leftovers of an earlier daemon from the switch and the bridges.
///
/// These are NICs of interfaces that are neither recorded nor in a guest, and uplinks of networks
/// without NICs.
pub(super) async fn tidy(
    machines: &Machines,
    stats: Option<&Stats>,
    recorded: &BTreeSet<VifId>,
    domain_info: &[DomainInfo],
) {
    let drivers = &machines.drivers;
    // The interfaces of a silent domain are unknown.
    let silent = domain_info.iter().any(|one| one.run == Some(RunState::Unresponsive));
    let guests: BTreeSet<VifId> =
        domain_info.iter().flat_map(|one| one.nics.iter().copied()).collect();
    let (mut kept, mut left) = (BTreeSet::new(), Vec::new());
    for nic in stats.into_iter().flat_map(|stats| &stats.nics) {
        let vif = nic.id.parse().map(VifId);
        let used = vif.is_ok_and(|vif| recorded.contains(&vif) || guests.contains(&vif));
        if used || silent {
            kept.insert(nic.network.as_str());
        } else {
            left.push(nic);
        }
    }
    for nic in left {
        match drivers.switch.detach(&nic.id).await {
            Ok(()) => tracing::info!(vif = nic.id, "detached a leftover interface"),
            Err(error) => {
                tracing::warn!(vif = nic.id, %error, "cannot detach a leftover interface");
                kept.insert(&nic.network);
            }
        }
    }
    let uplinks: BTreeSet<String> =
        kept.iter().map(|bridge| names::uplink(&machines.settings.run, bridge)).collect();
    let taps = match drivers.net.taps().await {
        Ok(taps) => taps,
        Err(error) => return tracing::warn!(%error, "cannot list uplinks"),
    };
    for tap in taps.iter().filter(|tap| tap.starts_with(UPLINK_PREFIX) && !uplinks.contains(*tap)) {
        if let Err(error) = drivers.net.remove_tap(tap).await {
            tracing::warn!(tap, %error, "cannot remove a leftover uplink");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_what_guest_and_host_both_have_cpus_for() {
        for ((set, vcpus, host), expected) in [
            ((None, 4, 16), 4),
            ((None, 16, 4), 4),
            ((None, 0, 4), 1),
            ((None, u16::MAX, u16::MAX), MAX_QUEUES),
            ((Some(8), 1, 1), 8),
            ((Some(0), 4, 4), 1),
            ((Some(u16::MAX), 4, 4), MAX_QUEUES),
        ] {
            assert_eq!(pairs(set, vcpus, host), expected, "{set:?} {vcpus} {host}");
        }
    }
}
