//! Types of fields, parameters and results.

use std::collections::BTreeMap;

use crate::{Date, NULL_REF, Value};

/// Type of a field, a parameter or a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// No result: empty text on the wire.
    Void,
    /// Text.
    Str,
    /// Whole number of 64 bits.
    Int,
    /// Floating-point number.
    Float,
    /// Boolean.
    Bool,
    /// Date.
    Date,
    /// Enumeration.
    Enum(&'static Enum),
    /// Reference to a record of this class.
    Ref(&'static str),
    /// Set of values of a type.
    Set(&'static Type),
    /// Map between two types. Keys are text on the wire.
    Map(&'static Type, &'static Type),
    /// Record of this class.
    Record(&'static str),
}

/// Enumeration type.
#[derive(Debug, PartialEq, Eq)]
pub struct Enum {
    /// Name, for example `vm_power_state`.
    pub name: &'static str,
    /// Values as they are on the wire, at least one.
    pub words: &'static [&'static str],
}

impl Type {
    /// Returns the zero of the type: empty, 0, false, 1970, the first value of an enumeration, the
    /// null reference.
    pub fn zero(&self) -> Value {
        match self {
            Self::Void | Self::Str => Value::text(""),
            Self::Int => Value::Int(0),
            Self::Float => Value::Float(0.0),
            Self::Bool => Value::Bool(false),
            Self::Date => Value::Date(Date(0)),
            Self::Enum(words) => Value::text(words.words.first().copied().unwrap_or_default()),
            Self::Ref(_) => Value::text(NULL_REF),
            Self::Set(_) => Value::Set(Vec::new()),
            Self::Map(..) | Self::Record(_) => Value::Map(BTreeMap::new()),
        }
    }
}

/// Default value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DefaultValue {
    /// Zero of its type.
    Zero,
    /// Text, or a value of an enumeration.
    Text(&'static str),
    /// Whole number.
    Int(i64),
    /// Floating-point number.
    Float(f64),
    /// True.
    Yes,
    /// Set of whole numbers.
    Ints(&'static [i64]),
    /// Map from text to text.
    Pairs(&'static [(&'static str, &'static str)]),
}

impl DefaultValue {
    /// Returns the value for a field of this type.
    pub fn value(&self, ty: &Type) -> Value {
        match self {
            Self::Zero => ty.zero(),
            Self::Text(text) => Value::text(*text),
            Self::Int(number) => Value::Int(*number),
            Self::Float(number) => Value::Float(*number),
            Self::Yes => Value::Bool(true),
            Self::Ints(numbers) => Value::Set(numbers.iter().copied().map(Value::Int).collect()),
            Self::Pairs(pairs) => {
                let text = |&(key, value): &(&str, &str)| (key.to_owned(), Value::text(value));
                Value::Map(pairs.iter().map(text).collect())
            }
        }
    }
}
