//! What is to be done to a machine, as data: steps, and which must have ended before which.
//!
//! # Words
//! - **Op**: what was asked of a machine or of one of its devices.
//! - **Plan**: the steps that do it. A step runs as soon as those before it have ended and
//!   [admission](crate::admission) lets it: there are no rounds in which all wait for the slowest.
//! - **Step**: one call outward, with a deadline that waits for a slot among busy storage do not
//!   count against.
//! - **Effect**: what is recorded when a step has ended.
//! - **Settle**: the plan that makes reality and record agree.
//!
//! # When a step fails
//! Steps that run go on to their end, those that wait for the failed one are left out, and there
//! is no list of what to undo. The planner is asked for [`MachineOp::Settle`] with what is there now. A
//! failure, a cancel and a restart of the daemon thus have one way back.
//!
//! # Invariants
//! An edge leads to an earlier step, so a plan has no circle. All of one machine's steps are in
//! one plan: nothing else works on that machine meanwhile.

mod builder;
mod costs;
mod plug;
mod reboot;
mod reconcile;
mod start;
mod state;
mod stop;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use crate::admission::Slots;
use crate::id::{Domid, VbdId, VdiId, VifId};
use crate::refusal::Refusal;
use crate::vdi::automaton::{Access, VolumeState};
use crate::vm::exits::{self, DomainExit, ExitAction};
use crate::vm::{PowerState, VmOp, power_states};
pub use costs::Deadlines;
pub use state::{DiskState, DomainState, MachineState, Medium, RunState, VifState};

/// What is asked of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineOp {
    /// Make a domain.
    Start {
        /// Leave its CPUs standing.
        paused: bool,
    },
    /// Ask the guest to shut down, wait for it, and clean up.
    CleanShutdown,
    /// End the domain and clean up.
    HardShutdown,
    /// Ask the guest to reboot, and give it a new domain.
    CleanReboot,
    /// End the domain and give the machine a new one.
    HardReboot,
    /// Stop the CPUs.
    Pause,
    /// Let the CPUs run.
    Unpause,
    /// Give the guest a disk.
    VbdPlug(VbdId),
    /// Take a disk from the guest.
    VbdUnplug {
        /// Which.
        vbd: VbdId,
        /// Take the volume away without waiting for the guest's consent.
        force: bool,
    },
    /// Put the slot's medium into its drive.
    Insert(VbdId),
    /// Take the medium out of the drive.
    Eject(VbdId),
    /// Give the guest a network interface.
    VifPlug(VifId),
    /// Take a network interface from the guest.
    VifUnplug(VifId),
    /// End whatever is there and clean up, whatever is recorded. Unlike a shutdown by force, it
    /// overtakes nobody.
    Reset,
    /// Do what is set for a guest that ended like this, as [`exits::next`] says.
    AfterExit(DomainExit),
    /// Make reality and record agree. Never starts a guest.
    Settle,
}

/// One call outward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepAction {
    /// Reserve this much of the host's memory, in bytes, until the domain is gone.
    TakeMemory(u64),
    /// Make a domain of this number: CPUs standing, no disks, no interfaces.
    DomainCreate(Domid),
    /// Let the CPUs run.
    DomainRun,
    /// Stop the CPUs.
    DomainPause,
    /// Ask the guest.
    DomainAsk(GuestRequest),
    /// Wait until the guest has ended.
    DomainAwaitEnd,
    /// End the process, whatever the guest does.
    DomainKill,
    /// Remove what the process leaves: its directory, its group.
    DomainForget,
    /// Make the volume reachable.
    VbdAttach(VbdId, Access),
    /// Begin to serve it.
    VbdActivate(VbdId),
    /// Give the guest the disk.
    VbdPlug(VbdId),
    /// Take the disk from the guest; ends when the guest has let go.
    VbdUnplug(VbdId),
    /// End serving the volume.
    VbdDeactivate(VbdId),
    /// End reaching it.
    VbdDetach(VbdId),
    /// Put the medium into the drive.
    VbdInsert(VbdId),
    /// Take the medium out of the drive.
    VbdEject(VbdId),
    /// Make the host's end of an interface.
    VifCreate(VifId),
    /// Give the guest the interface.
    VifPlug(VifId),
    /// Take the interface from the guest.
    VifUnplug(VifId),
    /// Remove the host's end.
    VifDestroy(VifId),
    /// Nothing but its effects.
    Record,
}

/// What a guest is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestRequest {
    /// To shut down.
    Shutdown,
    /// To reboot.
    Reboot,
}

