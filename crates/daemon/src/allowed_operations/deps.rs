//! Maps each change to the objects whose gates read the changed records.
//!
//! | changed record | gates that read it |
//! |---|---|
//! | VM | the VM, its VBDs and VIFs |
//! | guest metrics of a VM | as above |
//! | VBD | the VBD, its VDI, other VBDs of that VDI |
//! | VDI | the VDI and its VBDs |
//! | SR | the SR |
//! | PBD | the SR, its VDIs, their VBDs |
//! | VIF | the VIF |
//! | host | the host |

use std::collections::BTreeSet;

use model::vdi::automaton::Access;
use model::vm::PowerState;
use xenapi::Value;
use xenapi::table::{FieldIx, class, host, pbd, sr, vbd, vdi, vif, vm, vm_guest_metrics as guest};

use crate::db::{Object, Ref, Tx, View, WriteRecord};
use crate::facts::{access, flag, reference, references};

/// Objects to recompute, by class.
#[derive(Debug, Default)]
pub(super) struct Affected {
    pub(super) vms: BTreeSet<Ref>,
    pub(super) vbds: BTreeSet<Ref>,
    pub(super) vdis: BTreeSet<Ref>,
    pub(super) srs: BTreeSet<Ref>,
    pub(super) vifs: BTreeSet<Ref>,
    pub(super) hosts: BTreeSet<Ref>,
}

/// Returns the objects whose gates read records that this change has written.
pub(super) fn affected(tx: &Tx<'_>) -> Affected {
    let (view, mut all) = (tx.view(), Affected::default());
    for write_record in tx.touched() {
        match write_record.class() {
            "VM" => all.of_vm(&view, write_record),
            "VM_guest_metrics" => all.of_guest(&view, write_record),
            "VBD" => all.of_vbd(&view, write_record),
            "VDI" => all.of_vdi(&view, write_record),
            "SR" => all.of_sr(&view, write_record),
            "PBD" => all.of_pbd(&view, write_record),
            "VIF" => all.of_vif(write_record),
            "host" => all.of_host(write_record),
            _ => {}
        }
    }
    all
}

/// Returns whether the written field is one of these fields.
fn is_one<F: Into<FieldIx> + Copy>(field: FieldIx, of: &[F]) -> bool {
    of.iter().any(|one| (*one).into() == field)
}

impl Affected {
    fn of_vm(&mut self, view: &View<'_>, write_record: WriteRecord<'_>) {
        use vm::Field as F;
        let machine = write_record.reference();
        match write_record {
            WriteRecord::Set(field, ..) => {
                let devices =
                    [F::power_state, F::current_operations, F::is_control_domain, F::guest_metrics];
                let own = [
                    F::is_a_template,
                    F::is_default_template,
                    F::is_a_snapshot,
                    F::blocked_operations,
                ];
                if is_one(field, &devices) {
                    self.devices(view, machine);
                }
                if is_one(field, &devices) || is_one(field, &own) {
                    self.vms.insert(machine.clone());
                }
            }
            WriteRecord::Made(..) => {
                self.vms.insert(machine.clone());
                self.devices(view, machine);
                self.siblings(view, references(view, machine, F::VBDs));
            }
            WriteRecord::Gone(object) => {
                self.vbds.extend(members(object, F::VBDs));
                self.vifs.extend(members(object, F::VIFs));
                self.siblings(view, members(object, F::VBDs));
            }
            WriteRecord::Gathered(..) => {}
        }
        if let WriteRecord::Set(field, _, was) = write_record
            && is_one(field, &[F::power_state])
        {
            let suspended = Value::text(PowerState::Suspended.name());
            // VBDs of a suspended VM do not use their VDIs.
            if *was == suspended || view.get(machine, F::power_state) == Ok(&suspended) {
                self.siblings(view, references(view, machine, F::VBDs));
            }
        }
    }

    /// Adds the VBDs and VIFs of a VM.
    fn devices(&mut self, view: &View<'_>, machine: &Ref) {
        self.vbds.extend(references(view, machine, vm::Field::VBDs));
        self.vifs.extend(references(view, machine, vm::Field::VIFs));
    }

    /// Adds the VDIs of these VBDs and the other VBDs of these VDIs.
    fn siblings(&mut self, view: &View<'_>, slots: impl Iterator<Item = Ref>) {
        for slot in slots {
            let disk = reference(view, &slot, vbd::Field::VDI);
            self.used(view, &disk, access(view, &slot) == Access::Rw);
        }
    }

    fn of_guest(&mut self, view: &View<'_>, write_record: WriteRecord<'_>) {
        use guest::Field as F;
        let guest_fields =
            [F::other, F::can_use_hotplug_vbd, F::can_use_hotplug_vif, F::PV_drivers_detected];
        if matches!(write_record, WriteRecord::Set(field, ..) if !is_one(field, &guest_fields)) {
            return;
        }
        let Some(class) = class("VM") else { return };
        let metrics = write_record.reference().value();
        let of = |machine: &&Object| machine.get(vm::Field::guest_metrics.into()) == Some(&metrics);
        for machine in view.all(class).filter(of) {
            self.vms.insert(machine.reference().clone());
            self.devices(view, machine.reference());
        }
    }

