//! What a refusal or a failure is about.

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

/// What was asked for: an operation of an object, and the objects that go with it. A reference that
/// is not known is the null reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// The object's class.
    pub class: &'static str,
    /// The object.
    pub object: Ref,
    /// What was asked of it.
    pub operation: &'static str,
    /// Its machine.
    pub vm: Ref,
    /// Its disk.
    pub vdi: Ref,
    /// Where that is.
    pub sr: Ref,
}

impl About {
    /// An operation of a machine.
    pub fn vm(machine: &Ref, op: VmOp) -> Self {
        Self { vm: machine.clone(), ..Self::of("VM", machine, op.name()) }
    }

    /// An operation of a disk device.
    pub fn vbd(view: &View<'_>, slot: &Ref, op: VbdOp) -> Self {
        let disk = named(view, slot, vbd::Field::VDI);
        let place = named(view, &disk, vdi::Field::SR);
        let vm = named(view, slot, vbd::Field::VM);
        Self { vm, vdi: disk, sr: place, ..Self::of("VBD", slot, op.name()) }
    }

    /// An operation of a disk.
    pub fn vdi(view: &View<'_>, disk: &Ref, op: VdiOp) -> Self {
        let place = named(view, disk, vdi::Field::SR);
        Self { vdi: disk.clone(), sr: place, ..Self::of("VDI", disk, op.name()) }
    }

    /// An operation of a storage repository.
    pub fn sr(place: &Ref, op: SrOp) -> Self {
        Self { sr: place.clone(), ..Self::of("SR", place, op.name()) }
    }

    /// An operation of a network device.
    pub fn vif(view: &View<'_>, device: &Ref, op: VifOp) -> Self {
        let vm = named(view, device, vif::Field::VM);
        Self { vm, ..Self::of("VIF", device, op.name()) }
    }

    fn of(class: &'static str, object: &Ref, operation: &'static str) -> Self {
        let null = || Ref::from(NULL_REF);
        Self { class, object: object.clone(), operation, vm: null(), vdi: null(), sr: null() }
    }

    /// The object on which this other operation runs, as far as that is known.
    pub(super) fn under_way(&self, op: OngoingOp) -> (&'static str, &Ref) {
        match op {
            OngoingOp::Vm(_) if !self.vm.is_null() => ("VM", &self.vm),
            OngoingOp::Vdi(_) if !self.vdi.is_null() => ("VDI", &self.vdi),
            OngoingOp::Sr(_) if !self.sr.is_null() => ("SR", &self.sr),
            _ => (self.class, &self.object),
        }
    }
}

/// What a field names.
fn named(view: &View<'_>, of: &Ref, field: impl Into<FieldIx>) -> Ref {
    view.get(of, field).map_or_else(|_| Ref::from(NULL_REF), |value| Ref::from(text(value)))
}

/// The task that carries out this operation of this object.
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

/// The machine's turn did not come: whatever it is doing.
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
