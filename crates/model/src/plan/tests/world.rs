//! A simulated host that rejects harmful steps and runs plans in any order.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::vdi::automaton::{VolumeOp, apply};

/// Actual state of one machine, and its record.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) seen: MachineState,
    memory: bool,
    pub(super) recorded_domid: Option<Domid>,
    recorded: BTreeMap<VbdId, bool>,
    next: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fate {
    Works,
    Fails,
    /// The daemon dies after the step, before it records anything.
    Crash,
}

impl World {
    pub(super) fn new(seen: MachineState) -> Self {
        Self { seen, memory: false, recorded_domid: None, recorded: BTreeMap::new(), next: 10 }
    }

    pub(super) fn state(&mut self) -> MachineState {
        self.next += 1;
        self.seen.fresh = Domid(self.next);
        self.seen.clone()
    }

    fn at(&mut self, vbd: VbdId) -> &mut DiskState {
        self.seen.disks.iter_mut().find(|disk| disk.vbd == vbd).unwrap()
    }

    fn vif(&mut self, vif: VifId) -> &mut VifState {
        self.seen.vifs.iter_mut().find(|one| one.vif == vif).unwrap()
    }

    pub(super) fn has_domain(&self) -> bool {
        matches!(self.seen.domain, DomainState::Present { .. })
    }

    pub(super) fn set_run(&mut self, to: RunState) {
        let DomainState::Present { run, .. } = &mut self.seen.domain else { panic!("no domain") };
        *run = to;
    }

    fn perform(&mut self, verb: &StepAction) {
        match *verb {
            StepAction::TakeMemory(_) => self.memory = true,
            // Its CPUs do not run yet.
            StepAction::TakeBootPlace => assert!(!self.has_domain() && self.memory),
            StepAction::DomainCreate(domid) => {
                assert_eq!(self.seen.domain, DomainState::Absent);
                assert!(self.memory);
                self.seen.domain = DomainState::Present { domid, run: RunState::Created };
            }
            StepAction::DomainRun => {
                for disk in self.seen.disks.iter().filter(|disk| disk.plugged) {
                    assert!(matches!(disk.volume, VolumeState::Activated(_)), "{disk:?}");
                }
                self.set_run(RunState::Running);
            }
            StepAction::DomainPause => self.set_run(RunState::Paused),
            StepAction::DomainAsk(_) => assert!(self.has_domain()),
            StepAction::DomainAwaitEnd => self.set_run(RunState::Ended(DomainExit::PoweredOff)),
            StepAction::DomainKill => {
                assert!(self.has_domain());
                self.kill();
            }
            StepAction::DomainForget => {
                assert_eq!(self.seen.domain, DomainState::Remains);
                self.seen.domain = DomainState::Absent;
            }
            StepAction::VbdReset(vbd) => {
                let medium = self.at(vbd).medium;
                let mut users = self.seen.disks.iter().filter(|disk| disk.medium == medium);
                assert!(users.all(|disk| disk.volume == VolumeState::Detached));
            }
            StepAction::VbdAttach(vbd, access) => self.volume(vbd, VolumeOp::Attach(access)),
            StepAction::VbdActivate(vbd) => self.volume(vbd, VolumeOp::Activate),
            StepAction::VbdDeactivate(vbd) => self.volume(vbd, VolumeOp::Deactivate),
            StepAction::VbdDetach(vbd) => self.volume(vbd, VolumeOp::Detach),
            StepAction::VbdPlug(vbd) | StepAction::VbdInsert(vbd) => {
                assert!(self.has_domain());
                let disk = self.at(vbd);
                assert!(!disk.plugged && disk.volume != VolumeState::Detached, "{disk:?}");
                assert_eq!(disk.kind == VbdKind::Cd, matches!(verb, StepAction::VbdInsert(_)));
                disk.plugged = true;
            }
            StepAction::VbdUnplug(vbd) | StepAction::VbdEject(vbd) => {
                assert!(self.has_domain());
                assert!(std::mem::take(&mut self.at(vbd).plugged));
            }
            StepAction::VifCreate(vif) => {
                assert!(!std::mem::replace(&mut self.vif(vif).created, true))
            }
            StepAction::VifPlug(vif) => {
                assert!(self.has_domain() && self.vif(vif).created);
                assert!(!std::mem::replace(&mut self.vif(vif).plugged, true));
            }
            StepAction::VifUnplug(vif) => assert!(std::mem::take(&mut self.vif(vif).plugged)),
            StepAction::VifDestroy(vif) => {
                assert!(!self.vif(vif).plugged);
                assert!(std::mem::take(&mut self.vif(vif).created));
            }
            StepAction::Record => {}
        }
    }

