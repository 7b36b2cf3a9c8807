use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::table::class;
use crate::{Date, Value};

fn parse(text: &str) -> Result<Filter, BadFilter> {
    Filter::parse(text, class("VM").unwrap())
}

/// Returns a VM with some fields.
fn record() -> Vec<(&'static str, Value)> {
    let config = BTreeMap::from([("it's".to_owned(), Value::text("a\\b"))]);
    vec![
        ("name_label", Value::text("web 1")),
        ("name_description", Value::text("web 1")),
        ("is_a_template", Value::Bool(false)),
        ("memory_target", Value::Int(-5)),
        ("HVM_shadow_multiplier", Value::Float(1.0)),
        ("snapshot_time", Value::Date(Date(0))),
        ("tags", Value::Set(vec![Value::text("a"), Value::text("b")])),
        ("other_config", Value::Map(config)),
        ("power_state", Value::text("Halted")),
    ]
}

fn holds(text: &str) -> bool {
    let record = record();
    let class = class("VM").unwrap();
    let filter = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    filter.holds(|ix| {
        let name = class.field_at(ix).unwrap().name;
        record.iter().find(|(field, _)| *field == name).map(|(_, value)| value)
    })
}

#[test]
fn values_compare_as_they_are_written() {
    let of = |name: &str, text: &str| holds(&format!("field \"{name}\" = \"{text}\""));
    let equal = [
        ("name_label", "web 1"),
        ("name__label", "web 1"),
        ("is_a_template", "false"),
        ("is__a__template", "false"),
        ("memory_target", "-5"),
        ("HVM_shadow_multiplier", "1."),
        ("HVM_shadow_multiplier", "1.000000"),
        ("snapshot_time", "19700101T00:00:00Z"),
        ("tags", "('a' 'b')"),
        ("other_config", "(('it\\'s' 'a\\\\b'))"),
    ];
    for (name, text) in equal {
        assert!(of(name, text), "{name} = {text}");
    }
    let different =
        [("name_label", "web"), ("name_label", "WEB 1"), ("memory_target", "-5.0"), ("tags", "a")];
    for (name, text) in different {
        assert!(!of(name, text), "{name} = {text}");
    }
    assert!(!of("uuid", ""), "a field that is not there equals nothing");
}

#[test]
fn both_sides_may_be_either() {
    assert!(holds("field \"name_label\"=field \"name_description\""));
    assert!(!holds("field \"name_label\"=field \"power_state\""));
    assert!(!holds("field \"uuid\" = field \"uuid\""));
    assert!(holds("\"Halted\" = field \"power_state\""));
    assert!(holds("\"\" = \"\"") && !holds("\"a\" = \"b\""));
}

#[test]
fn and_and_or_bind_alike_and_not_takes_the_rest() {
    for (text, expected) in [
        ("true", true),
        ("false", false),
        ("true or false and false", false),
        ("true or (false and false)", true),
        ("false and false or true", true),
        ("not true", false),
        ("not false and false", true),
        ("(not false) and false", false),
        ("not not true", true),
        ("true and not false or true", false),
        (" (\t(true)\n)\r", true),
        ("(true)and(true)", true),
        ("not(field \"is_a_template\"=\"true\")", true),
    ] {
        assert_eq!(holds(text), expected, "{text}");
    }
}

#[test]
fn what_is_no_expression_is_refused_with_its_place() {
    let at = |text: &str| parse(text).unwrap_err().to_string();
    assert_eq!(at(""), "`field`, `not`, `true`, `false`, `(` or a text is expected (at byte 0)");
    assert_eq!(at("true true"), "`and`, `or` or the end is expected (at byte 5)");
    assert_eq!(at("true)"), "`and`, `or` or the end is expected (at byte 4)");
    assert_eq!(at("(true"), "`and`, `or` or `)` is expected (at byte 5)");
    assert_eq!(at("\"a\""), "`=` is expected (at byte 3)");
    assert_eq!(at("\"a\" = true").split(" is ").last(), Some("expected (at byte 6)"));
    assert_eq!(at("\"a = \"b\""), "`=` is expected (at byte 6)");
    assert_eq!(at("\"a"), "a text begins with `\"` and does not end (at byte 0)");
    assert_eq!(at("field \"VM\" = \"\""), "VM has no field `VM` (at byte 6)");
    let noname = "the name of a field, in double quotes, is expected (at byte 6)";
    assert_eq!(at("field name = \"\""), noname);
    for text in ["nottrue", "truefalse", "true & true", "é", "AND", "not", "(", ")", "="] {
        assert!(parse(text).is_err(), "{text}");
    }
}

