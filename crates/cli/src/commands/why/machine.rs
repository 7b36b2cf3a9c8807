//! Devices of virtual machines, as `ringwayd` records them.

use std::time::SystemTime;

use anyhow::{Context, bail};
use toolstack::ringway_io::HostSockets;
use xenapi::client::{Client, Record};

use super::boot::Boot;
use crate::commands::ringwayd::{blocking, by_name_or_uuid, by_uuid};

/// Kind of look-up, for errors.
const WHAT: &str = "VMs and their devices";

/// Object that the user asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Query<'a> {
    /// A disk or NIC by its id.
    Id(&'a str),
    /// A VM by its name or UUID.
    Vm(&'a str),
    /// A disk of a VM by the UUID of its VBD.
    Vbd(&'a str),
    /// A NIC of a VM by the UUID of its VIF.
    Vif(&'a str),
}

impl<'a> Query<'a> {
    /// Parses the argument. A word without one of the keys is an id.
    pub(super) fn parse(what: &'a str) -> Self {
        match what.split_once('=') {
            Some(("vm", name)) => Self::Vm(name),
            Some(("vbd", uuid)) => Self::Vbd(uuid),
            Some(("vif", uuid)) => Self::Vif(uuid),
            _ => Self::Id(what),
        }
    }
}

/// A virtual machine with its devices.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) uuid: String,
    pub(super) name: String,
    /// Its present or last boot, if something is known of it.
    pub(super) boot: Option<Boot>,
    /// Whether it is recorded as halted, because its start waits.
    pub(super) waits: bool,
    /// Empty while its start waits.
    pub(super) devices: Vec<Device>,
}

/// A disk or NIC of a virtual machine. Its UUID is its id at the process that serves it.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) uuid: String,
    /// Name for a reader, such as `disk xvda`.
    pub(super) name: String,
    /// Whether it is plugged.
    pub(super) attached: bool,
    /// Command that plugs it.
    plug: String,
}

impl Machine {
    /// Returns the VM of this name or UUID that runs or starts, with its devices.
    ///
    /// # Errors
    /// `ringwayd` does not answer, no VM or several have this name, or it neither runs nor starts.
    pub(super) async fn look_up(host: HostSockets, name: &str) -> anyhow::Result<Self> {
        let name = name.to_owned();
        blocking(host, WHAT, move |client| Self::read(client, &name)).await
    }

    fn read(client: &mut Client, name: &str) -> anyhow::Result<Self> {
        let (uuid, record) = Self::find(client, name)?;
        let (name, state) = (record.text("name_label").to_owned(), record.text("power_state"));
        let boot = Self::boot(client, &record)?;
        if !["Running", "Paused"].contains(&state) {
            if boot.as_ref().is_some_and(Boot::is_under_way) {
                return Ok(Self { uuid, name, boot, waits: true, devices: Vec::new() });
            }
            bail!(
                "VM {name} is {}, so nothing serves its disks and NICs; start it: xe vm-start \
                 uuid={uuid}",
                state.to_lowercase()
            );
        }
        let mut devices = Vec::new();
        for (class, field) in [("VBD", "VBDs"), ("VIF", "VIFs")] {
            for reference in record.texts(field) {
                match client.record(class, reference) {
                    // QEMU opens CDs itself.
                    Ok(record) if record.text("type") == "CD" => {}
                    Ok(record) => devices.push(Device::of(class, &record)),
                    // It was destroyed meanwhile.
                    Err(error) if error.code() == Some("HANDLE_INVALID") => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        devices.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { uuid, name, boot, waits: false, devices })
    }

    /// Reads what is recorded of a machine's boot.
    fn boot(client: &mut Client, record: &Record) -> anyhow::Result<Option<Boot>> {
        let Some(metrics) = record.reference("metrics") else { return Ok(None) };
        match client.record("VM_metrics", metrics) {
            Ok(metrics) => {
                let config = metrics.pairs("other_config");
                Ok(Boot::read(|key| config.get(key).copied(), SystemTime::now()))
            }
            // The VM was destroyed meanwhile.
            Err(error) if error.code() == Some("HANDLE_INVALID") => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn find(client: &mut Client, name: &str) -> anyhow::Result<(String, Record)> {
        let kinds = ["is_a_template", "is_a_snapshot", "is_control_domain"];
        let found = by_name_or_uuid(client, "VM", name)?.into_iter().map(|(_, record)| record);
        let mut found: Vec<_> = found
            .filter(|record| {
                record.text("uuid") == name || !kinds.iter().any(|kind| record.flag(kind))
            })
            .collect();
        let uuids: Vec<_> = found.iter().map(|record| record.text("uuid").to_owned()).collect();
        match (uuids.as_slice(), found.pop()) {
            ([uuid], Some(record)) => Ok((uuid.clone(), record)),
            ([], _) => bail!("ringwayd has no VM {name:?}; `xe vm-list` shows all"),
            _ => bail!("several VMs have the name {name:?}; use vm=UUID: {}", uuids.join(", ")),
        }
    }
}

impl Device {
    /// Returns the device that a query for a VBD or VIF names.
    ///
    /// # Errors
    /// `ringwayd` does not answer, or has no such device.
    pub(super) async fn look_up(host: HostSockets, query: Query<'_>) -> anyhow::Result<Self> {
        let (class, uuid) = match query {
            Query::Vif(uuid) => ("VIF", uuid.to_owned()),
            Query::Vbd(uuid) | Query::Id(uuid) | Query::Vm(uuid) => ("VBD", uuid.to_owned()),
        };
        let read = move |client: &mut Client| {
            let (_, record) = by_uuid(client, class, &uuid)?.with_context(|| {
                let list = class.to_lowercase();
                format!("ringwayd has no {class} {uuid:?}; `xe {list}-list` shows all")
            })?;
            Ok(Self::of(class, &record))
        };
        blocking(host, WHAT, read).await
    }

    fn of(class: &str, record: &Record) -> Self {
        let uuid = record.text("uuid").to_owned();
        let kind = match (class, record.text("type")) {
            ("VIF", _) => "NIC",
            (_, "CD") => "CD drive",
            _ => "disk",
        };
        let device = match record.text("device") {
            "" => record.text("userdevice"),
            device => device,
        };
        let plug = format!("xe {}-plug uuid={uuid}", class.to_lowercase());
        let attached = record.flag("currently_attached");
        Self { name: format!("{kind} {device}"), attached, plug, uuid }
    }

    /// Returns why no process serves the device.
    pub(super) fn not_served(&self) -> String {
        let Self { uuid, name, attached, plug } = self;
        if *attached {
            format!(
                "{name} ({uuid}) is plugged, but no ringway-io that answers has it: see the log of \
                 ringwayd"
            )
        } else {
            format!("{name} ({uuid}) is not plugged, so nothing serves it; plug it: {plug}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Query;

    #[test]
    fn a_word_without_a_known_key_is_an_id() {
        assert_eq!(Query::parse("vm=a=b"), Query::Vm("a=b"));
        assert_eq!(Query::parse("vbd=u"), Query::Vbd("u"));
        assert_eq!(Query::parse("vif=u"), Query::Vif("u"));
        assert_eq!(Query::parse("d1"), Query::Id("d1"));
        assert_eq!(Query::parse("x=y"), Query::Id("x=y"));
    }
}
