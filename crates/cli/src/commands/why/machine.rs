//! Devices of virtual machines, as `ringwayd` records them.

use anyhow::{Context, bail};
use toolstack::ringway_io::HostSockets;
use xenapi::Value;
use xenapi::client::{Client, ClientError, Record};

/// Originator of the session, for the log of `ringwayd`.
const ORIGINATOR: &str = "ringway";
/// Error code of an unknown UUID.
const UUID_INVALID: &str = "UUID_INVALID";

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
    /// Returns the running VM of this name or UUID, with its devices.
    ///
    /// # Errors
    /// `ringwayd` does not answer, no VM or several have this name, or it does not run.
    pub(super) async fn look_up(host: HostSockets, name: &str) -> anyhow::Result<Self> {
        let name = name.to_owned();
        blocking(host, move |client| Self::read(client, &name)).await
    }

    fn read(client: &mut Client, name: &str) -> anyhow::Result<Self> {
        let (uuid, record) = Self::find(client, name)?;
        let (name, state) = (record.text("name_label").to_owned(), record.text("power_state"));
        if !["Running", "Paused"].contains(&state) {
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
                    // A drive without a medium is not served.
                    Ok(record) if record.flag("empty") => {}
                    Ok(record) => devices.push(Device::of(class, &record)),
                    // It was destroyed meanwhile.
                    Err(error) if error.code() == Some("HANDLE_INVALID") => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        devices.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { uuid, name, devices })
    }

    fn find(client: &mut Client, name: &str) -> anyhow::Result<(String, Record)> {
        let mut found = Vec::new();
        for reference in references(client.call("VM.get_by_name_label", &[Value::text(name)])?) {
            let record = client.record("VM", &reference)?;
            let kinds = ["is_a_template", "is_a_snapshot", "is_control_domain"];
            if !kinds.iter().any(|kind| record.flag(kind)) {
                found.push(record);
            }
        }
        if found.is_empty() {
            found.extend(by_uuid(client, "VM", name)?);
        }
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
            let record = by_uuid(client, class, &uuid)?.with_context(|| {
                let list = class.to_lowercase();
                format!("ringwayd has no {class} {uuid:?}; `xe {list}-list` shows all")
            })?;
            Ok(Self::of(class, &record))
        };
        blocking(host, read).await
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

/// Runs `work` with a client of `ringwayd`, on a thread of its own because the client blocks.
async fn blocking<T: Send + 'static>(
    host: HostSockets,
    work: impl FnOnce(&mut Client) -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let task = tokio::task::spawn_blocking(move || {
        let mut client = Client::unix(host.ringwayd().to_owned())
            .context("VMs and their devices are looked up at ringwayd")?;
        client.use_connection_session(ORIGINATOR);
        work(&mut client)
    });
    task.await.context("the look-up failed")?
}

/// Returns the record of an object, or `None` if there is none.
fn by_uuid(client: &mut Client, class: &str, uuid: &str) -> Result<Option<Record>, ClientError> {
    match client.call(&format!("{class}.get_by_uuid"), &[Value::text(uuid)]) {
        Ok(reference) => match reference.plain() {
            Value::Str(reference) => client.record(class, reference).map(Some),
            _ => Ok(None),
        },
        Err(error) if error.code() == Some(UUID_INVALID) => Ok(None),
        Err(error) => Err(error),
    }
}

fn references(value: Value) -> Vec<String> {
    let Value::Set(all) = value else { return Vec::new() };
    let text = |value: Value| match value.plain() {
        Value::Str(text) => Some(text.clone()),
        _ => None,
    };
    all.into_iter().filter_map(text).collect()
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
