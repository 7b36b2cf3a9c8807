//! What a field, a parameter or a result may hold.

use std::collections::BTreeMap;

use crate::{Date, NULL_REF, Value};

/// The type of a field, a parameter or a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// No result: empty text on the wire.
    Void,
    /// Text.
    Str,
    /// A whole number of 64 bits.
    Int,
    /// A number.
    Float,
    /// Yes or no.
    Bool,
    /// A moment.
    Date,
    /// One of several words.
    Enum(&'static Enum),
    /// A reference to a record of this class.
    Ref(&'static str),
    /// Several of a type.
    Set(&'static Type),
    /// From one type to another; keys are text on the wire.
    Map(&'static Type, &'static Type),
    /// A whole record of this class.
    Record(&'static str),
}

/// Words of which a value is one.
#[derive(Debug, PartialEq, Eq)]
pub struct Enum {
    /// Its name, for example `vm_power_state`.
    pub name: &'static str,
    /// The words, as they are on the wire; never none.
    pub words: &'static [&'static str],
}

impl Type {
    /// What stands for "nothing was given": empty, zero, no, 1970, the first word, no reference.
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

/// A value that a field has when nobody gave it another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DefaultValue {
    /// The zero of its type.
    Zero,
    /// Text, or a word of an enumeration.
    Text(&'static str),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// Yes.
    Yes,
    /// A set of whole numbers.
    Ints(&'static [i64]),
    /// A map from text to text.
    Pairs(&'static [(&'static str, &'static str)]),
}

impl DefaultValue {
    /// The value, for a field of this type.
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
