//! Snapshots of the disks of guests whose agent has frozen the file systems.

use error_causes::error_chain;
use model::id::VmId;
use toolstack::hv::HvError;
use xenapi::{ApiError, codes};

use super::clone::destroy_disks;
use crate::calls::vdi::snapshot_disks;
use crate::db::Ref;
use crate::dispatch::Ctx;

use crate::ops::run::id_of;

/// Takes snapshots of these disks of a VM while its file systems are frozen.
///
/// # Errors
/// `VM_SNAPSHOT_WITH_QUIESCE_*`, and those of the SRs. No snapshot exists then.
pub(super) async fn snapshot_at_rest(
    ctx: &Ctx,
    machine: &Ref,
    disks: &[Ref],
) -> Result<Vec<Ref>, ApiError> {
    let vm = ctx.read(|view| id_of(view, machine))?;
    let frozen = ctx.app.drivers.hv.freeze(vm).await;
    let made = match frozen {
        Ok(true) => snapshot_disks(ctx, disks).await,
        Ok(false) => return Err(codes::vm_quiesce_no_agent(machine.as_str())),
        Err(error) => Err(failed(machine, &error)),
    };
    // A freeze that failed may have taken effect.
    match (made, thaw(ctx, vm).await) {
        (Ok(made), Err(error)) => {
            destroy_disks(ctx, made).await;
            Err(failed(machine, &error))
        }
        (made, _) => made,
    }
}

async fn thaw(ctx: &Ctx, vm: VmId) -> Result<(), HvError> {
    let thawed = ctx.app.drivers.hv.thaw(vm).await;
    if let Err(error) = &thawed {
        tracing::warn!(%vm, "its file systems may be frozen: {}", error_chain(error));
    }
    thawed
}

fn failed(machine: &Ref, error: &HvError) -> ApiError {
    match error {
        HvError::Late { .. } => codes::vm_quiesce_timeout(machine.as_str()),
        error => codes::vm_quiesce_failed(machine.as_str(), error_chain(error)),
    }
}
