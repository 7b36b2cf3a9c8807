//! Messages of class `VM` about records: creation, settings, destruction.

mod clone;
mod create;
mod disks;
mod memory;
mod provision;
mod queries;
mod quiesce;
mod snapshot;

use model::machine::MAX_VCPUS;
use model::refusal::Refusal;
use model::vm::{Strictness, VmOp};
use xenapi::table::vm;
use xenapi::{ApiError, Value, codes};

use crate::db::{Ref, Tx, View};
use crate::dispatch::generic::{self, nothing};
use crate::dispatch::{Args, CallResult, Ctx, Handler, Hook};
use crate::errors::{About, refused};
use crate::facts;
use crate::ops::run::{at_once, cancellable, gated, gone};
use crate::records::boot::check_order;
use crate::records::fields::{flag, int};

/// Key in `other_config` from which a VM's MAC addresses are derived.
pub(super) const MAC_SEED: &str = "mac_seed";

pub(super) const CALLS: super::Calls = &[
    ("VM.create", Handler::Short(create::create)),
    ("VM.destroy", gated!(may_begin, create::destroy, VmOp::Destroy)),
    ("VM.clone", gated!(may_begin, clone::clone, VmOp::Clone)),
    ("VM.snapshot", gated!(may_begin, snapshot::snapshot, VmOp::Snapshot)),
    ("VM.snapshot_with_quiesce", gated!(may_begin, snapshot::snapshot, VmOp::SnapshotWithQuiesce)),
    ("VM.revert", gated!(may_begin, snapshot::revert, VmOp::Revert)),
    ("VM.copy", cancellable!(may_begin, clone::copy, VmOp::Copy)),
    ("VM.provision", cancellable!(may_begin, provision::provision, VmOp::Provision)),
    ("VM.set_is_a_template", Handler::Short(set_is_a_template)),
    ("VM.set_VCPUs_max", Handler::Short(|ctx, args| vcpus(ctx, args, vm::Field::VCPUs_max))),
    (
        "VM.set_VCPUs_at_startup",
        Handler::Short(|ctx, args| vcpus(ctx, args, vm::Field::VCPUs_at_startup)),
    ),
    ("VM.set_VCPUs_number_live", gated!(may_begin, not_here, VmOp::ChangingVcpusLive)),
    (
        "VM.set_actions_after_crash",
        Handler::Short(|ctx, args| generic::set(ctx, args, vm::Field::actions_after_crash)),
    ),
    (
        "VM.set_HVM_boot_policy",
        Handler::Short(|ctx, args| generic::set(ctx, args, vm::Field::HVM_boot_policy)),
    ),
    (
        "VM.set_HVM_shadow_multiplier",
        Handler::Short(|ctx, args| generic::set(ctx, args, vm::Field::HVM_shadow_multiplier)),
    ),
];

pub(super) const HOOKS: &[Hook] = &[Hook {
    field: "VM.HVM_boot_params",
    check: |_, tx, machine| check_order(&tx.view(), machine),
    follow: None,
}];

pub(super) use memory::CALLS as MEMORY;
pub(super) use queries::CALLS as ASKED;

/// Checks whether the operation may begin, before a task exists.
fn may_begin(ctx: &Ctx, args: &Args, op: VmOp) -> Result<(), ApiError> {
    let machine = args.object();
    let checked = ctx.read(|view| check(view, &machine, op));
    at_once(checked).map_err(|why| refused(&ctx.app.db, why, &About::vm(&machine, op)))
}

fn check(view: &View<'_>, machine: &Ref, op: VmOp) -> Result<(), Refusal> {
    model::vm::check(op, &facts::vm(view, machine).map_err(gone)?, Strictness::Lenient)
}

/// Checks within a change whether the operation is allowed.
fn allowed(tx: &Tx<'_>, machine: &Ref, op: VmOp) -> Result<(), ApiError> {
    let view = tx.view();
    check(&view, machine, op).map_err(|why| About::vm(machine, op).refused(why))
}

/// Refuses an operation that the precheck allows but that is not implemented.
async fn not_here(_: Ctx, args: Args, op: VmOp) -> CallResult {
    Err(About::vm(&args.object(), op).refused(Refusal::NotImplemented))
}

/// Turns a VM into a template, or a template into a VM.
fn set_is_a_template(ctx: &Ctx, args: &Args) -> CallResult {
    let (machine, wanted) = (args.object(), args.flag("value"));
    ctx.change(|tx| {
        if flag(&tx.view(), &machine, vm::Field::is_a_template)? == wanted {
            return Ok(());
        }
        if wanted {
            allowed(tx, &machine, VmOp::MakeIntoTemplate)?;
        } else if flag(&tx.view(), &machine, vm::Field::is_a_snapshot)? {
            return Err(codes::vm_is_snapshot(machine.as_str()));
        } else {
            tx.set(&machine, vm::Field::is_default_template, Value::Bool(false))?;
        }
        tx.set(&machine, vm::Field::is_a_template, Value::Bool(wanted))
    })?;
    Ok(nothing())
}

/// Sets a number of CPUs.
fn vcpus(ctx: &Ctx, args: &Args, field: vm::Field) -> CallResult {
    let machine = args.object();
    ctx.change(|tx| {
        allowed(tx, &machine, VmOp::ChangingVcpus)?;
        tx.set(&machine, field, Value::Int(args.int("value")))?;
        vcpus_fit(&tx.view(), &machine)
    })?;
    Ok(nothing())
}

/// Checks the numbers of CPUs: at startup at most the maximum, which is at most QEMU's limit.
fn vcpus_fit(view: &View<'_>, machine: &Ref) -> Result<(), ApiError> {
    let most = int(view, machine, vm::Field::VCPUs_max)?;
    let first = int(view, machine, vm::Field::VCPUs_at_startup)?;
    // XenServer also names the rule in place of the field.
    let refused = |value: i64| {
        let rule =
            format!("VCPU values must satisfy: 1 <= VCPUs_at_startup <= VCPUs_max <= {MAX_VCPUS}");
        Err(codes::invalid_value(rule, value.to_string()))
    };
    if !(1..=i64::from(MAX_VCPUS)).contains(&most) {
        return refused(most);
    }
    if (1..=most).contains(&first) { Ok(()) } else { refused(first) }
}
