//! Creation and destruction of VMs.

use model::id::{Uuid, VmId};
use model::vm::VmOp;
use xenapi::table::{FieldIx, console, vbd, vdi, vif, vm, vm_guest_metrics, vm_metrics};
use xenapi::{ApiError, NULL_REF, Value, codes};

use super::{MAC_SEED, allowed, memory, vcpus_fit};
use crate::db::{Ref, Tx, View};
use crate::dispatch::generic::{constructed, nothing};
use crate::dispatch::{Args, CallResult, Ctx};
use crate::ops::run::id_of;
use crate::random;
use crate::reconcile::settle;
use crate::records::boot::check_order;
use crate::records::effects::orphan;
use crate::records::fields::{pairs, reference, references};
use crate::storage::layers;

pub(super) fn create(ctx: &Ctx, args: &Args) -> CallResult {
    let mut fields = constructed(&vm::CLASS, args.map("args"))?;
    // A new VM is halted and has no history.
    let past = [
        vm::Field::power_state,
        vm::Field::suspend_VDI,
        vm::Field::last_booted_record,
        vm::Field::last_boot_CPU_flags,
    ];
    fields.retain(|(field, _)| !past.iter().any(|one| FieldIx::from(*one) == *field));
    let made = ctx.change(|tx| {
        let made = tx.create(&vm::CLASS, fields)?;
        memory::round(tx, &made)?;
        memory::fit(&tx.view(), &made)?;
        vcpus_fit(&tx.view(), &made)?;
        check_order(&tx.view(), &made)?;
        completed(tx, &made)?;
        Ok(made)
    })?;
    Ok(made.value())
}

/// Creates the metrics and the MAC seed that every VM has.
///
/// # Errors
/// Those of the database.
pub(super) fn completed(tx: &mut Tx<'_>, machine: &Ref) -> Result<(), ApiError> {
    let metrics = tx.create(&vm_metrics::CLASS, Vec::new())?;
    tx.set(machine, vm::Field::metrics, metrics.value())?;
    tx.set(machine, vm::Field::guest_metrics, Value::text(NULL_REF))?;
    if !pairs(&tx.view(), machine, vm::Field::other_config)?.contains_key(MAC_SEED) {
        let seed = Uuid::from_random(random::bytes()).to_string();
        tx.set_key(machine, vm::Field::other_config, MAC_SEED, Some(Value::Str(seed)))?;
    }
    Ok(())
}

/// Destroys a VM and its devices. Its VDIs stay. Fails if resources of the VM remain on the host,
/// because no later operation could release them.
pub(super) async fn destroy(ctx: Ctx, args: Args, op: VmOp) -> CallResult {
    let machine = args.object();
    let vm = ctx.read(|view| id_of(view, &machine))?;
    ctx.app.restarts.call_off(&ctx.app, vm);
    if ctx.app.machines.is_there(vm) {
        settle(&ctx.app, vm).await;
    }
    let slots = ctx.read(|view| references(view, &machine, vm::Field::VBDs))?;
    layers::destroy(&ctx, &slots);
    ctx.change(|tx| {
        allowed(tx, &machine, op)?;
        nothing_left(&ctx, &tx.view(), vm, op)?;
        let of = |tx: &Tx<'_>, field: vm::Field| references(&tx.view(), &machine, field);
        for device in of(tx, vm::Field::VBDs)? {
            tx.destroy(&vbd::CLASS, &device)?;
        }
        for device in of(tx, vm::Field::VIFs)? {
            tx.destroy(&vif::CLASS, &device)?;
        }
        for device in of(tx, vm::Field::consoles)? {
            tx.destroy(&console::CLASS, &device)?;
        }
        let metrics = reference(&tx.view(), &machine, vm::Field::metrics)?;
        if tx.view().object(&vm_metrics::CLASS, &metrics).is_ok() {
            tx.destroy(&vm_metrics::CLASS, &metrics)?;
        }
        let guest_metrics = reference(&tx.view(), &machine, vm::Field::guest_metrics)?;
        if tx.view().object(&vm_guest_metrics::CLASS, &guest_metrics).is_ok() {
            tx.destroy(&vm_guest_metrics::CLASS, &guest_metrics)?;
        }
        orphan(tx, &machine, vm::Field::snapshots, vm::Field::snapshot_of)?;
        orphan(tx, &machine, vm::Field::children, vm::Field::parent)?;
        tx.destroy(&vm::CLASS, &machine)
    })?;
    Ok(nothing())
}

/// Checks that no resources of a VM are on the host.
fn nothing_left(ctx: &Ctx, view: &View<'_>, vm: VmId, op: VmOp) -> Result<(), ApiError> {
    let machines = &ctx.app.machines;
    if let Some(held) = machines.held_volume(vm) {
        let disk = view.by_uuid(&vdi::CLASS, &held.to_string());
        let disk = disk.map_or_else(|_| held.to_string(), Ref::to_string);
        return Err(codes::vdi_in_use(disk, op.name()));
    }
    if machines.is_there(vm) {
        let why = "the host still has remains of the machine; shut it down by force first";
        return Err(codes::operation_not_allowed(why));
    }
    Ok(())
}
