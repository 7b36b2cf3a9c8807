use proptest::prelude::*;

use super::*;
use crate::coerce::coerce;
use crate::date::Date;
use crate::test_values::{self, map};
use crate::value::Encoded;

fn read(text: &str) -> Result<Value, BadBody> {
    read_value(text, &Limits::CALL)
}

fn why(text: &str) -> String {
    match read(text) {
        Err(BadBody::Malformed(why)) => why,
        other => panic!("{text}: {other:?}"),
    }
}

/// Returns the reason why a call is rejected though it is valid JSON.
fn unfit_call(text: &str) -> String {
    match parse_call(text, &Limits::CALL).map(|call| call.method) {
        Err(BadBody::Unfit(why)) => why,
        other => panic!("{text}: {other:?}"),
    }
}

fn malformed_call(text: &str) -> String {
    match parse_call(text, &Limits::CALL).map(|call| call.method) {
        Err(BadBody::Malformed(why)) => why,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn values_as_bytes() {
    let cases = [
        (Value::text("abc"), r#""abc""#),
        (Value::text(""), r#""""#),
        (
            Value::text("a\"\\/\n\r\t\0\u{1f}\u{7f}é"),
            "\"a\\\"\\\\/\\n\\r\\t\\u0000\\u001f\u{7f}é\"",
        ),
        (Value::Int(i64::MIN), "-9223372036854775808"),
        (Value::Float(1.0), "1.0"),
        (Value::Float(f64::NAN), r#""NaN""#),
        (Value::Float(f64::NEG_INFINITY), r#""-Infinity""#),
        (Value::Bool(true), "true"),
        (Value::Date(Date(1_467_331_199)), r#""20160630T23:59:59Z""#),
        (Value::Null, "null"),
        (Value::Set(Vec::new()), "[]"),
        (Value::Set(vec![Value::Int(1), Value::text("a")]), r#"[1,"a"]"#),
        (map([]), "{}"),
        (
            map([("a\"", Value::Int(1)), ("b", Value::Encoded(Encoded::new(Value::Int(2))))]),
            r#"{"a\"":1,"b":2}"#,
        ),
    ];
    for (value, text) in cases {
        assert_eq!(write_value(&value), text);
    }
}

#[test]
fn forms_that_clients_choose() {
    let cases = [
        (
            " [ 1 , -2.5e1 , 1E2 ] ",
            Value::Set(vec![Value::Int(1), Value::Float(-25.0), Value::Float(100.0)]),
        ),
        (r#""\u00e9\ud83d\ude00\/""#, Value::text("é😀/")),
        ("9223372036854775808", Value::Float(9_223_372_036_854_775_808.0)),
        ("null", Value::Null),
        (r#"{"":{}}"#, map([("", map([]))])),
    ];
    for (text, value) in cases {
        assert_eq!(read(text), Ok(value), "{text}");
    }
}

#[test]
fn what_is_no_value() {
    for (text, reason) in [
        ("", "EOF"),
        ("[1", "EOF"),
        (r#"{"a":1"#, "EOF"),
        (r#""a"#, "EOF"),
        ("[1,]", "trailing comma"),
        ("[1] 2", "trailing characters"),
        ("{1:2}", "key must be a string"),
        (r#"{"a":1,"a":1}"#, "two members of one name"),
        ("\"\u{1}\"", "control character"),
        (r#""\ud800""#, "escape"),
        ("NaN", "expected"),
        ("'a'", "expected"),
        ("01", "invalid number"),
        ("1e400", "out of range"),
    ] {
        let why = why(text);
        assert!(why.contains(reason), "{text}: {why}");
    }
}

#[test]
fn values_nest_up_to_the_limit() {
    let nested = |depth: usize| "[".repeat(depth - 1) + "1" + &"]".repeat(depth - 1);
    assert!(read(&nested(64)).is_ok());
    assert!(why(&nested(65)).contains("deeper than 64"));
    assert!(why(&nested(1000)).contains("deeper than 64"));
    assert!(why(&"[".repeat(100_000)).contains("deeper than 64"));
    let maps = r#"{"a":"#.repeat(1000) + "1" + &"}".repeat(1000);
    assert!(why(&maps).contains("deeper than 64"));
    let call = |params: &str| format!(r#"{{"method":"m","id":1,"params":{params}}}"#);
    assert!(parse_call(&call(&nested(64)), &Limits::CALL).is_ok());
    assert!(malformed_call(&call(&nested(1000))).contains("deeper than 64"));
    // An ignored member is skipped without being stored, at any depth.
    let extra = format!(r#"{{"x":{},"method":"m","id":1}}"#, nested(100_000));
    assert!(parse_call(&extra, &Limits::CALL).is_ok());
}

#[test]
fn values_are_counted() {
    let list_of = |count: usize| format!("[{}1]", "1,".repeat(count - 1));
    assert!(read(&list_of(99_999)).is_ok());
    assert!(why(&list_of(100_000)).contains("more than 100000 values"));
    let map_of = |members: usize| {
        let members: Vec<String> = (0..members).map(|number| format!("\"{number}\":1")).collect();
        format!("{{{}}}", members.join(","))
    };
    let many = map_of(100_000);
    assert_eq!(read(&many), Err(BadBody::TooLarge { limit: 300 << 10 }));
    let roomy = Limits { bytes: many.len(), ..Limits::CALL };
    let refused = read_value(&many, &roomy);
    assert!(matches!(&refused, Err(BadBody::Malformed(why)) if why.contains("100000 values")));
    assert!(read_value(&many, &Limits::ANSWER).is_ok());
    let call = format!(r#"{{"method":"m","id":1,"params":{}}}"#, list_of(100_000));
    assert!(malformed_call(&call).contains("more than 100000 values"));
}

#[test]
fn an_id_comes_back_as_it_was() {
    for id in ["0", "-7", "1.50", "12345678901234567890123", "1e3", r#""""#, r#""\u0041\/""#] {
        for head in ["", r#""jsonrpc":"2.0","#, r#""jsonrpc":"1.0","#] {
            let text = format!(r#"{{{head}"method":"m", "id" : {id} ,"params":[]}}"#);
            let call = parse_call(&text, &Limits::CALL).unwrap();
            assert_eq!(call.id.as_str(), id);
            let answer = answer(call.version, &call.id, &Ok(Value::Int(1))).to_text();
            assert!(answer.ends_with(&format!(",\"id\":{id}}}")), "{answer}");
        }
    }
}

#[test]
fn every_call_has_an_id() {
    let call = |version: &str, id: &str| format!(r#"{{{version}"method":"m"{id}}}"#);
    for id in [r#","id":null"#, r#","id":[1]"#, r#","id":{}"#, r#","id":true"#] {
        let why = unfit_call(&call(r#""jsonrpc":"2.0","#, id));
        assert!(why.contains("neither a number nor text"), "{why}");
    }
    assert!(unfit_call(&call(r#""jsonrpc":"2.0","#, "")).contains("no id"));
    assert!(unfit_call(&call("", "")).contains("no id"));
    let null = parse_call(&call("", r#","id":null"#), &Limits::CALL).unwrap();
    assert_eq!((null.version, null.id.as_str()), (Version::V1, "null"));
}

#[test]
fn what_is_no_call() {
    for (text, reason) in [
        (r#"[{"jsonrpc":"2.0","method":"m","id":1}]"#, "several calls"),
        (" \n[]", "several calls"),
        (r#"{"jsonrpc":"3.0","method":"m","id":1}"#, "other than 1.0 and 2.0"),
        (r#"{"method":"m","id":1,"params":{"a":1}}"#, "not in a list"),
        (r#"{"method":"m","id":1,"params":"a"}"#, "not in a list"),
        (r#"{"method":"","id":1}"#, "names no method"),
    ] {
        let why = unfit_call(text);
        assert!(why.contains(reason), "{text}: {why}");
    }
    for (text, reason) in [
        ("", "EOF"),
        ("{}", "missing field `method`"),
        ("1", "expected struct"),
        (r#"{"method":1,"id":1}"#, "expected a string"),
        (r#"{"method":"m","method":"n","id":1}"#, "duplicate field"),
        (r#"{"method":"m","id":1}x"#, "trailing characters"),
        (r#"{"method":"m","id":1,"params":[}"#, "expected value"),
        (r#"{"jsonrpc":2.0,"method":"m","id":1}"#, "expected a string"),
    ] {
        let why = malformed_call(text);
        assert!(why.contains(reason), "{text}: {why}");
    }
    let long = format!(r#"{{"method":"{}","id":1}}"#, "m".repeat(300 << 10));
    let refused = parse_call(&long, &Limits::CALL).map(|call| call.method);
    assert_eq!(refused, Err(BadBody::TooLarge { limit: 300 << 10 }));
}

#[test]
fn answers_that_make_no_sense() {
    let id = Id::from(7);
    let cases = [
        (Version::V2, r#"{"jsonrpc":"2.0","result":1,"id":8}"#, "belongs to another call"),
        (Version::V2, r#"{"jsonrpc":"2.0","result":1,"id":"7"}"#, "belongs to another call"),
        (Version::V2, r#"{"jsonrpc":"1.0","result":1,"id":7}"#, "another version"),
        (Version::V2, r#"{"jsonrpc":"2.0","id":7}"#, "neither a result nor an error"),
        (
            Version::V2,
            r#"{"jsonrpc":"2.0","error":{"code":1,"message":"C","data":[1]},"id":7}"#,
            "no text",
        ),
        (
            Version::V2,
            r#"{"jsonrpc":"2.0","error":{"code":1,"message":"C","data":"p"},"id":7}"#,
            "not in a list",
        ),
        (Version::V1, r#"{"result":1,"error":null,"id":8}"#, "belongs to another call"),
        (Version::V1, r#"{"result":null,"error":null,"id":7}"#, "neither a result nor an error"),
        (Version::V1, r#"{"result":1,"error":["C"],"id":7}"#, "neither a result nor an error"),
        (Version::V1, r#"{"result":null,"error":[],"id":7}"#, "no code"),
        (Version::V1, r#"{"result":null,"error":"C","id":7}"#, "no code"),
    ];
    for (version, text, reason) in cases {
        let refused = parse_answer(version, &id, text, &Limits::ANSWER);
        let Err(BadBody::Unfit(why)) = refused else { panic!("{text}: {refused:?}") };
        assert!(why.contains(reason), "{text}: {why}");
    }
    let without_data = r#"{"jsonrpc":"2.0","error":{"code":1,"message":"C"},"id":7}"#;
    let outcome = parse_answer(Version::V2, &id, without_data, &Limits::ANSWER);
    assert_eq!(outcome, Ok(Err(ApiError::new("C", [""; 0]))));
}

proptest! {
    #[test]
    fn a_value_comes_back((ty, value) in test_values::typed()) {
        let text = write_value(&value);
        let back = read(&text).and_then(|back| {
            coerce(back, ty, "").map_err(|error| BadBody::Unfit(error.to_string()))
        });
        prop_assert_eq!(back, Ok(test_values::unkept(&value)), "{}", text);
    }

    #[test]
    fn any_text_comes_back(text in any::<String>()) {
        let written = write_value(&Value::text(&text));
        prop_assert_eq!(read(&written), Ok(Value::Str(text)));
    }

    #[test]
    fn any_text_is_read(text in any::<String>(), like in "[\\[\\]{}:,\"\\\\u0-9a-f.eE+ -]{0,30}") {
        let _ = (read(&text), read(&like));
        let _ = (parse_call(&text, &Limits::CALL).is_ok(), parse_call(&like, &Limits::CALL).is_ok());
    }
}
