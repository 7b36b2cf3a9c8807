//! Conversion of values to their types.
//!
//! The encodings do not distinguish all types. XML-RPC has whole numbers as text, JSON has dates as
//! text, and both have text as map keys. So values are converted to their types after parsing.

use std::collections::BTreeMap;

use crate::codes;
use crate::date::Date;
use crate::error::ApiError;
use crate::table::{self, Enum, Type};
use crate::value::Value;

/// 2^53. Below this magnitude, every whole number has an exact floating-point value.
const WHOLE: f64 = 9_007_199_254_740_992.0;

/// Converts the value of `name` to its type. Enumeration values match in either case. Members of a
/// record are fields of its class. Unknown members, for example fields of a later release, stay
/// unchanged.
///
/// # Errors
/// `FIELD_TYPE_ERROR name`: the value cannot be converted to the type. Within a record, the name is
/// that of the field.
pub fn coerce(value: Value, ty: &Type, name: &str) -> Result<Value, ApiError> {
    let typed = match (value, ty) {
        (Value::Encoded(encoded), _) => return coerce(encoded.value().clone(), ty, name),
        (Value::Map(members), Type::Record(class)) => return record(members, class),
        (Value::Map(members), Type::Map(keys, of)) => return map(members, keys, of, name),
        (Value::Set(values), Type::Set(of)) => {
            let values = values.into_iter().map(|value| coerce(value, of, name));
            return values.collect::<Result<_, _>>().map(Value::Set);
        }
        (value, ty) => scalar(value, ty),
    };
    typed.ok_or_else(|| codes::field_type(name))
}

/// Returns whether a value has the type without conversion. For a record, checks its fields.
pub fn fits(value: &Value, ty: &Type) -> bool {
    match (value, ty) {
        (Value::Encoded(encoded), _) => fits(encoded.value(), ty),
        (Value::Str(text), Type::Void) => text.is_empty(),
        (Value::Str(text), Type::Enum(of)) => of.words.contains(&text.as_str()),
        (Value::Str(_), Type::Str | Type::Ref(_))
        | (Value::Int(_), Type::Int)
        | (Value::Float(_), Type::Float)
        | (Value::Bool(_), Type::Bool)
        | (Value::Date(_), Type::Date) => true,
        (Value::Map(members), Type::Record(class)) => table::class(class).is_none_or(|class| {
            let field = |name: &str| class.field(name).map(|(_, field)| field);
            members
                .iter()
                .all(|(name, value)| field(name).is_none_or(|field| fits(value, &field.ty)))
        }),
        (Value::Set(values), Type::Set(of)) => values.iter().all(|value| fits(value, of)),
        (Value::Map(members), Type::Map(keys, of)) => members
            .iter()
            .all(|(key, value)| key_of(key, keys).as_ref() == Some(key) && fits(value, of)),
        _ => false,
    }
}

fn scalar(value: Value, ty: &Type) -> Option<Value> {
    match (value, ty) {
        (Value::Str(text), Type::Int) => text.parse().ok().map(Value::Int),
        (Value::Float(number), Type::Int) => whole(number).map(Value::Int),
        (Value::Str(text), Type::Float) => text.parse().ok().map(Value::Float),
        (Value::Int(number), Type::Float) => Some(Value::Float(number as f64)),
        (Value::Str(text), Type::Date) => Date::parse(&text).map(Value::Date),
        (Value::Str(text), Type::Enum(of)) => word(&text, of).map(Value::text),
        (value, ty) => fits(&value, ty).then_some(value),
    }
}

type Members = BTreeMap<String, Value>;

fn record(members: Members, class: &str) -> Result<Value, ApiError> {
    let Some(class) = table::class(class) else { return Ok(Value::Map(members)) };
    let typed = members.into_iter().map(|(name, value)| match class.field(&name) {
        Some((_, field)) => coerce(value, &field.ty, &name).map(|value| (name, value)),
        None => Ok((name, value)),
    });
    typed.collect::<Result<_, _>>().map(Value::Map)
}

fn map(members: Members, keys: &Type, of: &Type, name: &str) -> Result<Value, ApiError> {
    let mut typed = Members::new();
    for (key, value) in members {
        let key = key_of(&key, keys).ok_or_else(|| codes::field_type(name))?;
        // Two keys may denote the same number.
        if typed.insert(key, coerce(value, of, name)?).is_some() {
            return Err(codes::field_type(name));
        }
    }
    Ok(Value::Map(typed))
}

/// Returns the canonical text of a map key of this type.
fn key_of(key: &str, ty: &Type) -> Option<String> {
    match ty {
        Type::Str | Type::Ref(_) => Some(key.to_owned()),
        Type::Int => Some(key.parse::<i64>().ok()?.to_string()),
        Type::Enum(of) => word(key, of).map(str::to_owned),
        _ => None,
    }
}

fn word(text: &str, of: &Enum) -> Option<&'static str> {
    of.words.iter().copied().find(|word| word.eq_ignore_ascii_case(text))
}

fn whole(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() < WHOLE).then_some(number as i64)
}

#[cfg(test)]
mod tests;
