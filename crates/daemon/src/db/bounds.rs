//! Checks types and size limits of records.
//!
//! Each change of a record sends the whole record to subscribers and stores it. So requested
//! changes have a size limit. Observed changes are bounded where they are written.

use xenapi::coerce::fits;
use xenapi::table::{Class, FieldIx};
use xenapi::{ApiError, Value, codes};

use super::Object;

/// Most bytes of a record, counted as the texts and numbers in memory. Its JSON form is at most six
/// times as large, well below the limit of a row.
pub(super) const RECORD_BYTES_MAX: usize = 1 << 20;
/// The limit for classes of which read-only users can create many records.
pub(super) const SMALL_RECORD_BYTES_MAX: usize = 64 << 10;
/// Bytes counted for each value, in addition to its text.
const VALUE_BYTES: usize = 8;

const _: () = assert!(6 * RECORD_BYTES_MAX < toolstack::store::VALUE_BYTES_MAX / 2);

/// Checks that the field belongs to the class and that the value has the field's type.
///
/// # Errors
/// `INTERNAL_ERROR`: the caller should have checked this.
pub(super) fn check_type(
    class: &'static Class,
    field: FieldIx,
    value: &Value,
) -> Result<(), ApiError> {
    let what = match class.field_at(field) {
        Some(of) if of.inverse.is_some() => {
            format!("{}.{} is derived from other fields and cannot be written", class.name, of.name)
        }
        Some(of) if fits(value, &of.ty) => return Ok(()),
        Some(of) => format!("{}.{} cannot hold {value:?}", class.name, of.name),
        None => format!("{} has no field of {}", class.name, field.class()),
    };
    Err(codes::internal(what))
}

/// Checks that a new record is within its size limit.
///
/// # Errors
/// `VALUE_NOT_SUPPORTED` with the largest field.
pub(super) fn check_new(class: &'static Class, fields: &[Value]) -> Result<(), ApiError> {
    let total = own(class, fields).map(|(_, value)| bytes(value)).sum();
    if total <= most(class) {
        return Ok(());
    }
    let largest = own(class, fields).max_by_key(|(_, value)| bytes(value));
    Err(too_large(class, largest.map_or("", |(name, _)| name), total))
}

/// Checks that a record stays within its size limit after a field changes. A change that makes the
/// record smaller is always valid.
///
/// # Errors
/// `VALUE_NOT_SUPPORTED` if the record would be too large.
pub(super) fn check_set(
    object: &Object,
    field: FieldIx,
    (was, is): (&Value, &Value),
) -> Result<(), ApiError> {
    let (was, is) = (bytes(was), bytes(is));
    if is <= was {
        return Ok(());
    }
    let class = object.class;
    let before: usize = own(class, &object.fields).map(|(_, value)| bytes(value)).sum();
    let total = before.saturating_sub(was).saturating_add(is);
    if total <= most(class) {
        return Ok(());
    }
    Err(too_large(class, class.field_at(field).map_or("", |field| field.name), total))
}

fn most(class: &Class) -> usize {
    match class.name {
        "message" | "session" | "task" => SMALL_RECORD_BYTES_MAX,
        _ => RECORD_BYTES_MAX,
    }
}

/// Returns the names and values of fields that are not derived.
fn own<'a>(
    class: &'static Class,
    fields: &'a [Value],
) -> impl Iterator<Item = (&'static str, &'a Value)> {
    let all = class.fields.iter().zip(fields);
    all.filter(|(field, _)| field.inverse.is_none()).map(|(field, value)| (field.name, value))
}

pub(super) fn bytes(value: &Value) -> usize {
    let held: usize = match value.plain() {
        Value::Str(text) => text.len(),
        Value::Set(values) => values.iter().map(bytes).sum(),
        Value::Map(members) => members.iter().map(|(key, value)| key.len() + bytes(value)).sum(),
        _ => 0,
    };
    held.saturating_add(VALUE_BYTES)
}

fn too_large(class: &Class, field: &str, total: usize) -> ApiError {
    let most = most(class);
    let why = format!("the {} would have {total} bytes, at most {most} are kept", class.name);
    codes::value_not_supported(field, "", why)
}
