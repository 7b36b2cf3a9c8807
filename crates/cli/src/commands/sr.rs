//! Storage repository of `ringwayd` in a folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::bail;
use model::calibration::StorageProfile;
use model::id::SrId;
use toolstack::ringway_io::HostSockets;
use toolstack::sr::dir::LOCATION;
use xenapi::Value;
use xenapi::client::{Client, Record};

use super::ringwayd::{blocking, by_name_or_uuid};

/// Kind of look-up, for errors.
const WHAT: &str = "storage repositories";

/// A plugged storage repository with a folder.
#[derive(Debug)]
pub(super) struct Sr {
    host: HostSockets,
    reference: String,
    /// Folder of its images.
    pub(super) folder: PathBuf,
    /// Control socket of its ringway-io, which runs once a disk was attached.
    pub(super) control: PathBuf,
}

/// Returns the name of the SR in the argument. `None` if it is a path.
pub(super) fn name_of(argument: &Path) -> Option<&str> {
    let text = argument.to_str()?;
    let is_word = !text.contains('/') && !argument.exists();
    text.strip_prefix("sr=").or_else(|| is_word.then_some(text))
}

impl Sr {
    /// Returns the SR of this name or UUID.
    ///
    /// # Errors
    /// `ringwayd` does not answer, no SR or several have the name, or it is not plugged or has no
    /// folder.
    pub(super) async fn look_up(host: HostSockets, name: &str) -> anyhow::Result<Self> {
        let (name, sockets) = (name.to_owned(), host.clone());
        blocking(host, WHAT, move |client| Self::read(client, sockets, &name)).await
    }

    fn read(client: &mut Client, host: HostSockets, name: &str) -> anyhow::Result<Self> {
        let mut found = by_name_or_uuid(client, "SR", name)?;
        let uuids: Vec<_> = found.iter().map(|(_, sr)| sr.text("uuid").to_owned()).collect();
        let Some((reference, record)) = found.pop() else {
            bail!("ringwayd has no SR {name:?}, and there is no such path; `xe sr-list` shows all");
        };
        if uuids.len() > 1 {
            bail!("several SRs have the name {name:?}; use the UUID: {}", uuids.join(", "));
        }
        let uuid = record.text("uuid");
        let mut folder = None;
        for connection in record.texts("PBDs") {
            let pbd = client.record("PBD", connection)?;
            if pbd.flag("currently_attached") {
                folder = Some(pbd.pairs("device_config").get(LOCATION).map(PathBuf::from));
            }
        }
        let kind = record.text("type");
        match (folder, uuid.parse()) {
            (Some(Some(folder)), Ok(id)) => {
                let control = host.control_of_sr(SrId(id));
                Ok(Self { host, reference, folder, control })
            }
            (Some(_), _) => bail!(
                "SR {name} of type {kind} has no {LOCATION} in its device-config; name the folder or \
                 the block device of its storage"
            ),
            (None, _) => bail!(
                "SR {name} is not plugged; plug it: xe pbd-plug uuid=UUID, as `xe pbd-list \
                 sr-uuid={uuid}` shows it"
            ),
        }
    }

    /// Returns the names of its disks, by their UUIDs.
    ///
    /// # Errors
    /// `ringwayd` does not answer.
    pub(super) async fn disk_names(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let sr = self.reference.clone();
        let read = move |client: &mut Client| {
            let disks = client.records("VDI")?.into_iter();
            let disks = disks.filter(|(_, disk)| disk.text("SR") == sr);
            let name = |field: &str, disk: &Record| disk.text(field).to_owned();
            Ok(disks.map(|(_, disk)| (name("uuid", &disk), name("name_label", &disk))).collect())
        };
        blocking(self.host.clone(), "the names of disks", read).await
    }

    /// Shows the limits of the storage in the record.
    ///
    /// # Errors
    /// `ringwayd` does not answer.
    pub(super) async fn show(&self, profile: &StorageProfile) -> anyhow::Result<()> {
        let (sr, summary) = (Value::text(&self.reference), profile.summary());
        let show = move |client: &mut Client| {
            for (key, value) in summary {
                let (key, value) = (Value::text(key), Value::text(value.to_string()));
                client.call("SR.set_in_sm_config", &[sr.clone(), key, value])?;
            }
            Ok(())
        };
        blocking(self.host.clone(), WHAT, show).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_no_sr() {
        let name = |text: &'static str| name_of(Path::new(text));
        for path in ["/", ".", "/nonexistent", "./nonexistent", "Cargo.toml"] {
            assert_eq!(name(path), None, "{path}");
        }
        assert_eq!(name("Local storage"), Some("Local storage"));
        assert_eq!((name("sr=a"), name("sr=/a")), (Some("a"), Some("/a")));
    }
}
