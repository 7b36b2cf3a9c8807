//! Commands for messages to administrators.

use xenapi::Value;

use super::Command;
use crate::error::XeError;
use crate::params::Params;
use crate::printer::Printed;
use crate::xe::XeSession;

/// Objects of messages: the parameter with the UUID, and the object type.
const ABOUT: [(&str, &str); 4] =
    [("vm-uuid", "VM"), ("pool-uuid", "Pool"), ("sr-uuid", "SR"), ("host-uuid", "Host")];

pub(super) const COMMANDS: &[Command] = &[
    Command::own(
        "message-create",
        "Creates a message about a machine, a pool, storage or a host.",
        create,
    )
    .required(&["name", "priority", "body"])
    .optional(&["vm-uuid", "pool-uuid", "sr-uuid", "host-uuid"]),
    Command::own(
        "message-destroy",
        "Removes messages, one by `uuid` or several by `uuids`.",
        destroy,
    )
    .optional(&["uuid", "uuids"]),
];

fn create(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let text = |name| params.required(name).map(Value::text);
    let (name, priority, body) = (text("name")?, params.int("priority")?, text("body")?);
    let about = ABOUT.iter().find_map(|(param, kind)| Some((params.get(param)?, kind)));
    let (uuid, kind) = about.ok_or_else(|| {
        XeError::error("say what it is about: vm-uuid, pool-uuid, sr-uuid or host-uuid")
    })?;
    let values = [name, Value::Int(priority), Value::text(*kind), Value::text(uuid), body];
    xe.run("message.create", &values)?;
    Ok(Printed::nothing())
}

fn destroy(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let uuids: Vec<&str> = match (params.get("uuid"), params.get("uuids")) {
        (Some(uuid), None) => vec![uuid],
        (None, Some(uuids)) => uuids.split(',').map(str::trim).collect(),
        _ => return Err(XeError::error("give either uuid or uuids")),
    };
    let found = uuids.iter().map(|uuid| xe.by_uuid("message", uuid));
    let found = found.collect::<Result<_, _>>()?;
    xe.run("message.destroy_many", &[Value::Set(found)])?;
    Ok(Printed::nothing())
}
