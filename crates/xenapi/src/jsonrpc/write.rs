//! Writer from values to JSON.

use std::fmt::Write;

use super::Id;
use crate::body::{Encoding, Sink, float, has};
use crate::value::Value;

/// Appends a value.
pub(super) fn value(sink: &mut impl Sink, of: &Value) {
    match of {
        Value::Encoded(encoded) => sink.append_cached(encoded, Encoding::Json),
        Value::Null => sink.buffer().push_str("null"),
        Value::Str(text) => string(sink.buffer(), text),
        Value::Int(number) => push(sink.buffer(), format_args!("{number}")),
        Value::Float(number) if number.is_finite() => sink.buffer().push_str(&float(*number)),
        Value::Float(number) => string(sink.buffer(), &float(*number)),
        Value::Bool(yes) => push(sink.buffer(), format_args!("{yes}")),
        Value::Date(date) => push(sink.buffer(), format_args!("\"{date}\"")),
        Value::Set(values) => list(sink, values),
        Value::Map(map) => members(sink, map.iter().map(|(name, of)| (name.as_str(), of))),
    }
}

/// Appends a map with these members.
pub(super) fn members<'a>(
    sink: &mut impl Sink,
    members: impl Iterator<Item = (&'a str, &'a Value)>,
) {
    sink.buffer().push('{');
    for (index, (name, of)) in members.enumerate() {
        comma(sink, index);
        string(sink.buffer(), name);
        sink.buffer().push(':');
        value(sink, of);
    }
    sink.buffer().push('}');
}

/// Appends values in order.
pub(super) fn list(sink: &mut impl Sink, values: &[Value]) {
    sink.buffer().push('[');
    for (index, element) in values.iter().enumerate() {
        comma(sink, index);
        value(sink, element);
    }
    sink.buffer().push(']');
}

/// Appends texts in order.
pub(super) fn strings<'a>(sink: &mut impl Sink, texts: impl IntoIterator<Item = &'a str>) {
    sink.buffer().push('[');
    for (index, text) in texts.into_iter().enumerate() {
        comma(sink, index);
        string(sink.buffer(), text);
    }
    sink.buffer().push(']');
}

/// Appends the common end of a call in both versions.
pub(super) fn call(sink: &mut impl Sink, id: &Id, method: &str, params: &[Value]) {
    sink.buffer().push_str("\"method\":");
    string(sink.buffer(), method);
    sink.buffer().push_str(",\"params\":");
    list(sink, params);
    identity(sink, id);
}

/// Appends the id, the last member of a call or response.
pub(super) fn identity(sink: &mut impl Sink, id: &Id) {
    push(sink.buffer(), format_args!(",\"id\":{}}}", id.as_str()));
}

/// Appends text.
pub(super) fn string(out: &mut String, text: &str) {
    out.push('"');
    // The bytes of multi-byte characters match none of these.
    let is_special = |byte| matches!(byte, b'"' | b'\\' | 0..=0x1f);
    let (plain, mut rest) = if has(text, is_special) { ("", text) } else { (text, "") };
    out.push_str(plain);
    while let Some(at) = rest.bytes().position(is_special) {
        let (plain, special) = rest.split_at(at);
        out.push_str(plain);
        let mut chars = special.chars();
        match chars.next() {
            Some('\n') => out.push_str("\\n"),
            Some('\r') => out.push_str("\\r"),
            Some('\t') => out.push_str("\\t"),
            Some(c @ ('"' | '\\')) => out.extend(['\\', c]),
            Some(c) => push(out, format_args!("\\u{:04x}", u32::from(c))),
            None => {}
        }
        rest = chars.as_str();
    }
    out.push_str(rest);
    out.push('"');
}

fn comma(sink: &mut impl Sink, index: usize) {
    if index > 0 {
        sink.buffer().push(',');
    }
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a String takes everything");
}
