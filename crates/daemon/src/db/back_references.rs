//! Reference sets that are derived from reference fields of other objects.

use std::collections::HashMap;
use std::sync::OnceLock;

use xenapi::table::{Class, FieldIx, class, classes};
use xenapi::{NULL_REF, Value};

use super::Ref;

/// A reference field, and the derived set on the referenced class.
type Pair = (FieldIx, FieldIx);

/// Returns the reference fields of a class that have a derived set. For example, `VBD.VM` fills
/// `VM.VBDs`.
pub(super) fn of_class(class: &str) -> &'static [Pair] {
    static ALL: OnceLock<HashMap<&'static str, Vec<Pair>>> = OnceLock::new();
    ALL.get_or_init(all).get(class).map_or(&[], Vec::as_slice)
}

/// Returns the derived set of a reference field, if it has one.
pub(super) fn of(field: FieldIx) -> Option<FieldIx> {
    of_class(field.class()).iter().find(|(named, _)| *named == field).map(|(_, set)| *set)
}

fn all() -> HashMap<&'static str, Vec<Pair>> {
    let mut pairs: HashMap<_, Vec<Pair>> = HashMap::new();
    for (set, field) in classes().iter().flat_map(|class| class.numbers()) {
        let named = field.inverse.and_then(|(of, name)| class(of)?.field(name));
        if let Some((named, _)) = named {
            pairs.entry(named.class()).or_default().push((named, set));
        }
    }
    pairs
}

/// Returns the derived sets that contain an object with these fields, each with the set's holder.
pub(super) fn links(class: &Class, fields: &[Value]) -> Vec<(FieldIx, Ref)> {
    let mut links = Vec::new();
    for (field, set) in of_class(class.name) {
        if let Some(value) = fields.get(field.at()) {
            links.extend(named(value).map(|name| (*set, Ref::from(name))));
        }
    }
    links
}

/// Returns the references in a value.
pub(super) fn named(value: &Value) -> impl Iterator<Item = &str> {
    let values = match value {
        Value::Set(values) => values.as_slice(),
        single => std::slice::from_ref(single),
    };
    values.iter().filter_map(|value| match value {
        Value::Str(text) if text != NULL_REF && !text.is_empty() => Some(text.as_str()),
        _ => None,
    })
}
