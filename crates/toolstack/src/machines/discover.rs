//! Discovery of existing domains, disks and interfaces when the daemon starts.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use model::id::{SrId, VmId};
use model::plan::{DomainState, RunState};
use model::report::{DiskState, DiskStats, Stats};
use model::vbd::VbdKind;
use model::vdi::automaton::{Access, VolumeState};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::observed::{AttachedVolume, Machine};
use super::{DiskRecord, MachineRecord, Machines, interfaces};
use crate::hv::{DomainInfo, HvError};

/// Longest wait for a datapath's disks. After that, every recorded disk counts as attached.
const STATS_DEADLINE: Duration = Duration::from_secs(10);

/// Disks that each SR's datapath serves, by id; `None` if it did not answer.
type Served = HashMap<SrId, Option<HashMap<String, DiskStats>>>;

pub(super) async fn learn(machines: Arc<Machines>) -> Result<Vec<DomainInfo>, HvError> {
    let domain_info = machines.drivers.hv.list().await?;
    let vms = machines.records.machines();
    let recorded: HashMap<VmId, MachineRecord> = vms
        .into_iter()
        .filter_map(|vm| {
            machines.records.machine(vm).ok().map(|machine_record| (vm, machine_record))
        })
        .collect();
    let served = served(&machines, &recorded).await;
    let switch = switch(&machines).await;
    for (vm, machine_record) in &recorded {
        let machine = Machine::new(*vm);
        let domain = domain_info.iter().find(|one| one.vm == *vm).cloned();
        machine.observed().update_domain(domain);
        // Separate statement: a lock in the condition would stay locked in the body.
        let domain = machine.observed().domain;
        if let DomainState::Present { run: RunState::Unresponsive, .. } = domain {
            as_recorded(&machine, machine_record);
        }
        volumes(&machines, &machine, machine_record, &served);
        ports(&machine, machine_record, switch.as_ref());
        let nics = machine.observed().nics.clone();
        for vif in machine_record.vifs.iter().filter(|one| nics.contains(&one.vif)) {
            machines.watch(vif).await;
        }
        promise(&machines, &machine, machine_record);
        keep(&machines, machine);
    }
    for one in domain_info.iter().filter(|one| !recorded.contains_key(&one.vm)) {
        let machine = Machine::new(one.vm);
        machine.observed().update_domain(Some(one.clone()));
        keep(&machines, machine);
    }
    if let Some(stats) = &switch {
        let vifs = recorded.values().flat_map(|one| &one.vifs).map(|one| one.vif).collect();
        interfaces::tidy(&machines, stats.as_ref(), &vifs, &domain_info).await;
    }
    let next =
        domain_info.iter().map(|one| one.domid.0.saturating_add(1)).max().unwrap_or_default();
    machines.next_domid.fetch_max(next, Ordering::Relaxed);
    Ok(domain_info)
}

/// Uses the record for a silent domain, because its devices cannot be queried.
fn as_recorded(machine: &Machine, machine_record: &MachineRecord) {
    let mut observed = machine.observed();
    observed.plugged =
        machine_record.disks.iter().filter(|one| one.plugged).map(|one| one.vbd).collect();
    observed.nics =
        machine_record.vifs.iter().filter(|one| one.plugged).map(|one| one.vif).collect();
}

