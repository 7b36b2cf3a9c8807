//! Simulated host with in-memory records.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::domain::{Boot, DomainSpec};
use model::id::{Domid, SrId, Uuid, VbdId, VdiId, VifId, VmId};
use model::nic::NicLimits;
use model::plan::{Deadlines, DomainState, Effect, MachineOp, RunState};
use model::refusal::Refusal;
use model::vbd::{DiskLimits, Tuning, VbdKind};
use model::vdi::automaton::Access;
use model::vm::PowerState;
use model::vm::exits::{ExitPolicy, OnCrash, OnExit};

use super::super::*;
use crate::sim::{self, Sim};

pub(super) const START: MachineOp = MachineOp::Start { paused: false };

pub(super) fn uuid(kind: u8, of: u16, n: u8) -> Uuid {
    let mut bytes = [0; 16];
    let [high, low] = of.to_be_bytes();
    (bytes[0], bytes[1], bytes[2], bytes[3], bytes[15]) = (kind, high, low, n, n);
    Uuid::from_random(bytes)
}

pub(super) fn vm(n: u16) -> VmId {
    VmId(uuid(9, n, 0))
}

/// Numbers of the SRs that have disks of machines.
const SRS: [u8; 3] = [0, 1, 2];

pub(super) fn sr(n: u8) -> SrId {
    SrId(uuid(3, 0, n))
}

/// Returns the number of a volume or slot within its machine.
pub(super) fn number(device: Uuid) -> u8 {
    device.bytes()[15]
}

/// Returns a writable disk with its own volume on SR `on`.
pub(super) fn disk(of: u16, n: u8, on: u8) -> DiskRecord {
    let source = VolumeRef { vdi: VdiId(uuid(4, of, n)), sr: sr(on), sr_kind: "sim".into() };
    DiskRecord {
        vbd: VbdId(uuid(1, of, n)),
        kind: VbdKind::Disk,
        userdevice: n,
        access: Access::Rw,
        resets: false,
        source: Some(source),
        plugged: false,
        boot_index: None,
        limits: DiskLimits::default(),
        tuning: Tuning::default(),
    }
}

pub(super) fn cd(of: u16, n: u8, on: u8) -> DiskRecord {
    DiskRecord { kind: VbdKind::Cd, access: Access::Ro, ..disk(of, n, on) }
}

pub(super) fn vif(of: u16, n: u8) -> VifRecord {
    let (mac, bridge) = (format!("00:16:3e:00:00:{n:02x}"), "xenbr0".into());
    let vif = VifId(uuid(2, of, n));
    VifRecord {
        vif,
        device: n,
        mac,
        bridge,
        mtu: 1500,
        queues: None,
        limits: NicLimits::default(),
        plugged: false,
        boot_index: None,
    }
}

/// Returns a halted machine with these devices.
pub(super) fn machine(disks: Vec<DiskRecord>, vifs: Vec<VifRecord>) -> MachineRecord {
    let boot = Boot::Firmware(Vec::new());
    MachineRecord {
        power: PowerState::Halted,
        spec: DomainSpec { memory_bytes: 256 << 20, vcpus: 1, boot, cds: Vec::new() },
        disks,
        vifs,
        after: ExitPolicy {
            shutdown: OnExit::Destroy,
            reboot: OnExit::Restart,
            crash: OnCrash::Restart,
        },
        followed: false,
        deadlines: Deadlines::default(),
    }
}

/// Records that outlive the daemon.
#[derive(Debug, Default)]
pub(super) struct Paper(pub(super) Mutex<BTreeMap<VmId, (MachineRecord, Option<Domid>)>>);

impl Records for Paper {
    fn machines(&self) -> Vec<VmId> {
        self.0.lock().unwrap().keys().copied().collect()
    }

    fn machine(&self, vm: VmId) -> Result<MachineRecord, Refusal> {
        let all = self.0.lock().unwrap();
        all.get(&vm).map(|(one, _)| one.clone()).ok_or(Refusal::NotImplemented)
    }

    fn disk_settings(&self, vbd: VbdId) -> Option<(DiskLimits, Tuning)> {
        let all = self.0.lock().unwrap();
        let mut disks = all.values().flat_map(|(one, _)| &one.disks);
        disks.find(|one| one.vbd == vbd).map(|one| (one.limits, one.tuning))
    }

    fn vif_limits(&self, vif: VifId) -> Option<NicLimits> {
        let all = self.0.lock().unwrap();
        let mut vifs = all.values().flat_map(|(one, _)| &one.vifs);
        vifs.find(|one| one.vif == vif).map(|one| one.limits.clone())
    }

    fn record_effects(&self, vm: VmId, effects: &[Effect]) {
        let mut all = self.0.lock().unwrap();
        let Some((machine, recorded_domid)) = all.get_mut(&vm) else { return };
        for effect in effects {
            match *effect {
                Effect::Power(power) => machine.power = power,
                Effect::Domid(domid) => *recorded_domid = domid,
                Effect::Plugged(vbd, plugged) => {
                    let disk = machine.disks.iter_mut().find(|disk| disk.vbd == vbd);
                    disk.into_iter().for_each(|disk| disk.plugged = plugged);
                }
                Effect::Vif(vif, plugged) => {
                    let vif = machine.vifs.iter_mut().find(|one| one.vif == vif);
                    vif.into_iter().for_each(|vif| vif.plugged = plugged);
                }
                Effect::Medium(vbd, None) => {
                    let disk = machine.disks.iter_mut().find(|disk| disk.vbd == vbd);
                    disk.into_iter().for_each(|disk| disk.source = None);
                }
                Effect::Medium(_, Some(_)) | Effect::Volume(..) => {}
            }
        }
    }
}