    pub(super) fn kill(&mut self) {
        self.memory = false;
        self.seen.domain = DomainState::Remains;
        self.seen.disks.iter_mut().for_each(|disk| disk.plugged = false);
        self.seen.vifs.iter_mut().for_each(|vif| vif.plugged = false);
    }

    fn volume(&mut self, vbd: VbdId, op: VolumeOp) {
        let disk = *self.at(vbd);
        if matches!(op, VolumeOp::Deactivate | VolumeOp::Detach) {
            assert!(!disk.plugged, "the guest has it: {disk:?}");
        }
        if op == VolumeOp::Attach(Access::Rw) {
            let vdi = |disk: &DiskState| disk.medium.map(|medium| medium.vdi);
            let others = self.seen.disks.iter().filter(|other| other.vbd != vbd);
            let mut others = others.filter(|other| vdi(other) == vdi(&disk));
            assert!(others.all(|other| other.volume.access() != Some(Access::Ro)), "an upgrade");
        }
        let reached = apply(disk.volume, op).unwrap();
        assert_ne!(reached, disk.volume, "{op} has nothing to do");
        self.at(vbd).volume = reached;
    }

    fn record(&mut self, effects: &[Effect]) {
        for effect in effects {
            match *effect {
                Effect::Power(power) => self.seen.power = power,
                Effect::Domid(domid) => self.recorded_domid = domid,
                Effect::Plugged(vbd, plugged) => {
                    self.recorded.insert(vbd, plugged);
                }
                Effect::Medium(vbd, vdi) => {
                    let disk = self.at(vbd);
                    disk.medium = disk.medium.filter(|medium| Some(medium.vdi) == vdi);
                }
                // Effects on volumes and interfaces must match the actual state.
                Effect::Volume(vbd, volume) => assert_eq!(self.at(vbd).volume, volume),
                Effect::Vif(vif, plugged) => assert_eq!(self.vif(vif).plugged, plugged),
            }
        }
    }

    /// Runs a plan, choosing each next step at random among the ready ones. Returns whether every
    /// step succeeded.
    pub(super) fn run(
        &mut self,
        plan: &Plan,
        picks: &mut Picks,
        fate: &mut impl FnMut() -> Fate,
    ) -> bool {
        let (mut ended, mut tried) = (BTreeSet::new(), BTreeSet::new());
        loop {
            let open = |(at, step): &(usize, &Step)| {
                !tried.contains(at) && step.after.iter().all(|id| ended.contains(&id.index()))
            };
            let open: Vec<_> = plan.steps().iter().enumerate().filter(open).collect();
            if open.is_empty() {
                return ended.len() == plan.steps().len();
            }
            let (at, step) = open[picks.below(open.len())];
            tried.insert(at);
            match if step.verb == StepAction::Record { Fate::Works } else { fate() } {
                Fate::Works => {
                    self.perform(&step.verb);
                    self.record(&step.then);
                    ended.insert(at);
                }
                Fate::Fails => self.record(&step.if_failed),
                Fate::Crash => {
                    self.perform(&step.verb);
                    return false;
                }
            }
        }
    }

    pub(super) fn works(&mut self, op: MachineOp, picks: &mut Picks) {
        let plan = plan(&op, &self.state()).unwrap();
        assert!(self.run(&plan, picks, &mut || Fate::Works), "{op:?}");
    }

    pub(super) fn assert_true(&self) {
        let expected = match self.seen.domain {
            DomainState::Present { run: RunState::Running, domid } => {
                (PowerState::Running, Some(domid))
            }
            DomainState::Present { run: RunState::Created | RunState::Paused, domid } => {
                (PowerState::Paused, Some(domid))
            }
            DomainState::Absent => (PowerState::Halted, None),
            other => panic!("{other:?} is not settled"),
        };
        assert_eq!((self.seen.power, self.recorded_domid), expected);
        for disk in &self.seen.disks {
            let active = matches!(disk.volume, VolumeState::Activated(_));
            assert_eq!(active, disk.plugged, "{disk:?}");
            assert!(active || disk.volume == VolumeState::Detached, "{disk:?}");
            assert_eq!(self.recorded.get(&disk.vbd).copied().unwrap_or(false), disk.plugged);
        }
        assert!(self.seen.vifs.iter().all(|vif| vif.created == vif.plugged));
        assert!(self.memory || !self.has_domain());
    }

    /// Returns whether the guest has all devices of the machine.
    pub(super) fn is_whole(&self) -> bool {
        let disks = self.seen.disks.iter().all(|disk| disk.plugged == disk.medium.is_some());
        disks && self.seen.vifs.iter().all(|vif| vif.plugged)
    }
}

/// An endless sequence of random numbers.
#[derive(Clone, Debug)]
pub(super) struct Picks(pub(super) Vec<u16>, pub(super) usize);

impl Picks {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.1 += 1;
        usize::from(self.0[self.1 % self.0.len()]) % bound
    }
}
