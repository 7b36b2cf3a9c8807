//! Table of operations: by power state, by kind of machine, and whether Ringway implements them.

use super::super::{PowerState, VmOp};

/// Returns the power states in which `op` can begin, in the order of error parameters. A snapshot
/// may be suspended with its memory, and it can be cloned then.
pub fn power_states(op: VmOp, is_snapshot: bool) -> &'static [PowerState] {
    use PowerState::{Halted, Paused, Running, Suspended};
    match op {
        // Works on a file; the machine does not exist yet.
        VmOp::Import => &[],
        VmOp::ChangingVcpus
        | VmOp::ChangingStaticRange
        | VmOp::ChangingMemoryLimits
        | VmOp::ChangingShadowMemory
        | VmOp::ChangingNvram
        | VmOp::MakeIntoTemplate
        | VmOp::Provision
        | VmOp::Start
        | VmOp::StartOn
        | VmOp::CreateVtpm => &[Halted],
        VmOp::Unpause => &[Paused],
        VmOp::Csvm | VmOp::Resume | VmOp::ResumeOn => &[Suspended],
        VmOp::AwaitingMemoryLive
        | VmOp::CallPlugin
        | VmOp::CleanReboot
        | VmOp::CleanShutdown
        | VmOp::ChangingMemoryLive
        | VmOp::ChangingShadowMemoryLive
        | VmOp::ChangingVcpusLive
        | VmOp::DataSourceOp
        | VmOp::Pause
        | VmOp::PoolMigrate
        | VmOp::SendSysrq
        | VmOp::SendTrigger
        | VmOp::SnapshotWithQuiesce
        | VmOp::Suspend => &[Running],
        VmOp::ChangingDynamicRange => &[Halted, Running],
        VmOp::Clone | VmOp::Copy if is_snapshot => &[Halted, Suspended],
        VmOp::Clone | VmOp::Copy => &[Halted],
        VmOp::CreateTemplate | VmOp::Destroy | VmOp::Export => &[Halted, Suspended],
        VmOp::HardReboot => &[Paused, Running],
        VmOp::Checkpoint | VmOp::GetBootRecord | VmOp::Shutdown | VmOp::HardShutdown => {
            &[Paused, Suspended, Running]
        }
        VmOp::MigrateSend => &[Halted, Suspended, Running],
        VmOp::AssertOperationValid
        | VmOp::MetadataExport
        | VmOp::PowerStateReset
        | VmOp::Revert
        | VmOp::Reverting
        | VmOp::Snapshot
        | VmOp::UpdateAllowedOperations
        | VmOp::QueryServices => &[Halted, Paused, Suspended, Running],
    }
}

/// Returns whether the operation is for templates that are not snapshots.
pub(super) fn is_for_template(op: VmOp, is_default: bool) -> bool {
    match op {
        VmOp::Destroy | VmOp::MigrateSend => !is_default,
        _ => matches!(
            op,
            VmOp::ChangingDynamicRange
                | VmOp::ChangingStaticRange
                | VmOp::ChangingMemoryLimits
                | VmOp::ChangingShadowMemory
                | VmOp::ChangingVcpus
                | VmOp::Clone
                | VmOp::Copy
                | VmOp::Export
                | VmOp::MetadataExport
                | VmOp::Provision
                | VmOp::AssertOperationValid
                | VmOp::UpdateAllowedOperations
        ),
    }
}

/// Returns whether the operation is for snapshots.
pub(super) fn is_for_snapshot(op: VmOp) -> bool {
    matches!(
        op,
        VmOp::Revert
            | VmOp::Clone
            | VmOp::Copy
            | VmOp::Export
            | VmOp::Destroy
            | VmOp::HardShutdown
            | VmOp::MetadataExport
            | VmOp::AssertOperationValid
            | VmOp::UpdateAllowedOperations
    )
}

/// Returns whether Ringway implements the operation.
pub(super) fn is_served(op: VmOp, power: PowerState) -> bool {
    match op {
        // A domain's memory size is fixed at its start.
        VmOp::ChangingDynamicRange => power == PowerState::Halted,
        VmOp::AssertOperationValid
        | VmOp::PowerStateReset
        | VmOp::Reverting
        | VmOp::Shutdown
        | VmOp::UpdateAllowedOperations => true,
        _ => is_offered(op),
    }
}

/// Returns whether clients may see the operation: they can call it by this name in the ordinary
/// life of a machine.
pub(super) fn is_offered(op: VmOp) -> bool {
    matches!(
        op,
        VmOp::Clone
            | VmOp::Copy
            | VmOp::Snapshot
            | VmOp::SnapshotWithQuiesce
            | VmOp::Revert
            | VmOp::Provision
            | VmOp::Start
            | VmOp::StartOn
            | VmOp::Pause
            | VmOp::Unpause
            | VmOp::CleanShutdown
            | VmOp::CleanReboot
            | VmOp::HardShutdown
            | VmOp::HardReboot
            | VmOp::ChangingDynamicRange
            | VmOp::ChangingStaticRange
            | VmOp::ChangingMemoryLimits
            | VmOp::ChangingVcpus
            | VmOp::MakeIntoTemplate
            | VmOp::Destroy
    )
}
