//! Commands for CDs of machines.

use xenapi::Value;
use xenapi::client::Record;

use super::Command;
use crate::commands::vbd;
use crate::commands::vm_disk::{devices, list_devices};
use crate::error::XeError;
use crate::params::Params;
use crate::printer::Printed;
use crate::selector::{self, Selected, VM};
use crate::xe::XeSession;

/// Text for an empty drive.
const EMPTY: &str = "<EMPTY>";

pub(super) const COMMANDS: &[Command] = &[
    Command::own("cd-list", "Lists the CDs that machines can use.", list).optional(&["params"]),
    Command::own("vm-cd-list", "Lists the CD drives of machines and their CDs.", drives).of(&VM),
    Command::own(
        "vm-cd-add",
        "Adds a CD drive with a CD to machines, or puts it into the empty drive at this device.",
        add,
    )
    .required(&["cd-name", "device"])
    .of(&VM),
    Command::own(
        "vm-cd-remove",
        "Removes the CD drive with this CD from machines; `<EMPTY>` is an empty one.",
        remove,
    )
    .required(&["cd-name"])
    .of(&VM),
    Command::own("vm-cd-insert", "Puts a CD into the empty drive of machines.", insert)
        .required(&["cd-name"])
        .of(&VM),
    Command::own("vm-cd-eject", "Takes the CD out of the only drive of machines.", eject).of(&VM),
];

/// Columns of a list of CDs: name, heading and field.
const COLUMNS: [(&str, &str, &str); 2] =
    [("name-label", "name-label ( RW)", "name_label"), ("uuid", "uuid ( RO)", "uuid")];

fn list(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let listed = params.get("params").filter(|listed| *listed != "all");
    let wanted: Vec<_> = listed.map_or_else(Vec::new, |listed| listed.split(',').collect());
    if let Some(other) = wanted.iter().find(|name| !COLUMNS.iter().any(|one| one.0 == **name)) {
        return Err(XeError::error(format!(
            "Unknown field '{other}': CDs have name-label and uuid"
        )));
    }
    let lines = |(_, disc): (String, Record)| {
        let shown = COLUMNS.iter().filter(|one| wanted.is_empty() || wanted.contains(&one.0));
        shown.map(|one| (one.1.to_owned(), disc.text(one.2).to_owned())).collect()
    };
    Ok(Printed::Records(discs(xe)?.into_iter().map(lines).collect()))
}

/// Returns the disks on storage for CDs.
fn discs(xe: &mut XeSession) -> Result<Vec<(String, Record)>, XeError> {
    let storage = xe.client().records_where("SR", "field \"content_type\"=\"iso\"")?;
    let mut found = Vec::new();
    for disk in storage.iter().flat_map(|(_, storage)| storage.texts("VDIs")) {
        let record = xe.client().record("VDI", disk)?;
        if !record.flag("missing") {
            found.push((disk.to_owned(), record));
        }
    }
    Ok(found)
}

/// Returns the only CD of this name.
fn disc(xe: &mut XeSession, name: &str) -> Result<Value, XeError> {
    let all = discs(xe)?;
    let mut named = all.into_iter().filter(|(_, disk)| disk.text("name_label") == name);
    match (named.next(), named.next()) {
        (Some((reference, _)), None) => Ok(Value::Str(reference)),
        (None, _) => Err(XeError::error(format!("CD {name} not found"))),
        (Some(_), Some(_)) => Err(XeError::error(format!(
            "several CDs are called {name}: use vbd-insert or vbd-create with the UUID of one"
        ))),
    }
}

fn drives(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    list_devices(xe, params, "CD")
}

fn add(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let disc = disc(xe, params.required("cd-name")?)?;
    let device = params.required("device")?;
    let all = selector::some(xe, params, &VM, &["cd-name", "device"])?;
    selector::in_turn(xe, &all, |xe, one| {
        // A machine of a template for installation media has a drive where documents add one.
        let is_there = |drive: &Record| drive.text("userdevice") == device && drive.flag("empty");
        let mut drives = devices(xe, one, "CD")?.into_iter();
        if let Some((drive, _)) = drives.find(|(_, drive)| is_there(drive)) {
            return xe.run("VBD.insert", &[Value::Str(drive), disc.clone()]).map(|_| ());
        }
        let new = vbd::New { vm: one.value(), disk: disc.clone(), device, ..vbd::New::cd() };
        vbd::create_and_plug(xe, &one.record, new)
    })?;
    Ok(Printed::nothing())
}

fn remove(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let name = params.required("cd-name")?;
    let all = selector::some(xe, params, &VM, &["cd-name"])?;
    selector::in_turn(xe, &all, |xe, one| {
        let drives = devices(xe, one, "CD")?;
        for (reference, drive) in drives {
            let holds = match drive.reference("VDI") {
                None => name == EMPTY,
                Some(disk) => xe.client().record("VDI", disk)?.text("name_label") == name,
            };
            if holds {
                return xe.run("VBD.destroy", &[Value::Str(reference)]).map(|_| ());
            }
        }
        Err(XeError::error(format!("no drive with the CD {name}")))
    })?;
    Ok(Printed::nothing())
}

fn insert(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let disc = disc(xe, params.required("cd-name")?)?;
    let all = selector::some(xe, params, &VM, &["cd-name"])?;
    selector::in_turn(xe, &all, |xe, one| {
        let drive = the_drive(xe, one, true)?;
        xe.run("VBD.insert", &[drive, disc.clone()]).map(|_| ())
    })?;
    Ok(Printed::nothing())
}

fn eject(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let all = selector::some(xe, params, &VM, &[])?;
    selector::in_turn(xe, &all, |xe, one| {
        let drive = the_drive(xe, one, false)?;
        xe.run("VBD.eject", &[drive]).map(|_| ())
    })?;
    Ok(Printed::nothing())
}

/// Returns the only CD drive of a machine, or the only empty one.
fn the_drive(xe: &mut XeSession, vm: &Selected, empty: bool) -> Result<Value, XeError> {
    let drives = devices(xe, vm, "CD")?.into_iter();
    let mut drives = drives.filter(|(_, drive)| !empty || drive.flag("empty"));
    match (drives.next(), drives.next()) {
        (Some((reference, _)), None) => Ok(Value::Str(reference)),
        (None, _) if empty => Err(XeError::error("the machine has no empty CD drive")),
        (None, _) => Err(XeError::error("No CDs found")),
        (Some(_), Some(_)) => Err(XeError::error(
            "the machine has several such CD drives: use vbd-insert or vbd-eject",
        )),
    }
}
