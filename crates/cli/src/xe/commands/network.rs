//! Commands for networks, and for network devices of machines and hosts.

use xenapi::Value;
use xenapi::table::class;

use super::Command;
use crate::columns::{self, Column};
use crate::error::XeError;
use crate::params::Params;
use crate::printer::Printed;
use crate::selector::{self, VM};
use crate::xe::{XeSession, pairs, record};

/// Columns of a device in a machine's list.
const SHOWN: [&str; 4] = ["uuid", "device", "MAC", "network-name-label"];
/// Default MTU of Ethernet, in bytes.
const MTU: i64 = 1500;

pub(super) const COMMANDS: &[Command] = &[
    Command::own("network-create", "Makes a network.", create)
        .required(&["name-label"])
        .optional(&["name-description", "MTU", "bridge", "managed"]),
    Command::on_uuid("network-destroy", "network.destroy", "Removes a network."),
    Command::own("vif-create", "Adds a network device to a machine.", create_device)
        .required(&["device", "network-uuid", "vm-uuid"])
        .optional(&["mac", "mtu"]),
    Command::on_uuid("vif-destroy", "VIF.destroy", "Removes a network device from its machine."),
    Command::on_uuid("vif-plug", "VIF.plug", "Plugs a network device into its running machine."),
    Command::own(
        "vif-unplug",
        "Unplugs a network device from its running machine; with --force without asking the guest.",
        unplug,
    )
    .required(&["uuid"])
    .optional(&["force"]),
    Command::own("vif-move", "Puts a network device on another network.", r#move)
        .required(&["uuid", "network-uuid"]),
    Command::own("vm-vif-list", "Lists the network devices of machines.", list).of(&VM),
    Command::on_uuid("pif-plug", "PIF.plug", "Brings a network device of a host up."),
    Command::on_uuid("pif-unplug", "PIF.unplug", "Takes a network device of a host down."),
    Command::own("pif-introduce", "Adds the record of a network device of a host.", introduce)
        .required(&["host-uuid"])
        .optional(&["device", "mac", "managed"]),
    Command::on_uuid(
        "pif-forget",
        "PIF.forget",
        "Removes the record of a network device that is not plugged.",
    ),
    Command::own("pif-scan", "Scans a host for network cards without a record.", scan)
        .required(&["host-uuid"]),
];

fn create(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let text = |name| Value::text(params.get(name).unwrap_or_default());
    let mtu = if params.get("MTU").is_some() { params.int("MTU")? } else { MTU };
    let network = record([
        ("name_label", text("name-label")),
        ("name_description", text("name-description")),
        ("MTU", Value::Int(mtu)),
        ("bridge", text("bridge")),
        ("managed", Value::Bool(params.flag_or("managed", true)?)),
        ("other_config", pairs([])),
    ]);
    Ok(Printed::value(xe.make("network.create", &[network])?))
}

fn create_device(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let vm = xe.by_uuid("VM", params.required("vm-uuid")?)?;
    let (network, record_of) = xe.find("network", params.required("network-uuid")?)?;
    let mtu = record_of.int("MTU");
    if params.get("mtu").is_some() && params.int("mtu")? != mtu {
        return Err(XeError::error(format!(
            "the network has an MTU of {mtu} bytes, which applies to all of its devices: set that of \
             the network (network-param-set MTU=), or leave mtu= out"
        )));
    }
    // The server chooses an address if it is empty.
    let address = params.get("mac").filter(|mac| *mac != "random").unwrap_or_default();
    let device = record([
        ("VM", vm),
        ("network", Value::Str(network)),
        ("device", Value::text(params.required("device")?)),
        ("MAC", Value::text(address)),
        ("MTU", Value::Int(mtu)),
        ("other_config", pairs([])),
        ("qos_algorithm_type", Value::text("")),
        ("qos_algorithm_params", pairs([])),
    ]);
    Ok(Printed::value(xe.make("VIF.create", &[device])?))
}

fn unplug(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let force = params.flag("force")?;
    let device = xe.by_uuid("VIF", params.required("uuid")?)?;
    xe.run(if force { "VIF.unplug_force" } else { "VIF.unplug" }, &[device])?;
    Ok(Printed::nothing())
}

fn r#move(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let device = xe.by_uuid("VIF", params.required("uuid")?)?;
    let network = xe.by_uuid("network", params.required("network-uuid")?)?;
    xe.run("VIF.move", &[device, network])?;
    Ok(Printed::nothing())
}

fn list(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let all = selector::some(xe, params, &VM, &[])?;
    let columns = class("VIF").map(columns::of).unwrap_or_default();
    let shown = |column: &&Column| SHOWN.iter().any(|name| column.is(name));
    let shown: Vec<_> = columns.iter().filter(shown).collect();
    let needs: Vec<_> = shown.iter().flat_map(|column| column.needs()).collect();
    xe.read(&needs)?;
    let mut records = Vec::new();
    for reference in all.iter().flat_map(|one| one.record.texts("VIFs")) {
        let device = xe.client().record("VIF", reference)?;
        let line = |column: &&Column| (column.heading(), column.text(&device, xe.tables()));
        records.push(shown.iter().map(line).collect());
    }
    Ok(Printed::Records(records))
}

fn introduce(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let host = xe.by_uuid("host", params.required("host-uuid")?)?;
    let text = |name| Value::text(params.get(name).unwrap_or_default());
    let managed = Value::Bool(params.flag_or("managed", true)?);
    let pif = xe.make("PIF.introduce", &[host, text("mac"), text("device"), managed])?;
    Ok(Printed::value(pif))
}

fn scan(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let host = xe.by_uuid("host", params.required("host-uuid")?)?;
    xe.run("PIF.scan", &[host])?;
    Ok(Printed::nothing())
}
