//! Fields of records, read as what they hold.

use std::collections::BTreeMap;

use model::id::Uuid;
use xenapi::table::FieldIx;
use xenapi::{ApiError, Value, codes};

use crate::db::{Ref, View};

/// Text, or a word of an enumeration.
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

/// A whole number.
pub(crate) fn int(view: &View<'_>, of: &Ref, field: impl Into<FieldIx>) -> Result<i64, ApiError> {
    match view.get(of, field)? {
        Value::Int(number) => Ok(*number),
        _ => Err(codes::internal("a field of numbers without a number")),
    }
}

/// A number of bytes; one below nothing is nothing.
pub(crate) fn bytes(view: &View<'_>, of: &Ref, field: impl Into<FieldIx>) -> Result<u64, ApiError> {
    int(view, of, field).map(|bytes| u64::try_from(bytes).unwrap_or_default())
}

/// Yes or no.
pub(crate) fn flag(view: &View<'_>, of: &Ref, field: impl Into<FieldIx>) -> Result<bool, ApiError> {
    Ok(*view.get(of, field)? == Value::Bool(true))
}

/// A reference, which may name nothing.
pub(crate) fn reference(
    view: &View<'_>,
    of: &Ref,
    field: impl Into<FieldIx>,
) -> Result<Ref, ApiError> {
    text(view, of, field).map(Ref::from)
}

/// A set of references.
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

/// A map from text to text.
pub(crate) fn pairs(
    view: &View<'_>,
    of: &Ref,
    field: impl Into<FieldIx>,
) -> Result<BTreeMap<String, String>, ApiError> {
    view.get(of, field).map(plain)
}

/// The members of a map that are text.
pub(crate) fn plain(map: &Value) -> BTreeMap<String, String> {
    let Value::Map(members) = map.plain() else { return BTreeMap::new() };
    let text = members.iter().filter_map(|(key, value)| match value {
        Value::Str(text) => Some((key.clone(), text.clone())),
        _ => None,
    });
    text.collect()
}

/// A map from text to text, as a field holds it.
pub(crate) fn map(pairs: impl IntoIterator<Item = (String, String)>) -> Value {
    Value::Map(pairs.into_iter().map(|(key, value)| (key, Value::Str(value))).collect())
}

/// The UUID of a record.
pub(crate) fn uuid(view: &View<'_>, of: &Ref, field: impl Into<FieldIx>) -> Result<Uuid, ApiError> {
    let text = text(view, of, field)?;
    text.parse().map_err(|_| codes::internal(format!("{text} is the UUID of a record")))
}

/// Bytes as a field holds them.
pub(crate) fn size(bytes: u64) -> Value {
    Value::Int(i64::try_from(bytes).unwrap_or(i64::MAX))
}
