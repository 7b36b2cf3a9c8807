//! Evaluation of steps against a record.

use std::borrow::Cow;

use super::{Filter, Step, Term};
use crate::Value;
use crate::table::FieldIx;

impl Filter {
    /// Returns whether the filter matches a record with these fields. A missing field equals
    /// nothing.
    pub fn holds<'v>(&self, field: impl Fn(FieldIx) -> Option<&'v Value>) -> bool {
        let mut stack: Vec<bool> = Vec::new();
        for step in &self.steps {
            let result = match step {
                Step::Constant(constant) => Some(*constant),
                Step::Equal(left, right) => Some(equal(left, right, &field)),
                Step::Not => stack.pop().map(|value| !value),
                Step::And => stack.pop().zip(stack.pop()).map(|(right, left)| left && right),
                Step::Or => stack.pop().zip(stack.pop()).map(|(right, left)| left || right),
            };
            stack.extend(result);
        }
        stack.pop().unwrap_or_default()
    }
}

fn equal<'v>(left: &Term, right: &Term, field: &impl Fn(FieldIx) -> Option<&'v Value>) -> bool {
    match (left, right) {
        (Term::Text(left), Term::Text(right)) => left == right,
        (Term::Field(ix), Term::Text(text)) | (Term::Text(text), Term::Field(ix)) => {
            field(*ix).is_some_and(|value| is_written(value, text))
        }
        (Term::Field(left), Term::Field(right)) => match (field(*left), field(*right)) {
            (Some(left), Some(right)) => written(left) == written(right),
            _ => false,
        },
    }
}

fn is_written(value: &Value, text: &str) -> bool {
    match value.plain() {
        Value::Float(number) => text.parse::<f64>().is_ok_and(|other| other == *number),
        plain => written(plain) == text,
    }
}

fn written(value: &Value) -> Cow<'_, str> {
    match value {
        Value::Null => Cow::Borrowed(""),
        Value::Str(text) => Cow::Borrowed(text),
        Value::Int(number) => number.to_string().into(),
        Value::Float(number) => number.to_string().into(),
        Value::Bool(answer) => answer.to_string().into(),
        Value::Date(date) => date.to_string().into(),
        Value::Set(values) => {
            let values: Vec<_> = values.iter().map(quoted).collect();
            format!("({})", values.join(" ")).into()
        }
        Value::Map(values) => {
            let pair =
                |(key, value): (&String, &Value)| format!("({} {})", in_quotes(key), quoted(value));
            let pairs: Vec<_> = values.iter().map(pair).collect();
            format!("({})", pairs.join(" ")).into()
        }
        Value::Encoded(encoded) => written(encoded.value()),
    }
}

fn quoted(value: &Value) -> String {
    match value.plain() {
        nested @ (Value::Set(_) | Value::Map(_)) => written(nested).into_owned(),
        plain => in_quotes(&written(plain)),
    }
}

fn in_quotes(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}
