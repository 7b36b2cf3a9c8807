//! Values as both encodings carry them.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use crate::date::Date;
use crate::table::{Class, FieldIx};
use crate::{jsonrpc, xmlrpc};

/// Null reference.
pub const NULL_REF: &str = "OpaqueRef:NULL";

/// Initial capacity for the text of a record, in bytes. The text may grow beyond it.
pub(crate) const RECORD_BYTES: usize = 4 << 10;

/// Value of any [`Type`](crate::table::Type). References, enumerations and "void" are text.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Missing or unreadable value, which some clients send for unset parameters. No type has it,
    /// so the error can name the parameter.
    Null,
    /// Text.
    Str(String),
    /// Whole number: text in XML-RPC, a number in JSON.
    Int(i64),
    /// Floating-point number.
    Float(f64),
    /// Boolean.
    Bool(bool),
    /// Date: text in JSON.
    Date(Date),
    /// Several values, in order.
    Set(Vec<Value>),
    /// Values by name.
    Map(BTreeMap<String, Value>),
    /// Record, or a part of one, with cached texts. Each text is created once for all readers.
    Encoded(Arc<Encoded>),
}

impl Value {
    /// Creates a text value.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Str(text.into())
    }

    /// Returns the value itself, without the text cache.
    pub fn plain(&self) -> &Self {
        match self {
            Self::Encoded(encoded) => encoded.value(),
            other => other,
        }
    }
}

/// Value that caches its text in each encoding.
#[derive(Debug)]
pub struct Encoded {
    of: Of,
    json: OnceLock<Box<str>>,
    xml: OnceLock<Box<str>>,
}

/// Cached value.
#[derive(Debug)]
enum Of {
    Value(Value),
    /// Fields of a class in the order of their numbers, and the map of the record, created on first
    /// use. The names are not stored, because thousands of records would hold copies of them.
    Record(&'static Class, Arc<Vec<Value>>, OnceLock<Value>),
}

impl PartialEq for Encoded {
    fn eq(&self, other: &Self) -> bool {
        self.value() == other.value()
    }
}

impl Encoded {
    /// Creates the cache of a value. Its texts are created on first use.
    pub fn new(value: Value) -> Arc<Self> {
        Self::of(Of::Value(value))
    }

    /// Creates the cache of a record of a class, from its field values in the order of their
    /// numbers.
    pub fn record(class: &'static Class, fields: Arc<Vec<Value>>) -> Arc<Self> {
        Self::of(Of::Record(class, fields, OnceLock::new()))
    }

    fn of(of: Of) -> Arc<Self> {
        Arc::new(Self { of, json: OnceLock::new(), xml: OnceLock::new() })
    }

    /// Returns the value. A record becomes a map on first use. Use [`Encoded::field`] to read a
    /// single field.
    pub fn value(&self) -> &Value {
        match &self.of {
            Of::Value(value) => value,
            Of::Record(class, fields, map) => map.get_or_init(|| {
                let named = named(class, fields);
                Value::Map(named.map(|(name, value)| (name.to_owned(), value.clone())).collect())
            }),
        }
    }

    /// Returns a field of a record. Returns `None` for other values and for records of another
    /// class.
    pub fn field(&self, field: FieldIx) -> Option<&Value> {
        match &self.of {
            Of::Record(class, fields, _) if class.name == field.class() => fields.get(field.at()),
            _ => None,
        }
    }

    /// Returns the text in JSON, created on first use.
    pub fn json(&self) -> &str {
        self.json.get_or_init(|| match &self.of {
            Of::Value(value) => jsonrpc::write_value(value).into(),
            Of::Record(class, fields, _) => jsonrpc::write_members(named(class, fields)).into(),
        })
    }

    /// Returns the text in XML-RPC, including the `value` element, created on first use.
    pub fn xml(&self) -> &str {
        self.xml.get_or_init(|| match &self.of {
            Of::Value(value) => xmlrpc::write_value(value).into(),
            Of::Record(class, fields, _) => xmlrpc::write_members(named(class, fields)).into(),
        })
    }
}

fn named<'a>(
    class: &'static Class,
    fields: &'a [Value],
) -> impl Iterator<Item = (&'a str, &'a Value)> {
    class.fields.iter().map(|field| field.name).zip(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::table::{vdi, vm};

    #[test]
    fn a_text_is_made_once() {
        let encoded = Encoded::new(Value::Int(7));
        assert_eq!(encoded.json(), "7");
        assert_eq!(encoded.json().as_ptr(), encoded.json().as_ptr());
        assert_eq!(encoded.xml(), "<value>7</value>");
        assert_eq!(encoded.xml().as_ptr(), encoded.xml().as_ptr());
        assert_eq!(Value::Encoded(encoded).plain(), &Value::Int(7));
    }

    #[test]
    fn a_record_is_the_map_of_its_fields() {
        let class = &vdi::CLASS;
        let mut fields: Vec<_> = class.fields.iter().map(|field| field.initial()).collect();
        let name = FieldIx::from(vdi::Field::name_label);
        fields[name.at()] = Value::text("a \"<\u{1}ä");
        let record = Encoded::record(class, Arc::new(fields));
        let plain = Encoded::new(record.value().clone());
        assert_eq!(record.field(name), Some(&Value::text("a \"<\u{1}ä")));
        assert_eq!(record.field(vm::Field::name_label.into()), None, "of another class");
        assert_eq!(plain.field(name), None);
        assert_eq!(record, plain);
        let read = |text: &str| jsonrpc::read_value(text, &Limits::CALL).unwrap();
        assert_eq!(read(record.json()), read(plain.json()));
        let read = |text: &str| xmlrpc::read_value(text, &Limits::CALL).unwrap();
        assert_eq!(read(record.xml()), read(plain.xml()));
        let Value::Map(map) = record.value() else { panic!("no map") };
        assert_eq!(map.len(), class.fields.len());
    }
}
