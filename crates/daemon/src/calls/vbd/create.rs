//! Creation and destruction of VBDs.

use std::collections::{BTreeMap, BTreeSet};

use model::domain::pci::MAX_CDS;
use model::spec::SpecError;
use model::vbd::{DeviceNumber, VbdOp, algorithm_with, check_limits, check_tuning, choose};
use model::vm::PowerState;
use xenapi::table::{FieldIx, vbd, vdi, vm};
use xenapi::{ApiError, NULL_REF, Value, codes};

use crate::db::{Ref, View};
use crate::dispatch::generic::{constructed, nothing};
use crate::dispatch::{Args, CallResult, Ctx, text};
use crate::errors::About;
use crate::facts;
use crate::records::fields::{flag, plain, reference, references, text as read};
use crate::records::machine_config::power;
use crate::storage::layers;

/// Parameters of a new VBD.
struct NewVbd {
    machine: Ref,
    disk: Ref,
    kind: String,
    writes: bool,
    empty: bool,
    device: String,
}

pub(super) fn create(ctx: &Ctx, args: &Args) -> CallResult {
    let given = args.map("args");
    let mut fields = constructed(&vbd::CLASS, given)?;
    let new_vbd = wanted(given);
    let params = given.get("qos_algorithm_params").map(plain).unwrap_or_default();
    let algorithm = given.get("qos_algorithm_type").map_or("", text);
    let algorithm = algorithm_with(algorithm, params.keys().map(String::as_str));
    limited(algorithm, &params)?;
    tuned(&given.get("other_config").map(plain).unwrap_or_default())?;
    put(&mut fields, vbd::Field::qos_algorithm_type, Value::text(algorithm));
    let made = ctx.change(|tx| {
        let number = allowed(&tx.view(), &new_vbd)?;
        put(&mut fields, vbd::Field::userdevice, Value::text(number.to_string()));
        put(&mut fields, vbd::Field::currently_attached, Value::Bool(false));
        put(&mut fields, vbd::Field::device, Value::text(""));
        put(&mut fields, vbd::Field::empty, Value::Bool(new_vbd.empty));
        let disk = if new_vbd.empty { Value::text(NULL_REF) } else { new_vbd.disk.value() };
        put(&mut fields, vbd::Field::VDI, disk);
        put(&mut fields, vbd::Field::qos_supported_algorithms, supported_algorithms());
        tx.create(&vbd::CLASS, fields)
    })?;
    Ok(made.value())
}

/// Returns the algorithms that a VBD's limits can have.
pub(crate) fn supported_algorithms() -> Value {
    Value::Set(model::vbd::ALGORITHMS.iter().map(|name| Value::text(*name)).collect())
}

fn wanted(given: &BTreeMap<String, Value>) -> NewVbd {
    let word = |name: &str| given.get(name).map_or("", text);
    NewVbd {
        machine: Ref::from(word("VM")),
        disk: Ref::from(word("VDI")),
        kind: word("type").to_owned(),
        writes: word("mode") == "RW",
        // A drive without a VDI is empty, even if the parameters say otherwise.
        empty: given.get("empty") == Some(&Value::Bool(true)) || word("VDI") == NULL_REF,
        device: word("userdevice").to_owned(),
    }
}

fn put(fields: &mut Vec<(FieldIx, Value)>, field: vbd::Field, value: Value) {
    let field = FieldIx::from(field);
    fields.retain(|(other, _)| *other != field);
    fields.push((field, value));
}

/// Checks a new VBD and returns its device number.
fn allowed(view: &View<'_>, new_vbd: &NewVbd) -> Result<DeviceNumber, ApiError> {
    let NewVbd { machine, disk, .. } = new_vbd;
    if flag(view, machine, vm::Field::is_control_domain)? {
        let why = "the control domain cannot have devices";
        return Err(codes::operation_not_allowed(why));
    }
    if !new_vbd.empty {
        let read_only = flag(view, disk, vdi::Field::read_only)?;
        if new_vbd.writes && read_only {
            return Err(codes::vdi_read_only(disk.as_str()));
        }
    }
    match new_vbd.kind.as_str() {
        "CD" if new_vbd.writes => return Err(codes::vbd_cds_are_read_only()),
        "CD" => drive_allowed(view, machine)?,
        "Floppy" => return Err(codes::operation_not_allowed("floppy drives are not supported")),
        _ if new_vbd.empty => return Err(codes::vbd_not_removable(NULL_REF)),
        _ => {}
    }
    let used = numbers(view, machine)?;
    let about = About::vm(machine, model::vm::VmOp::UpdateAllowedOperations);
    choose(&new_vbd.device, &used).map_err(|why| about.refused(why))
}

/// Checks that a CD drive can be added: the VM is halted and has fewer than the maximum.
fn drive_allowed(view: &View<'_>, machine: &Ref) -> Result<(), ApiError> {
    let mut drives = 0;
    for slot in references(view, machine, vm::Field::VBDs)? {
        drives += usize::from(read(view, &slot, vbd::Field::r#type)? == "CD");
    }
    if drives >= usize::from(MAX_CDS) {
        let why = format!("a machine has at most {MAX_CDS} drives");
        return Err(codes::operation_not_allowed(why));
    }
    match power(view, machine)? {
        PowerState::Halted => Ok(()),
        _ => {
            let why = "drives can only be added to a halted machine; shut it down first";
            Err(codes::operation_not_allowed(why))
        }
    }
}

/// Returns the device numbers in use.
pub(in crate::calls) fn numbers(
    view: &View<'_>,
    machine: &Ref,
) -> Result<BTreeSet<DeviceNumber>, ApiError> {
    let slots = references(view, machine, vm::Field::VBDs)?.into_iter();
    let number = |slot: Ref| read(view, &slot, vbd::Field::userdevice).map(DeviceNumber::parse);
    slots.map(number).filter_map(Result::transpose).collect()
}

/// Checks that the QoS settings are valid.
pub(crate) fn limited(algorithm: &str, params: &BTreeMap<String, String>) -> Result<(), ApiError> {
    check_limits(algorithm, params).map_err(|error| invalid(error, algorithm))
}

/// Checks that the settings in `other_config` are valid.
pub(crate) fn tuned(other_config: &BTreeMap<String, String>) -> Result<(), ApiError> {
    check_tuning(other_config).map_err(|error| invalid(error, ""))
}

fn invalid(error: SpecError, algorithm: &str) -> ApiError {
    let value = if error.field == "qos_algorithm_type" { algorithm } else { "" };
    codes::value_not_supported(error.field, value, error.problem)
}

pub(super) fn destroy(ctx: &Ctx, args: &Args) -> CallResult {
    let slot = args.object();
    layers::destroy(ctx, std::slice::from_ref(&slot));
    ctx.change(|tx| {
        let view = tx.view();
        let facts = facts::vbd(&view, &slot)?;
        if let Some(op) = facts.current.first() {
            let why =
                model::refusal::Refusal::OtherOperation { op: model::refusal::OngoingOp::Vbd(*op) };
            return Err(About::vbd(&view, &slot, VbdOp::Unplug).refused(why));
        }
        let machine = reference(&view, &slot, vbd::Field::VM)?;
        let drive = read(&view, &slot, vbd::Field::r#type)? == "CD";
        let runs = power(&view, &machine).is_ok_and(|power| power != PowerState::Halted);
        if facts.attached || (drive && runs) {
            let why = "the device is attached; unplug it, or shut the machine down, first";
            return Err(codes::operation_not_allowed(why));
        }
        tx.destroy(&vbd::CLASS, &slot)
    })?;
    Ok(nothing())
}
