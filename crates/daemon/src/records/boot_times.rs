//! Where the time of a VM's boot went, in its metrics.

use std::time::Duration;

use model::id::VmId;
use xenapi::ApiError;
use xenapi::table::{vm, vm_metrics};

use super::fields::{map, pairs, reference};
use crate::app::AppState;
use crate::db::Tx;

/// Keys of `VM_metrics.other_config`, in milliseconds: wait for a place among the machines that boot;
/// from then until the CPUs run; from then until the guest's agent answered.
const KEYS: [&str; 3] = ["boot-place-ms", "boot-devices-ms", "boot-guest-ms"];

/// Records the times of a VM's last boot. Parts that have not ended are removed. A VM that this process
/// has not booted keeps what is recorded.
pub(crate) fn record_boot_times(app: &AppState, vm: VmId) {
    let Some(times) = app.machines.boot_times(vm) else { return };
    let values = [Some(times.place), times.devices, times.guest];
    // The VM may be destroyed meanwhile.
    let _ = app.db.write_observed(|tx| record(tx, vm, values));
}

fn record(tx: &mut Tx<'_>, vm: VmId, values: [Option<Duration>; 3]) -> Result<(), ApiError> {
    let machine = tx.view().by_uuid(&vm::CLASS, &vm.to_string())?.clone();
    let metrics = reference(&tx.view(), &machine, vm::Field::metrics)?;
    let mut config = pairs(&tx.view(), &metrics, vm_metrics::Field::other_config)?;
    for (key, value) in KEYS.into_iter().zip(values) {
        config.remove(key);
        config.extend(value.map(|value| (key.to_owned(), value.as_millis().to_string())));
    }
    tx.set(&metrics, vm_metrics::Field::other_config, map(config))
}