/// Queries the datapaths of all SRs that have disks of machines, in parallel.
async fn served(machines: &Arc<Machines>, recorded: &HashMap<VmId, MachineRecord>) -> Served {
    let disks = recorded.values().flat_map(|machine| &machine.disks);
    let srs: BTreeSet<SrId> =
        disks.filter_map(|disk| disk.source.as_ref().map(|source| source.sr)).collect();
    let mut asked = JoinSet::new();
    for sr in srs {
        let machines = Arc::clone(machines);
        asked.spawn(async move {
            let stats = async { machines.drivers.io.of(sr).await?.stats().await };
            let disks = match timeout(STATS_DEADLINE, stats).await {
                Ok(Ok(stats)) => {
                    let disks = stats.map(|stats| stats.disks).unwrap_or_default();
                    Some(disks.into_iter().map(|disk| (disk.id.clone(), disk)).collect())
                }
                Ok(Err(error)) => {
                    tracing::warn!(%sr, %error, "cannot list the served disks");
                    None
                }
                Err(_) => {
                    tracing::warn!(%sr, "ringway-io did not list its disks in time");
                    None
                }
            };
            (sr, disks)
        });
    }
    asked.join_all().await.into_iter().collect()
}

/// Queries the switch; `None` if it does not answer.
async fn switch(machines: &Machines) -> Option<Option<Stats>> {
    match timeout(STATS_DEADLINE, machines.drivers.switch.stats()).await {
        Ok(Ok(stats)) => Some(stats),
        Ok(Err(error)) => {
            tracing::warn!(%error, "cannot list the served interfaces");
            None
        }
        Err(_) => {
            tracing::warn!("the switch did not list its interfaces in time");
            None
        }
    }
}

/// Finds the NICs of a machine. If the switch does not answer, uses the record.
fn ports(machine: &Machine, machine_record: &MachineRecord, switch: Option<&Option<Stats>>) {
    let mut observed = machine.observed();
    for vif in &machine_record.vifs {
        let id = vif.vif.to_string();
        let nics = |stats: &Option<Stats>| {
            let nic = stats.iter().flat_map(|stats| &stats.nics).find(|nic| nic.id == id);
            nic.map(|nic| nic.network.clone())
        };
        let bridge = match switch {
            Some(stats) => nics(stats),
            None => vif.plugged.then(|| vif.bridge.clone()),
        };
        observed.ports.extend(bridge.map(|bridge| (vif.vif, bridge)));
    }
}

fn volumes(
    machines: &Machines,
    machine: &Machine,
    machine_record: &MachineRecord,
    served: &Served,
) {
    let mut observed = machine.observed();
    for disk in &machine_record.disks {
        let Some(source) = &disk.source else { continue };
        let plugged = observed.plugged.contains(&disk.vbd);
        let reported = served.get(&source.sr).and_then(Option::as_ref);
        let stats = reported.map(|disks| disks.get(&disk.vbd.to_string()));
        let Some((access, unsure)) = volume(disk, plugged, stats) else { continue };
        let attached_volume = AttachedVolume {
            activation_unknown: unsure,
            ..AttachedVolume::new(disk, source.clone(), access)
        };
        observed.disks.insert(disk.vbd, attached_volume);
        machines.volumes.set(source.vdi, disk.vbd, VolumeState::Activated(access));
    }
}

/// Returns the access of a slot's attached volume, and whether its activation is unknown. In doubt
/// it counts as attached: a detach of a missing disk does nothing.
fn volume(
    disk: &DiskRecord,
    plugged: bool,
    stats: Option<Option<&DiskStats>>,
) -> Option<(Access, bool)> {
    match stats {
        _ if disk.kind == VbdKind::Cd => plugged.then_some((disk.access, false)),
        Some(Some(stats)) => {
            let access = if stats.geometry.read_only { Access::Ro } else { Access::Rw };
            Some((access, stats.state == DiskState::Attached))
        }
        Some(None) => None,
        None => Some((disk.access, true)),
    }
}

/// Reserves the memory of an existing domain.
fn promise(machines: &Machines, machine: &Machine, machine_record: &MachineRecord) {
    if let DomainState::Present { .. } = machine.observed().domain {
        let bytes = machine_record.spec.host_bytes(machine_record.disks.len());
        machines.memory.found(machine.vm, bytes);
    }
}

fn keep(machines: &Machines, machine: Machine) {
    if !machine.observed().is_empty() {
        machines.lock().insert(machine.vm, Arc::new(machine));
    }
}
