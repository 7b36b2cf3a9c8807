//! What is there on a host that is not.

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

/// Where images of volumes are said to be.
const IMAGES: &str = "/simulated";

/// Everything.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) domains: BTreeMap<VmId, Domain>,
    pub(crate) attached_srs: BTreeSet<SrId>,
    pub(crate) volumes: BTreeMap<(SrId, VdiId), Volume>,
    /// Disks of all datapaths, by their ids.
    pub(crate) disks: BTreeMap<String, Disk>,
    /// The bridge of each.
    pub(crate) taps: BTreeMap<String, String>,
    /// NICs of the switch, by their ids.
    pub(crate) ports: BTreeMap<String, Port>,
    pub(crate) bridges: BTreeSet<String>,
    /// Addresses of the host, on those of its cards that have one.
    pub(crate) reached: BTreeMap<String, IpAddr>,
    /// Network cards, and the bridge that each is in.
    pub(crate) cards: BTreeMap<String, Option<String>>,
    /// Told when one comes or goes.
    pub(crate) cards_changed: watch::Sender<()>,
    /// Addresses of interfaces that are watched.
    pub(crate) claimed: BTreeMap<VifId, Vec<IpAddr>>,
    /// What agents of guests tell.
    pub(crate) agents: BTreeMap<VmId, GuestInfo>,
    pub(crate) broken: Vec<String>,
    /// Where it is kept, if it outlives the process.
    pub(super) journal: Option<Journal>,
}

/// A domain, or what is left of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Domain {
    pub(crate) domid: Domid,
    pub(crate) vcpus: u16,
    /// Nothing when only remains are there.
    #[serde(with = "run")]
    pub(crate) run: Option<RunState>,
    /// Where the datapath of each disk listens.
    pub(crate) disks: BTreeMap<VbdId, PathBuf>,
    /// Drives with a medium.
    pub(crate) discs: BTreeSet<VbdId>,
    /// Where the switch listens for each interface.
    pub(crate) nics: BTreeMap<VifId, PathBuf>,
}

/// A volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Volume {
    pub(crate) bytes: u64,
    #[serde(with = "access")]
    pub(crate) attached: Option<Access>,
    pub(crate) active: bool,
}

/// A disk of a datapath.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Disk {
    pub(crate) sr: SrId,
    pub(crate) spec: DiskSpec,
    pub(crate) vdi: VdiId,
    pub(crate) active: bool,
}

/// A NIC of the switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Port {
    pub(crate) nic: NicSpec,
    /// The TAP device that its network is to have.
    pub(crate) uplink: String,
}

impl Domain {
    pub(crate) fn new(domid: Domid, vcpus: u16) -> Self {
        let (disks, discs, nics) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Self { domid, vcpus, run: Some(RunState::Fresh), disks, discs, nics }
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

    /// The guest has ended; its number.
    pub(super) fn end(&mut self, exit: DomainExit) -> Domid {
        self.run = Some(RunState::Ended(exit));
        self.domid
    }

    /// The process is gone; its number, unless it was gone before.
    pub(crate) fn kill(&mut self) -> Option<Domid> {
        self.disks.clear();
        self.discs.clear();
        self.nics.clear();
        self.run.take().map(|_| self.domid)
    }
}

impl State {
    /// Notes something that must not happen, and says it.
    pub(crate) fn broke(&mut self, what: impl Into<String>) -> String {
        let what = what.into();
        self.broken.push(what.clone());
        what
    }

    /// The machine whose guest has this disk.
    pub(crate) fn guest_with(&self, vbd: VbdId) -> Option<VmId> {
        let has = |domain: &Domain| domain.run.is_some() && domain.disks.contains_key(&vbd);
        self.domains.iter().find(|(_, domain)| has(domain)).map(|(vm, _)| *vm)
    }

    /// The disk of a slot, if a datapath listens there.
    pub(crate) fn disk_at(&self, vbd: VbdId, socket: &Path) -> Option<&Disk> {
        self.disks.get(&vbd.to_string()).filter(|disk| disk.spec.socket == socket)
    }

    /// Whether a disk serves the volume; with `active`, whether one holds it active.
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

/// Where the image of a volume is said to be.
pub(crate) fn image(sr: SrId, vdi: VdiId) -> PathBuf {
    Path::new(IMAGES).join(sr.to_string()).join(vdi.to_string())
}

/// The volume whose image is said to be there.
pub(crate) fn vdi_of(image: &Path) -> Option<VdiId> {
    image.file_name()?.to_str()?.parse().ok().map(VdiId)
}
