//! Clones of VMs and templates.

use model::vm::VmOp;
use xenapi::table::{FieldIx, vbd, vdi, vm};
use xenapi::{ApiError, NULL_REF, Value, codes};

use super::{MAC_SEED, allowed, create};
use crate::calls::vif;
use crate::db::{Ref, Tx, View};
use crate::dispatch::{Args, CallResult, Ctx};
use crate::ops::pending_op::OWED;
use crate::reconcile::full_storage;
use crate::records::fields::{reference, references, text};

/// Fields that a clone does not inherit.
const OWN: [vm::Field; 15] = [
    vm::Field::uuid,
    vm::Field::name_label,
    vm::Field::power_state,
    vm::Field::is_default_template,
    vm::Field::is_control_domain,
    vm::Field::is_a_snapshot,
    vm::Field::snapshot_of,
    vm::Field::resident_on,
    vm::Field::scheduled_to_be_resident_on,
    vm::Field::domid,
    vm::Field::metrics,
    vm::Field::guest_metrics,
    vm::Field::suspend_VDI,
    vm::Field::blobs,
    vm::Field::generation_id,
];
/// Keys in `other_config` that a clone does not inherit.
const OWN_CONFIG: [&str; 4] = ["default_template", MAC_SEED, OWED, full_storage::KEY];
/// Fields of a VBD that a clone inherits.
const OF_DEVICE: [vbd::Field; 11] = [
    vbd::Field::VDI,
    vbd::Field::userdevice,
    vbd::Field::bootable,
    vbd::Field::mode,
    vbd::Field::r#type,
    vbd::Field::unpluggable,
    vbd::Field::empty,
    vbd::Field::other_config,
    vbd::Field::qos_algorithm_type,
    vbd::Field::qos_algorithm_params,
    vbd::Field::qos_supported_algorithms,
];

pub(super) async fn clone(ctx: Ctx, args: Args, op: VmOp) -> CallResult {
    let (from, name) = (args.object(), args.text("new_name"));
    let made = ctx.change(|tx| {
        allowed(tx, &from, op)?;
        no_disks(&tx.view(), &from)?;
        let mut fields = fields(&tx.view(), &from)?;
        fields.push((vm::Field::name_label.into(), Value::text(name)));
        let made = tx.create(&vm::CLASS, fields)?;
        for key in OWN_CONFIG {
            tx.set_key(&made, vm::Field::other_config, key, None)?;
        }
        create::completed(tx, &made)?;
        drives(tx, &from, &made)?;
        vif::copied(tx, &from, &made)?;
        Ok(made)
    })?;
    Ok(made.value())
}

/// Checks that there are no disks: images cannot share data yet, so disks cannot be cloned.
fn no_disks(view: &View<'_>, from: &Ref) -> Result<(), ApiError> {
    for slot in references(view, from, vm::Field::VBDs)? {
        if text(view, &slot, vbd::Field::r#type)? != "CD" {
            let disk = reference(view, &slot, vbd::Field::VDI)?;
            let place = reference(view, &disk, vdi::Field::SR);
            let place = place.unwrap_or_else(|_| Ref::from(NULL_REF));
            return Err(codes::sr_operation_not_supported(place.as_str()));
        }
    }
    Ok(())
}

fn fields(view: &View<'_>, from: &Ref) -> Result<Vec<(FieldIx, Value)>, ApiError> {
    let own = OWN.map(FieldIx::from);
    let copied = vm::CLASS.numbers().filter(|(number, field)| {
        field.inverse.is_none() && !field.volatile && !own.contains(number)
    });
    copied.map(|(number, _)| Ok((number, view.get(from, number)?.clone()))).collect()
}

fn drives(tx: &mut Tx<'_>, from: &Ref, to: &Ref) -> Result<(), ApiError> {
    for slot in references(&tx.view(), from, vm::Field::VBDs)? {
        let mut fields = vec![(vbd::Field::VM.into(), to.value())];
        for field in OF_DEVICE {
            fields.push((field.into(), tx.view().get(&slot, field)?.clone()));
        }
        tx.create(&vbd::CLASS, fields)?;
    }
    Ok(())
}