/// Until when a plan can be cancelled at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// Until the step begins.
    Before,
    /// Not: it cleans up after something that has been done.
    Never,
}

/// Something to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A slot's volume is in this state.
    Volume(VbdId, VolumeState),
    /// The guest has the disk, or the drive the medium.
    Plugged(VbdId, bool),
    /// What is in a drive.
    Medium(VbdId, Option<VdiId>),
    /// The guest has the interface.
    Vif(VifId, bool),
    /// The machine's power state.
    Power(PowerState),
    /// The machine's domain.
    Domid(Option<Domid>),
}

/// A step's place in its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepId(usize);

impl StepId {
    /// Its index in [`Plan::steps`].
    pub fn index(self) -> usize {
        self.0
    }
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What is called.
    pub verb: StepAction,
    /// Steps that must have ended well before.
    pub after: Vec<StepId>,
    /// How long its call may take.
    pub deadline: Duration,
    /// Its part of the plan's progress.
    pub weight: u32,
    /// What it must hold while it runs.
    pub slots: Slots,
    /// It goes on with a chain of device steps that has begun.
    pub begun: bool,
    /// Until when a cancel stops it.
    pub cancel: Cancel,
    /// Recorded when it ended well.
    pub then: Vec<Effect>,
    /// Recorded when it failed.
    pub if_failed: Vec<Effect>,
}

/// Steps with edges to earlier ones only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    steps: Vec<Step>,
}

impl Plan {
    /// The steps. Each comes after all those that it waits for.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The sum of all weights: progress is what has ended of it.
    pub fn weight(&self) -> u32 {
        self.steps.iter().map(|step| step.weight).fold(0, u32::saturating_add)
    }

    /// Within this the plan ends, the time aside for which steps wait for slots: the longest way
    /// through the deadlines.
    pub fn longest_path(&self) -> Duration {
        let mut ends: Vec<Duration> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let before = step.after.iter().filter_map(|id| ends.get(id.0)).max().copied();
            ends.push(before.unwrap_or_default().saturating_add(step.deadline));
        }
        ends.into_iter().max().unwrap_or_default()
    }
}

/// The steps that do `op` to a machine in this state, from what is really there: what an earlier
/// failure left is cleaned up, and what is done already is not done again.
///
/// # Errors
/// The machine or the device is in a state in which the operation has no meaning.
pub fn plan(op: &MachineOp, state: &MachineState) -> Result<Plan, Refusal> {
    let power = |op: VmOp| {
        let (actual, expected) = (state.power, power_states(op, false));
        let refused = Refusal::BadPowerState { expected, actual };
        expected.contains(&actual).then_some(()).ok_or(refused)
    };
    match *op {
        MachineOp::Start { paused } => power(VmOp::Start).map(|()| start::start(state, paused)),
        MachineOp::CleanShutdown => power(VmOp::CleanShutdown).map(|()| stop::clean(state)),
        MachineOp::HardShutdown => power(VmOp::HardShutdown).map(|()| stop::hard(state)),
        MachineOp::CleanReboot => power(VmOp::CleanReboot).map(|()| reboot::clean(state)),
        MachineOp::HardReboot => power(VmOp::HardReboot).map(|()| reboot::hard(state)),
        MachineOp::Pause => power(VmOp::Pause).map(|()| stop::pause(state)),
        MachineOp::Unpause => power(VmOp::Unpause).map(|()| start::unpause(state)),
        MachineOp::VbdPlug(vbd) => plug::disk(state, vbd),
        MachineOp::VbdUnplug { vbd, force } => plug::disk_out(state, vbd, force),
        MachineOp::Insert(vbd) => plug::insert(state, vbd),
        MachineOp::Eject(vbd) => plug::eject(state, vbd),
        MachineOp::VifPlug(vif) => plug::vif(state, vif),
        MachineOp::VifUnplug(vif) => plug::vif_out(state, vif),
        MachineOp::Reset => Ok(stop::hard(state)),
        // Of a machine that is recorded as halted nothing is expected any more.
        MachineOp::AfterExit(exit) if state.power != PowerState::Halted => {
            Ok(match exits::next(exit, &state.after) {
                ExitAction::Halt => stop::hard(state),
                ExitAction::Restart => reboot::hard(state),
                ExitAction::Keep => reconcile::reconcile(state),
            })
        }
        MachineOp::AfterExit(_) | MachineOp::Settle => Ok(reconcile::reconcile(state)),
    }
}
