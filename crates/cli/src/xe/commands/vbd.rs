//! Commands for disk devices of machines.

use xenapi::client::Record;
use xenapi::{NULL_REF, Value};

use super::Command;
use crate::error::XeError;
use crate::params::Params;
use crate::printer::Printed;
use crate::xe::{XeSession, pairs, record};

pub(super) const COMMANDS: &[Command] = &[
    Command::own("vbd-create", "Adds a disk device to a machine.", create)
        .required(&["vm-uuid", "device"])
        .optional(&["vdi-uuid", "bootable", "type", "mode", "unpluggable"]),
    Command::on_uuid("vbd-destroy", "VBD.destroy", "Removes a disk device from its machine."),
    Command::on_uuid("vbd-plug", "VBD.plug", "Plugs a disk device into its running machine."),
    Command::own(
        "vbd-unplug",
        "Unplugs a disk device from its running machine; with --force without asking the guest.",
        unplug,
    )
    .required(&["uuid"])
    .optional(&["force", "timeout"]),
    Command::own("vbd-insert", "Puts a CD into a drive.", insert).required(&["uuid", "vdi-uuid"]),
    Command::on_uuid("vbd-eject", "VBD.eject", "Takes the CD out of a drive."),
];

/// Parameters of a new device.
#[derive(Clone, Debug)]
pub(super) struct New<'a> {
    pub(super) vm: Value,
    pub(super) disk: Value,
    pub(super) device: &'a str,
    pub(super) bootable: bool,
    pub(super) mode: &'static str,
    pub(super) ty: &'static str,
    pub(super) unpluggable: bool,
    pub(super) empty: bool,
}

impl New<'_> {
    /// Returns the parameters of a writable disk.
    pub(super) fn disk() -> Self {
        let none = || Value::text(NULL_REF);
        Self {
            vm: none(),
            disk: none(),
            device: "",
            bootable: false,
            mode: "RW",
            ty: "Disk",
            unpluggable: true,
            empty: false,
        }
    }

    /// Returns the parameters of a CD.
    pub(super) fn cd() -> Self {
        Self { mode: "RO", ty: "CD", ..Self::disk() }
    }

    fn record(self) -> Value {
        record([
            ("VM", self.vm),
            ("VDI", self.disk),
            ("userdevice", Value::text(self.device)),
            ("bootable", Value::Bool(self.bootable)),
            ("mode", Value::text(self.mode)),
            ("type", Value::text(self.ty)),
            ("unpluggable", Value::Bool(self.unpluggable)),
            ("empty", Value::Bool(self.empty)),
            ("other_config", pairs([])),
            ("qos_algorithm_type", Value::text("")),
            ("qos_algorithm_params", pairs([])),
        ])
    }
}

/// Creates a device, and plugs it if the machine runs.
pub(super) fn create_and_plug(
    xe: &mut XeSession,
    vm: &Record,
    new: New<'_>,
) -> Result<(), XeError> {
    let made = xe.run("VBD.create", &[new.record()])?;
    if vm.text("power_state") == "Running" {
        xe.run("VBD.plug", &[made])?;
    }
    Ok(())
}

fn create(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let ty = one_of(params, "type", &["Disk", "CD", "Floppy"])?;
    let default = if ty == "CD" { "RO" } else { "RW" };
    let new = New {
        device: params.required("device")?,
        bootable: params.flag("bootable")?,
        mode: match params.get("mode") {
            Some(_) => one_of(params, "mode", &["RO", "RW"])?,
            None => default,
        },
        ty,
        unpluggable: params.flag_or("unpluggable", true)?,
        empty: params.get("vdi-uuid").is_none(),
        ..New::disk()
    };
    if new.empty && ty == "Disk" {
        return Err(XeError::error("only a CD drive can be empty: give vdi-uuid, or type=CD"));
    }
    let vm = xe.by_uuid("VM", params.required("vm-uuid")?)?;
    let disk = match params.get("vdi-uuid") {
        Some(uuid) => xe.by_uuid("VDI", uuid)?,
        None => Value::text(NULL_REF),
    };
    let uuid = xe.make("VBD.create", &[New { vm, disk, ..new }.record()])?;
    Ok(Printed::value(uuid))
}

/// Returns the given word, case-insensitively; the first of `words` if it is absent.
fn one_of(params: &Params, name: &str, words: &[&'static str]) -> Result<&'static str, XeError> {
    let first = words.first().copied().unwrap_or_default();
    let Some(typed) = params.get(name) else { return Ok(first) };
    let found = words.iter().copied().find(|word| word.eq_ignore_ascii_case(typed));
    found.ok_or_else(|| {
        let words = words.join(", ");
        XeError::error(format!("'{name}' is one of {words}, and not '{typed}'"))
    })
}

fn unplug(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let force = params.flag("force")?;
    let device = xe.by_uuid("VBD", params.required("uuid")?)?;
    xe.run(if force { "VBD.unplug_force" } else { "VBD.unplug" }, &[device])?;
    Ok(Printed::nothing())
}

fn insert(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let drive = xe.by_uuid("VBD", params.required("uuid")?)?;
    let disc = xe.by_uuid("VDI", params.required("vdi-uuid")?)?;
    xe.run("VBD.insert", &[drive, disc])?;
    Ok(Printed::nothing())
}
