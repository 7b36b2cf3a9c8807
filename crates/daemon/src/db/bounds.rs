//! What a record may hold: values of the types of its fields, and not too much of them.
//!
//! Every change of a record sends all of it to whoever watches, and stores all of it. What clients
//! ask for is bounded here; what is noted of the world bounds itself where it is written.

use xenapi::coerce::fits;
use xenapi::table::{Class, FieldIx};
use xenapi::{ApiError, Value, codes};

use super::Object;

/// Most bytes of a record, as its texts and numbers take them in memory. Written as JSON it is at
/// most six times as much, which is well below what a row may hold.
pub(super) const RECORD_BYTES_MAX: usize = 1 << 20;
/// The same of a record of which users who may only read make many.
pub(super) const SMALL_RECORD_BYTES_MAX: usize = 64 << 10;
/// Bytes that a number takes, or a value beside its text.
const VALUE_BYTES: usize = 8;

const _: () = assert!(6 * RECORD_BYTES_MAX < toolstack::store::VALUE_BYTES_MAX / 2);

/// The field is one of the class that is written, and the value is one of its type.
///
/// # Errors
/// `INTERNAL_ERROR`: whoever writes it has not checked.
pub(super) fn check_type(
    class: &'static Class,
    field: FieldIx,
    value: &Value,
) -> Result<(), ApiError> {
    let what = match class.field_at(field) {
        Some(of) if of.inverse.is_some() => {
            format!("{}.{} follows from other fields and is not written", class.name, of.name)
        }
        Some(of) if fits(value, &of.ty) => return Ok(()),
        Some(of) => format!("{}.{} cannot hold {value:?}", class.name, of.name),
        None => format!("{} has no field of {}", class.name, field.class()),
    };
    Err(codes::internal(what))
}

/// A new record is within its bound.
///
/// # Errors
/// `VALUE_NOT_SUPPORTED`, with the field that takes most.
pub(super) fn check_new(class: &'static Class, fields: &[Value]) -> Result<(), ApiError> {
    let total = own(class, fields).map(|(_, value)| bytes(value)).sum();
    if total <= most(class) {
        return Ok(());
    }
    let largest = own(class, fields).max_by_key(|(_, value)| bytes(value));
    Err(too_large(class, largest.map_or("", |(name, _)| name), total))
}

/// A record with this field changed from one value to another is within its bound. One that gets
/// smaller is.
///
/// # Errors
/// `VALUE_NOT_SUPPORTED`.
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

/// Fields that do not follow from other records, by name.
fn own<'a>(
    class: &'static Class,
    fields: &'a [Value],
) -> impl Iterator<Item = (&'static str, &'a Value)> {
    let all = class.fields.iter().zip(fields);
    all.filter(|(field, _)| field.inverse.is_none()).map(|(field, value)| (field.name, value))
}

fn bytes(value: &Value) -> usize {
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
