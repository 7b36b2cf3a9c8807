//! Effects of operations on the records of a VM.

use std::collections::BTreeSet;

use model::id::{Domid, VmId};
use model::plan::Effect;
use model::vbd::DeviceNumber;
use model::vm::PowerState;
use xenapi::table::{
    Class, FieldIx, console, host, network, vbd, vdi, vif, vm, vm_guest_metrics, vm_metrics,
};
use xenapi::{ApiError, Date, NULL_REF, Value};

use super::fields::{bytes, flag, int, reference, references, text};
use crate::db::{Ref, Tx};
use crate::ops::pending_op;

/// Value of `domid` for a VM without a domain.
const NO_DOMAIN: i64 = -1;

/// Returns whether records show this effect. Volumes have no record of it.
pub(super) fn is_recorded(effect: &Effect) -> bool {
    !matches!(effect, Effect::Volume(..))
}

/// Writes effects in one change. Skips devices that no longer exist.
///
/// `url` is that of the server, for consoles. Returns whether the VM has a new domain whose guest
/// does not run yet.
///
/// # Errors
/// `UUID_INVALID` if the VM does not exist.
pub(super) fn write(
    tx: &mut Tx<'_>,
    id: VmId,
    effects: &[Effect],
    fresh: bool,
    (now, url): (Date, &str),
) -> Result<bool, ApiError> {
    let machine = tx.view().by_uuid(&vm::CLASS, &id.to_string())?.clone();
    let was = int(&tx.view(), &machine, vm::Field::domid)?;
    let mut fresh = fresh;
    for effect in effects {
        match effect {
            Effect::Volume(..) => {}
            Effect::Plugged(vbd, plugged) => {
                if let Some(slot) = of(tx, &vbd::CLASS, vbd.to_string()) {
                    tx.set(&slot, vbd::Field::currently_attached, Value::Bool(*plugged))?;
                }
            }
            Effect::Medium(vbd, medium) => {
                let medium = medium.and_then(|vdi| of(tx, &vdi::CLASS, vdi.to_string()));
                if let Some(slot) = of(tx, &vbd::CLASS, vbd.to_string()) {
                    fill(tx, &slot, medium.as_ref())?;
                }
            }
            Effect::Vif(vif, plugged) => {
                if let Some(one) = of(tx, &vif::CLASS, vif.to_string()) {
                    tx.set(&one, vif::Field::currently_attached, Value::Bool(*plugged))?;
                    let net = reference(&tx.view(), &one, vif::Field::network)?;
                    let mtu = tx.view().get(&net, network::Field::MTU).cloned();
                    if *plugged && let Ok(mtu) = mtu {
                        tx.set(&one, vif::Field::MTU, mtu)?;
                    }
                }
            }
            Effect::Domid(domid) => {
                let number = domid.map_or(NO_DOMAIN, |Domid(number)| i64::from(number));
                fresh = number != NO_DOMAIN && (fresh || number != was);
                tx.set(&machine, vm::Field::domid, Value::Int(number))?;
            }
            Effect::Power(power) => {
                let text = Value::text(power.name());
                tx.set(&machine, vm::Field::power_state, text)?;
            }
        }
    }
    let power = effects.iter().rev().find_map(|effect| match effect {
        Effect::Power(power) => Some(*power),
        _ => None,
    });
    let up = matches!(power, Some(PowerState::Running | PowerState::Paused));
    match power {
        Some(PowerState::Halted | PowerState::Suspended) => down(tx, &machine)?,
        Some(_) if fresh => begun(tx, &machine, now, url)?,
        Some(_) => here(tx, &machine, url)?,
        None => {}
    }
    if let Some(power) = power {
        pending_op::became(tx, &machine, power)?;
    }
    let waits = fresh && !up;
    // A guest that has not run has not found its disks. They are all named when it starts to run.
    if !waits {
        name_disks(tx, &machine, fresh)?;
    }
    Ok(waits)
}

/// Puts a VDI into a VBD, or empties the VBD.
pub(crate) fn fill(tx: &mut Tx<'_>, slot: &Ref, medium: Option<&Ref>) -> Result<(), ApiError> {
    let value = medium.map_or_else(|| Value::text(NULL_REF), Ref::value);
    tx.set(slot, vbd::Field::VDI, value)?;
    tx.set(slot, vbd::Field::empty, Value::Bool(medium.is_none()))
}

fn of(tx: &Tx<'_>, class: &'static Class, uuid: String) -> Option<Ref> {
    tx.view().by_uuid(class, &uuid).ok().cloned()
}

/// Records a new domain.
fn begun(tx: &mut Tx<'_>, machine: &Ref, now: Date, url: &str) -> Result<(), ApiError> {
    here(tx, machine, url)?;
    let view = tx.view();
    let metrics = reference(&view, machine, vm::Field::metrics)?;
    let memory = bytes(&view, machine, vm::Field::memory_static_max)?;
    let vcpus = int(&view, machine, vm::Field::VCPUs_at_startup)?;
    if view.object(&vm_metrics::CLASS, &metrics).is_err() {
        return Ok(());
    }
    tx.set(&metrics, vm_metrics::Field::start_time, Value::Date(now))?;
    tx.set(&metrics, vm_metrics::Field::last_updated, Value::Date(now))?;
    tx.set(&metrics, vm_metrics::Field::memory_actual, super::fields::size(memory))?;
    tx.set(&metrics, vm_metrics::Field::VCPUs_number, Value::Int(vcpus))?;
    tx.set(&metrics, vm_metrics::Field::hvm, Value::Bool(true))?;
    tx.set(&metrics, vm_metrics::Field::current_domain_type, Value::text("hvm"))
}

