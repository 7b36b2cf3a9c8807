//! Where the time of a VM's boot goes, in its metrics.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use model::id::{SrId, VmId};
use model::report::DriverStarts;
use tokio::time::timeout;
use toolstack::machines::BootTimes;
use xenapi::ApiError;
use xenapi::table::{sr, vbd, vdi, vm, vm_metrics};

use super::fields::{flag, map, pairs, reference, references, uuid};
use crate::app::AppState;
use crate::clock::Clock;
use crate::db::{Ref, Tx, View};

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
/// Keys of the part that has not ended, and of its beginning. A VM that does not boot has none.
const STAGE_KEYS: [&str; 2] = ["boot-stage", "boot-stage-since"];
/// Longest wait for the report of a datapath.
const STATS_DEADLINE: Duration = Duration::from_secs(10);

/// Follows the boots of all VMs.
pub(crate) async fn follow_boots(app: Arc<AppState>) {
    loop {
        let changed = app.machines.boot_changes().await;
        record_boots(&app, changed);
    }
}

/// Records the present times of boots. A VM that this process has not booted keeps the times that are
/// recorded.
pub(crate) fn record_boots(app: &AppState, all: impl IntoIterator<Item = VmId>) {
    let written = app.db.write_observed(|tx| {
        for vm in all {
            // Read within the change, so that later times are written later.
            let times = app.machines.boot_times(vm);
            // The VM may be destroyed meanwhile.
            let _ = record(tx, vm, times, &app.clock);
        }
        Ok(())
    });
    if let Err(error) = written {
        tracing::warn!(%error, "cannot record the times of boots");
    }
}

/// Removes the stages of boots that a former daemon has followed. The guests may boot still, but their
/// times are lost.
pub(crate) fn forget_stages(app: &AppState) {
    let _ = app.db.write_observed(|tx| {
        let all: Vec<Ref> =
            tx.view().all(&vm_metrics::CLASS).map(|one| one.reference().clone()).collect();
        for metrics in all {
            let mut config = pairs(&tx.view(), &metrics, vm_metrics::Field::other_config)?;
            STAGE_KEYS.iter().for_each(|key| drop(config.remove(*key)));
            tx.set(&metrics, vm_metrics::Field::other_config, map(config))?;
        }
        Ok(())
    });
}

/// Asks the datapaths when drivers began to use the disks of a VM that has booted, which tells the
/// stages of its boot.
pub(crate) async fn learn_boot_stages(app: &AppState, vm: VmId) {
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
    times: Option<BootTimes>,
    clock: &Clock,
) -> Result<(), ApiError> {
    let machine = tx.view().by_uuid(&vm::CLASS, &vm.to_string())?.clone();
    let metrics = reference(&tx.view(), &machine, vm::Field::metrics)?;
    let mut config = pairs(&tx.view(), &metrics, vm_metrics::Field::other_config)?;
    let mut put = |key: &str, value: Option<String>| {
        config.remove(key);
        config.extend(value.map(|value| (key.to_owned(), value)));
    };
    if let Some(times) = times {
        let values = parts(&times).map(|part| part.map(|part| part.as_millis().to_string()));
        KEYS.into_iter().zip(values).for_each(|(key, value)| put(key, value));
    }
    let [stage, since] = STAGE_KEYS;
    let waits = times.and_then(|times| times.waits);
    put(stage, waits.map(|(stage, _)| stage.name().to_owned()));
    put(since, waits.map(|(_, ago)| clock.date_before(ago).to_string()));
    tx.set(&metrics, vm_metrics::Field::other_config, map(config))
}

/// Returns the parts of a boot that have ended, in the order of [`KEYS`].
fn parts(times: &BootTimes) -> [Option<Duration>; KEYS.len()] {
    let BootTimes { place, devices, guest, stages, .. } = *times;
    [
        place,
        devices,
        guest,
        stages.and_then(|stages| stages.firmware),
        stages.map(|stages| stages.kernel),
        stages.map(|stages| stages.services),
    ]
}
