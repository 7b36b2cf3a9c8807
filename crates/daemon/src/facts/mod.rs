//! What decisions read of records: the one place that knows what fields mean.
//!
//! A gate of [`model`] sees small typed facts; here they are made of records. A reference that
//! names nothing counts as none, but for the object itself that is asked about.

mod sr;
#[cfg(test)]
mod tests;
mod vbd;
mod vdi;
mod vif;
mod vm;

use model::vm::PowerState;
use xenapi::table::{self, Class, FieldIx};
use xenapi::{ApiError, Value, codes};

use crate::db::{Ref, View};

pub use sr::{sr, used_disk};
pub use vbd::{vbd, vbd_with};
pub(crate) use vdi::access;
pub use vdi::vdi;
pub use vif::vif;
pub use vm::vm;

/// A class of the table by its name.
pub(crate) fn class(name: &str) -> Result<&'static Class, ApiError> {
    table::class(name).ok_or_else(|| codes::internal(format!("there is no class {name}")))
}

/// Yes or no.
pub(crate) fn flag(view: &View<'_>, of: &Ref, field: impl Into<FieldIx>) -> bool {
    matches!(view.get(of, field), Ok(Value::Bool(true)))
}

/// A text; empty if there is no such object.
pub(crate) fn text<'a>(view: &View<'a>, of: &Ref, field: impl Into<FieldIx>) -> &'a str {
    match view.get(of, field) {
        Ok(Value::Str(text)) => text,
        _ => "",
    }
}

/// What a field names, whether that is there or not.
pub(crate) fn reference(view: &View<'_>, of: &Ref, field: impl Into<FieldIx>) -> Ref {
    Ref::from(text(view, of, field))
}

/// What a set of references names.
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

/// The operations under way of an object, each of which `parse` knows.
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

/// The power state of a machine; one that is not there does not run.
fn power(view: &View<'_>, vm: &Ref) -> PowerState {
    let state = PowerState::parse(text(view, vm, table::vm::Field::power_state));
    state.unwrap_or(PowerState::Halted)
}

/// Whether this host is connected to a storage repository.
fn is_attached(view: &View<'_>, sr: &Ref) -> bool {
    let mut pbds = references(view, sr, table::sr::Field::PBDs);
    pbds.any(|pbd| flag(view, &pbd, table::pbd::Field::currently_attached))
}
