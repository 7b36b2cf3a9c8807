//! VMs for tests of a daemon, created over its API.

use std::fmt::Write;
use std::time::Duration;

use xenapi::Value;
use xenapi::client::{Client, ClientError};

/// Template of VMs without an operating system.
const TEMPLATE: &str = "Other install media";
/// Size of each disk, in bytes. Most of them are never written.
const DISK_BYTES: u64 = 1 << 20;
/// Deadline of each call, longer than any takes on a busy host.
const CALL_DEADLINE: Duration = Duration::from_secs(120);

/// A storage repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sr {
    /// Reference of the SR.
    pub reference: String,
    /// UUID of the SR.
    pub uuid: String,
}

impl Sr {
    /// Creates an SR of this type, with this `device_config`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn make(
        client: &mut Client,
        (name, kind): (&str, &str),
        config: &[(&str, &str)],
    ) -> Result<Self, ClientError> {
        let host = first(client.call("host.get_all", &[])?);
        let config = config.iter().map(|(key, value)| ((*key).to_owned(), Value::text(*value)));
        let params = [
            host,
            Value::Map(config.collect()),
            Value::Int(0),
            Value::text(name),
            Value::text(""),
            Value::text(kind),
            Value::text("user"),
            Value::Bool(false),
            Value::Map(Default::default()),
        ];
        let reference = text(client.run("SR.create", &params, CALL_DEADLINE)?);
        let uuid = text(client.call("SR.get_uuid", &[Value::text(reference.as_str())])?);
        Ok(Self { reference, uuid })
    }
}

/// Creates a halted VM with this number of disks on this SR, or on the pool's default SR, and
/// without a CD drive. Returns its reference.
///
/// # Errors
/// [`ClientError`].
pub fn machine(
    client: &mut Client,
    name: &str,
    (disks, on): (u8, Option<&Sr>),
) -> Result<String, ClientError> {
    let template = first(client.call("VM.get_by_name_label", &[Value::text(TEMPLATE)])?);
    let cloned = client.run("VM.clone", &[template, Value::text(name)], CALL_DEADLINE)?;
    let machine = text(cloned);
    let mut wanted = String::new();
    let place = on.map_or("", |on| on.uuid.as_str());
    for disk in 0..disks {
        // Writing to a string does not fail.
        let _ = write!(wanted, r#"<disk device="{disk}" size="{DISK_BYTES}" sr="{place}"/>"#);
    }
    let wanted = format!("<provision>{wanted}</provision>");
    let of = Value::text(machine.as_str());
    let key = Value::text("disks");
    client.call("VM.remove_from_other_config", &[of.clone(), key.clone()])?;
    client.call("VM.add_to_other_config", &[of.clone(), key, Value::text(wanted)])?;
    for drive in client.record("VM", &machine)?.texts("VBDs") {
        client.call("VBD.destroy", &[Value::text(drive)])?;
    }
    client.run("VM.provision", &[of], CALL_DEADLINE)?;
    Ok(machine)
}

fn first(set: Value) -> Value {
    match set {
        Value::Set(all) => all.into_iter().next().unwrap_or(Value::text("")),
        other => other,
    }
}

fn text(value: Value) -> String {
    match value {
        Value::Str(text) => text,
        other => format!("{other:?}"),
    }
}