/// One life of a daemon on a host.
pub(super) struct Host {
    pub(super) sim: Arc<Sim>,
    pub(super) paper: Arc<Paper>,
    pub(super) machines: Arc<Machines>,
}

impl Host {
    pub(super) fn new(all: impl IntoIterator<Item = (VmId, MachineRecord)>) -> Self {
        let paper = Paper::default();
        paper.0.lock().unwrap().extend(all.into_iter().map(|(vm, one)| (vm, (one, None))));
        Self::of(Sim::new(), Arc::new(paper))
    }

    fn of(sim: Arc<Sim>, paper: Arc<Paper>) -> Self {
        let records: Arc<dyn Records> = paper.clone();
        let machines =
            Machines::new(sim::drivers(&sim), records, MachinesConfig::new("/run/rw".into()));
        Self { sim, paper, machines }
    }

    /// Starts the next life, which discovers the state and cleans up leftovers.
    pub(super) async fn again(sim: Arc<Sim>, paper: Arc<Paper>) -> Self {
        let host = Self::of(sim, paper);
        host.machines.discover().await.unwrap();
        for n in SRS {
            host.machines.detach_leftovers(sr(n), "sim").await.unwrap();
        }
        host
    }

    pub(super) async fn run(&self, vm: VmId, op: MachineOp) -> Result<(), OpError> {
        self.machines.run(vm, op, OpHooks::plain()).await
    }

    pub(super) async fn works(&self, vm: VmId, op: MachineOp) {
        self.run(vm, op).await.unwrap_or_else(|error| panic!("{op:?}: {error:?}"));
    }

    pub(super) fn recorded(&self, vm: VmId) -> MachineRecord {
        self.paper.machine(vm).unwrap()
    }

    pub(super) fn change(&self, vm: VmId, change: impl FnOnce(&mut MachineRecord)) {
        change(&mut self.paper.0.lock().unwrap().get_mut(&vm).unwrap().0);
    }

    /// Checks that record and reality agree, and that no leftovers exist.
    pub(super) fn assert_true(&self, vm: VmId) {
        let (machine_record, domid) = self.paper.0.lock().unwrap()[&vm].clone();
        let state = self.sim.state();
        let seen = state.domains.get(&vm).map(|domain| (domain.run, Some(domain.domid)));
        let expected = match machine_record.power {
            PowerState::Halted => None,
            PowerState::Paused => {
                let fresh = seen.is_some_and(|(run, _)| run == Some(RunState::Created));
                Some((Some(if fresh { RunState::Created } else { RunState::Paused }), domid))
            }
            PowerState::Running => Some((Some(RunState::Running), domid)),
            PowerState::Suspended => panic!("nobody suspends"),
        };
        assert_eq!(seen, expected, "{machine_record:?}");
        assert_eq!(domid.is_some(), seen.is_some());
        let domain = state.domains.get(&vm);
        for disk in &machine_record.disks {
            let has = domain.is_some_and(|domain| {
                domain.disks.contains_key(&disk.vbd) || domain.discs.contains(&disk.vbd)
            });
            assert_eq!(disk.plugged, has, "{disk:?}");
            let Some(VolumeRef { sr, vdi, .. }) = disk.source else {
                assert!(!has);
                continue;
            };
            let served = state.disks.get(&disk.vbd.to_string()).filter(|disk| disk.sr == sr);
            let serves = has && disk.kind != VbdKind::Cd;
            assert_eq!(served.map(|disk| disk.active), serves.then_some(true), "{disk:?}");
            let volume = state.volumes.get(&(sr, vdi)).copied().unwrap_or_default();
            let (attached, active) = (volume.attached.is_some(), volume.active);
            let shared = machine_record
                .disks
                .iter()
                .any(|one| one.vbd != disk.vbd && one.source == disk.source && one.plugged);
            assert_eq!((attached, active), (has || shared, has || shared), "{disk:?}");
            assert_eq!(self.machines.volume_users(vdi), has || shared);
        }
        for vif in &machine_record.vifs {
            let has = domain.is_some_and(|domain| domain.nics.contains_key(&vif.vif));
            let port = state.ports.contains_key(&vif.vif.to_string());
            assert_eq!((vif.plugged, port), (has, has));
        }
        assert!(state.ports.values().all(|port| state.taps.contains_key(&port.uplink)));
        assert_eq!(state.broken, Vec::<String>::new());
    }

    pub(super) fn is_whole(&self, vm: VmId) -> bool {
        let machine_record = self.recorded(vm);
        machine_record.power == PowerState::Running
            && machine_record.disks.iter().all(|disk| disk.plugged == disk.source.is_some())
            && machine_record.vifs.iter().all(|vif| vif.plugged)
    }

    /// Checks that the machine can be started and stopped completely, without leftovers.
    pub(super) async fn assert_works(&self, vm: VmId) {
        if self.recorded(vm).power != PowerState::Halted {
            self.works(vm, MachineOp::HardShutdown).await;
        }
        self.works(vm, START).await;
        self.assert_true(vm);
        assert!(self.is_whole(vm), "{:?}", self.recorded(vm));
        assert!(matches!(
            self.machines.domain(vm),
            DomainState::Present { run: RunState::Running, .. }
        ));
        self.works(vm, MachineOp::HardShutdown).await;
        self.assert_true(vm);
        assert_eq!(self.sim.leftovers(), Vec::<String>::new());
        assert_eq!(self.machines.domain(vm), DomainState::Absent);
    }
}

/// Runs one life in its own runtime with a paused clock. The drop of the runtime ends all tasks at
/// once, as a kill does.
pub(super) fn life<T>(of: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(of)
}

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
