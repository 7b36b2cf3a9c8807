//! QEMU's backends of a device: the chardev to its datapath, and the netdev of an interface.
//!
//! When a guest releases a device, only this driver removes the backends.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::device_ids::Device;
use super::domain::Domain;
use super::watch::FOREVER;
use crate::qemu::QemuError;
use crate::qemu::qmp::{COMMAND_DEADLINE, Qmp};

/// Removes the backends of a device. Missing backends are no error.
pub(super) async fn remove(qmp: &Qmp, device: Device) {
    let id = device.backend_id();
    let commands: &[&str] = match device {
        Device::Disk(_) => &["chardev-remove"],
        // `netdev_del` also removes the chardev, if the netdev has one.
        Device::Nic(_) => &["netdev_del", "chardev-remove"],
        Device::Drive(_) => &[],
    };
    for command in commands {
        if let Err(error) = qmp.execute(command, json!({ "id": id }), COMMAND_DEADLINE).await {
            tracing::debug!(%id, command, %error, "nothing to remove");
        }
    }
}

/// Removes backends whose device the guest has released unseen. Otherwise QEMU would try to
/// reconnect to the datapath once a second for ever.
///
/// No plug may run meanwhile, because its backends exist before its device.
pub(super) async fn remove_orphans(qmp: &Qmp) -> Result<(), QemuError> {
    let list = qmp.execute("query-chardev", Value::Null, FOREVER).await?;
    let names = list.as_array().into_iter().flatten();
    let names = names.filter_map(|one| one.get("label").and_then(Value::as_str));
    let ends: BTreeSet<_> = names.filter_map(Device::parse_backend_id).collect();
    if ends.is_empty() {
        return Ok(());
    }
    let devices: BTreeSet<_> = Domain::devices_by(qmp, FOREVER).await?.into_iter().collect();
    for left in ends.difference(&devices) {
        tracing::info!(id = left.backend_id(), "removing a backend without a device");
        remove(qmp, *left).await;
    }
    Ok(())
}
