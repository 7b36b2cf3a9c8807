//! Queries about VMs.

use std::collections::BTreeSet;

use model::domain::OVERHEAD_BYTES;
use model::vbd::DeviceNumber;
use model::vm::{Strictness, VmOp};
use xenapi::table::{host, vm};
use xenapi::{ApiError, Value};

use super::super::vbd as disks;
use super::super::vif as interfaces;
use super::super::vm_lifecycle::bootable_here;
use crate::calls::Calls;
use crate::db::{Ref, View};
use crate::dispatch::generic::nothing;
use crate::dispatch::{Args, CallResult, Ctx, Handler};
use crate::errors::About;
use crate::facts;
use crate::records::fields::{flag, references, size};

/// Unit of a guest's memory, in bytes.
const MIB: u64 = 1 << 20;

pub(in crate::calls) const CALLS: Calls = &[
    ("VM.get_allowed_VBD_devices", Handler::Short(vbd_devices)),
    ("VM.get_allowed_VIF_devices", Handler::Short(vif_devices)),
    ("VM.get_possible_hosts", Handler::Short(possible_hosts)),
    ("VM.assert_can_boot_here", Handler::Short(assert_can_boot_here)),
    ("VM.assert_operation_valid", Handler::Short(assert_operation_valid)),
    ("VM.update_allowed_operations", Handler::Short(|_, _| Ok(nothing()))),
    ("VM.compute_memory_overhead", Handler::Short(memory_overhead)),
    ("VM.maximise_memory", Handler::Short(maximise_memory)),
    ("VM.get_cooperative", Handler::Short(|_, _| Ok(Value::Bool(false)))),
    ("VM.get_boot_record", Handler::Short(boot_record)),
];

fn vbd_devices(ctx: &Ctx, args: &Args) -> CallResult {
    let taken = ctx.read(|view| disks::numbers(view, &args.object()))?;
    let free = DeviceNumber::all().filter(|number| !taken.contains(number));
    Ok(Value::Set(free.map(|number| Value::text(number.to_string())).collect()))
}

fn vif_devices(ctx: &Ctx, args: &Args) -> CallResult {
    let taken: BTreeSet<u8> = ctx.read(|view| interfaces::numbers(view, &args.object()))?;
    let free = (0..=model::vif::MAX_DEVICE).filter(|number| !taken.contains(number));
    Ok(Value::Set(free.map(|number| Value::text(number.to_string())).collect()))
}

fn possible_hosts(ctx: &Ctx, _: &Args) -> CallResult {
    let found: Result<Vec<Value>, ApiError> = ctx.read(|view| {
        let hosts = view.all(&host::CLASS).map(|host| host.reference());
        let enabled = |host: &Ref| flag(view, host, host::Field::enabled);
        let able = hosts.filter_map(|host| match enabled(host) {
            Ok(true) => Some(Ok(host.value())),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        });
        able.collect()
    });
    found.map(Value::Set)
}

fn assert_can_boot_here(ctx: &Ctx, args: &Args) -> CallResult {
    bootable_here(ctx, &args.object())?;
    Ok(nothing())
}

fn assert_operation_valid(ctx: &Ctx, args: &Args) -> CallResult {
    let machine = args.object();
    let Some(op) = VmOp::parse(args.text("op")) else { return Ok(nothing()) };
    ctx.read(|view| {
        let checked = model::vm::check(op, &facts::vm(view, &machine)?, Strictness::Strict);
        checked.map_err(|why| About::vm(&machine, op).refused(why))
    })?;
    Ok(nothing())
}

/// Returns the host memory needed in addition to the guest's, in bytes.
fn overhead(view: &View<'_>, machine: &Ref) -> Result<u64, ApiError> {
    let disks = references(view, machine, vm::Field::VBDs)?.len();
    let disks = u64::try_from(disks).unwrap_or(u64::MAX);
    Ok(OVERHEAD_BYTES.saturating_add(disks.saturating_mul(model::domain::DISK_OVERHEAD_BYTES)))
}

fn memory_overhead(ctx: &Ctx, args: &Args) -> CallResult {
    ctx.read(|view| overhead(view, &args.object())).map(size)
}

fn maximise_memory(ctx: &Ctx, args: &Args) -> CallResult {
    let total = u64::try_from(args.int("total")).unwrap_or_default();
    let overhead = ctx.read(|view| overhead(view, &args.object()))?;
    Ok(size(total.saturating_sub(overhead) / MIB * MIB))
}

fn boot_record(ctx: &Ctx, args: &Args) -> CallResult {
    ctx.read(|view| view.record(&vm::CLASS, &args.object())).map(Value::Encoded)
}
