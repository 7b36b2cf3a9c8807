//! Snapshots of VMs, and the way back.

use std::collections::{BTreeMap, BTreeSet};

use model::plan::MachineOp;
use model::refusal::Refusal;
use model::vm::{PowerState, VmOp};
use xenapi::table::{FieldIx, vbd, vdi, vif, vm};
use xenapi::{ApiError, Value, codes};

use super::clone::{Copied, clone_disks, copy_devices, copy_fields, destroy_disks, disks};
use super::{check, create, quiesce};
use crate::calls::vdi::snapshot_disks;
use crate::calls::vm_lifecycle;
use crate::db::{Ref, Tx, View};
use crate::dispatch::generic::nothing;
use crate::dispatch::{Args, CallResult, Ctx, text};
use crate::errors::{About, refused};
use crate::ops::current_ops::{CurrentOp, CurrentOps};
use crate::ops::run::{OpCaller, gone};
use crate::records::fields::{self, reference, references};
use crate::records::machine_config;
use crate::storage::layers;

/// Fields of a snapshot that its VM does not take back.
const OF_SNAPSHOT: [vm::Field; 8] = [
    vm::Field::name_description,
    vm::Field::is_a_template,
    vm::Field::snapshot_time,
    vm::Field::snapshot_info,
    vm::Field::snapshot_metadata,
    vm::Field::transportable_snapshot_id,
    vm::Field::parent,
    vm::Field::tags,
];
/// Key in `snapshot_info` with the power state at the snapshot.
const POWER_STATE: &str = "power-state-at-snapshot";

pub(super) async fn snapshot(ctx: Ctx, args: Args, op: VmOp) -> CallResult {
    let machine = args.object();
    let left_out = match op {
        VmOp::SnapshotWithQuiesce => BTreeSet::new(),
        _ => args.set("ignore_vdis").iter().map(text).collect(),
    };
    let also = |view: &View<'_>| all_have_snapshots(view, &machine, &left_out);
    let under_way = begin(&ctx, &machine, op, also).await?;
    let mut all = ctx.read(|view| disks(view, &machine))?;
    let made = match op {
        VmOp::SnapshotWithQuiesce => quiesce::snapshot_at_rest(&ctx, &machine, &all).await?,
        _ => {
            all.retain(|disk| !left_out.contains(disk.as_str()));
            snapshot_disks(&ctx, &all).await?
        }
    };
    let copies: Copied = all.into_iter().zip(made.iter().cloned()).collect();
    let recorded =
        ctx.change_stored(|tx| record(tx, &ctx, &machine, args.text("new_name"), &copies));
    match recorded.await {
        Ok(snapshot) => {
            drop(under_way);
            Ok(snapshot.value())
        }
        Err(error) => {
            destroy_disks(&ctx, made).await;
            Err(error)
        }
    }
}

/// Refuses a snapshot of a VM with a golden image, unless it is left out.
fn all_have_snapshots(
    view: &View<'_>,
    machine: &Ref,
    left_out: &BTreeSet<&str>,
) -> Result<(), Refusal> {
    for disk in disks(view, machine).map_err(gone)? {
        if !left_out.contains(disk.as_str()) && layers::has_layers(view, &disk).map_err(gone)? {
            let name = fields::text(view, &disk, vdi::Field::name_label).map_err(gone)?;
            return Err(Refusal::NotAllowed(format!(
                "its disk {name} is a golden image, which has no snapshots: each boot goes back to \
                 the image. For a machine with snapshots, copy the image to a storage \
                 repository of another type (vdi-copy) and give the machine that disk"
            )));
        }
    }
    Ok(())
}

fn record(
    tx: &mut Tx<'_>,
    ctx: &Ctx,
    machine: &Ref,
    name: &str,
    copies: &Copied,
) -> Result<Ref, ApiError> {
    let power = machine_config::power(&tx.view(), machine)?;
    let mut fields = copy_fields(&tx.view(), machine)?;
    let info = [(POWER_STATE.to_owned(), Value::text(power.name()))];
    let own: [(FieldIx, Value); 6] = [
        (vm::Field::name_label.into(), Value::text(name)),
        (vm::Field::is_a_template.into(), Value::Bool(true)),
        (vm::Field::is_a_snapshot.into(), Value::Bool(true)),
        (vm::Field::snapshot_of.into(), machine.value()),
        (vm::Field::snapshot_time.into(), Value::Date(ctx.app.clock.date())),
        (vm::Field::snapshot_info.into(), Value::Map(info.into())),
    ];
    fields.retain(|(field, _)| !own.iter().any(|(own, _)| own == field));
    fields.extend(own);
    let snapshot = tx.create(&vm::CLASS, fields)?;
    create::completed(tx, &snapshot)?;
    copy_devices(tx, machine, &snapshot, copies, true)?;
    Ok(snapshot)
}

