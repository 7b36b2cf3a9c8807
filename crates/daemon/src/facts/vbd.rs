//! Facts about VBDs.

use model::vbd::{VbdFacts, VbdKind, VbdOp};
use xenapi::ApiError;
use xenapi::table::vbd::Field;

use super::vdi::{access, without};
use super::{class, flag, operations, reference, text};
use crate::db::{Ref, View};

/// Returns the facts of a VBD and its VDI.
///
/// # Errors
/// `HANDLE_INVALID` if the VBD does not exist.
pub fn vbd(view: &View<'_>, vbd: &Ref) -> Result<VbdFacts, ApiError> {
    vbd_with(view, vbd, &reference(view, vbd, Field::VDI))
}

/// Returns the facts of a VBD as if it held this VDI.
///
/// # Errors
/// `HANDLE_INVALID` if the VBD does not exist.
pub fn vbd_with(view: &View<'_>, vbd: &Ref, vdi: &Ref) -> Result<VbdFacts, ApiError> {
    view.object(class("VBD")?, vbd)?;
    Ok(VbdFacts {
        kind: VbdKind::parse(text(view, vbd, Field::r#type)).unwrap_or(VbdKind::Disk),
        mode: access(view, vbd),
        attached: flag(view, vbd, Field::currently_attached),
        unpluggable: flag(view, vbd, Field::unpluggable),
        current: operations(view, vbd, Field::current_operations, VbdOp::parse),
        empty: flag(view, vbd, Field::empty),
        vdi: without(view, vdi, Some(vbd)).ok(),
    })
}
