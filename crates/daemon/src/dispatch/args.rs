//! Parameters of a call.

use std::borrow::Cow;
use std::collections::BTreeMap;

use xenapi::coerce::coerce;
use xenapi::table::resolve::Method;
use xenapi::table::{Access, Class, Field, Param, RecordStorage, Type, class};
use xenapi::{ApiError, Date, NULL_REF, Value, codes};

use crate::db::{Ref, View};

/// Parameters of a call without its session. Their number and types match the message.
///
/// Names are those of the message. An unknown name reads as empty, zero or false.
#[derive(Clone, Debug)]
pub struct Args {
    params: Cow<'static, [Param]>,
    values: Vec<Value>,
}

const NOTHING: &Value = &Value::Null;

impl Args {
    /// Reads the parameters of a call. Omitted trailing parameters get the message's defaults. An
    /// empty reference becomes the null reference.
    ///
    /// # Errors
    /// `MESSAGE_PARAMETER_COUNT_MISMATCH` or `FIELD_TYPE_ERROR`.
    pub fn read(method: &Method, name: &str, given: Vec<Value>) -> Result<Self, ApiError> {
        let params = method.params();
        let least = params.iter().filter(|param| param.default.is_none()).count();
        if !(least..=params.len()).contains(&given.len()) {
            let (expected, received) = (least.to_string(), given.len().to_string());
            return Err(codes::parameter_count(name, expected, received));
        }
        let given = given.into_iter().map(|value| match method {
            Method::Create(of) => constructor_part(of, value),
            _ => value,
        });
        let mut given = given.fuse();
        let values = params.iter().map(|param| match given.next() {
            Some(value) => {
                coerce(value, &param.ty, param.name).map(|value| plain(value, &param.ty))
            }
            None => Ok(param.default.map_or_else(|| param.ty.zero(), |it| it.value(&param.ty))),
        });
        let values = values.collect::<Result<_, _>>()?;
        Ok(Self { params, values })
    }

    /// Checks that every reference names an object. Only the first parameter, the object of the
    /// call, must not be the null reference.
    ///
    /// # Errors
    /// `HANDLE_INVALID class, reference` for the first reference that names nothing.
    pub fn check(&self, view: &View<'_>) -> Result<(), ApiError> {
        for (at, (param, value)) in self.params.iter().zip(&self.values).enumerate() {
            if at > 0 || !is_null(value) {
                named(view, value, &param.ty)?;
            } else if let Type::Ref(class) = param.ty {
                return Err(codes::handle_invalid(class, NULL_REF));
            }
        }
        Ok(())
    }

    /// Returns a parameter.
    pub fn value(&self, name: &str) -> &Value {
        let at = self.params.iter().position(|param| param.name == name);
        at.and_then(|at| self.values.get(at)).unwrap_or(NOTHING)
    }

    /// Returns the first parameter as a reference: the object of the call.
    pub fn object(&self) -> Ref {
        self.values.first().map_or_else(|| Ref::from(NULL_REF), reference)
    }

    /// Returns the last parameter: the value of a setter.
    pub fn last(&self) -> &Value {
        self.values.last().unwrap_or(NOTHING)
    }

    /// Returns a text or enumeration value.
    pub fn text(&self, name: &str) -> &str {
        text(self.value(name))
    }

    /// Returns an integer.
    pub fn int(&self, name: &str) -> i64 {
        if let Value::Int(number) = self.value(name) { *number } else { 0 }
    }

    /// Returns a float.
    pub fn float(&self, name: &str) -> f64 {
        if let Value::Float(number) = self.value(name) { *number } else { 0.0 }
    }

    /// Returns a boolean.
    pub fn flag(&self, name: &str) -> bool {
        *self.value(name) == Value::Bool(true)
    }

    /// Returns a date.
    pub fn date(&self, name: &str) -> Date {
        if let Value::Date(date) = self.value(name) { *date } else { Date(0) }
    }

    /// Returns a reference.
    pub fn reference(&self, name: &str) -> Ref {
        reference(self.value(name))
    }

