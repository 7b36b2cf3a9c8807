//! Commands for disks.

use xenapi::{NULL_REF, Value};

use super::{Command, named};
use crate::commands::vm_disk::new_disk;
use crate::error::XeError;
use crate::params::Params;
use crate::printer::Printed;
use crate::values;
use crate::xe::{XeSession, pairs};

pub(super) const COMMANDS: &[Command] = &[
    Command::own("vdi-create", "Makes a disk.", create)
        .required(&["sr-uuid", "name-label", "virtual-size"])
        .optional(&["sm-config:", "other-config:", "sharable", "type"]),
    Command::on_uuid("vdi-destroy", "VDI.destroy", "Destroys a disk and its contents."),
    Command::on_uuid("vdi-forget", "VDI.forget", "Forgets a disk; its contents stay."),
    Command::on_uuid("vdi-update", "VDI.update", "Updates a disk's record from storage."),
    Command::own("vdi-introduce", "Adds the record of an existing disk.", introduce)
        .required(&["uuid", "sr-uuid", "type", "location"])
        .optional(&[
            "name-label",
            "name-description",
            "sharable",
            "read-only",
            "managed",
            "other-config:",
            "sm-config:",
        ]),
    Command::own(
        "vdi-resize",
        "Makes a disk larger; with online=true while a machine uses it.",
        resize,
    )
    .required(&["uuid", "disk-size"])
    .optional(&["online"]),
    Command::own("vdi-copy", "Copies a disk, to the same or other storage.", copy)
        .required(&["uuid"])
        .optional(&["sr-uuid", "base-vdi-uuid", "into-vdi-uuid"]),
    Command::own("vdi-clone", "Clones a disk; both share their common data.", clone)
        .required(&["uuid"])
        .optional(&["new-name-label", "new-name-description", "driver-params:"]),
    Command::own("vdi-snapshot", "Takes a snapshot of a disk.", snapshot)
        .required(&["uuid"])
        .optional(&["driver-params:"]),
    Command::own("vdi-pool-migrate", "Moves a disk while a machine uses it.", migrate)
        .required(&["uuid", "sr-uuid"])
        .later(),
    Command::on_uuid("vdi-enable-cbt", "VDI.enable_cbt", "Starts to track changed blocks.").later(),
    Command::on_uuid("vdi-disable-cbt", "VDI.disable_cbt", "Stops tracking changed blocks.")
        .later(),
    Command::on_uuid(
        "vdi-data-destroy",
        "VDI.data_destroy",
        "Removes the contents of a snapshot and keeps the list of its changed blocks.",
    )
    .later(),
];

fn create(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let (name, size) = (params.required("name-label")?, params.size("virtual-size")?);
    let sharable = Value::Bool(params.flag("sharable")?);
    let ty = kind(xe, params.get("type").unwrap_or("user"))?;
    let storage = xe.by_uuid("SR", params.required("sr-uuid")?)?;
    let mut disk = new_disk(name, storage, size);
    if let Value::Map(fields) = &mut disk {
        fields.insert("type".to_owned(), ty);
        fields.insert("sharable".to_owned(), sharable);
        fields.insert("sm_config".to_owned(), pairs(params.map("sm-config")));
        fields.insert("other_config".to_owned(), pairs(params.map("other-config")));
    }
    Ok(Printed::value(xe.make("VDI.create", &[disk])?))
}

/// Parses the type of a disk.
fn kind(xe: &mut XeSession, typed: &str) -> Result<Value, XeError> {
    values::parse(xe, "type", typed, &xenapi::table::Type::Enum(&xenapi::table::enums::VDI_TYPE))
}

fn introduce(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let text = |name| Value::text(params.get(name).unwrap_or_default());
    let storage = xe.by_uuid("SR", params.required("sr-uuid")?)?;
    let ty = kind(xe, params.required("type")?)?;
    let values = [
        text("uuid"),
        text("name-label"),
        text("name-description"),
        storage,
        ty,
        Value::Bool(params.flag("sharable")?),
        Value::Bool(params.flag("read-only")?),
        pairs(params.map("other-config")),
        text("location"),
        pairs([]),
        pairs(params.map("sm-config")),
        Value::Bool(params.flag_or("managed", true)?),
    ];
    Ok(Printed::value(xe.make("VDI.introduce", &values)?))
}

fn resize(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let size = Value::Int(params.size("disk-size")?);
    let method = if params.flag("online")? { "VDI.resize_online" } else { "VDI.resize" };
    let disk = xe.by_uuid("VDI", params.required("uuid")?)?;
    xe.run(method, &[disk, size])?;
    Ok(Printed::nothing())
}

fn copy(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let disk = xe.by_uuid("VDI", params.required("uuid")?)?;
    let mut values = vec![disk];
    for (name, class) in [("sr-uuid", "SR"), ("base-vdi-uuid", "VDI"), ("into-vdi-uuid", "VDI")] {
        values.push(match params.get(name) {
            Some(uuid) => xe.by_uuid(class, uuid)?,
            None => Value::text(NULL_REF),
        });
    }
    Ok(Printed::value(xe.make("VDI.copy", &values)?))
}

fn clone(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let disk = xe.by_uuid("VDI", params.required("uuid")?)?;
    let made = xe.run("VDI.clone", &[disk, pairs(params.map("driver-params"))])?;
    if let Some(name) = params.get("new-name-label") {
        xe.run("VDI.set_name_label", &[made.clone(), Value::text(name)])?;
    }
    named(xe, "VDI", &[made], params.get("new-name-description"))
}

fn snapshot(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let disk = xe.by_uuid("VDI", params.required("uuid")?)?;
    let driver = pairs(params.map("driver-params"));
    Ok(Printed::value(xe.make("VDI.snapshot", &[disk, driver])?))
}

fn migrate(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let disk = xe.by_uuid("VDI", params.required("uuid")?)?;
    let storage = xe.by_uuid("SR", params.required("sr-uuid")?)?;
    Ok(Printed::value(xe.make("VDI.pool_migrate", &[disk, storage, pairs([])])?))
}
