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

#[test]
fn values_as_bytes() {
    let cases = [
        (Value::text("abc"), "<value>abc</value>"),
        (Value::text(""), "<value></value>"),
        (Value::text(" a\r\n<&>\"'"), "<value> a&#13;\n&lt;&amp;&gt;\"'</value>"),
        (Value::Int(-5), "<value>-5</value>"),
        (Value::Float(0.5), "<value><double>0.5</double></value>"),
        (Value::Float(f64::NAN), "<value><double>NaN</double></value>"),
        (Value::Bool(true), "<value><boolean>1</boolean></value>"),
        (Value::Bool(false), "<value><boolean>0</boolean></value>"),
        (
            Value::Date(Date(1_467_331_199)),
            "<value><dateTime.iso8601>20160630T23:59:59Z</dateTime.iso8601></value>",
        ),
        (Value::Null, "<value><nil/></value>"),
        (Value::Set(Vec::new()), "<value><array><data></data></array></value>"),
        (
            Value::Set(vec![Value::text("a"), Value::Int(1)]),
            "<value><array><data><value>a</value><value>1</value></data></array></value>",
        ),
        (map([]), "<value><struct></struct></value>"),
        (
            map([("k<", Value::text("v")), ("n", Value::Encoded(Encoded::new(Value::Int(2))))]),
            "<value><struct><member><name>k&lt;</name><value>v</value></member>\
             <member><name>n</name><value>2</value></member></struct></value>",
        ),
    ];
    for (value, text) in cases {
        assert_eq!(write_value(&value), text);
    }
}

#[test]
fn what_xml_cannot_carry_is_replaced() {
    let text = "a\0b\u{1}c\u{1f}d\u{fffe}e\u{ffff}f\u{7f}g\t\n";
    let written = write_value(&Value::text(text));
    assert_eq!(written, "<value>a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}e\u{fffd}f\u{7f}g\t\n</value>");
    assert!(read(&written).is_ok());
}

#[test]
fn forms_that_clients_choose() {
    let cases = [
        ("<value>abc</value>", Value::text("abc")),
        ("<value><string>abc</string></value>", Value::text("abc")),
        ("<value><string/></value>", Value::text("")),
        ("<value/>", Value::text("")),
        ("<value>  </value>", Value::text("  ")),
        ("<value> <string> a </string>\n</value>", Value::text(" a ")),
        ("<value>5</value>", Value::text("5")),
        ("<value><int>5</int></value>", Value::Int(5)),
        ("<value><i4> -5 </i4></value>", Value::Int(-5)),
        ("<value><i8>9223372036854775807</i8></value>", Value::Int(i64::MAX)),
        ("<value><double>1.5e3</double></value>", Value::Float(1500.0)),
        ("<value><boolean>1</boolean></value>", Value::Bool(true)),
        ("<value><boolean>false</boolean></value>", Value::Bool(false)),
        (
            "<value><dateTime.iso8601>19700101T00:00:01</dateTime.iso8601></value>",
            Value::Date(Date(1)),
        ),
        ("<value><nil/></value>", Value::Null),
        ("<value><array><data/></array></value>", Value::Set(Vec::new())),
        ("<value><struct/></value>", map([])),
        (
            "<value>\n<struct>\n<member>\n<name>a</name>\n<value><int>1</int></value>\n</member>\n\
             </struct></value>\n",
            map([("a", Value::Int(1))]),
        ),
        ("<value>a&lt;&gt;&amp;&apos;&quot;b</value>", Value::text("a<>&'\"b")),
        ("<value>&#65;&#x42;&#13;</value>", Value::text("AB\r")),
        ("<value>a\r\nb\rc</value>", Value::text("a\nb\nc")),
        ("<value>a<!-- no -->b</value>", Value::text("ab")),
        ("<value><![CDATA[<&>]]></value>", Value::text("<&>")),
        ("\u{feff}<?xml version='1.0' encoding='utf-8'?>\n<value>é</value>", Value::text("é")),
    ];
    for (text, value) in cases {
        assert_eq!(read(text), Ok(value), "{text}");
    }
}

/// A call names the parameter that is wrong, so an unreadable value is no malformed document.
#[test]
fn what_a_call_has_and_is_unreadable_is_null() {
    for value in [
        "<dateTime.iso8601>111T0:0:0</dateTime.iso8601>",
        "<dateTime.iso8601/>",
        "<int>5.0</int>",
        "<double>half</double>",
        "<boolean>2</boolean>",
    ] {
        let text = format!(
            "<methodCall><methodName>a.b</methodName><params><param><value>{value}</value></param>\
             </params></methodCall>"
        );
        let call = super::parse_call(&text, &Limits::CALL);
        assert_eq!(call, Ok(("a.b".to_owned(), vec![Value::Null])), "{value}");
    }
}

