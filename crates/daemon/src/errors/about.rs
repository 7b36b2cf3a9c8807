//! Objects that an error refers to.

use model::refusal::OngoingOp;
use model::sr::SrOp;
use model::vbd::VbdOp;
use model::vdi::VdiOp;
use model::vif::VifOp;
use model::vm::VmOp;
use xenapi::table::{FieldIx, sr, vbd, vdi, vif, vm};
use xenapi::{ApiError, NULL_REF, Value, codes};

use crate::db::{Ref, View};
use crate::dispatch::text;

/// Objects of a refused or failed operation. An unknown reference is the null reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Class of the object.
    pub class: &'static str,
    /// Object of the operation.
    pub object: Ref,
    /// Name of the operation.
    pub operation: &'static str,
    /// VM of the object.
    pub vm: Ref,
    /// VDI of the object.
    pub vdi: Ref,
    /// SR of the object.
    pub sr: Ref,
}

impl About {
    /// Operation on a VM.
    pub fn vm(machine: &Ref, op: VmOp) -> Self {
        Self { vm: machine.clone(), ..Self::of("VM", machine, op.name()) }
    }

    /// Operation on a VBD.
    pub fn vbd(view: &View<'_>, slot: &Ref, op: VbdOp) -> Self {
        let disk = named(view, slot, vbd::Field::VDI);
        let place = named(view, &disk, vdi::Field::SR);
        let vm = named(view, slot, vbd::Field::VM);
        Self { vm, vdi: disk, sr: place, ..Self::of("VBD", slot, op.name()) }
    }

    /// Operation on a VDI.
    pub fn vdi(view: &View<'_>, disk: &Ref, op: VdiOp) -> Self {
        let place = named(view, disk, vdi::Field::SR);
        Self { vdi: disk.clone(), sr: place, ..Self::of("VDI", disk, op.name()) }
    }

    /// Operation on an SR.
    pub fn sr(place: &Ref, op: SrOp) -> Self {
        Self { sr: place.clone(), ..Self::of("SR", place, op.name()) }
    }

    /// Operation on a VIF.
    pub fn vif(view: &View<'_>, device: &Ref, op: VifOp) -> Self {
        let vm = named(view, device, vif::Field::VM);
        Self { vm, ..Self::of("VIF", device, op.name()) }
    }

    fn of(class: &'static str, object: &Ref, operation: &'static str) -> Self {
        let null = || Ref::from(NULL_REF);
        Self { class, object: object.clone(), operation, vm: null(), vdi: null(), sr: null() }
    }

    /// Returns the object of another operation under way, as far as it is known.
    pub(super) fn under_way(&self, op: OngoingOp) -> (&'static str, &Ref) {
        match op {
            OngoingOp::Vm(_) if !self.vm.is_null() => ("VM", &self.vm),
            OngoingOp::Vdi(_) if !self.vdi.is_null() => ("VDI", &self.vdi),
            OngoingOp::Sr(_) if !self.sr.is_null() => ("SR", &self.sr),
            _ => (self.class, &self.object),
        }
    }
}

/// Returns the reference in a field, or the null reference.
fn named(view: &View<'_>, of: &Ref, field: impl Into<FieldIx>) -> Ref {
    view.get(of, field).map_or_else(|_| Ref::from(NULL_REF), |value| Ref::from(text(value)))
}

/// Returns the task of this operation of this object.
pub(super) fn carried_out_by(
    view: &View<'_>,
    class: &'static str,
    object: &Ref,
    op: OngoingOp,
) -> Option<Ref> {
    let field: FieldIx = match class {
        "VM" => vm::Field::current_operations.into(),
        "VBD" => vbd::Field::current_operations.into(),
        "VDI" => vdi::Field::current_operations.into(),
        "SR" => sr::Field::current_operations.into(),
        _ => vif::Field::current_operations.into(),
    };
    let Ok(Value::Map(current)) = view.get(object, field) else { return None };
    let found = current.iter().find(|(_, name)| text(name) == op.name());
    found.map(|(task, _)| Ref::from(task.as_str()))
}

/// Returns the error for an operation that waited too long in its VM's queue. It names the
/// operation under way.
pub(super) fn busy(view: &View<'_>, about: &About) -> ApiError {
    let current = view.get(&about.vm, vm::Field::current_operations);
    let (task, op) = match current {
        Ok(Value::Map(current)) => {
            current.iter().next().map(|(task, op)| (task.as_str(), text(op)))
        }
        _ => None,
    }
    .unwrap_or((NULL_REF, ""));
    codes::other_operation("VM", about.vm.as_str(), op, task)
}
