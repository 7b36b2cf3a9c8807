//! Commands for the disks of a machine.

use xenapi::Value;
use xenapi::client::Record;
use xenapi::table::class;

use super::Command;
use crate::columns;
use crate::commands::vbd;
use crate::error::XeError;
use crate::params::Params;
use crate::printer::{Line, Printed};
use crate::selector::{self, Selected, VM};
use crate::xe::{XeSession, pairs, record};

/// Columns of a device.
const OF_DEVICE: (&str, &[&str]) = ("VBD", &["uuid", "vm-name-label", "userdevice"]);
/// Columns of a drive.
const OF_DRIVE: (&str, &[&str]) = ("VBD", &["uuid", "vm-name-label", "empty", "userdevice"]);
/// Columns of the disk in a device.
const OF_DISK: (&str, &[&str]) = ("VDI", &["uuid", "name-label", "sr-name-label", "virtual-size"]);
/// Name of disks that this program creates.
const NAME: &str = "Created by xe";

pub(super) const COMMANDS: &[Command] = &[
    Command::own("vm-disk-list", "Lists the disks of machines.", list).of(&VM).common(),
    Command::own("vm-disk-add", "Creates a disk and adds it to machines.", add)
        .required(&["disk-size", "device"])
        .optional(&["sr-uuid"])
        .of(&VM),
    Command::own("vm-disk-remove", "Removes a disk from machines and destroys it.", remove)
        .required(&["device"])
        .of(&VM),
];

fn list(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    list_devices(xe, params, "Disk")
}

/// Lists the devices of this type of the selected machines, each with its disk.
pub(super) fn list_devices(
    xe: &mut XeSession,
    params: &Params,
    ty: &str,
) -> Result<Printed, XeError> {
    let all = selector::some(xe, params, &VM, &["vbd-params", "vdi-params"])?;
    list_devices_of(xe, &all, ty)
}

/// Lists the devices of this type of these machines or snapshots, each with its disk.
pub(super) fn list_devices_of(
    xe: &mut XeSession,
    all: &[Selected],
    ty: &str,
) -> Result<Printed, XeError> {
    let shown = if ty == "CD" { OF_DRIVE } else { OF_DEVICE };
    let mut records = Vec::new();
    for one in all {
        for (at, (_, device)) in devices(xe, one, ty)?.into_iter().enumerate() {
            let above = |what: &str| format!("{ty} {at} {what}:");
            records.push((above("VBD"), lines(xe, shown, &device)?));
            if let Some(disk) = device.reference("VDI") {
                let disk = xe.client().record("VDI", disk)?;
                records.push((above("VDI"), lines(xe, OF_DISK, &disk)?));
            }
        }
    }
    Ok(Printed::Headed(records))
}

fn lines(
    xe: &mut XeSession,
    (of, names): (&'static str, &[&str]),
    record: &Record,
) -> Result<Vec<Line>, XeError> {
    let columns = class(of).map(columns::of).unwrap_or_default();
    let shown = names.iter().filter_map(|name| columns.iter().find(|column| column.is(name)));
    let shown: Vec<_> = shown.collect();
    let needs: Vec<_> = shown.iter().flat_map(|column| column.needs()).collect();
    xe.read(&needs)?;
    let line = |column: &&columns::Column| (column.heading(), column.text(record, xe.tables()));
    Ok(shown.iter().map(line).collect())
}

/// Returns a machine's devices of this type, by number.
pub(super) fn devices(
    xe: &mut XeSession,
    vm: &Selected,
    ty: &str,
) -> Result<Vec<(String, Record)>, XeError> {
    let mut found = Vec::new();
    for reference in vm.record.texts("VBDs") {
        let device = xe.client().record("VBD", reference)?;
        if device.text("type") == ty {
            found.push((reference.to_owned(), device));
        }
    }
    found.sort_by_key(|(_, device)| device.text("userdevice").parse::<u32>().ok());
    Ok(found)
}

fn add(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let (size, device) = (params.size("disk-size")?, params.required("device")?);
    let storage = match params.get("sr-uuid") {
        Some(uuid) => xe.by_uuid("SR", uuid)?,
        None => default_storage(xe)?,
    };
    let all = selector::some(xe, params, &VM, &["disk-size", "device", "sr-uuid"])?;
    selector::in_turn(xe, &all, |xe, one| {
        let disk = xe.run("VDI.create", &[new_disk(NAME, storage.clone(), size)])?;
        let new = vbd::New { vm: one.value(), disk: disk.clone(), device, ..vbd::New::disk() };
        vbd::create_and_plug(xe, &one.record, new).inspect_err(|_| {
            // Remove the unused disk, and report why it could not be added.
            let _stays = xe.run("VDI.destroy", std::slice::from_ref(&disk));
        })
    })?;
    Ok(Printed::nothing())
}

/// Returns the record of a new disk.
pub(super) fn new_disk(name: &str, storage: Value, size: i64) -> Value {
    record([
        ("name_label", Value::text(name)),
        ("name_description", Value::text("")),
        ("SR", storage),
        ("virtual_size", Value::Int(size)),
        ("type", Value::text("user")),
        ("sharable", Value::Bool(false)),
        ("read_only", Value::Bool(false)),
        ("other_config", pairs([])),
        ("sm_config", pairs([])),
        ("xenstore_data", pairs([])),
    ])
}

/// Returns the default storage for new disks.
pub(super) fn default_storage(xe: &mut XeSession) -> Result<Value, XeError> {
    let (_, pool) = xe.pool()?;
    let storage = pool.reference("default_SR").map(Value::text);
    storage.ok_or_else(|| {
        XeError::error(
            "the pool has no default SR: give sr-uuid, or set one with pool-param-set default-SR",
        )
    })
}

fn remove(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let number = params.required("device")?;
    let all = selector::some(xe, params, &VM, &["device"])?;
    selector::in_turn(xe, &all, |xe, one| {
        let devices = devices(xe, one, "Disk")?.into_iter();
        let device = devices.into_iter().find(|(_, device)| device.text("userdevice") == number);
        let (reference, device) = device.ok_or_else(|| XeError::error("Disk not found"))?;
        let reference = Value::Str(reference);
        if device.flag("currently_attached") {
            xe.run("VBD.unplug", std::slice::from_ref(&reference))?;
        }
        xe.run("VBD.destroy", &[reference])?;
        match device.reference("VDI") {
            Some(disk) => xe.run("VDI.destroy", &[Value::text(disk)]).map(|_| ()),
            None => Ok(()),
        }
    })?;
    Ok(Printed::nothing())
}
