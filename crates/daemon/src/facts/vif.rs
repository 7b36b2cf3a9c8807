//! Of machines' network interfaces.

use model::vif::{VifFacts, VifOp};
use xenapi::ApiError;
use xenapi::table::vif::Field;

use super::{class, flag, operations};
use crate::db::{Ref, View};

/// What gates read of a network interface.
///
/// # Errors
/// `HANDLE_INVALID`: there is none of this reference.
pub fn vif(view: &View<'_>, vif: &Ref) -> Result<VifFacts, ApiError> {
    view.object(class("VIF")?, vif)?;
    Ok(VifFacts {
        attached: flag(view, vif, Field::currently_attached),
        current: operations(view, vif, Field::current_operations, VifOp::parse),
    })
}
