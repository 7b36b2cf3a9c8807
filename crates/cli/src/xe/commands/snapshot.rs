//! Commands for snapshots of machines.

use xenapi::Value;

use super::vm::{remove, sr_of};
use super::vm_disk::list_devices_of;
use super::{Command, named};
use crate::error::XeError;
use crate::params::Params;
use crate::printer::Printed;
use crate::selector::Selected;
use crate::xe::XeSession;

pub(super) const COMMANDS: &[Command] = &[
    Command::own("snapshot-revert", "Reverts a machine to a snapshot.", revert)
        .optional(&["uuid", "snapshot-uuid"])
        .common(),
    Command::own(
        "snapshot-clone",
        "Makes a template of a snapshot; the disks share their common data.",
        clone,
    )
    .required(&["new-name-label"])
    .optional(&["uuid", "snapshot-uuid", "new-name-description"]),
    Command::own(
        "snapshot-copy",
        "Makes a template of a snapshot, with copies of its disks.",
        copy,
    )
    .required(&["new-name-label"])
    .optional(&["uuid", "snapshot-uuid", "new-name-description", "sr-uuid"]),
    Command::own("snapshot-disk-list", "Lists the disks of a snapshot.", list_disks)
        .optional(&["uuid", "snapshot-uuid"]),
    Command::on_uuid("snapshot-destroy", "VM.destroy", "Forgets a snapshot; its disks stay."),
    Command::own(
        "snapshot-uninstall",
        "Forgets a snapshot and destroys its disks, after a question; with --force does not ask.",
        uninstall,
    )
    .optional(&["uuid", "snapshot-uuid", "force"]),
];

/// Returns the snapshot of the parameters.
fn snapshot(xe: &mut XeSession, params: &Params) -> Result<Selected, XeError> {
    let uuid = params.get("snapshot-uuid").or_else(|| params.get("uuid"));
    let uuid = uuid.ok_or_else(|| XeError::missing("snapshot-uuid"))?;
    let (reference, record) = xe.find("VM", uuid)?;
    if !record.flag("is_a_snapshot") {
        return Err(XeError::error("this is no snapshot; snapshot-list shows all"));
    }
    Ok(Selected { reference, record })
}

fn revert(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let snapshot = snapshot(xe, params)?;
    xe.run("VM.revert", &[snapshot.value()])?;
    Ok(Printed::nothing())
}

fn clone(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let snapshot = snapshot(xe, params)?;
    let name = Value::text(params.required("new-name-label")?);
    let made = xe.run("VM.clone", &[snapshot.value(), name])?;
    named(xe, "VM", &[made], params.get("new-name-description"))
}

fn copy(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let snapshot = snapshot(xe, params)?;
    let name = Value::text(params.required("new-name-label")?);
    let sr = sr_of(xe, params)?;
    let made = xe.run("VM.copy", &[snapshot.value(), name, sr])?;
    named(xe, "VM", &[made], params.get("new-name-description"))
}

fn list_disks(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let snapshot = snapshot(xe, params)?;
    list_devices_of(xe, &[snapshot], "Disk")
}

fn uninstall(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let snapshot = snapshot(xe, params)?;
    remove(xe, &[snapshot], params.flag("force")?)
}
