//! Computes `allowed_operations` of VMs, VBDs, VIFs, VDIs, SRs and hosts. Those of pools and
//! networks are not served.
//!
//! The gates in [`model`] derive the operations from records. A host's operations depend only on
//! `enabled`. At the end of each change, this module recomputes each object whose gates read a
//! changed record, once. `deps` alone decides which objects these are. The tests compare its result
//! with a full recomputation.

mod deps;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use model::{sr, vbd, vdi, vif, vm};
use xenapi::table::{self, FieldIx};
use xenapi::{ApiError, Value};

use crate::db::{Ref, Tx, View};
use crate::facts;
use deps::Affected;

/// Updates `allowed_operations` of all objects that a change affects. This is a
/// [`DeriveHook`](crate::db::DeriveHook).
///
/// # Errors
/// `INTERNAL_ERROR` if the class table lacks a field that is read here.
pub fn update_allowed(tx: &mut Tx<'_>) -> Result<(), ApiError> {
    recompute(tx).map(drop)
}

/// Does the work of [`update_allowed`] and returns the number of objects recomputed.
fn recompute(tx: &mut Tx<'_>) -> Result<usize, ApiError> {
    let Affected { vms, vbds, vdis, srs, vifs, hosts } = deps::affected(tx);
    Ok(each(tx, vms, table::vm::Field::allowed_operations, of_vm)?
        + each(tx, vbds, table::vbd::Field::allowed_operations, of_vbd)?
        + each(tx, vdis, table::vdi::Field::allowed_operations, of_vdi)?
        + each(tx, srs, table::sr::Field::allowed_operations, of_sr)?
        + each(tx, vifs, table::vif::Field::allowed_operations, of_vif)?
        + each(tx, hosts, table::host::Field::allowed_operations, of_host)?)
}

/// Names of allowed operations. `None` if the object does not exist.
type Names = Option<Vec<&'static str>>;

fn each(
    tx: &mut Tx<'_>,
    objects: BTreeSet<Ref>,
    field: impl Into<FieldIx>,
    allowed: fn(&View<'_>, &Ref) -> Names,
) -> Result<usize, ApiError> {
    let (field, mut count) = (field.into(), 0);
    for object in objects {
        if let Some(names) = allowed(&tx.view(), &object) {
            let names = names.into_iter().map(Value::text).collect();
            tx.set(&object, field, Value::Set(names))?;
            count += 1;
        }
    }
    Ok(count)
}

fn of_vm(view: &View<'_>, object: &Ref) -> Names {
    let facts = facts::vm(view, object).ok()?;
    Some(vm::allowed(&facts).into_iter().map(vm::VmOp::name).collect())
}

fn of_vbd(view: &View<'_>, object: &Ref) -> Names {
    let facts = facts::vbd(view, object).ok()?;
    let machine = facts::reference(view, object, table::vbd::Field::VM);
    // A VBD without a VM allows no operation.
    let Ok(machine) = facts::vm(view, &machine) else { return Some(Vec::new()) };
    Some(vbd::allowed(&facts, &machine).into_iter().map(vbd::VbdOp::name).collect())
}

fn of_vdi(view: &View<'_>, object: &Ref) -> Names {
    let facts = facts::vdi(view, object).ok()?;
    Some(vdi::allowed(&facts).into_iter().map(vdi::VdiOp::name).collect())
}

fn of_sr(view: &View<'_>, object: &Ref) -> Names {
    let facts = facts::sr(view, object).ok()?;
    Some(sr::allowed(&facts).into_iter().map(sr::SrOp::name).collect())
}

fn of_vif(view: &View<'_>, object: &Ref) -> Names {
    let facts = facts::vif(view, object).ok()?;
    let machine = facts::reference(view, object, table::vif::Field::VM);
    let Ok(machine) = facts::vm(view, &machine) else { return Some(Vec::new()) };
    Some(vif::allowed(&facts, &machine).into_iter().map(vif::VifOp::name).collect())
}

/// A disabled host accepts no further VMs.
fn of_host(view: &View<'_>, object: &Ref) -> Names {
    view.object(&table::host::CLASS, object).ok()?;
    Some(match facts::flag(view, object, table::host::Field::enabled) {
        true => vec!["provision", "evacuate", "vm_start"],
        false => vec!["evacuate"],
    })
}
