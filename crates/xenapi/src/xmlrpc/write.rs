//! Writer from values to elements.

use std::borrow::Cow;
use std::fmt::Write;

use crate::body::{Encoding, Sink, float, has};
use crate::value::Value;

/// Appends one `value` element.
pub(super) fn value(sink: &mut impl Sink, of: &Value) {
    if let Value::Encoded(encoded) = of {
        return sink.append_cached(encoded, Encoding::Xml);
    }
    sink.buffer().push_str("<value>");
    match of {
        Value::Null => sink.buffer().push_str("<nil/>"),
        Value::Str(text) => push_escaped(sink.buffer(), text),
        Value::Int(number) => push(sink.buffer(), format_args!("{number}")),
        Value::Float(number) => {
            push(sink.buffer(), format_args!("<double>{}</double>", float(*number)));
        }
        Value::Bool(yes) => {
            push(sink.buffer(), format_args!("<boolean>{}</boolean>", u8::from(*yes)));
        }
        Value::Date(date) => {
            push(sink.buffer(), format_args!("<dateTime.iso8601>{date}</dateTime.iso8601>"));
        }
        Value::Set(values) => {
            sink.buffer().push_str("<array><data>");
            values.iter().for_each(|element| value(sink, element));
            sink.buffer().push_str("</data></array>");
        }
        Value::Map(map) => structure(sink, map.iter().map(|(name, of)| (name.as_str(), of))),
        Value::Encoded(_) => {}
    }
    sink.buffer().push_str("</value>");
}

/// Appends one `value` element, a map with these members.
pub(super) fn members<'a>(
    sink: &mut impl Sink,
    members: impl Iterator<Item = (&'a str, &'a Value)>,
) {
    sink.buffer().push_str("<value>");
    structure(sink, members);
    sink.buffer().push_str("</value>");
}

fn structure<'a>(sink: &mut impl Sink, members: impl Iterator<Item = (&'a str, &'a Value)>) {
    sink.buffer().push_str("<struct>");
    members.for_each(|(name, of)| member(sink, name, |sink| value(sink, of)));
    sink.buffer().push_str("</struct>");
}

/// Appends one member of a map. `value` appends its `value` element.
pub(super) fn member<S: Sink>(sink: &mut S, name: &str, value: impl FnOnce(&mut S)) {
    sink.buffer().push_str("<member><name>");
    push_escaped(sink.buffer(), name);
    sink.buffer().push_str("</name>");
    value(sink);
    sink.buffer().push_str("</member>");
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a String takes everything");
}

/// Escapes text for use between tags.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    push_escaped(&mut out, text);
    out
}

/// Escapes a carriage return as a reference, because XML readers convert a plain one to a line
/// feed. XML cannot represent most other control characters, which would make the whole response
/// unreadable. They become U+FFFD.
pub(super) fn push_escaped(out: &mut String, text: &str) {
    if !has(text, |byte| !matches!(byte, b' '..=b'~') || matches!(byte, b'<' | b'>' | b'&')) {
        // Fast path for nearly all texts, without a loop over characters.
        return out.push_str(text);
    }
    let mut rest = text;
    while let Some(at) = rest.find(|c| escape(c).is_some()) {
        let (plain, special) = rest.split_at(at);
        out.push_str(plain);
        let mut chars = special.chars();
        if let Some(escape) = chars.next().and_then(escape) {
            out.push_str(&escape);
        }
        rest = chars.as_str();
    }
    out.push_str(rest);
}

fn escape(c: char) -> Option<Cow<'static, str>> {
    match c {
        '<' => Some("&lt;".into()),
        '>' => Some("&gt;".into()),
        '&' => Some("&amp;".into()),
        '\r' => Some("&#13;".into()),
        c if !is_allowed(c) => Some("\u{fffd}".into()),
        _ => None,
    }
}

/// Returns whether a document may contain the character (XML 1.0, 2.2 `Char`).
pub(super) fn is_allowed(c: char) -> bool {
    match c {
        '\t' | '\n' | '\r' => true,
        '\u{fffe}' | '\u{ffff}' => false,
        c => c >= ' ',
    }
}
