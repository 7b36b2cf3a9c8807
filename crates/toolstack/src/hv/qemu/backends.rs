//! What QEMU keeps on the host for a device: the connection to its datapath, and what it makes of an
//! interface's. A guest lets go of a device, and of the host's end nobody but us.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::device_ids::Device;
use super::domain::Domain;
use super::watch::FOREVER;
use crate::qemu::QemuError;
use crate::qemu::qmp::{COMMAND_DEADLINE, Qmp};

/// Removes that of a device. That it is not there is as good.
pub(super) async fn remove(qmp: &Qmp, device: Device) {
    let id = device.host_end();
    let commands: &[&str] = match device {
        Device::Disk(_) => &["chardev-remove"],
        // The first takes the connection with it, where it has one.
        Device::Nic(_) => &["netdev_del", "chardev-remove"],
        Device::Drive(_) => &[],
    };
    for command in commands {
        if let Err(error) = qmp.execute(command, json!({ "id": id }), COMMAND_DEADLINE).await {
            tracing::debug!(%id, command, %error, "nothing to remove");
        }
    }
}

/// Removes those whose device the guest has let go of while nobody saw it: QEMU would try to reach the
/// datapath once a second for ever. Nobody may plug meanwhile: who does has an end before a device.
pub(super) async fn remove_left(qmp: &Qmp) -> Result<(), QemuError> {
    let list = qmp.execute("query-chardev", Value::Null, FOREVER).await?;
    let names = list.as_array().into_iter().flatten();
    let names = names.filter_map(|one| one.get("label").and_then(Value::as_str));
    let ends: BTreeSet<_> = names.filter_map(Device::of_host_end).collect();
    if ends.is_empty() {
        return Ok(());
    }
    let devices: BTreeSet<_> = Domain::devices_by(qmp, FOREVER).await?.into_iter().collect();
    for left in ends.difference(&devices) {
        tracing::info!(id = left.host_end(), "its guest has let go of the device unseen");
        remove(qmp, *left).await;
    }
    Ok(())
}
