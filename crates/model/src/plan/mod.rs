//! Plans of machine operations: steps, and the order between them.
//!
//! # Terms
//! - **Op**: an operation on a machine or on one of its devices.
//! - **Plan**: the steps of an operation. A step runs as soon as its predecessors have ended and
//!   [admission](crate::admission) permits it. There are no rounds that wait for the slowest step.
//! - **Step**: one driver call with a deadline. The wait for a slot does not count against it.
//! - **Effect**: a change to record when a step has ended.
//! - **Reconcile**: the plan that makes the observed state and the record agree.
//!
//! # When a step fails
//! Running steps run to their end. Steps that depend on the failed one are skipped. There is no
//! undo list: the planner makes a plan for [`MachineOp::Reconcile`] from the observed state. So a
//! failure, a cancel and a restart of the daemon have the same recovery.
//!
//! # Invariants
//! An edge leads to an earlier step, so a plan has no cycle. All steps of a machine are in one
//! plan: nothing else works on that machine at the same time.

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

/// Operation on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineOp {
    /// Create a domain and start it.
    Start {
        /// Leave its CPUs stopped.
        paused: bool,
    },
    /// Ask the guest to shut down, wait until it has, and clean up.
    CleanShutdown,
    /// End the domain and clean up.
    HardShutdown,
    /// Ask the guest to reboot, and start a new domain.
    CleanReboot,
    /// End the domain and start a new one.
    HardReboot,
    /// Stop the CPUs.
    Pause,
    /// Let the CPUs run.
    Unpause,
    /// Plug a disk into the guest.
    VbdPlug(VbdId),
    /// Unplug a disk from the guest.
    VbdUnplug {
        /// Disk slot.
        vbd: VbdId,
        /// Detach the volume without waiting for the guest.
        force: bool,
    },
    /// Put the slot's medium into its drive.
    Insert(VbdId),
    /// Take the medium out of the drive.
    Eject(VbdId),
    /// Plug a network interface into the guest.
    VifPlug(VifId),
    /// Unplug a network interface from the guest.
    VifUnplug(VifId),
    /// End any domain and clean up, regardless of the record. Unlike a hard shutdown, this
    /// operation does not interrupt a running one.
    Reset,
    /// Follow the machine's exit policy for this exit; see [`exits::next`].
    AfterExit(DomainExit),
    /// Make the observed state and the record agree. Never starts a guest.
    Reconcile,
}

/// A driver call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepAction {
    /// Reserve this many bytes of the host's memory until the domain is gone.
    TakeMemory(u64),
    /// Wait until the machine may boot beside others.
    TakeBootPlace,
    /// Create a domain of this number with stopped CPUs and without disks and interfaces.
    DomainCreate(Domid),
    /// Let the CPUs run.
    DomainRun,
    /// Stop the CPUs.
    DomainPause,
    /// Send a request to the guest.
    DomainAsk(GuestRequest),
    /// Wait until the guest has ended.
    DomainAwaitEnd,
    /// End the process, whatever state the guest is in.
    DomainKill,
    /// Remove the remains of the process: its directory and its control group.
    DomainForget,
    /// Give the volume its content of the last reset.
    VbdReset(VbdId),
    /// Attach the volume.
    VbdAttach(VbdId, Access),
    /// Activate the volume: take its lock and serve it.
    VbdActivate(VbdId),
    /// Plug the disk into the guest.
    VbdPlug(VbdId),
    /// Unplug the disk; ends when the guest has released it.
    VbdUnplug(VbdId),
    /// Deactivate the volume.
    VbdDeactivate(VbdId),
    /// Detach the volume.
    VbdDetach(VbdId),
    /// Put the medium into the drive.
    VbdInsert(VbdId),
    /// Take the medium out of the drive.
    VbdEject(VbdId),
    /// Create the host's end of an interface.
    VifCreate(VifId),
    /// Plug the interface into the guest.
    VifPlug(VifId),
    /// Unplug the interface from the guest.
    VifUnplug(VifId),
    /// Remove the host's end of an interface.
    VifDestroy(VifId),
    /// Call nothing; only record the effects.
    Record,
}

/// Request to a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestRequest {
    /// Shut down.
    Shutdown,
    /// Reboot.
    Reboot,
}

/// Point until which a plan can be cancelled at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// Until the step begins.
    Before,
    /// Never: the step cleans up after a completed one.
    Never,
}

/// A change to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// State of a slot's volume.
    Volume(VbdId, VolumeState),
    /// Whether the guest has the disk, or the drive has the medium.
    Plugged(VbdId, bool),
    /// Medium of a drive.
    Medium(VbdId, Option<VdiId>),
    /// Whether the guest has the interface.
    Vif(VifId, bool),
    /// Power state of the machine.
    Power(PowerState),
    /// Domain of the machine.
    Domid(Option<Domid>),
}

/// Position of a step in its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepId(usize);

impl StepId {
    /// Returns the index in [`Plan::steps`].
    pub fn index(self) -> usize {
        self.0
    }
}

/// A step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Driver call.
    pub verb: StepAction,
    /// Steps that must have succeeded before.
    pub after: Vec<StepId>,
    /// Time limit of the call.
    pub deadline: Duration,
    /// Share of the plan's progress.
    pub weight: u32,
    /// Slots that the step needs while it runs.
    pub slots: Slots,
    /// Whether the step continues a chain of device steps.
    pub begun: bool,
    /// Point until which a cancel stops the step.
    pub cancel: Cancel,
    /// Effects to record if the step succeeds.
    pub then: Vec<Effect>,
    /// Effects to record if the step fails.
    pub if_failed: Vec<Effect>,
}

/// Steps whose edges lead to earlier steps only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    steps: Vec<Step>,
}

impl Plan {
    /// Returns the steps. Each comes after all its predecessors.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the sum of all weights. Progress is the share of ended steps.
    pub fn weight(&self) -> u32 {
        self.steps.iter().map(|step| step.weight).fold(0, u32::saturating_add)
    }

    /// Returns the time limit of the plan, without waits for slots: the longest path through the
    /// deadlines.
    pub fn longest_path(&self) -> Duration {
        let mut ends: Vec<Duration> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let before = step.after.iter().filter_map(|id| ends.get(id.0)).max().copied();
            ends.push(before.unwrap_or_default().saturating_add(step.deadline));
        }
        ends.into_iter().max().unwrap_or_default()
    }
}

/// Returns the steps that do `op`, based on the observed state of the machine. They remove what an
/// earlier failure left, and do not repeat what is done already.
///
/// # Errors
/// The operation is not possible in the current state of the machine or device.
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
        // A machine that is recorded as halted has no exit policy to follow.
        MachineOp::AfterExit(exit) if state.power != PowerState::Halted => {
            Ok(match exits::next(exit, &state.after) {
                ExitAction::Halt => stop::hard(state),
                ExitAction::Restart => reboot::hard(state),
                ExitAction::Keep => reconcile::reconcile(state),
            })
        }
        MachineOp::AfterExit(_) | MachineOp::Reconcile => Ok(reconcile::reconcile(state)),
    }
}
