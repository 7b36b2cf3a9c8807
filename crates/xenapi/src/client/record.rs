//! Records as a client reads them.

use std::collections::BTreeMap;

use crate::{Date, NULL_REF, Value};

/// Record by the names of its fields. A missing field reads as empty, because the server may have
/// another version.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record(BTreeMap<String, Value>);

impl Record {
    /// Converts an API value, if it is a record.
    pub fn of(value: Value) -> Option<Self> {
        match value {
            Value::Map(fields) => Some(Self(fields)),
            Value::Encoded(encoded) => Self::of(encoded.value().clone()),
            _ => None,
        }
    }

    /// Returns the value of a field.
    pub fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field).map(Value::plain)
    }

    /// Returns a text, an enumeration value or a reference.
    pub fn text(&self, field: &str) -> &str {
        match self.get(field) {
            Some(Value::Str(text)) => text,
            _ => "",
        }
    }

    /// Returns a reference, or `None` if it is null.
    pub fn reference(&self, field: &str) -> Option<&str> {
        Some(self.text(field)).filter(|text| !text.is_empty() && *text != NULL_REF)
    }

    /// Returns a whole number.
    pub fn int(&self, field: &str) -> i64 {
        match self.get(field) {
            Some(Value::Int(number)) => *number,
            _ => 0,
        }
    }

    /// Returns a floating-point number.
    pub fn float(&self, field: &str) -> f64 {
        match self.get(field) {
            Some(Value::Float(number)) => *number,
            _ => 0.0,
        }
    }

    /// Returns a boolean.
    pub fn flag(&self, field: &str) -> bool {
        matches!(self.get(field), Some(Value::Bool(true)))
    }

    /// Returns a date.
    pub fn date(&self, field: &str) -> Date {
        match self.get(field) {
            Some(Value::Date(date)) => *date,
            _ => Date::default(),
        }
    }

    /// Returns a set of texts, enumeration values or references.
    pub fn texts(&self, field: &str) -> Vec<&str> {
        let Some(Value::Set(values)) = self.get(field) else { return Vec::new() };
        values.iter().filter_map(text_of).collect()
    }

    /// Returns a map from text to text.
    pub fn pairs(&self, field: &str) -> BTreeMap<&str, &str> {
        let Some(Value::Map(members)) = self.get(field) else { return BTreeMap::new() };
        let pair = |(key, value)| Some((String::as_str(key), text_of(value)?));
        members.iter().filter_map(pair).collect()
    }
}

fn text_of(value: &Value) -> Option<&str> {
    match value.plain() {
        Value::Str(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_values::map;

    #[test]
    fn fields_are_read_by_what_they_are() {
        let record = Record::of(map([
            ("name_label", Value::text("a")),
            ("domid", Value::Int(-1)),
            ("progress", Value::Float(0.5)),
            ("is_a_template", Value::Bool(true)),
            ("created", Value::Date(Date(7))),
            ("VBDs", Value::Set(vec![Value::text("OpaqueRef:1"), Value::Int(2)])),
            ("other_config", map([("k", Value::text("v")), ("n", Value::Int(1))])),
            ("resident_on", Value::text(NULL_REF)),
        ]));
        let record = record.unwrap();
        assert_eq!((record.text("name_label"), record.text("domid")), ("a", ""));
        assert_eq!((record.int("domid"), record.int("name_label")), (-1, 0));
        assert!(record.flag("is_a_template") && !record.flag("name_label"));
        assert_eq!((record.float("progress"), record.date("created")), (0.5, Date(7)));
        assert_eq!(record.texts("VBDs"), ["OpaqueRef:1"]);
        assert_eq!(record.pairs("other_config"), BTreeMap::from([("k", "v")]));
        assert_eq!((record.reference("resident_on"), record.reference("nothing")), (None, None));
        assert_eq!(record.reference("name_label"), Some("a"));
        assert_eq!(Record::of(Value::text("")), None);
    }
}
