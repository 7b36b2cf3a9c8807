//! Devices that a `ringway-io` serves, and their owner.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use model::id::SrId;
use model::nic::{NicSpec, UplinkSpec};
use model::report::{NetworkStats, Stats};
use model::rpc::code;
use model::spec::{BlockSize, DiskSpec};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::supervisor::Supervisor;
use super::{DatapathError, full_follower};
use crate::cgroup::Leaf;

/// Owner of a `ringway-io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DatapathOwner {
    /// SR whose disks it serves.
    Sr(SrId),
    /// All networks, whose NICs it serves.
    Networks,
}

impl DatapathOwner {
    /// Returns the control group of its processes.
    pub(super) fn group(self) -> Leaf {
        match self {
            Self::Sr(sr) => Leaf::Datapath(sr),
            Self::Networks => Leaf::Switch,
        }
    }
}

impl fmt::Display for DatapathOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sr(sr) => sr.fmt(f),
            Self::Networks => f.write_str("networks"),
        }
    }
}

/// Served device, in the form that is stored for the next `ringway-io`.
pub(super) trait ServedDevice:
    Clone + fmt::Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// Directory of their files.
    const FOLDER: &'static str;
    /// Method that attaches one. Its call starts the process if necessary.
    const ATTACH: &'static str;

    /// Returns its id at the `ringway-io`.
    fn id(&self) -> &str;

    /// Returns the calls that attach it, in their order.
    ///
    /// # Errors
    /// It cannot be serialized.
    fn calls(&self) -> serde_json::Result<Vec<(&'static str, Value)>>;

    /// Returns the ids of the served devices.
    fn served(stats: &Stats) -> BTreeSet<String>;

    /// Returns whether its contents end with the keeper. Another process cannot serve it to a guest that
    /// has seen them.
    fn ends_with_keeper(&self) -> bool {
        false
    }

    /// Returns the specification that an earlier version may have stored, as this version means it.
    fn loaded(self) -> Self {
        self
    }

    /// Called when a supervisor begins to watch the keeper with this process id.
    fn watch_begins(_supervisor: &Arc<Supervisor<Self>>, _pid: u32) {}
}

impl ServedDevice for DiskSpec {
    const FOLDER: &'static str = "disks";
    const ATTACH: &'static str = "disk.attach";

    fn id(&self) -> &str {
        &self.id
    }

    fn calls(&self) -> serde_json::Result<Vec<(&'static str, Value)>> {
        Ok(vec![(Self::ATTACH, serde_json::to_value(self)?)])
    }

    fn served(stats: &Stats) -> BTreeSet<String> {
        stats.disks.iter().map(|disk| disk.id.clone()).collect()
    }

    fn ends_with_keeper(&self) -> bool {
        self.backend.is_in_memory()
    }

    /// This version always stores a block size. Without one, guests were told that of the storage.
    fn loaded(self) -> Self {
        Self { block_size: self.block_size.or(Some(BlockSize::Storage)), ..self }
    }

    fn watch_begins(supervisor: &Arc<Supervisor<Self>>, pid: u32) {
        if let DatapathOwner::Sr(sr) = supervisor.owner
            && let Some(out) = supervisor.full_disks.get()
        {
            let weak = Arc::downgrade(supervisor);
            tokio::spawn(full_follower::follow(weak, (sr, pid), out.clone()));
        }
    }
}

/// Prepares another attach, and returns whether it did. The format of each disk is recorded, so a raw
/// file that begins like another image is stated to be raw. A `ringway-io` of an earlier version
/// refuses what it does not know in `params`: the block size of the storage, which is its default, or
/// a share, which has no effect until its upgrade.
pub(super) fn retry_attach(error: &DatapathError, params: &mut Value) -> bool {
    let DatapathError::Refused { source, .. } = error else { return false };
    let Some(fields) = params.as_object_mut() else { return false };
    if source.code == code::FORMAT_NOT_STATED {
        return fields.insert("format".into(), "raw".into()).is_none();
    }
    if source.code != code::INVALID_PARAMS {
        return false;
    }
    if source.message.contains("unknown field `share`") && fields.remove("share").is_some() {
        warn_without_shares(fields.get("id").and_then(Value::as_str).unwrap_or_default());
        return true;
    }
    let is_storage = fields.get("block_size").is_some_and(|size| size == "storage");
    is_storage && fields.remove("block_size").is_some()
}

/// Warns that a `ringway-io` of an earlier version serves a disk that has a share.
pub(super) fn warn_without_shares(id: &str) {
    tracing::warn!(id, "weight and floors have no effect: upgrade the ringway-io that serves it");
}

/// NIC, with the uplink of its network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SwitchNic {
    pub(super) nic: NicSpec,
    /// TAP device that connects the network to the host.
    pub(super) uplink: String,
}

impl SwitchNic {
    /// Returns the parameters of the call that creates the uplink.
    pub(super) fn uplink(&self) -> serde_json::Result<Value> {
        let (network, tap) = (self.nic.network.clone(), Some(self.uplink.clone()));
        serde_json::to_value(UplinkSpec { network, tap })
    }
}

