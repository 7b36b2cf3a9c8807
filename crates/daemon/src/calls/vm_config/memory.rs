//! Memory bounds of VMs.

use model::vm::VmOp;
use xenapi::table::vm;
use xenapi::{ApiError, Value, codes};

use super::allowed;
use crate::calls::Calls;
use crate::db::{Ref, Tx, View};
use crate::dispatch::generic::nothing;
use crate::dispatch::{Args, CallResult, Ctx, Handler};
use crate::records::fields::int;

use vm::Field::{
    memory_dynamic_max as DYNAMIC_MAX, memory_dynamic_min as DYNAMIC_MIN,
    memory_static_max as STATIC_MAX, memory_static_min as STATIC_MIN, memory_target as TARGET,
};

/// Builds a setter from its operation and the bound of each parameter.
macro_rules! sets {
    ($op:ident: $($param:literal $($field:ident)+),+) => {
        Handler::Short(|ctx, args| {
            set(ctx, args, VmOp::$op, &[$(($param, &[$($field),+])),+])
        })
    };
}

pub(in crate::calls) const CALLS: Calls = &[
    (
        "VM.set_memory_limits",
        sets!(ChangingMemoryLimits:
        "static_min" STATIC_MIN, "static_max" STATIC_MAX,
        "dynamic_min" DYNAMIC_MIN, "dynamic_max" DYNAMIC_MAX),
    ),
    ("VM.set_memory", sets!(ChangingMemoryLimits: "value" STATIC_MAX DYNAMIC_MIN DYNAMIC_MAX)),
    ("VM.set_memory_static_max", sets!(ChangingStaticRange: "value" STATIC_MAX)),
    ("VM.set_memory_static_min", sets!(ChangingStaticRange: "value" STATIC_MIN)),
    ("VM.set_memory_static_range", sets!(ChangingStaticRange: "min" STATIC_MIN, "max" STATIC_MAX)),
    ("VM.set_memory_dynamic_max", sets!(ChangingDynamicRange: "value" DYNAMIC_MAX)),
    ("VM.set_memory_dynamic_min", sets!(ChangingDynamicRange: "value" DYNAMIC_MIN)),
    (
        "VM.set_memory_dynamic_range",
        sets!(ChangingDynamicRange: "min" DYNAMIC_MIN, "max" DYNAMIC_MAX),
    ),
];

/// Unit of a machine's memory, in bytes. XenServer also rounds up to it.
const UNIT: i64 = 1 << 20;

/// Rounds a size in bytes up to the unit. A size that is out of range stays, and is refused later.
fn rounded(bytes: i64) -> i64 {
    let over = bytes.rem_euclid(UNIT);
    if over == 0 { bytes } else { bytes.checked_add(UNIT - over).unwrap_or(bytes) }
}

fn set(ctx: &Ctx, args: &Args, op: VmOp, bounds: &[(&str, &[vm::Field])]) -> CallResult {
    let machine = args.object();
    ctx.change(|tx| {
        allowed(tx, &machine, op)?;
        for (param, fields) in bounds {
            for field in *fields {
                tx.set(&machine, *field, Value::Int(rounded(args.int(param))))?;
            }
        }
        fit(&tx.view(), &machine)?;
        let most = int(&tx.view(), &machine, DYNAMIC_MAX)?;
        tx.set(&machine, TARGET, Value::Int(most))
    })?;
    Ok(nothing())
}

/// Rounds the bounds of a new machine.
pub(super) fn round(tx: &mut Tx<'_>, machine: &Ref) -> Result<(), ApiError> {
    for field in [STATIC_MIN, DYNAMIC_MIN, DYNAMIC_MAX, STATIC_MAX, TARGET] {
        let bytes = int(&tx.view(), machine, field)?;
        tx.set(machine, field, Value::Int(rounded(bytes)))?;
    }
    Ok(())
}

/// Checks that the bounds are ordered.
pub(super) fn fit(view: &View<'_>, machine: &Ref) -> Result<(), ApiError> {
    let rule = "0 <= static_min <= dynamic_min <= dynamic_max <= static_max";
    let mut bounds = vec![0];
    for field in [STATIC_MIN, DYNAMIC_MIN, DYNAMIC_MAX, STATIC_MAX] {
        bounds.push(int(view, machine, field)?);
    }
    if bounds.is_sorted() { Ok(()) } else { Err(codes::memory_constraint(rule)) }
}
