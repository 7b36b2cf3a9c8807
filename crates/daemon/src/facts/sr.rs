//! Facts about SRs.

use model::sr::{SrFacts, SrOp};
use toolstack::sr::golden::CACHE_SR;
use xenapi::table::sr::Field;
use xenapi::table::{pbd, vbd, vdi};
use xenapi::{ApiError, Value};

use super::{class, flag, is_attached, lacks, operations, reference, references, text};
use crate::db::{Ref, View};

/// Returns the facts of an SR without those of its VDIs. [`used_disk`] finds a VDI in use.
///
/// # Errors
/// `HANDLE_INVALID` if the SR does not exist.
pub fn sr(view: &View<'_>, sr: &Ref) -> Result<SrFacts, ApiError> {
    view.object(class("SR")?, sr)?;
    Ok(SrFacts {
        has_pbd: references(view, sr, Field::PBDs).next().is_some(),
        attached: is_attached(view, sr),
        has_vdi: references(view, sr, Field::VDIs).next().is_some(),
        in_use: false,
        current: operations(view, sr, Field::current_operations, SrOp::parse),
        lacks: lacks(view, sr),
    })
}

/// Returns the first VDI of an SR that is attached to a VM or about to be.
pub fn used_disk(view: &View<'_>, sr: &Ref) -> Option<Ref> {
    let is_used = |slot: &Ref| {
        let busy = view.get(slot, vbd::Field::current_operations);
        flag(view, slot, vbd::Field::currently_attached)
            || matches!(busy, Ok(Value::Map(busy)) if !busy.is_empty())
    };
    let mut disks = references(view, sr, Field::VDIs);
    disks.find(|disk| references(view, disk, vdi::Field::VBDs).any(|slot| is_used(&slot)))
}

/// Returns the UUID of an attached SR whose cache of a golden image is in this SR.
pub fn cached_image(view: &View<'_>, sr: &Ref) -> Option<String> {
    let uuid = text(view, sr, Field::uuid);
    let is_user = |connection: &&Ref| {
        let config = view.get(connection, pbd::Field::device_config);
        let Ok(Value::Map(config)) = config else { return false };
        matches!(config.get(CACHE_SR), Some(Value::Str(named)) if named.eq_ignore_ascii_case(uuid))
    };
    let connection = view.attached(&pbd::CLASS).find(is_user)?;
    let place = reference(view, connection, pbd::Field::SR);
    Some(text(view, &place, Field::uuid).to_owned())
}
