//! Sets of references that follow from other fields.

use std::collections::HashMap;
use std::sync::OnceLock;

use xenapi::table::{FieldIx, class, classes};
use xenapi::{NULL_REF, Value};

/// Which set gathers the references of a field, as `VM.VBDs` does those of `VBD.VM`.
pub(super) fn of(field: FieldIx) -> Option<FieldIx> {
    static ALL: OnceLock<HashMap<FieldIx, FieldIx>> = OnceLock::new();
    ALL.get_or_init(all).get(&field).copied()
}

fn all() -> HashMap<FieldIx, FieldIx> {
    let sets = classes().iter().flat_map(|class| class.numbers());
    let pair = |(set, field): (FieldIx, &xenapi::table::Field)| {
        let (of, name) = field.inverse?;
        let (named, _) = class(of)?.field(name)?;
        Some((named, set))
    };
    sets.filter_map(pair).collect()
}

/// The references that a value holds.
pub(super) fn named(value: &Value) -> Vec<&str> {
    match value {
        Value::Set(values) => values.iter().filter_map(one).collect(),
        single => one(single).into_iter().collect(),
    }
}

fn one(value: &Value) -> Option<&str> {
    match value {
        Value::Str(text) if text != NULL_REF && !text.is_empty() => Some(text),
        _ => None,
    }
}
