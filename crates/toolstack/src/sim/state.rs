//! State of a simulated host.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use model::id::{Domid, SrId, VbdId, VdiId, VifId, VmId};
use model::nic::NicSpec;
use model::plan::RunState;
use model::spec::DiskSpec;
use model::vdi::automaton::Access;
use model::vm::exits::DomainExit;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::journal::{Journal, access, run};
use crate::hv::{DomainInfo, GuestInfo};
use crate::sr::SnapshotOf;

/// Directory of the images in reported paths. It does not exist.
const IMAGES: &str = "/simulated";

/// State of all drivers.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) domains: BTreeMap<VmId, Domain>,
    pub(crate) attached_srs: BTreeSet<SrId>,
    pub(crate) volumes: BTreeMap<(SrId, VdiId), Volume>,
    /// Merges of images that wait.
    pub(crate) merges: BTreeMap<SrId, Merges>,
    /// Disks of all datapaths, by id.
    pub(crate) disks: BTreeMap<String, Disk>,
    /// Bridge of each TAP device.
    pub(crate) taps: BTreeMap<String, String>,
    /// NICs of the switch, by id.
    pub(crate) ports: BTreeMap<String, Port>,
    pub(crate) bridges: BTreeSet<String>,
    /// Addresses of the host, by host NIC.
    pub(crate) reached: BTreeMap<String, IpAddr>,
    /// Host NICs, each with its bridge.
    pub(crate) cards: BTreeMap<String, Option<String>>,
    /// Notified when a host NIC is added or removed.
    pub(crate) cards_changed: watch::Sender<()>,
    /// Claimed addresses of watched interfaces.
    pub(crate) claimed: BTreeMap<VifId, Vec<IpAddr>>,
    /// Information of the guests' agents.
    pub(crate) agents: BTreeMap<VmId, GuestInfo>,
    /// Mount points of disks, as the guests' agents report them.
    pub(crate) mounts: BTreeMap<VbdId, Vec<String>>,
    pub(crate) broken: Vec<String>,
    /// Journal, if the state outlives the process.
    pub(super) journal: Option<Journal>,
}

/// Merges of images of an SR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Merges {
    /// Number of merges that have not ended.
    pub(crate) left: usize,
    /// Whether the new image of the first one exists.
    pub(crate) is_made: bool,
}

/// Domain, or its remains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Domain {
    pub(crate) domid: Domid,
    pub(crate) vcpus: u16,
    /// Run state; `None` if only remains exist.
    #[serde(with = "run")]
    pub(crate) run: Option<RunState>,
    /// Datapath socket of each disk.
    pub(crate) disks: BTreeMap<VbdId, PathBuf>,
    /// Drives with a medium.
    pub(crate) discs: BTreeSet<VbdId>,
    /// Switch socket of each interface.
    pub(crate) nics: BTreeMap<VifId, PathBuf>,
}

/// Volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Volume {
    pub(crate) bytes: u64,
    #[serde(with = "access")]
    pub(crate) attached: Option<Access>,
    pub(crate) active: bool,
    #[serde(default)]
    pub(crate) snapshot_of: Option<SnapshotOf>,
    #[serde(default)]
    pub(crate) resets: bool,
}

/// Disk of a datapath.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Disk {
    pub(crate) sr: SrId,
    pub(crate) spec: DiskSpec,
    pub(crate) vdi: VdiId,
    pub(crate) active: bool,
}

/// NIC of the switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Port {
    pub(crate) nic: NicSpec,
    /// TAP device of its network's uplink.
    pub(crate) uplink: String,
}

impl Domain {
    pub(crate) fn new(domid: Domid, vcpus: u16) -> Self {
        let (disks, discs, nics) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Self { domid, vcpus, run: Some(RunState::Created), disks, discs, nics }
    }

    pub(crate) fn found(&self, vm: VmId) -> DomainInfo {
        DomainInfo {
            vm,
            domid: self.domid,
            run: self.run,
            disks: self.disks.keys().chain(&self.discs).copied().collect(),
            nics: self.nics.keys().copied().collect(),
        }
    }

    /// Ends the guest. Returns the domain id.
    pub(super) fn end(&mut self, exit: DomainExit) -> Domid {
        self.run = Some(RunState::Ended(exit));
        self.domid
    }

    /// Ends the process. Returns the domain id, unless it had already ended.
    pub(crate) fn kill(&mut self) -> Option<Domid> {
        self.disks.clear();
        self.discs.clear();
        self.nics.clear();
        self.run.take().map(|_| self.domid)
    }
}

impl State {
    /// Records a misuse, and returns its text.
    pub(crate) fn broke(&mut self, what: impl Into<String>) -> String {
        let what = what.into();
        self.broken.push(what.clone());
        what
    }

    /// Returns the machine whose guest has this disk.
    pub(crate) fn guest_with(&self, vbd: VbdId) -> Option<VmId> {
        let has = |domain: &Domain| domain.run.is_some() && domain.disks.contains_key(&vbd);
        self.domains.iter().find(|(_, domain)| has(domain)).map(|(vm, _)| *vm)
    }

    /// Returns the disk of a slot, if its datapath listens on this socket.
    pub(crate) fn disk_at(&self, vbd: VbdId, socket: &Path) -> Option<&Disk> {
        self.disks.get(&vbd.to_string()).filter(|disk| disk.spec.socket.as_deref() == Some(socket))
    }

    /// Returns whether a disk serves the volume. With `active`, the disk must be active.
    pub(crate) fn is_served(&self, sr: SrId, vdi: VdiId, active: bool) -> bool {
        let mut disks = self.disks.values().filter(|disk| disk.vdi == vdi && disk.sr == sr);
        disks.any(|disk| disk.active || !active)
    }

    pub(super) fn leftovers(&self) -> Vec<String> {
        let domains = self.domains.iter().map(|(vm, domain)| {
            let Domain { domid: Domid(domid), run, vcpus, .. } = domain;
            format!("domain {domid} of {vm} ({vcpus} vcpus): {run:?}")
        });
        let held = self.volumes.iter().filter(|(_, volume)| volume.attached.is_some());
        let volumes = held.map(|((_, vdi), volume)| format!("volume {vdi}: {volume:?}"));
        let disks = self.disks.iter().map(|(id, disk)| format!("disk {id}: {}", disk.active));
        let taps = self.taps.keys().map(|tap| format!("tap {tap}"));
        let ports = self.ports.iter().map(|(id, port)| format!("nic {id} on {}", port.uplink));
        domains.chain(volumes).chain(disks).chain(taps).chain(ports).collect()
    }
}

/// Returns the path that is reported for a volume's image.
pub(crate) fn image(sr: SrId, vdi: VdiId) -> PathBuf {
    Path::new(IMAGES).join(sr.to_string()).join(vdi.to_string())
}

/// Returns the volume of a reported image path.
pub(crate) fn vdi_of(image: &Path) -> Option<VdiId> {
    image.file_name()?.to_str()?.parse().ok().map(VdiId)
}
