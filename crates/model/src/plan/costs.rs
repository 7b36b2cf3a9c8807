//! How long each kind of step may take, and how much of a plan it is.

use std::time::Duration;

use super::{Step, Verb};

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
    pub(super) fn of(&self, verb: &Verb) -> Duration {
        match verb {
            Verb::TakeMemory(_) | Verb::DomainCreate(_) | Verb::DomainForget => self.domain,
            Verb::DomainRun | Verb::DomainPause | Verb::DomainAsk(_) => self.device,
            Verb::DomainAwaitEnd => self.guest,
            Verb::DomainKill => self.kill,
            Verb::VbdAttach(..)
            | Verb::VbdActivate(_)
            | Verb::VbdDeactivate(_)
            | Verb::VbdDetach(_) => self.storage,
            Verb::VbdPlug(_)
            | Verb::VbdUnplug(_)
            | Verb::VbdInsert(_)
            | Verb::VbdEject(_)
            | Verb::VifPlug(_)
            | Verb::VifUnplug(_) => self.device,
            Verb::VifCreate(_) | Verb::VifDestroy(_) => self.network,
            Verb::Record => Duration::ZERO,
        }
    }
}

/// Roughly how long a step takes beside others, so that progress is steady.
pub(super) fn weight(verb: &Verb) -> u32 {
    match verb {
        Verb::DomainAwaitEnd => 100,
        Verb::DomainCreate(_) => 10,
        Verb::VbdAttach(..) | Verb::VbdDetach(_) | Verb::VbdUnplug(_) => 5,
        Verb::DomainKill | Verb::VbdDeactivate(_) | Verb::VifCreate(_) | Verb::VifDestroy(_) => 2,
        Verb::Record => 0,
        _ => 1,
    }
}

impl Step {
    /// Whether both work on one device, so that a chain of steps can be told from two.
    pub(super) fn works_with(&self, other: &Self) -> bool {
        device(&self.verb).is_some_and(|one| device(&other.verb) == Some(one))
    }
}

fn device(verb: &Verb) -> Option<crate::id::Uuid> {
    match verb {
        Verb::VbdAttach(vbd, _)
        | Verb::VbdActivate(vbd)
        | Verb::VbdPlug(vbd)
        | Verb::VbdUnplug(vbd)
        | Verb::VbdDeactivate(vbd)
        | Verb::VbdDetach(vbd)
        | Verb::VbdInsert(vbd)
        | Verb::VbdEject(vbd) => Some(vbd.0),
        Verb::VifCreate(vif)
        | Verb::VifPlug(vif)
        | Verb::VifUnplug(vif)
        | Verb::VifDestroy(vif) => Some(vif.0),
        _ => None,
    }
}
