//! Facts about VDIs.

use model::vbd::VbdOp;
use model::vdi::automaton::Access;
use model::vdi::{VdiFacts, VdiOp, VdiUser};
use xenapi::ApiError;
use xenapi::table::vbd::Field as Vbd;
use xenapi::table::vdi::Field;

use super::{class, flag, is_attached, lacks, operations, power, reference, references, text};
use crate::db::{Ref, View};

/// Value of `VDI.on_boot`.
pub(crate) const RESET: &str = "reset";
/// Key in `sm_config` of a VDI with the format of its image, as XenServer names it.
pub(crate) const FORMAT: &str = "type";

/// Returns the facts of a VDI.
///
/// # Errors
/// `HANDLE_INVALID` if the VDI does not exist.
pub fn vdi(view: &View<'_>, vdi: &Ref) -> Result<VdiFacts, ApiError> {
    without(view, vdi, None)
}

/// Returns the facts of a VDI, ignoring its use by the VBD `slot`.
pub(super) fn without(
    view: &View<'_>,
    vdi: &Ref,
    slot: Option<&Ref>,
) -> Result<VdiFacts, ApiError> {
    view.object(class("VDI")?, vdi)?;
    let users = references(view, vdi, Field::VBDs).filter(|vbd| Some(vbd) != slot);
    let storage = reference(view, vdi, Field::SR);
    Ok(VdiFacts {
        sharable: flag(view, vdi, Field::sharable),
        read_only: flag(view, vdi, Field::read_only),
        missing: flag(view, vdi, Field::missing),
        sr_attached: is_attached(view, &storage),
        current: operations(view, vdi, Field::current_operations, VdiOp::parse),
        users: users.map(|vbd| user(view, &vbd)).collect(),
        lacks: lacks(view, &storage),
    })
}

/// Returns whether a VDI goes back to its content of `VDI.set_on_boot` when its VM boots.
pub(crate) fn resets(view: &View<'_>, vdi: &Ref) -> bool {
    text(view, vdi, Field::on_boot) == RESET
}

fn user(view: &View<'_>, vbd: &Ref) -> VdiUser {
    VdiUser {
        access: access(view, vbd),
        attached: flag(view, vbd, Vbd::currently_attached),
        op: operations(view, vbd, Vbd::current_operations, VbdOp::parse).first().copied(),
        vm: power(view, &reference(view, vbd, Vbd::VM)),
    }
}

/// Returns whether the guest may write through a VBD.
pub(crate) fn access(view: &View<'_>, vbd: &Ref) -> Access {
    Access::parse(text(view, vbd, Vbd::mode)).unwrap_or(Access::Ro)
}