/// Records that the VM has a domain on this host: its residence and its console.
fn here(tx: &mut Tx<'_>, machine: &Ref, url: &str) -> Result<(), ApiError> {
    let host = tx.view().all(&host::CLASS).next().map(|host| host.reference().clone());
    let Some(host) = host else { return Ok(()) };
    tx.set(machine, vm::Field::resident_on, host.value())?;
    if !references(&tx.view(), machine, vm::Field::consoles)?.is_empty() {
        return Ok(());
    }
    let given = vec![
        (console::Field::protocol.into(), Value::text("vt100")),
        (console::Field::VM.into(), machine.value()),
    ];
    let made = tx.create(&console::CLASS, given)?;
    locate_console(tx, &made, url)
}

/// Sets the URL of a console. `url` is that of the server, without a path.
pub(crate) fn locate_console(tx: &mut Tx<'_>, one: &Ref, url: &str) -> Result<(), ApiError> {
    let uuid = text(&tx.view(), one, console::Field::uuid)?.to_owned();
    tx.set(one, console::Field::location, Value::text(format!("{url}/console?uuid={uuid}")))
}

/// Records that the VM has no domain.
fn down(tx: &mut Tx<'_>, machine: &Ref) -> Result<(), ApiError> {
    let none = || Value::text(NULL_REF);
    tx.set(machine, vm::Field::resident_on, none())?;
    for one in references(&tx.view(), machine, vm::Field::consoles)? {
        tx.destroy(&console::CLASS, &one)?;
    }
    let view = tx.view();
    let guest_metrics = reference(&view, machine, vm::Field::guest_metrics)?;
    let metrics = reference(&view, machine, vm::Field::metrics)?;
    let measured = view.object(&vm_metrics::CLASS, &metrics).is_ok();
    tx.set(machine, vm::Field::guest_metrics, none())?;
    if !guest_metrics.is_null() {
        // Another call may have destroyed it.
        let _ = tx.destroy(&vm_guest_metrics::CLASS, &guest_metrics);
    }
    if measured {
        tx.set(&metrics, vm_metrics::Field::memory_actual, Value::Int(0))?;
        tx.set(&metrics, vm_metrics::Field::VCPUs_number, Value::Int(0))?;
        tx.set(&metrics, vm_metrics::Field::current_domain_type, Value::text("unspecified"))?;
    }
    Ok(())
}

/// Gives attached disks the names that the guest uses. A booting guest numbers its disks by
/// position. Later it takes the first free name.
fn name_disks(tx: &mut Tx<'_>, machine: &Ref, boots: bool) -> Result<(), ApiError> {
    let view = tx.view();
    let mut disks = Vec::new();
    for slot in references(&view, machine, vm::Field::VBDs)? {
        let number = DeviceNumber::parse(text(&view, &slot, vbd::Field::userdevice)?);
        let attached = flag(&view, &slot, vbd::Field::currently_attached)?;
        let prefix = if text(&view, &slot, vbd::Field::r#type)? == "CD" { "sr" } else { "vd" };
        let name = text(&view, &slot, vbd::Field::device)?.to_owned();
        disks.push((number, slot, attached, prefix, name));
    }
    disks.sort_by_key(|(number, ..)| *number);
    let stays = |attached: bool, name: &str| attached && !boots && !name.is_empty();
    let mut taken: BTreeSet<String> = disks
        .iter()
        .filter(|(_, _, attached, _, name)| stays(*attached, name))
        .map(|(.., name)| name.clone())
        .collect();
    for (_, slot, attached, prefix, name) in disks {
        let name = match attached {
            false => String::new(),
            true if stays(attached, &name) => continue,
            true => {
                let mut all = DeviceNumber::all().map(|number| named(prefix, number.get()));
                let free = all.find(|name| !taken.contains(name)).unwrap_or_default();
                taken.insert(free.clone());
                free
            }
        };
        tx.set(&slot, vbd::Field::device, Value::Str(name))?;
    }
    Ok(())
}

/// Formats a device name: `vda`, `vdz`, `vdaa`. CD drives have decimal numbers.
fn named(prefix: &str, number: u8) -> String {
    if prefix == "sr" {
        return format!("{prefix}{number}");
    }
    let letter = |number: u8| char::from(b'a' + number % 26);
    match number.checked_sub(26) {
        None => format!("{prefix}{}", letter(number)),
        Some(rest) => format!("{prefix}{}{}", letter(rest / 26), letter(rest)),
    }
}

/// Handles a destroyed VDI: destroys its disk VBDs and empties its CD drives. Its snapshots are of
/// nothing any more.
///
/// # Errors
/// Those of the database.
pub(crate) fn disk_gone(tx: &mut Tx<'_>, disk: &Ref) -> Result<(), ApiError> {
    for slot in references(&tx.view(), disk, vdi::Field::VBDs)? {
        if text(&tx.view(), &slot, vbd::Field::r#type)? == "CD" {
            fill(tx, &slot, None)?;
        } else {
            tx.destroy(&vbd::CLASS, &slot)?;
        }
    }
    orphan(tx, disk, vdi::Field::snapshots, vdi::Field::snapshot_of)?;
    tx.destroy(&vdi::CLASS, disk)
}

/// Sets the reference `field` of all objects in the derived `set` of an object to null, because
/// clients take a reference to no object for an error.
///
/// # Errors
/// Those of the database.
pub(crate) fn orphan(
    tx: &mut Tx<'_>,
    of: &Ref,
    set: impl Into<FieldIx>,
    field: impl Into<FieldIx>,
) -> Result<(), ApiError> {
    let field = field.into();
    for one in references(&tx.view(), of, set)? {
        tx.set(&one, field, Value::text(NULL_REF))?;
    }
    Ok(())
}
