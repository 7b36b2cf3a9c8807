//! Facts about VIFs.

use model::vif::{VifFacts, VifOp};
use xenapi::ApiError;
use xenapi::table::vif::Field;

use super::{class, flag, operations};
use crate::db::{Ref, View};

/// Returns the facts of a VIF.
///
/// # Errors
/// `HANDLE_INVALID` if the VIF does not exist.
pub fn vif(view: &View<'_>, vif: &Ref) -> Result<VifFacts, ApiError> {
    view.object(class("VIF")?, vif)?;
    Ok(VifFacts {
        attached: flag(view, vif, Field::currently_attached),
        current: operations(view, vif, Field::current_operations, VifOp::parse),
    })
}
