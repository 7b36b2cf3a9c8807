//! Where the time of a VM's boot went, in its metrics.

use std::collections::BTreeSet;
use std::time::Duration;

use model::id::{SrId, VmId};
use model::report::DriverStarts;
use tokio::time::timeout;
use xenapi::ApiError;
use xenapi::table::{sr, vbd, vdi, vm, vm_metrics};

use super::fields::{flag, map, pairs, reference, references, uuid};
use crate::app::AppState;
use crate::db::{Tx, View};

/// Keys of `VM_metrics.other_config`, in milliseconds: wait for a place among the machines that boot;
/// from then until the CPUs run; from then until the guest's agent answered. The last three are parts of
/// the third.
const KEYS: [&str; 6] = [
    "boot-place-ms",
    "boot-devices-ms",
    "boot-guest-ms",
    "boot-firmware-ms",
    "boot-kernel-ms",
    "boot-services-ms",
];
/// Longest wait for the report of a datapath.
const STATS_DEADLINE: Duration = Duration::from_secs(10);

/// Records the times of a VM's last boot. Parts that have not ended are removed. A VM that this process
/// has not booted keeps what is recorded.
pub(crate) fn record_boot_times(app: &AppState, vm: VmId) {
    let Some(times) = app.machines.boot_times(vm) else { return };
    let stages = times.stages;
    let values = [
        Some(times.place),
        times.devices,
        times.guest,
        stages.and_then(|stages| stages.firmware),
        stages.map(|stages| stages.kernel),
        stages.map(|stages| stages.services),
    ];
    // The VM may be destroyed meanwhile.
    let _ = app.db.write_observed(|tx| record(tx, vm, values));
}

/// Asks the datapaths when drivers began to use the disks of a VM that has booted, and records the
/// stages of its boot.
pub(crate) async fn record_boot_stages(app: &AppState, vm: VmId) {
    // The VM may be destroyed meanwhile.
    let disks = app.db.read(|view| attached_disks(view, vm)).unwrap_or_default();
    let mut starts: Vec<DriverStarts> = Vec::new();
    let places: BTreeSet<SrId> = disks.iter().map(|(_, sr)| *sr).collect();
    for sr in places {
        let stats = async { app.drivers.io.of(sr).await?.stats().await };
        let Ok(Ok(Some(stats))) = timeout(STATS_DEADLINE, stats).await else { continue };
        let of_vm = stats.disks.iter().filter(|disk| disks.iter().any(|(id, _)| *id == disk.id));
        starts.extend(of_vm.filter_map(|disk| disk.driver_starts));
    }
    // The first disk of each driver: others may be plugged later.
    let ago = |of: fn(&DriverStarts) -> f64| starts.iter().map(of).reduce(f64::max);
    let ago = ago(|starts| starts.first_seconds_ago).zip(ago(|starts| starts.last_seconds_ago));
    if let Some((first, last)) = ago {
        let ago = [first, last].map(|s| Duration::try_from_secs_f64(s).unwrap_or_default());
        app.machines.driver_starts(vm, ago);
        record_boot_times(app, vm);
    }
}

/// Returns the disks that are attached to a VM: the id in the datapath, and the SR.
fn attached_disks(view: &View<'_>, vm: VmId) -> Result<Vec<(String, SrId)>, ApiError> {
    let machine = view.by_uuid(&vm::CLASS, &vm.to_string())?.clone();
    let mut disks = Vec::new();
    for slot in references(view, &machine, vm::Field::VBDs)? {
        let disk = reference(view, &slot, vbd::Field::VDI)?;
        if flag(view, &slot, vbd::Field::currently_attached)? && !disk.is_null() {
            let place = reference(view, &disk, vdi::Field::SR)?;
            let id = uuid(view, &slot, vbd::Field::uuid)?.to_string();
            disks.push((id, SrId(uuid(view, &place, sr::Field::uuid)?)));
        }
    }
    Ok(disks)
}

fn record(
    tx: &mut Tx<'_>,
    vm: VmId,
    values: [Option<Duration>; KEYS.len()],
) -> Result<(), ApiError> {
    let machine = tx.view().by_uuid(&vm::CLASS, &vm.to_string())?.clone();
    let metrics = reference(&tx.view(), &machine, vm::Field::metrics)?;
    let mut config = pairs(&tx.view(), &metrics, vm_metrics::Field::other_config)?;
    for (key, value) in KEYS.into_iter().zip(values) {
        config.remove(key);
        config.extend(value.map(|value| (key.to_owned(), value.as_millis().to_string())));
    }
    tx.set(&metrics, vm_metrics::Field::other_config, map(config))
}