impl ServedDevice for SwitchNic {
    const FOLDER: &'static str = "nics";
    const ATTACH: &'static str = "nic.attach";

    fn id(&self) -> &str {
        &self.nic.id
    }

    fn calls(&self) -> serde_json::Result<Vec<(&'static str, Value)>> {
        // A network loses its uplink with its last NIC.
        let nic = serde_json::to_value(&self.nic)?;
        Ok(vec![(Self::ATTACH, nic), ("network.uplink", self.uplink()?)])
    }

    /// Counts only NICs whose network has a working uplink. After a kill, the kernel may keep the
    /// TAP device busy for a moment, so that a NIC returns before its uplink.
    fn served(stats: &Stats) -> BTreeSet<String> {
        let has_host =
            |one: &&NetworkStats| one.uplink.as_ref().is_some_and(|uplink| uplink.failed.is_none());
        let networks = stats.networks.iter().filter(has_host);
        let networks: BTreeSet<_> = networks.map(|one| one.name.as_str()).collect();
        let nics = stats.nics.iter().filter(|nic| networks.contains(nic.network.as_str()));
        nics.map(|nic| nic.id.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use model::report::{FrameCounts, UplinkStats};
    use model::rpc::RpcError;
    use model::spec::{Backend, DiskShare};

    use super::*;
    use crate::machines::Drivers;
    use crate::sim::{Sim, drivers};

    /// Returns stats with a NIC whose network has this uplink.
    async fn stats_with_uplink(uplink: Option<Option<&str>>) -> Stats {
        let Drivers { net, switch, .. } = drivers(&Sim::new());
        net.create_bridge("lan", 1500).await.unwrap();
        net.create_tap("rwu0", "lan", 1500).await.unwrap();
        let mac = "02:00:00:00:00:01".parse().unwrap();
        switch.attach(&NicSpec::new("a", "/a", "lan", mac), "rwu0").await.unwrap();
        let mut stats = switch.stats().await.unwrap().unwrap();
        stats.networks[0].uplink = uplink.map(|failed| UplinkStats {
            tap: "rwu0".into(),
            failed: failed.map(str::to_owned),
            frames: FrameCounts::default(),
        });
        stats
    }

    #[test]
    fn an_earlier_version_is_asked_for_its_default_block_size() {
        let refused = |code| {
            let source = RpcError { code, message: "unknown variant".into() };
            DatapathError::Refused { what: "disk.attach".into(), source }
        };
        let spec = DiskSpec::new("a", "/a", Backend::Null(512));
        let params = |block_size| {
            serde_json::to_value(DiskSpec { block_size: Some(block_size), ..spec.clone() }).unwrap()
        };
        let mut storage = params(BlockSize::Storage);
        assert!(!retry_attach(&refused(code::FAILED), &mut storage));
        let error = refused(code::INVALID_PARAMS);
        assert!(!retry_attach(&error, &mut params(BlockSize::Bytes(512))));
        assert!(retry_attach(&error, &mut storage));
        assert_eq!(storage, serde_json::to_value(&spec).unwrap());
        assert!(!retry_attach(&error, &mut storage), "once is enough");
    }

    #[test]
    fn an_earlier_version_attaches_disks_without_their_share() {
        let spec = DiskSpec::new("a", "/a", Backend::Null(512));
        let share = Some(DiskShare { weight: 400, ..DiskShare::default() });
        let mut params = serde_json::to_value(DiskSpec { share, ..spec.clone() }).unwrap();
        let refused = |message: &str| {
            let source = RpcError { code: code::INVALID_PARAMS, message: message.into() };
            DatapathError::Refused { what: "disk.attach".into(), source }
        };
        let other = refused("share.weight: 0 is not in 1 to 1000");
        assert!(!retry_attach(&other, &mut params));
        let error = refused("unknown field `share`, expected one of `id`, `socket`");
        assert!(retry_attach(&error, &mut params));
        assert_eq!(params, serde_json::to_value(&spec).unwrap());
        assert!(!retry_attach(&error, &mut params), "once is enough");
    }

    #[test]
    fn the_recorded_format_is_stated() {
        let source = RpcError { code: code::FORMAT_NOT_STATED, message: "begins like".into() };
        let error = DatapathError::Refused { what: "disk.attach".into(), source };
        let spec = DiskSpec::new("a", "/a", Backend::Null(512));
        let mut params = serde_json::to_value(&spec).unwrap();
        assert!(retry_attach(&error, &mut params));
        let stated = DiskSpec { format: Some(model::image::ImageFormat::Raw), ..spec };
        assert_eq!(serde_json::from_value::<DiskSpec>(params.clone()).unwrap(), stated);
        assert!(!retry_attach(&error, &mut params), "once is enough");
    }

    #[tokio::test]
    async fn a_nic_is_served_when_the_host_is_in_its_network() {
        let served = |stats| SwitchNic::served(&stats).into_iter().collect::<Vec<_>>();
        assert_eq!(served(stats_with_uplink(Some(None)).await), ["a"]);
        for without in [None, Some(Some("the device is gone"))] {
            assert_eq!(served(stats_with_uplink(without).await), Vec::<String>::new());
        }
    }
}