/// Reverts a VM to a snapshot. Its disks are replaced by clones of the snapshot's disks, and then
/// destroyed. The VM ends when the clones exist. Disks that it got after the snapshot stay, without a
/// VM.
pub(super) async fn revert(ctx: Ctx, args: Args, op: VmOp) -> CallResult {
    let snapshot = args.object();
    let under_way = begin(&ctx, &snapshot, op, |_| Ok(())).await?;
    let machine = ctx.read(|view| reverted(view, &snapshot))?;
    let all = ctx.read(|view| disks(view, &snapshot))?;
    let copies = clone_disks(&ctx, &all).await?;
    let replaced = end_and_replace(&ctx, &snapshot, &machine, &copies).await;
    drop(under_way);
    // A disk that cannot be destroyed remains in the list of VDIs.
    match replaced {
        Ok(old) => {
            destroy_disks(&ctx, old).await;
            Ok(nothing())
        }
        Err(error) => {
            destroy_disks(&ctx, copies.into_values().collect()).await;
            Err(error)
        }
    }
}

/// Ends a VM, then gives it what a snapshot has. Returns its disks that the copies replace.
async fn end_and_replace(
    ctx: &Ctx,
    snapshot: &Ref,
    machine: &Ref,
    copies: &Copied,
) -> Result<Vec<Ref>, ApiError> {
    if ctx.read(|view| machine_config::power(view, machine))? != PowerState::Halted {
        vm_lifecycle::carry_out(ctx, machine, VmOp::HardShutdown, MachineOp::HardShutdown).await?;
    }
    let is_halted = |view: &View<'_>| match machine_config::power(view, machine) {
        Ok(PowerState::Halted) => Ok(()),
        Ok(actual) => Err(Refusal::BadPowerState { expected: &[PowerState::Halted], actual }),
        Err(error) => Err(Refusal::NotAllowed(error.to_string())),
    };
    let under_way = begin(ctx, machine, VmOp::Reverting, is_halted).await?;
    let replaced = ctx.change_stored(|tx| replace(tx, snapshot, machine, copies)).await;
    drop(under_way);
    replaced
}

/// Returns the VM of a snapshot.
fn reverted(view: &View<'_>, snapshot: &Ref) -> Result<Ref, ApiError> {
    let machine = reference(view, snapshot, vm::Field::snapshot_of)?;
    match view.object(&vm::CLASS, &machine) {
        Ok(_) => Ok(machine),
        Err(_) => Err(codes::operation_not_allowed(
            "the machine of this snapshot does not exist any more; clone the snapshot instead",
        )),
    }
}

/// Gives a VM the fields and devices of a snapshot. Returns its disks that clones replace.
fn replace(
    tx: &mut Tx<'_>,
    snapshot: &Ref,
    machine: &Ref,
    copies: &Copied,
) -> Result<Vec<Ref>, ApiError> {
    let kept = OF_SNAPSHOT.map(FieldIx::from);
    for (field, value) in copy_fields(&tx.view(), snapshot)? {
        if !kept.contains(&field) {
            tx.set(machine, field, value)?;
        }
    }
    let of_machine = |tx: &Tx<'_>, field: vm::Field| references(&tx.view(), machine, field);
    let mut present = disks(&tx.view(), machine)?;
    for device in of_machine(tx, vm::Field::VBDs)? {
        tx.destroy(&vbd::CLASS, &device)?;
    }
    for device in of_machine(tx, vm::Field::VIFs)? {
        tx.destroy(&vif::CLASS, &device)?;
    }
    copy_devices(tx, snapshot, machine, copies, true)?;
    let mut replaced = BTreeMap::new();
    for (of_snapshot, clone) in copies {
        let old = reference(&tx.view(), of_snapshot, vdi::Field::snapshot_of)?;
        for other in successors(&tx.view(), of_snapshot, &old)? {
            tx.set(&other, vdi::Field::snapshot_of, clone.value())?;
        }
        if tx.view().object(&vdi::CLASS, &old).is_ok() {
            tx.set(
                clone,
                vdi::Field::name_label,
                tx.view().get(&old, vdi::Field::name_label)?.clone(),
            )?;
        }
        replaced.insert(old, clone.clone());
    }
    present.retain(|disk| replaced.contains_key(disk));
    Ok(present)
}

/// Returns the snapshots of a VDI, or the snapshot at hand if the VDI does not exist any more.
fn successors(view: &View<'_>, snapshot: &Ref, disk: &Ref) -> Result<Vec<Ref>, ApiError> {
    match view.object(&vdi::CLASS, disk) {
        Ok(_) => references(view, disk, vdi::Field::snapshots),
        Err(_) => Ok(vec![snapshot.clone()]),
    }
}

/// Waits until an operation of a VM may begin.
pub(super) async fn begin(
    ctx: &Ctx,
    machine: &Ref,
    op: VmOp,
    also: impl Fn(&View<'_>) -> Result<(), Refusal>,
) -> Result<CurrentOps, ApiError> {
    let field = vm::Field::current_operations.into();
    let marks = [CurrentOp { of: machine.clone(), field, op: op.name() }];
    let gate = |tx: &mut Tx<'_>| {
        check(&tx.view(), machine, op)?;
        also(&tx.view())
    };
    let (key, deadline) = (OpCaller::of(ctx).key, ctx.app.settings.queue_deadline);
    let begun = CurrentOps::wait(&ctx.app.db, &key, &marks, deadline, gate).await;
    begun.map_err(|why| refused(&ctx.app.db, why, &About::vm(machine, op)))
}