#[test]
fn what_is_no_value() {
    let cases = [
        ("", "too early"),
        ("   ", "too early"),
        ("<value>", "too early"),
        ("<value><int>5</int>", "too early"),
        ("<value><int>5</value></int>", "expected `</int>`"),
        ("</value>", "does not match any open tag"),
        ("<value>5</value><value>5</value>", "more than one document"),
        ("<value>5</value>5", "text between elements"),
        ("<value><int></int></value>", "invalid content of Int"),
        ("<value><int>5.0</int></value>", "invalid content of Int"),
        ("<value><int>9223372036854775808</int></value>", "invalid content of Int"),
        ("<value><int>5<int/></int></value>", "where an element should end"),
        ("<value><double>half</double></value>", "invalid content of Double"),
        ("<value><boolean>2</boolean></value>", "invalid content of Bool"),
        ("<value><dateTime.iso8601>now</dateTime.iso8601></value>", "invalid content of Date"),
        ("<value><base64>aa==</base64></value>", "unknown element \"base64\""),
        ("<value><Int>5</Int></value>", "unknown element \"Int\""),
        ("<value>a<int>5</int></value>", "text between elements"),
        ("<value><int>5</int>a</value>", "text between elements"),
        ("<value><int>5</int><int>5</int></value>", "where an element should end"),
        ("<value><param/></value>", "Param is not a type of value"),
        ("<value><array><value/></array></value>", "where Data should begin"),
        ("<value><array><data><int>5</int></data></array></value>", "where Value should begin"),
        ("<value><struct><value/></struct></value>", "where Member should begin"),
        ("<value><struct><member><value/></member></struct></value>", "where Name should begin"),
        (
            "<value><struct><member><name>a</name></member></struct></value>",
            "where Value should begin",
        ),
        (
            "<value><struct><member><name>a</name><value/></member>\
             <member><name>a</name><value/></member></struct></value>",
            "two members of one name",
        ),
        ("<value>\u{1}</value>", "U+0001 is not allowed"),
        ("<value>&#1;</value>", "U+0001 is not allowed"),
        ("<value>&#0;</value>", "unknown reference \"#0\""),
        ("<value>&#xd800;</value>", "unknown reference \"#xd800\""),
        ("<value>&nbsp;</value>", "unknown reference \"nbsp\""),
        ("<value>a & b</value>", "at byte"),
        ("<value>a &amp</value>", "at byte"),
        ("<value><![CDATA[a</value>", "at byte"),
        ("<?php evil ?><value/>", "a processing instruction"),
    ];
    for (text, reason) in cases {
        let why = why(text);
        assert!(why.contains(reason), "{text}: {why}");
    }
}

#[test]
fn entities_are_refused_where_they_are_declared() {
    let mut bomb = String::from("<?xml version=\"1.0\"?><!DOCTYPE v [<!ENTITY a \"aaaaaaaaaa\">");
    for (name, of) in ["b", "c", "d", "e", "f"].iter().zip(["a", "b", "c", "d", "e"]) {
        bomb += &format!("<!ENTITY {name} \"{}\">", format!("&{of};").repeat(10));
    }
    bomb += "]><value>&f;</value>";
    let file = "<!DOCTYPE v SYSTEM \"file:///etc/passwd\"><value/>";
    let external = "<!DOCTYPE v [<!ENTITY x SYSTEM \"file:///etc/passwd\">]><value>&x;</value>";
    for text in [bomb.as_str(), file, external] {
        assert!(why(text).contains("a document type"), "{text}");
    }
}

#[test]
fn values_nest_up_to_the_limit() {
    let nested = |depth: usize| {
        let within = depth - 1;
        "<value><array><data>".repeat(within)
            + "<value>x</value>"
            + &"</data></array></value>".repeat(within)
    };
    assert!(read(&nested(64)).is_ok());
    assert!(why(&nested(65)).contains("deeper than 64"));
    assert!(why(&nested(1000)).contains("deeper than 64"));
    let members = |depth: usize| {
        let within = depth - 1;
        "<value><struct><member><name>a</name>".repeat(within)
            + "<value/>"
            + &"</member></struct></value>".repeat(within)
    };
    assert!(read(&members(64)).is_ok());
    assert!(why(&members(65)).contains("deeper than 64"));
    let opened = "<value><array><data>".repeat(10_000);
    assert!(why(&opened).contains("deeper than 64"));
    let unknown = "<a>".repeat(10_000);
    assert!(why(&unknown).contains("unknown element"));
}

#[test]
fn values_are_counted() {
    let map_of = |members: usize| {
        let mut text = String::from("<value><struct>");
        for number in 0..members {
            text += &format!("<member><name>{number}</name><value/></member>");
        }
        text + "</struct></value>"
    };
    let many = map_of(100_000);
    assert_eq!(read(&many), Err(BadBody::TooLarge { limit: 300 << 10 }));
    let roomy = Limits { bytes: many.len(), ..Limits::CALL };
    let refused = read_value(&many, &roomy);
    assert!(matches!(&refused, Err(BadBody::Malformed(why)) if why.contains("100000 values")));
    let few = map_of(9);
    let exact = Limits { bytes: few.len(), depth: 2, values: 10 };
    assert!(read_value(&few, &exact).is_ok());
    assert!(read_value(&few, &Limits { values: 9, ..exact }).is_err());
    assert!(read_value(&few, &Limits { depth: 1, ..exact }).is_err());
    let short = Limits { bytes: few.len() - 1, ..exact };
    assert_eq!(read_value(&few, &short), Err(BadBody::TooLarge { limit: few.len() - 1 }));
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
    fn any_text_can_be_written(text in any::<String>()) {
        prop_assert!(read(&write_value(&Value::Str(text))).is_ok());
    }

    #[test]
    fn any_text_is_read(
        text in any::<String>(),
        like in "(<|</|<!|<!\\[CDATA\\[|\\]\\]>|<\\?|>|&|&#|;|value|struct|array|data|[ a1é/-]){0,30}",
    ) {
        let _ = (read(&text), read(&like));
    }
}
