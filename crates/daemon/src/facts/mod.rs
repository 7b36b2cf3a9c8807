//! Facts that gates read from records. This module alone interprets these fields.
//!
//! The gates of [`model`] take small typed facts. This module reads them from records. A reference
//! to a missing object counts as empty, except for the object of the query itself.

mod sr;
#[cfg(test)]
mod tests;
mod vbd;
mod vdi;
mod vif;
mod vm;

use model::sr::SrFeature;
use model::vm::PowerState;
use xenapi::table::{self, Class, FieldIx};
use xenapi::{ApiError, Value, codes};

use crate::db::{Ref, View};

pub use sr::{cached_image, sr, used_disk};
pub use vbd::{vbd, vbd_with};
pub use vdi::vdi;
pub(crate) use vdi::{FORMAT, RESET, access, resets};
pub use vif::vif;
pub use vm::vm;

/// Returns the class of this name.
pub(crate) fn class(name: &str) -> Result<&'static Class, ApiError> {
    table::class(name).ok_or_else(|| codes::internal(format!("there is no class {name}")))
}

/// Returns a boolean field. False if the object does not exist.
pub(crate) fn flag(view: &View<'_>, of: &Ref, field: impl Into<FieldIx>) -> bool {
    matches!(view.get(of, field), Ok(Value::Bool(true)))
}

/// Returns a text field. Empty if the object does not exist.
pub(crate) fn text<'a>(view: &View<'a>, of: &Ref, field: impl Into<FieldIx>) -> &'a str {
    match view.get(of, field) {
        Ok(Value::Str(text)) => text,
        _ => "",
    }
}

/// Returns a reference field, whether or not its object exists.
pub(crate) fn reference(view: &View<'_>, of: &Ref, field: impl Into<FieldIx>) -> Ref {
    Ref::from(text(view, of, field))
}

/// Returns the members of a reference set.
pub(crate) fn references<'a, F: Into<FieldIx>>(
    view: &View<'a>,
    of: &Ref,
    field: F,
) -> impl Iterator<Item = Ref> + use<'a, F> {
    let values = match view.get(of, field) {
        Ok(Value::Set(values)) => values.as_slice(),
        _ => &[],
    };
    values.iter().filter_map(|value| match value {
        Value::Str(text) => Some(Ref::from(text.as_str())),
        _ => None,
    })
}

/// Returns the operations under way on an object that `parse` recognises.
fn operations<T>(
    view: &View<'_>,
    of: &Ref,
    field: impl Into<FieldIx>,
    parse: impl Fn(&str) -> Option<T>,
) -> Vec<T> {
    match view.get(of, field) {
        Ok(Value::Map(members)) => {
            let words = members.values().filter_map(|value| match value {
                Value::Str(word) => Some(word.as_str()),
                _ => None,
            });
            words.filter_map(parse).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the power state of a VM. A missing VM counts as halted.
fn power(view: &View<'_>, vm: &Ref) -> PowerState {
    let state = PowerState::parse(text(view, vm, table::vm::Field::power_state));
    state.unwrap_or(PowerState::Halted)
}

/// Returns the features that the type of an SR does not have. A type without a record has all.
fn lacks(view: &View<'_>, sr: &Ref) -> Vec<SrFeature> {
    let kind = text(view, sr, table::sr::Field::r#type);
    let mut types = view.all(&table::sm::CLASS);
    let found = types.find(|one| {
        let name = one.get(table::sm::Field::r#type.into());
        name.is_some_and(|name| matches!(name, Value::Str(name) if name == kind))
    });
    match found.and_then(|found| found.get(table::sm::Field::features.into())) {
        Some(Value::Map(has)) => {
            SrFeature::ALL.iter().copied().filter(|one| !has.contains_key(one.name())).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns whether this host is attached to an SR.
fn is_attached(view: &View<'_>, sr: &Ref) -> bool {
    let mut pbds = references(view, sr, table::sr::Field::PBDs);
    pbds.any(|pbd| flag(view, &pbd, table::pbd::Field::currently_attached))
}