    fn of_vbd(&mut self, view: &View<'_>, write_record: WriteRecord<'_>) {
        use vbd::Field as F;
        let slot = write_record.reference();
        let disk = reference(view, slot, F::VDI);
        let writes = access(view, slot) == Access::Rw;
        match write_record {
            WriteRecord::Set(field, _, was) => {
                let own = [F::r#type, F::unpluggable, F::empty, F::VM];
                let used = [F::mode, F::currently_attached, F::current_operations, F::VDI, F::VM];
                if is_one(field, &own) || is_one(field, &used) {
                    self.vbds.insert(slot.clone());
                }
                if is_one(field, &used) {
                    // A VBD that changes its VDI or mode may have written to the former VDI until
                    // now.
                    let writes = writes || is_one(field, &[F::mode, F::VDI]);
                    self.used(view, &disk, writes);
                    if let (true, Value::Str(before)) = (is_one(field, &[F::VDI]), was) {
                        self.used(view, &Ref::from(before.as_str()), writes);
                    }
                }
            }
            WriteRecord::Made(..) => {
                self.vbds.insert(slot.clone());
                let busy = view.get(slot, F::current_operations);
                let busy = matches!(busy, Ok(Value::Map(busy)) if !busy.is_empty());
                if busy || flag(view, slot, F::currently_attached) {
                    self.used(view, &disk, writes);
                }
            }
            // The object's last values do not show how the VBD used the VDI, so assume that it
            // wrote.
            WriteRecord::Gone(object) => {
                if let Some(Value::Str(disk)) = object.get(F::VDI.into()) {
                    self.used(view, &Ref::from(disk.as_str()), true);
                }
            }
            WriteRecord::Gathered(..) => {}
        }
    }

    /// Adds a VDI whose use by a VBD has changed, and the VBDs that this can affect. VBDs that only
    /// read do not conflict with each other.
    fn used(&mut self, view: &View<'_>, disk: &Ref, writes: bool) {
        self.vdis.insert(disk.clone());
        let slots = references(view, disk, vdi::Field::VBDs);
        self.vbds.extend(slots.filter(|slot| writes || access(view, slot) == Access::Rw));
    }

    fn of_vdi(&mut self, view: &View<'_>, write_record: WriteRecord<'_>) {
        use vdi::Field as F;
        let disk = write_record.reference();
        match write_record {
            WriteRecord::Set(field, _, was) => {
                let read = [F::sharable, F::read_only, F::missing, F::current_operations, F::SR];
                if is_one(field, &read) {
                    self.disk(view, disk);
                }
                if let (true, Value::Str(before)) = (is_one(field, &[F::SR]), was) {
                    self.srs.insert(Ref::from(before.as_str()));
                    self.srs.insert(reference(view, disk, F::SR));
                }
            }
            WriteRecord::Made(..) => self.disk(view, disk),
            WriteRecord::Gone(object) => self.vbds.extend(members(object, F::VBDs)),
            WriteRecord::Gathered(..) => {}
        }
    }

    /// Adds a VDI and its VBDs.
    fn disk(&mut self, view: &View<'_>, disk: &Ref) {
        self.vdis.insert(disk.clone());
        self.vbds.extend(references(view, disk, vdi::Field::VBDs));
    }

    fn of_sr(&mut self, view: &View<'_>, write_record: WriteRecord<'_>) {
        use sr::Field as F;
        let disks: Vec<Ref> = match write_record {
            WriteRecord::Set(field, ..) if !is_one(field, &[F::current_operations]) => return,
            WriteRecord::Set(..) | WriteRecord::Gathered(..) => Vec::new(),
            WriteRecord::Made(_, sr) => references(view, sr, F::VDIs).collect(),
            WriteRecord::Gone(object) => members(object, F::VDIs).collect(),
        };
        self.srs.insert(write_record.reference().clone());
        disks.iter().for_each(|disk| self.disk(view, disk));
    }

    fn of_pbd(&mut self, view: &View<'_>, write_record: WriteRecord<'_>) {
        use pbd::Field as F;
        let pbd = write_record.reference();
        let mut named = vec![reference(view, pbd, F::SR)];
        match write_record {
            WriteRecord::Set(field, _, Value::Str(before)) if is_one(field, &[F::SR]) => {
                named.push(Ref::from(before.as_str()));
            }
            WriteRecord::Set(field, ..) if !is_one(field, &[F::currently_attached]) => return,
            WriteRecord::Gone(object) => {
                if let Some(Value::Str(sr)) = object.get(F::SR.into()) {
                    named.push(Ref::from(sr.as_str()));
                }
            }
            _ => {}
        }
        for sr in named {
            for disk in references(view, &sr, sr::Field::VDIs) {
                self.disk(view, &disk);
            }
            self.srs.insert(sr);
        }
    }

    fn of_vif(&mut self, write_record: WriteRecord<'_>) {
        use vif::Field as F;
        let read = [F::currently_attached, F::current_operations, F::VM];
        if !matches!(write_record, WriteRecord::Set(field, ..) if !is_one(field, &read)) {
            self.vifs.insert(write_record.reference().clone());
        }
    }

    fn of_host(&mut self, write_record: WriteRecord<'_>) {
        if !matches!(write_record, WriteRecord::Set(field, ..) if !is_one(field, &[host::Field::enabled]))
        {
            self.hosts.insert(write_record.reference().clone());
        }
    }
}

/// Returns the members of a reference set of a destroyed object.
fn members(object: &Object, set: impl Into<FieldIx>) -> impl Iterator<Item = Ref> {
    let values = match object.get(set.into()) {
        Some(Value::Set(values)) => values.as_slice(),
        _ => &[],
    };
    values.iter().filter_map(|value| match value {
        Value::Str(text) => Some(Ref::from(text.as_str())),
        _ => None,
    })
}