#[test]
fn size_has_limits() {
    let why = |text: &str| parse(text).map_err(|bad| bad.filter_problem);
    let nested = |depth| format!("{}true{}", "(".repeat(depth), ")".repeat(depth));
    assert!(why(&nested(MAX_DEPTH)).is_ok());
    assert_eq!(why(&nested(MAX_DEPTH + 1)), Err(FilterProblem::TooDeep));
    assert_eq!(why(&"not ".repeat(MAX_DEPTH + 1)), Err(FilterProblem::TooDeep));
    let many = |count| vec!["\"\"=\"\""; count].join(" or ");
    assert!(holds(&many(MAX_COMPARISONS)));
    assert_eq!(why(&many(MAX_COMPARISONS + 1)), Err(FilterProblem::TooManyComparisons));
    let blanks = |bytes: usize| format!("true{}", " ".repeat(bytes - 4));
    assert!(why(&blanks(MAX_BYTES)).is_ok());
    assert_eq!(why(&blanks(MAX_BYTES + 1)), Err(FilterProblem::TooLong));
    let name = "x".repeat(1_000);
    let shown = parse(&format!("field \"{name}\" = \"\"")).unwrap_err().to_string();
    assert!(shown.len() < 120, "{shown}");
}

#[test]
fn an_error_is_one_of_the_api() {
    let error: ApiError = parse("true or").unwrap_err().into();
    let why = "`field`, `not`, `true`, `false`, `(` or a text is expected (at byte 7)";
    assert_eq!(error.details(), ["INVALID_VALUE", "expr", why]);
}

/// Expression as a tree, whose value the steps must have.
#[derive(Clone, Debug)]
enum Tree {
    Constant(bool),
    Same(bool),
    Not(Box<Tree>),
    And(Box<Tree>, Box<Tree>),
    Or(Box<Tree>, Box<Tree>),
}

impl Tree {
    fn text(&self) -> String {
        match self {
            Self::Constant(value) => value.to_string(),
            Self::Same(true) => "field \"power_state\" = \"Halted\"".to_owned(),
            Self::Same(false) => "\"web 2\" = field \"name__label\"".to_owned(),
            Self::Not(inner) => format!("(not {})", inner.text()),
            Self::And(left, right) => format!("({} and {})", left.text(), right.text()),
            Self::Or(left, right) => format!("({} or {})", left.text(), right.text()),
        }
    }

    fn value(&self) -> bool {
        match self {
            Self::Constant(value) | Self::Same(value) => *value,
            Self::Not(inner) => !inner.value(),
            Self::And(left, right) => left.value() && right.value(),
            Self::Or(left, right) => left.value() || right.value(),
        }
    }
}

fn trees() -> impl Strategy<Value = Tree> {
    let leaf =
        prop_oneof![any::<bool>().prop_map(Tree::Constant), any::<bool>().prop_map(Tree::Same)];
    leaf.prop_recursive(8, 64, 2, |inner| {
        let pair = (inner.clone().prop_map(Box::new), inner.clone().prop_map(Box::new));
        prop_oneof![
            inner.prop_map(|one| Tree::Not(Box::new(one))),
            pair.clone().prop_map(|(left, right)| Tree::And(left, right)),
            pair.prop_map(|(left, right)| Tree::Or(left, right)),
        ]
    })
}

fn pieces() -> impl Strategy<Value = String> {
    let words = [
        "and", "or", "not", "true", "false", "field", "=", "(", ")", "\"", "\"uuid\"", "\"a\"",
        "x", "\u{e9}", " ",
    ];
    proptest::collection::vec(proptest::sample::select(words.to_vec()), 0..24)
        .prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn an_expression_means_what_its_tree_means(tree in trees()) {
        prop_assert_eq!(holds(&tree.text()), tree.value());
    }

    #[test]
    fn nothing_makes_the_parser_fall(text in pieces()) {
        match parse(&text) {
            Ok(filter) => { filter.holds(|_| None); }
            Err(bad) => prop_assert!(bad.at <= text.len(), "{bad}"),
        }
    }
}
