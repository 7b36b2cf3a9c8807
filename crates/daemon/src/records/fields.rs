//! Typed reading of record fields.

use std::collections::BTreeMap;

use model::id::Uuid;
use xenapi::table::FieldIx;
use xenapi::{ApiError, Value, codes};

use crate::db::{Ref, View};

/// Returns a text or enumeration field.
pub(crate) fn text<'a>(
    view: &View<'a>,
    of: &Ref,
    field: impl Into<FieldIx>,
) -> Result<&'a str, ApiError> {
    match view.get(of, field)? {
        Value::Str(text) => Ok(text),
        _ => Err(codes::internal("a field of text without text")),
    }
}

/// Returns an integer field.
pub(crate) fn int(view: &View<'_>, of: &Ref, field: impl Into<FieldIx>) -> Result<i64, ApiError> {
    match view.get(of, field)? {
        Value::Int(number) => Ok(*number),
        _ => Err(codes::internal("a field of numbers without a number")),
    }
}

/// Returns a number of bytes. A negative value counts as 0.
pub(crate) fn bytes(view: &View<'_>, of: &Ref, field: impl Into<FieldIx>) -> Result<u64, ApiError> {
    int(view, of, field).map(|bytes| u64::try_from(bytes).unwrap_or_default())
}

/// Returns a boolean field.
pub(crate) fn flag(view: &View<'_>, of: &Ref, field: impl Into<FieldIx>) -> Result<bool, ApiError> {
    Ok(*view.get(of, field)? == Value::Bool(true))
}

/// Returns a reference field, which may be null.
pub(crate) fn reference(
    view: &View<'_>,
    of: &Ref,
    field: impl Into<FieldIx>,
) -> Result<Ref, ApiError> {
    text(view, of, field).map(Ref::from)
}

/// Returns a reference set.
pub(crate) fn references(
    view: &View<'_>,
    of: &Ref,
    field: impl Into<FieldIx>,
) -> Result<Vec<Ref>, ApiError> {
    let Value::Set(members) = view.get(of, field)? else { return Ok(Vec::new()) };
    let named = members.iter().filter_map(|member| match member {
        Value::Str(text) => Some(Ref::from(text.as_str())),
        _ => None,
    });
    Ok(named.collect())
}

/// Returns a map from text to text.
pub(crate) fn pairs(
    view: &View<'_>,
    of: &Ref,
    field: impl Into<FieldIx>,
) -> Result<BTreeMap<String, String>, ApiError> {
    view.get(of, field).map(plain)
}

/// Returns the text members of a map.
pub(crate) fn plain(map: &Value) -> BTreeMap<String, String> {
    let Value::Map(members) = map.plain() else { return BTreeMap::new() };
    let text = members.iter().filter_map(|(key, value)| match value {
        Value::Str(text) => Some((key.clone(), text.clone())),
        _ => None,
    });
    text.collect()
}

/// Builds a field value from a map of texts.
pub(crate) fn map(pairs: impl IntoIterator<Item = (String, String)>) -> Value {
    Value::Map(pairs.into_iter().map(|(key, value)| (key, Value::Str(value))).collect())
}

/// Returns the UUID of a record.
pub(crate) fn uuid(view: &View<'_>, of: &Ref, field: impl Into<FieldIx>) -> Result<Uuid, ApiError> {
    let text = text(view, of, field)?;
    text.parse().map_err(|_| codes::internal(format!("{text} is the UUID of a record")))
}

/// Builds a field value from a number of bytes.
pub(crate) fn size(bytes: u64) -> Value {
    Value::Int(i64::try_from(bytes).unwrap_or(i64::MAX))
}
