//! Text format of a stored object.
//!
//! ```text
//! {"age":4,"changed":9,"fields":{"name_label":"a", ...},"made":7,"ref":"OpaqueRef:..."}
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use xenapi::Value;
use xenapi::coerce::coerce;
use xenapi::jsonrpc::write_value;
use xenapi::table::{Class, Field};

use crate::db::{Loaded, Ref, Row};

/// Prefix of references.
const OPAQUE: &str = "OpaqueRef:";

/// Returns the text of a row.
pub(super) fn write(row: &Row) -> Vec<u8> {
    let mut fields = row.unknown.as_deref().cloned().unwrap_or_default();
    let all = row.class.fields.iter().zip(&*row.fields);
    let stored = all.filter(|(field, _)| is_stored(field));
    fields.extend(stored.map(|(field, value)| (field.name.to_owned(), value.clone())));
    let number = |number: u64| Value::Int(i64::try_from(number).unwrap_or(i64::MAX));
    let members = [
        ("ref", row.reference.value()),
        ("age", number(row.age)),
        ("made", number(row.made)),
        ("changed", number(row.changed)),
        ("fields", Value::Map(fields)),
    ];
    let members = members.into_iter().map(|(name, value)| (name.to_owned(), value));
    write_value(&Value::Map(members.collect())).into_bytes()
}

/// A row in its text form. Unknown members of later versions are ignored.
#[derive(Deserialize)]
struct Text {
    #[serde(rename = "ref")]
    reference: String,
    age: u64,
    made: u64,
    changed: u64,
    fields: BTreeMap<String, serde_json::Value>,
}

/// Parses the object of a row.
///
/// # Errors
/// A description of the problem.
pub(super) fn read(class: &'static Class, uuid: &str, text: &[u8]) -> Result<Loaded, String> {
    let text: Text = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    // Reject other spellings, because lookups of references are case-sensitive.
    let reference = Ref::written(&text.reference);
    if !text.reference.starts_with(OPAQUE) || reference.as_str() != text.reference {
        return Err(format!("`{}` is no reference", text.reference));
    }
    if text.changed < text.made || text.made == 0 {
        return Err("it was changed before it was made".to_owned());
    }
    let mut stored = text.fields;
    let mut fields = Vec::with_capacity(class.fields.len());
    for field in class.fields {
        let value = stored.remove(field.name).filter(|_| is_stored(field));
        let value = value.map(|value| coerce(plain(value), &field.ty, field.name));
        let value = value.transpose().map_err(|error| error.to_string())?;
        fields.push(value.unwrap_or_else(|| field.initial()));
    }
    let has = class.field("uuid").and_then(|(field, _)| fields.get(field.at()));
    if has != Some(&Value::text(uuid)) {
        return Err("its UUID is not its name".to_owned());
    }
    let unknown: BTreeMap<_, _> =
        stored.into_iter().map(|(name, value)| (name, plain(value))).collect();
    let (age, made, changed) = (text.age, text.made, text.changed);
    let unknown = (!unknown.is_empty()).then(|| Arc::new(unknown));
    Ok(Loaded { class, reference, age, made, changed, fields, unknown })
}

/// Returns whether a field is stored: neither volatile nor derived.
fn is_stored(field: &Field) -> bool {
    !field.volatile && field.inverse.is_none()
}

/// Converts a JSON value.
fn plain(value: serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(yes) => Value::Bool(yes),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => Value::Int(whole),
            (None, Some(number)) => Value::Float(number),
            (None, None) => Value::Null,
        },
        serde_json::Value::String(text) => Value::Str(text),
        serde_json::Value::Array(values) => Value::Set(values.into_iter().map(plain).collect()),
        serde_json::Value::Object(members) => {
            let members = members.into_iter().map(|(name, value)| (name, plain(value)));
            Value::Map(members.collect())
        }
    }
}
