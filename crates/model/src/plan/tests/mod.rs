mod chance;
mod settles;
mod shapes;
mod sim;
mod timing;
mod world;

use super::*;
use crate::domain::{Boot, DomainSpec};
use crate::id::{SrId, Uuid};
use crate::vbd::VbdKind;
use crate::vm::exits::{ExitPolicy, OnCrash, OnExit};

fn uuid(kind: u8, n: u8) -> Uuid {
    let mut bytes = [0; 16];
    bytes[0] = kind;
    bytes[15] = n;
    Uuid::from_random(bytes)
}

fn vbd(n: u8) -> VbdId {
    VbdId(uuid(1, n))
}

fn vif(n: u8) -> VifId {
    VifId(uuid(2, n))
}

fn sr(n: u8) -> SrId {
    SrId(uuid(3, n))
}

fn vdi(n: u8) -> VdiId {
    VdiId(uuid(4, n))
}

/// Returns an unused writable disk of its own VDI on this SR.
fn disk(n: u8, on: u8) -> DiskState {
    DiskState {
        vbd: vbd(n),
        kind: VbdKind::Disk,
        userdevice: n,
        medium: Some(Medium { vdi: vdi(n), sr: sr(on) }),
        access: Access::Rw,
        resets: false,
        volume: VolumeState::Detached,
        plugged: false,
        took: Duration::ZERO,
    }
}

fn cd(n: u8, on: u8) -> DiskState {
    DiskState { kind: VbdKind::Cd, access: Access::Ro, ..disk(n, on) }
}

/// Returns a halted machine with these disks and interfaces.
fn machine(disks: Vec<DiskState>, vifs: u8) -> MachineState {
    let boot = Boot::Firmware(Vec::new());
    let vifs = (0..vifs).map(|n| VifState { vif: vif(n), created: false, plugged: false });
    MachineState {
        power: PowerState::Halted,
        domain: DomainState::Absent,
        fresh: Domid(7),
        spec: DomainSpec { memory_bytes: 256 << 20, vcpus: 1, boot, cds: Vec::new() },
        disks,
        vifs: vifs.collect(),
        after: ExitPolicy {
            shutdown: OnExit::Destroy,
            reboot: OnExit::Restart,
            crash: OnCrash::Restart,
        },
        deadlines: Deadlines::default(),
    }
}

/// Returns the same machine while it runs with all its devices.
fn running(mut state: MachineState) -> MachineState {
    state.power = PowerState::Running;
    state.domain = DomainState::Present { domid: Domid(3), run: RunState::Running };
    for disk in state.disks.iter_mut().filter(|disk| disk.medium.is_some()) {
        disk.volume = VolumeState::Activated(disk.access);
        disk.plugged = true;
    }
    for vif in &mut state.vifs {
        (vif.created, vif.plugged) = (true, true);
    }
    state
}

/// Returns the steps' actions in plan order, each with its predecessors.
fn shown(plan: &Plan) -> Vec<String> {
    let line = |(at, step): (usize, &Step)| {
        let after: Vec<_> = step.after.iter().map(|id| id.index().to_string()).collect();
        format!("{at} {:?} <- {}", short(&step.verb), after.join(" "))
    };
    plan.steps().iter().enumerate().map(line).collect()
}

/// Returns an action with the device's number instead of its UUID.
fn short(verb: &StepAction) -> (&'static str, u8) {
    let n = |uuid: Uuid| uuid.bytes()[15];
    match *verb {
        StepAction::TakeMemory(_) => ("memory", 0),
        StepAction::TakeBootPlace => ("boot-place", 0),
        StepAction::DomainCreate(Domid(n)) => ("create", u8::try_from(n).unwrap()),
        StepAction::DomainRun => ("run", 0),
        StepAction::DomainPause => ("pause", 0),
        StepAction::DomainAsk(_) => ("ask", 0),
        StepAction::DomainAwaitEnd => ("await", 0),
        StepAction::DomainKill => ("kill", 0),
        StepAction::DomainForget => ("forget", 0),
        StepAction::VbdReset(vbd) => ("reset", n(vbd.0)),
        StepAction::VbdAttach(vbd, Access::Rw) => ("attach", n(vbd.0)),
        StepAction::VbdAttach(vbd, Access::Ro) => ("attach-ro", n(vbd.0)),
        StepAction::VbdActivate(vbd) => ("activate", n(vbd.0)),
        StepAction::VbdPlug(vbd) => ("plug", n(vbd.0)),
        StepAction::VbdUnplug(vbd) => ("unplug", n(vbd.0)),
        StepAction::VbdDeactivate(vbd) => ("deactivate", n(vbd.0)),
        StepAction::VbdDetach(vbd) => ("detach", n(vbd.0)),
        StepAction::VbdInsert(vbd) => ("insert", n(vbd.0)),
        StepAction::VbdEject(vbd) => ("eject", n(vbd.0)),
        StepAction::VifCreate(vif) => ("vif-create", n(vif.0)),
        StepAction::VifPlug(vif) => ("vif-plug", n(vif.0)),
        StepAction::VifUnplug(vif) => ("vif-unplug", n(vif.0)),
        StepAction::VifDestroy(vif) => ("vif-destroy", n(vif.0)),
        StepAction::Record => ("record", 0),
    }
}

/// Returns every state of a domain with every recorded power state.
fn all_states() -> Vec<MachineState> {
    let there = |run| DomainState::Present { domid: Domid(3), run };
    let domains = [
        DomainState::Absent,
        DomainState::Remains,
        there(RunState::Running),
        there(RunState::Created),
        there(RunState::Paused),
        there(RunState::Ended(DomainExit::PoweredOff)),
        there(RunState::Ended(DomainExit::Panicked)),
        there(RunState::Unresponsive),
    ];
    let full = running(machine(vec![disk(0, 1), cd(3, 2), disk(1, 1)], 2));
    let mut all = Vec::new();
    for domain in domains {
        for power in PowerState::ALL {
            for crash in OnCrash::ALL {
                let mut state = full.clone();
                (state.domain, state.power, state.after.crash) = (domain, *power, *crash);
                all.push(state);
            }
        }
    }
    all
}
