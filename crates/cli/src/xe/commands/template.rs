//! Creation of a machine from a template.

use xenapi::client::Record;
use xenapi::{NULL_REF, Value};

use super::Command;
use super::vm::remove;
use crate::commands::vm_disk::default_storage;
use crate::error::XeError;
use crate::params::Params;
use crate::printer::Printed;
use crate::selector::Selected;
use crate::xe::{XeSession, text_of};

/// Key of `other_config` for the disks of a template's machines.
const DISKS: &str = "disks";
/// Text before the storage UUID in that value.
const STORAGE: &str = " sr=\"";

pub(super) const COMMANDS: &[Command] = &[
    Command::own(
        "vm-install",
        "Creates a machine from a template, with the disks that the template defines, on this \
         storage or on the pool's default. It is not started.",
        install,
    )
    .required(&["new-name-label"])
    .optional(&[
        "template",
        "template-name",
        "template-name-label",
        "template-uuid",
        "sr-uuid",
        "sr-name-label",
        "copy-bios-strings-from",
    ])
    .common(),
    Command::own(
        "template-uninstall",
        "Forgets a template and destroys the disks that only it uses, after a question; with \
         --force does not ask.",
        uninstall,
    )
    .required(&["template-uuid"])
    .optional(&["force"]),
];

fn install(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let name = params.required("new-name-label")?;
    let template = template(xe, params)?;
    let storage = storage(xe, params)?;
    let made = match &storage {
        Some(storage) => xe.run("VM.copy", &[template, Value::text(name), storage.clone()])?,
        None => xe.run("VM.clone", &[template, Value::text(name)])?,
    };
    let done = finish(xe, params, &made, storage);
    if done.is_err() {
        // Remove the incomplete machine, and report why it could not be completed.
        let _stays = xe.run("VM.destroy", std::slice::from_ref(&made));
    }
    done?;
    Ok(Printed::value(xe.uuid_of("VM", &text_of(&made))?))
}

/// Creates the devices that the template defines.
fn finish(
    xe: &mut XeSession,
    params: &Params,
    made: &Value,
    storage: Option<Value>,
) -> Result<(), XeError> {
    let record = xe.client().record("VM", &text_of(made))?;
    let asked = record.pairs("other_config").get(DISKS).map(|text| (*text).to_owned());
    if let Some(asked) = asked {
        let storage = match storage {
            Some(storage) => storage,
            None => default_storage(xe)?,
        };
        let uuid = xe.uuid_of("SR", &text_of(&storage))?;
        let key = Value::text(DISKS);
        xe.run("VM.remove_from_other_config", &[made.clone(), key.clone()])?;
        let asked = Value::Str(on_storage(&asked, &uuid));
        xe.run("VM.add_to_other_config", &[made.clone(), key, asked])?;
    }
    xe.run("VM.provision", std::slice::from_ref(made))?;
    if let Some(host) = params.get("copy-bios-strings-from") {
        let host = xe.by_uuid("host", host)?;
        xe.run("VM.copy_bios_strings", &[made.clone(), host])?;
    }
    Ok(())
}

/// Returns the same disks with all of them on this storage.
fn on_storage(disks: &str, uuid: &str) -> String {
    let mut parts = disks.split(STORAGE);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.split_once('"').map_or("", |(_, rest)| rest);
        text.extend([STORAGE, uuid, "\"", rest]);
    }
    text
}

/// Returns the template given by UUID or name.
fn template(xe: &mut XeSession, params: &Params) -> Result<Value, XeError> {
    let named = params.get("template-name-label").or_else(|| params.get("template-name"));
    let found = match (params.get("template-uuid"), named, params.get("template")) {
        (Some(uuid), ..) => xe.by_uuid("VM", uuid)?,
        (None, Some(name), _) => called(xe, name)?,
        (None, None, Some(text)) => match xe.by_uuid("VM", text) {
            Ok(found) => found,
            Err(xe_error) if xe_error.api_code() == Some("UUID_INVALID") => called(xe, text)?,
            Err(xe_error) => return Err(xe_error),
        },
        (None, None, None) => {
            return Err(XeError::error(
                "say which template: template=<name or UUID>, template-name-label or template-uuid",
            ));
        }
    };
    let record = xe.client().record("VM", &text_of(&found))?;
    if !record.flag("is_a_template") {
        return Err(XeError::error("Can only install from templates"));
    }
    Ok(found)
}

/// Returns the only template of this name.
fn called(xe: &mut XeSession, name: &str) -> Result<Value, XeError> {
    let is_one =
        |record: &Record| record.flag("is_a_template") && record.text("name_label") == name;
    let all = xe.client().records_where("VM", "field \"is_a_template\"=\"true\"")?;
    let mut found = all.into_iter().filter(|(_, record)| is_one(record));
    match (found.next(), found.next()) {
        (Some((reference, _)), None) => Ok(Value::Str(reference)),
        (None, _) => Err(XeError::error("No templates matched")),
        (Some(_), Some(_)) => Err(XeError::error("More than one matching template found")),
    }
}

/// Returns the given storage, if there is one.
fn storage(xe: &mut XeSession, params: &Params) -> Result<Option<Value>, XeError> {
    if let Some(uuid) = params.get("sr-uuid") {
        return xe.by_uuid("SR", uuid).map(Some);
    }
    let Some(name) = params.get("sr-name-label") else { return Ok(None) };
    let mut found = xe.by_name("SR", name)?;
    match (found.pop(), found.is_empty()) {
        (Some(one), true) if one != NULL_REF => Ok(Some(Value::Str(one))),
        (Some(_), false) => Err(XeError::error("Multiple SRs with that name-label found")),
        _ => Err(XeError::error("No SR with that name-label found")),
    }
}

fn uninstall(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let (reference, record) = xe.find("VM", params.required("template-uuid")?)?;
    if !record.flag("is_a_template") {
        return Err(XeError::error("this is a machine, not a template: use vm-uninstall"));
    }
    remove(xe, &[Selected { reference, record }], params.flag("force")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_go_to_the_storage_that_is_chosen() {
        let text = "<provision><disk device=\"0\" size=\"1\" sr=\"\" bootable=\"true\"/>\
                    <disk device=\"1\" sr=\"old\"/></provision>";
        assert_eq!(
            on_storage(text, "new"),
            "<provision><disk device=\"0\" size=\"1\" sr=\"new\" bootable=\"true\"/>\
             <disk device=\"1\" sr=\"new\"/></provision>"
        );
        for text in ["", "<provision/>", " sr=", "x sr=\""] {
            on_storage(text, "new");
        }
        assert_eq!(on_storage("<provision/>", "new"), "<provision/>");
    }
}
