//! Random values of every type, for tests.

use std::collections::BTreeMap;

use proptest::collection::{btree_map, vec};
use proptest::num::f64 as floating;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use crate::date::Date;
use crate::table::{Class, Enum, Field, Type, class};
use crate::value::{Encoded, Value};

pub(crate) const POWER_STATE: Enum =
    Enum { name: "vm_power_state", words: &["Halted", "Paused", "Running", "Suspended"] };

const TYPES: &[Type] = &[
    Type::Void,
    Type::Str,
    Type::Int,
    Type::Float,
    Type::Bool,
    Type::Date,
    Type::Enum(&POWER_STATE),
    Type::Ref("VM"),
    Type::Set(&Type::Int),
    Type::Set(&Type::Map(&Type::Str, &Type::Date)),
    Type::Map(&Type::Str, &Type::Str),
    Type::Map(&Type::Int, &Type::Float),
    Type::Map(&Type::Ref("VM"), &Type::Set(&Type::Enum(&POWER_STATE))),
    Type::Map(&Type::Enum(&POWER_STATE), &Type::Map(&Type::Int, &Type::Bool)),
    Type::Record("VM"),
    Type::Set(&Type::Record("VBD")),
    Type::Record("<class>"),
];

/// Returns a type and a value of it.
pub(crate) fn typed() -> impl Strategy<Value = (&'static Type, Value)> {
    (0..TYPES.len()).prop_flat_map(|index| (Just(&TYPES[index]), of(&TYPES[index])))
}

/// Returns a value of the type, sometimes one with a cached text.
fn of(ty: &'static Type) -> BoxedStrategy<Value> {
    let plain = plain(ty);
    let kept = plain.clone().prop_map(|value| Value::Encoded(Encoded::new(value)));
    prop_oneof![4 => plain, 1 => kept].boxed()
}

fn plain(ty: &'static Type) -> BoxedStrategy<Value> {
    match ty {
        Type::Void => Just(Value::text("")).boxed(),
        Type::Str | Type::Ref(_) => text().prop_map(Value::Str).boxed(),
        Type::Int => any::<i64>().prop_map(Value::Int).boxed(),
        Type::Float => floats().prop_map(Value::Float).boxed(),
        Type::Bool => any::<bool>().prop_map(Value::Bool).boxed(),
        Type::Date => {
            (Date::MIN.0..=Date::MAX.0).prop_map(|seconds| Value::Date(Date(seconds))).boxed()
        }
        Type::Enum(of) => select(of.words.to_vec()).prop_map(Value::text).boxed(),
        Type::Set(element) => vec(of(element), 0..4).prop_map(Value::Set).boxed(),
        Type::Map(key, value) => btree_map(keys(key), of(value), 0..4).prop_map(Value::Map).boxed(),
        Type::Record(name) => match class(name) {
            Some(class) => record(class),
            None => {
                btree_map(text(), text().prop_map(Value::Str), 0..4).prop_map(Value::Map).boxed()
            }
        },
    }
}

/// Returns some fields of a class, and a member that is no field.
fn record(class: &'static Class) -> BoxedStrategy<Value> {
    let fields = subsequence(class.fields.iter().collect::<Vec<_>>(), 0..5);
    let fields = fields.prop_flat_map(|fields| {
        let member = |field: &'static Field| (Just(field.name.to_owned()), of(&field.ty));
        fields.into_iter().map(member).collect::<Vec<_>>()
    });
    let member = text().prop_map(|text| ("of a later release".to_owned(), Value::Str(text)));
    let all = (fields, member).prop_map(|(fields, member)| fields.into_iter().chain([member]));
    all.prop_map(|members| Value::Map(members.collect())).boxed()
}

fn keys(ty: &'static Type) -> BoxedStrategy<String> {
    match ty {
        Type::Int => any::<i64>().prop_map(|number| number.to_string()).boxed(),
        Type::Enum(of) => select(of.words.to_vec()).prop_map(str::to_owned).boxed(),
        _ => text().boxed(),
    }
}

/// Returns text that both encodings can represent.
pub(crate) fn text() -> impl Strategy<Value = String> + Clone {
    "[\\PC\t\n\r<>&\"']{0,12}"
}

fn floats() -> impl Strategy<Value = f64> {
    use floating::{INFINITE, NEGATIVE, NORMAL, POSITIVE, SUBNORMAL, ZERO};
    POSITIVE | NEGATIVE | NORMAL | ZERO | SUBNORMAL | INFINITE
}

/// Returns the same value without cached texts.
pub(crate) fn unkept(value: &Value) -> Value {
    match value.plain() {
        Value::Set(values) => Value::Set(values.iter().map(unkept).collect()),
        Value::Map(members) => {
            let members = members.iter().map(|(name, value)| (name.clone(), unkept(value)));
            Value::Map(members.collect())
        }
        other => other.clone(),
    }
}

/// Returns a map with these members.
pub(crate) fn map<const N: usize>(members: [(&str, Value); N]) -> Value {
    let members = members.map(|(name, value)| (name.to_owned(), value));
    Value::Map(BTreeMap::from(members))
}
