//! Values against types.
//!
//! The encodings do not tell all types apart: XML-RPC has whole numbers as text, JSON has moments
//! as text, both have text as keys of every map. So what was read is made what its type says.

use std::collections::BTreeMap;

use crate::codes;
use crate::date::Date;
use crate::error::ApiError;
use crate::table::{Enum, Type};
use crate::value::Value;

/// Below this magnitude, 2^53, every whole number is a floating-point number of its own.
const WHOLE: f64 = 9_007_199_254_740_992.0;

/// What was read for `name`, as a value of its type. Words of an enumeration are taken in either
/// case. Members of a record are left as they are: each has a type of its own.
///
/// # Errors
/// `FIELD_TYPE_ERROR name`: it is not, and does not mean, a value of the type.
pub fn coerce(value: Value, ty: &Type, name: &str) -> Result<Value, ApiError> {
    value_of(value, ty).ok_or_else(|| codes::field_type(name))
}

/// Whether a value is one of the type as it stands.
pub fn fits(value: &Value, ty: &Type) -> bool {
    match (value, ty) {
        (Value::Encoded(encoded), _) => fits(encoded.value(), ty),
        (Value::Str(text), Type::Void) => text.is_empty(),
        (Value::Str(text), Type::Enum(of)) => of.words.contains(&text.as_str()),
        (Value::Str(_), Type::Str | Type::Ref(_))
        | (Value::Int(_), Type::Int)
        | (Value::Float(_), Type::Float)
        | (Value::Bool(_), Type::Bool)
        | (Value::Date(_), Type::Date)
        | (Value::Map(_), Type::Record(_)) => true,
        (Value::Set(values), Type::Set(of)) => values.iter().all(|value| fits(value, of)),
        (Value::Map(members), Type::Map(keys, of)) => members
            .iter()
            .all(|(key, value)| key_of(key, keys).as_ref() == Some(key) && fits(value, of)),
        _ => false,
    }
}

fn value_of(value: Value, ty: &Type) -> Option<Value> {
    match (value, ty) {
        (Value::Encoded(encoded), _) => value_of(encoded.value().clone(), ty),
        (Value::Str(text), Type::Int) => text.parse().ok().map(Value::Int),
        (Value::Float(number), Type::Int) => whole(number).map(Value::Int),
        (Value::Str(text), Type::Float) => text.parse().ok().map(Value::Float),
        (Value::Int(number), Type::Float) => Some(Value::Float(number as f64)),
        (Value::Str(text), Type::Date) => Date::parse(&text).map(Value::Date),
        (Value::Str(text), Type::Enum(of)) => word(&text, of).map(Value::text),
        (Value::Set(values), Type::Set(of)) => {
            let values = values.into_iter().map(|value| value_of(value, of));
            values.collect::<Option<_>>().map(Value::Set)
        }
        (Value::Map(members), Type::Map(keys, of)) => {
            let mut typed = BTreeMap::new();
            for (key, value) in members {
                // Two keys may be the same number.
                if typed.insert(key_of(&key, keys)?, value_of(value, of)?).is_some() {
                    return None;
                }
            }
            Some(Value::Map(typed))
        }
        (value, ty) => fits(&value, ty).then_some(value),
    }
}

/// The text of a key, of the one form that its type has.
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
