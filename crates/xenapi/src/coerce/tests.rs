use proptest::prelude::*;

use super::*;
use crate::test_values::{self, POWER_STATE, map};
use crate::value::Encoded;

const STATE: Type = Type::Enum(&POWER_STATE);
const USE: Type = Type::Map(&Type::Int, &Type::Float);

fn read(value: Value, ty: &Type) -> Option<Value> {
    match coerce(value, ty, "field") {
        Ok(value) => Some(value),
        Err(error) => {
            assert_eq!(error.details(), ["FIELD_TYPE_ERROR", "field"]);
            None
        }
    }
}

#[test]
fn whole_numbers_of_both_encodings() {
    let largest = Value::text("9223372036854775807");
    assert_eq!(read(largest, &Type::Int), Some(Value::Int(i64::MAX)));
    assert_eq!(read(Value::text("-5"), &Type::Int), Some(Value::Int(-5)));
    assert_eq!(read(Value::Int(5), &Type::Int), Some(Value::Int(5)));
    assert_eq!(read(Value::Float(-3.0), &Type::Int), Some(Value::Int(-3)));
    assert_eq!(read(Value::Float(WHOLE - 1.0), &Type::Int), Some(Value::Int((1 << 53) - 1)));
    for wrong in [
        Value::text(""),
        Value::text(" 5"),
        Value::text("5.0"),
        Value::text("0x5"),
        Value::text("9223372036854775808"),
        Value::Float(0.5),
        Value::Float(WHOLE),
        Value::Float(f64::NAN),
        Value::Float(f64::INFINITY),
        Value::Bool(true),
        Value::Null,
        Value::Set(Vec::new()),
    ] {
        assert_eq!(read(wrong.clone(), &Type::Int), None, "{wrong:?}");
    }
}

#[test]
fn numbers_moments_and_words() {
    assert_eq!(read(Value::Int(5), &Type::Float), Some(Value::Float(5.0)));
    assert_eq!(read(Value::text("0.25"), &Type::Float), Some(Value::Float(0.25)));
    let infinite = Some(Value::Float(f64::NEG_INFINITY));
    assert_eq!(read(Value::text("-Infinity"), &Type::Float), infinite);
    assert_eq!(read(Value::text("half"), &Type::Float), None);
    let moment = Some(Value::Date(Date(1)));
    assert_eq!(read(Value::text("19700101T00:00:01Z"), &Type::Date), moment);
    assert_eq!(read(Value::text("yesterday"), &Type::Date), None);
    assert_eq!(read(Value::Int(1), &Type::Date), None);
    assert_eq!(read(Value::text("running"), &STATE), Some(Value::text("Running")));
    assert_eq!(read(Value::text("Running "), &STATE), None);
    assert_eq!(read(Value::Int(1), &Type::Bool), None);
    assert_eq!(read(Value::text("true"), &Type::Bool), None);
}

#[test]
fn text_is_text_and_nothing_else() {
    for ty in [Type::Str, Type::Ref("VM")] {
        assert_eq!(read(Value::text("5"), &ty), Some(Value::text("5")));
        assert_eq!(read(Value::Int(5), &ty), None);
        assert_eq!(read(Value::Null, &ty), None);
    }
    assert_eq!(read(Value::text(""), &Type::Void), Some(Value::text("")));
    assert_eq!(read(Value::text("x"), &Type::Void), None);
    assert_eq!(read(Value::Null, &Type::Void), None);
}

#[test]
fn keys_may_be_numbers() {
    let read_use = |members| read(members, &USE);
    let given = map([("0", Value::text("0.5")), ("+1", Value::Int(1))]);
    let typed = map([("0", Value::Float(0.5)), ("1", Value::Float(1.0))]);
    assert_eq!(read_use(given), Some(typed));
    assert_eq!(read_use(map([("cpu0", Value::Float(0.5))])), None);
    assert_eq!(read_use(map([("0", Value::Bool(true))])), None);
    let twice = map([("1", Value::Float(0.5)), ("01", Value::Float(0.5))]);
    assert_eq!(read_use(twice), None);
    let words = Type::Map(&STATE, &Type::Str);
    let stated = |key| map([(key, Value::text(""))]);
    assert_eq!(read(stated("HALTED"), &words), Some(stated("Halted")));
    assert_eq!(read(stated("gone"), &words), None);
}

#[test]
fn every_element_counts() {
    let numbers = Type::Set(&Type::Int);
    let given = Value::Set(vec![Value::text("1"), Value::Int(2)]);
    assert_eq!(read(given, &numbers), Some(Value::Set(vec![Value::Int(1), Value::Int(2)])));
    assert_eq!(read(Value::Set(vec![Value::Int(1), Value::text("x")]), &numbers), None);
    assert_eq!(read(Value::Int(1), &numbers), None);
}

#[test]
fn fields_of_a_record_have_types_of_their_own() {
    let ty = Type::Record("VM");
    let given = [("memory_static_max", "1024"), ("power_state", "halted"), ("later", "1")];
    let typed = [("memory_static_max", Value::Int(1024)), ("power_state", Value::text("Halted"))];
    let typed = map([typed[0].clone(), typed[1].clone(), ("later", Value::text("1"))]);
    let given = map(given.map(|(name, text)| (name, Value::text(text))));
    assert!(!fits(&given, &ty));
    assert_eq!(coerce(given.clone(), &ty, "record"), Ok(typed.clone()));
    assert!(fits(&typed, &ty));
    let wrong = map([("memory_static_max", Value::text("much"))]);
    assert!(!fits(&wrong, &ty));
    let error = coerce(Value::Set(vec![wrong]), &Type::Set(&Type::Record("VM")), "records");
    assert_eq!(error.unwrap_err().details(), ["FIELD_TYPE_ERROR", "memory_static_max"]);
    let any = Type::Record("<class>");
    assert_eq!(read(given.clone(), &any), Some(given));
    assert_eq!(read(Value::text("x"), &ty), None);
}

#[test]
fn as_it_stands() {
    assert!(fits(&Value::text("Halted"), &STATE));
    assert!(!fits(&Value::text("halted"), &STATE));
    assert!(!fits(&Value::text("1"), &Type::Int));
    assert!(!fits(&Value::Int(1), &Type::Float));
    assert!(fits(&map([("-1", Value::Float(0.0))]), &USE));
    assert!(!fits(&map([("01", Value::Float(0.0))]), &USE));
    assert!(!fits(&map([("1", Value::Int(0))]), &USE));
    assert!(fits(&Value::Encoded(Encoded::new(Value::Int(1))), &Type::Int));
    assert!(!fits(&Value::Set(vec![Value::Null]), &Type::Set(&Type::Str)));
}

proptest! {
    #[test]
    fn what_fits_stays_as_it_is((ty, value) in test_values::typed()) {
        prop_assert!(fits(&value, ty));
        let read = coerce(value.clone(), ty, "field");
        prop_assert_eq!(read.map(|read| test_values::unkept(&read)), Ok(test_values::unkept(&value)));
    }

    #[test]
    fn what_is_read_fits((_, value) in test_values::typed(), (ty, _) in test_values::typed()) {
        if let Ok(read) = coerce(value, ty, "field") {
            prop_assert!(fits(&read, ty));
        }
    }
}
