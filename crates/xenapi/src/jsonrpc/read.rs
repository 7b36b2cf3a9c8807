//! Parser from JSON to values, within the limits.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::{malformed, unfit};
use crate::error::BadBody;
use crate::limits::Budget;
use crate::value::Value;

/// Parses the single value of a text.
pub(super) fn value(text: &str, budget: &mut Budget) -> Result<Value, BadBody> {
    let mut json = serde_json::Deserializer::from_str(text);
    let value = Seed { budget, depth: 1 }.deserialize(&mut json).map_err(malformed)?;
    json.end().map_err(malformed)?;
    Ok(value)
}

/// Parses the values of a list.
pub(super) fn list(text: &str, budget: &mut Budget) -> Result<Vec<Value>, BadBody> {
    if !text.starts_with('[') {
        return Err(unfit("the parameters are not in a list"));
    }
    match value(text, budget)? {
        Value::Set(values) => Ok(values),
        _ => Err(unfit("the parameters are not in a list")),
    }
}

/// Reader of one value at depth `depth`.
struct Seed<'b> {
    budget: &'b mut Budget,
    depth: u16,
}

impl Seed<'_> {
    /// Returns the reader of a nested value.
    fn within(&mut self) -> Seed<'_> {
        Seed { budget: &mut *self.budget, depth: self.depth + 1 }
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Value, D::Error> {
        self.budget.enter(self.depth).map_err(D::Error::custom)?;
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, yes: bool) -> Result<Value, E> {
        Ok(Value::Bool(yes))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Int(number))
    }

    /// Reads a number too large for `Int` as a float, which the type `Int` rejects later.
    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(i64::try_from(number).map_or(Value::Float(number as f64), Value::Int))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::text(text))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::Str(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut json: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = json.next_element_seed(self.within())? {
            values.push(value);
        }
        Ok(Value::Set(values))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut json: A) -> Result<Value, A::Error> {
        let mut members = BTreeMap::new();
        while let Some(name) = json.next_key::<String>()? {
            let value = json.next_value_seed(self.within())?;
            if members.insert(name, value).is_some() {
                return Err(A::Error::custom("two members of one name"));
            }
        }
        Ok(Value::Map(members))
    }
}
