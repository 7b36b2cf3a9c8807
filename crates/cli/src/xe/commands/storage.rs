//! Commands for storage repositories, and for hosts' connections to them.

use xenapi::Value;

use super::Command;
use crate::error::XeError;
use crate::params::Params;
use crate::printer::Printed;
use crate::xe::{XeSession, pairs, record, text_of};

pub(super) const COMMANDS: &[Command] = &[
    Command::own("sr-create", "Creates a storage repository and connects the host to it.", create)
        .required(&["name-label", "type"])
        .optional(&[
            "name-description",
            "host-uuid",
            "device-config:",
            "shared",
            "physical-size",
            "content-type",
            "sm-config:",
        ]),
    Command::own("sr-introduce", "Adds the record of existing storage.", introduce)
        .required(&["uuid", "name-label", "type"])
        .optional(&["name-description", "shared", "content-type"]),
    Command::own("sr-probe", "Scans for storage repositories.", probe)
        .required(&["type"])
        .optional(&["host-uuid", "device-config:", "sm-config:"]),
    Command::on_uuid("sr-destroy", "SR.destroy", "Removes storage and all its contents."),
    Command::on_uuid("sr-forget", "SR.forget", "Forgets storage; its contents stay."),
    Command::on_uuid("sr-scan", "SR.scan", "Scans storage for its disks.").common(),
    Command::on_uuid("sr-update", "SR.update", "Updates the size of storage."),
    Command::own("pbd-create", "Describes how a host reaches storage.", connect)
        .required(&["host-uuid", "sr-uuid"])
        .optional(&["device-config:"]),
    Command::on_uuid("pbd-destroy", "PBD.destroy", "Forgets how a host reaches storage."),
    Command::on_uuid("pbd-plug", "PBD.plug", "Connects a host to storage."),
    Command::on_uuid("pbd-unplug", "PBD.unplug", "Ends a host's connection to storage."),
];

/// Returns the named host, or the one that answers.
fn host(xe: &mut XeSession, params: &Params) -> Result<Value, XeError> {
    match params.get("host-uuid") {
        Some(uuid) => xe.by_uuid("host", uuid),
        None => Ok(Value::text(xe.pool()?.1.text("master"))),
    }
}

fn create(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let text = |name| Value::text(params.get(name).unwrap_or_default());
    let size = match params.get("physical-size") {
        Some(_) => params.size("physical-size")?,
        None => 0,
    };
    let shared = Value::Bool(params.flag("shared")?);
    let values = [
        host(xe, params)?,
        pairs(params.map("device-config")),
        Value::Int(size),
        text("name-label"),
        text("name-description"),
        text("type"),
        text("content-type"),
        shared,
        pairs(params.map("sm-config")),
    ];
    Ok(Printed::value(xe.make("SR.create", &values)?))
}

fn introduce(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let text = |name| Value::text(params.get(name).unwrap_or_default());
    let values = [
        text("uuid"),
        text("name-label"),
        text("name-description"),
        text("type"),
        text("content-type"),
        Value::Bool(params.flag("shared")?),
    ];
    Ok(Printed::value(xe.make("SR.introduce", &values)?))
}

fn probe(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let values = [
        host(xe, params)?,
        pairs(params.map("device-config")),
        Value::text(params.required("type")?),
        pairs(params.map("sm-config")),
    ];
    Ok(Printed::value(text_of(&xe.run("SR.probe", &values)?)))
}

fn connect(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let connection = record([
        ("host", xe.by_uuid("host", params.required("host-uuid")?)?),
        ("SR", xe.by_uuid("SR", params.required("sr-uuid")?)?),
        ("device_config", pairs(params.map("device-config"))),
        ("other_config", pairs([])),
    ]);
    Ok(Printed::value(xe.make("PBD.create", &[connection])?))
}
