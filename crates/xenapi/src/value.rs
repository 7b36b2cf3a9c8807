//! Values as both encodings carry them.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use crate::date::Date;
use crate::{jsonrpc, xmlrpc};

/// The reference that names nothing.
pub const NULL_REF: &str = "OpaqueRef:NULL";

/// A value of any [`Type`](crate::table::Type). References, enumerations and "void" are text.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// No value, as some clients send for what they were not given. No type has it, so that the
    /// parameter can be named that lacks one.
    Null,
    /// Text.
    Str(String),
    /// A whole number: text in XML-RPC, a number in JSON.
    Int(i64),
    /// A number.
    Float(f64),
    /// Yes or no.
    Bool(bool),
    /// A moment: text in JSON.
    Date(Date),
    /// Several values, in order.
    Set(Vec<Value>),
    /// Values by name.
    Map(BTreeMap<String, Value>),
    /// A record, or a part of one, whose text is kept: it is made once for all who ask.
    Encoded(Arc<Encoded>),
}

impl Value {
    /// Text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Str(text.into())
    }

    /// The value itself, if its text is kept.
    pub fn plain(&self) -> &Self {
        match self {
            Self::Encoded(encoded) => encoded.value(),
            other => other,
        }
    }
}

/// A value that remembers its text in each encoding.
#[derive(Debug)]
pub struct Encoded {
    value: Value,
    json: OnceLock<Box<str>>,
    xml: OnceLock<Box<str>>,
}

impl PartialEq for Encoded {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl Encoded {
    /// Of this value; its texts are made when they are asked for.
    pub fn new(value: Value) -> Arc<Self> {
        Arc::new(Self { value, json: OnceLock::new(), xml: OnceLock::new() })
    }

    /// The value.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Its text in JSON, made the first time.
    pub fn json(&self) -> &str {
        self.json.get_or_init(|| jsonrpc::write_value(&self.value).into())
    }

    /// Its text in XML-RPC, the element `value` included, made the first time.
    pub fn xml(&self) -> &str {
        self.xml.get_or_init(|| xmlrpc::write_value(&self.value).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_made_once() {
        let encoded = Encoded::new(Value::Int(7));
        assert_eq!(encoded.json(), "7");
        assert_eq!(encoded.json().as_ptr(), encoded.json().as_ptr());
        assert_eq!(encoded.xml(), "<value>7</value>");
        assert_eq!(encoded.xml().as_ptr(), encoded.xml().as_ptr());
        assert_eq!(Value::Encoded(encoded).plain(), &Value::Int(7));
    }
}