    /// Returns the members of a set.
    pub fn set(&self, name: &str) -> &[Value] {
        if let Value::Set(values) = self.value(name) { values } else { &[] }
    }

    /// Returns a map, or the record that `create` received.
    pub fn map(&self, name: &str) -> &BTreeMap<String, Value> {
        static EMPTY: BTreeMap<String, Value> = BTreeMap::new();
        if let Value::Map(members) = self.value(name) { members } else { &EMPTY }
    }

    /// Returns a map from text to text.
    pub fn pairs(&self, name: &str) -> BTreeMap<String, String> {
        let members = self.map(name).iter();
        members.map(|(key, value)| (key.clone(), text(value).to_owned())).collect()
    }
}

/// Returns the text of a value. Empty if the value is not a text.
pub(crate) fn text(value: &Value) -> &str {
    if let Value::Str(text) = value { text } else { "" }
}

fn reference(value: &Value) -> Ref {
    match value {
        Value::Str(text) => Ref::from(text.as_str()),
        _ => Ref::from(NULL_REF),
    }
}

fn is_null(value: &Value) -> bool {
    *value == Value::text(NULL_REF)
}

/// Word of SDKs for an enumeration value that they do not know or that is not set.
const UNRECOGNIZED: &str = "UNRECOGNIZED";

/// Returns the part of a record that `create` reads. SDKs of typed languages send whole records, in
/// which unset fields have values that are none of their type.
fn constructor_part(of: &'static Class, record: Value) -> Value {
    let Value::Map(mut members) = record else { return record };
    members.retain(|name, value| {
        of.field(name)
            .is_none_or(|(_, field)| field.access != Access::RoRuntime && !is_unset(field, value))
    });
    Value::Map(members)
}

/// Returns whether this is an SDK's value of an enumeration that is not set. Only fields with a
/// default can be unset.
fn is_unset(field: &Field, value: &Value) -> bool {
    match (&field.ty, value) {
        (Type::Enum(of), Value::Str(word)) => {
            field.default.is_some()
                && (word.is_empty() || word == UNRECOGNIZED)
                && !of.words.contains(&word.as_str())
        }
        _ => false,
    }
}

/// Replaces empty references by the null reference.
pub(super) fn plain(value: Value, ty: &Type) -> Value {
    match (value, ty) {
        (Value::Str(text), Type::Ref(_)) if text.is_empty() => Value::text(NULL_REF),
        (Value::Set(values), Type::Set(of)) => {
            Value::Set(values.into_iter().map(|value| plain(value, of)).collect())
        }
        (Value::Map(members), Type::Map(_, of)) => {
            let members = members.into_iter().map(|(key, value)| (key, plain(value, of)));
            Value::Map(members.collect())
        }
        (Value::Map(members), Type::Record(of)) => {
            let Some(of) = class(of) else { return Value::Map(members) };
            let members = members.into_iter().map(|(name, value)| match of.field(&name) {
                Some((_, field)) => (name, plain(value, &field.ty)),
                None => (name, value),
            });
            Value::Map(members.collect())
        }
        (value, _) => value,
    }
}

/// Checks that every reference in a value names an object or is null. References to classes that
/// are not stored here are not checked.
pub(super) fn named(view: &View<'_>, value: &Value, ty: &Type) -> Result<(), ApiError> {
    match (value, ty) {
        (Value::Str(text), Type::Ref(name)) => match class(name) {
            Some(of) if text != NULL_REF && of.record_storage != RecordStorage::Nowhere => {
                view.object(of, &Ref::from(text.as_str())).map(drop)
            }
            _ => Ok(()),
        },
        (Value::Set(values), Type::Set(of)) => {
            values.iter().try_for_each(|value| named(view, value, of))
        }
        (Value::Map(members), Type::Map(keys, of)) => {
            members.iter().try_for_each(|(key, value)| {
                if let Type::Ref(_) = keys {
                    named(view, &Value::text(key.as_str()), keys)?;
                }
                named(view, value, of)
            })
        }
        _ => Ok(()),
    }
}
