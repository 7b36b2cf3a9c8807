//! How long each kind of step may take, and how much of a plan it is.

use std::time::Duration;

use super::{Step, StepAction};

/// How long steps may take, each from the moment when its call begins, and waits for what hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// What touches storage: attach, activate, deactivate, detach.
    pub storage: Duration,
    /// What the guest must agree to, or the hypervisor: plug, unplug, insert, eject.
    pub device: Duration,
    /// Making a domain, and removing what it leaves.
    pub domain: Duration,
    /// Ending a process; short of it the process is killed.
    pub kill: Duration,
    /// A guest that was asked to shut down or reboot, until it has.
    pub guest: Duration,
    /// The host's end of a network interface.
    pub network: Duration,
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
            StepAction::VbdAttach(..)
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
            StepAction::Record => Duration::ZERO,
        }
    }
}

/// Roughly how long a step takes beside others, so that progress is steady.
pub(super) fn weight(verb: &StepAction) -> u32 {
    match verb {
        StepAction::DomainAwaitEnd => 100,
        StepAction::DomainCreate(_) => 10,
        StepAction::VbdAttach(..) | StepAction::VbdDetach(_) | StepAction::VbdUnplug(_) => 5,
        StepAction::DomainKill
        | StepAction::VbdDeactivate(_)
        | StepAction::VifCreate(_)
        | StepAction::VifDestroy(_) => 2,
        StepAction::Record => 0,
        _ => 1,
    }
}

impl Step {
    /// Whether both work on one device, so that a chain of steps can be told from two.
    pub(super) fn works_with(&self, other: &Self) -> bool {
        device(&self.verb).is_some_and(|one| device(&other.verb) == Some(one))
    }
}

fn device(verb: &StepAction) -> Option<crate::id::Uuid> {
    match verb {
        StepAction::VbdAttach(vbd, _)
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
