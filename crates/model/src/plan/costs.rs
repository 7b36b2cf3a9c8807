//! Deadlines and progress weights of steps.

use std::time::Duration;

use super::{Step, StepAction};

/// Deadlines of steps, each from the start of its call; also the limit of a wait for hung storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Storage: attach, activate, deactivate, detach.
    pub storage: Duration,
    /// Devices, which need the guest or the hypervisor: plug, unplug, insert, eject.
    pub device: Duration,
    /// Domains: create, and remove remains.
    pub domain: Duration,
    /// End of a process. Shortly before the deadline the process is killed.
    pub kill: Duration,
    /// A guest's shutdown or reboot, from the request to its end.
    pub guest: Duration,
    /// The host's end of a network interface.
    pub network: Duration,
    /// Wait for a place among the machines that boot.
    pub boot_place: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            storage: Duration::from_secs(60),
            device: Duration::from_secs(30),
            domain: Duration::from_secs(60),
            kill: Duration::from_secs(15),
            guest: Duration::from_secs(20 * 60),
            network: Duration::from_secs(30),
            boot_place: Duration::from_secs(24 * 60 * 60),
        }
    }
}

impl Deadlines {
    pub(super) fn of(&self, verb: &StepAction) -> Duration {
        match verb {
            StepAction::TakeMemory(_) | StepAction::DomainCreate(_) | StepAction::DomainForget => {
                self.domain
            }
            StepAction::DomainRun | StepAction::DomainPause | StepAction::DomainAsk(_) => {
                self.device
            }
            StepAction::DomainAwaitEnd => self.guest,
            StepAction::DomainKill => self.kill,
            StepAction::VbdReset(_)
            | StepAction::VbdAttach(..)
            | StepAction::VbdActivate(_)
            | StepAction::VbdDeactivate(_)
            | StepAction::VbdDetach(_) => self.storage,
            StepAction::VbdPlug(_)
            | StepAction::VbdUnplug(_)
            | StepAction::VbdInsert(_)
            | StepAction::VbdEject(_)
            | StepAction::VifPlug(_)
            | StepAction::VifUnplug(_) => self.device,
            StepAction::VifCreate(_) | StepAction::VifDestroy(_) => self.network,
            StepAction::TakeBootPlace => self.boot_place,
            StepAction::Record => Duration::ZERO,
        }
    }
}

/// Returns the typical duration of a step relative to others, for steady progress.
pub(super) fn weight(verb: &StepAction) -> u32 {
    match verb {
        StepAction::DomainAwaitEnd => 100,
        StepAction::DomainCreate(_) => 10,
        StepAction::VbdReset(_)
        | StepAction::VbdAttach(..)
        | StepAction::VbdDetach(_)
        | StepAction::VbdUnplug(_) => 5,
        StepAction::DomainKill
        | StepAction::VbdDeactivate(_)
        | StepAction::VifCreate(_)
        | StepAction::VifDestroy(_) => 2,
        StepAction::Record => 0,
        _ => 1,
    }
}

impl Step {
    /// Returns whether both steps work on the same device, which makes them one chain.
    pub(super) fn works_with(&self, other: &Self) -> bool {
        device(&self.verb).is_some_and(|one| device(&other.verb) == Some(one))
    }
}

fn device(verb: &StepAction) -> Option<crate::id::Uuid> {
    match verb {
        StepAction::VbdAttach(vbd, _)
        | StepAction::VbdReset(vbd)
        | StepAction::VbdActivate(vbd)
        | StepAction::VbdPlug(vbd)
        | StepAction::VbdUnplug(vbd)
        | StepAction::VbdDeactivate(vbd)
        | StepAction::VbdDetach(vbd)
        | StepAction::VbdInsert(vbd)
        | StepAction::VbdEject(vbd) => Some(vbd.0),
        StepAction::VifCreate(vif)
        | StepAction::VifPlug(vif)
        | StepAction::VifUnplug(vif)
        | StepAction::VifDestroy(vif) => Some(vif.0),
        _ => None,
    }
}
