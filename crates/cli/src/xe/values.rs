//! Conversion of values to and from text.

use std::borrow::Cow;

use xenapi::table::{Enum, Type, class};
use xenapi::{NULL_REF, Value, coerce};

use crate::error::XeError;
use crate::parse;
use crate::xe::{Tables, XeSession};

/// Text of a null reference.
pub(crate) const NOTHING: &str = "<not in database>";
/// Text of a reference to a record that does not exist any more.
pub(crate) const NOT_THERE: &str = "<invalid reference>";
/// Separator of the members of a set or map.
pub(crate) const BETWEEN: &str = "; ";

/// Enumeration values that are not shown as on the wire: enumeration, name on the wire, text.
const SHOWN: &[(&str, &str, &str)] = &[
    ("console_protocol", "rdp", "RDP"),
    ("console_protocol", "rfb", "RFB"),
    ("console_protocol", "vt100", "VT100"),
    ("domain_type", "pv_in_pvh", "pv-in-pvh"),
    ("on_crash_behaviour", "coredump_and_destroy", "Core dump and destroy"),
    ("on_crash_behaviour", "coredump_and_restart", "Core dump and restart"),
    ("on_crash_behaviour", "destroy", "Destroy"),
    ("on_crash_behaviour", "preserve", "Preserve"),
    ("on_crash_behaviour", "rename_restart", "Rename restart"),
    ("on_crash_behaviour", "restart", "Restart"),
    ("on_normal_exit", "destroy", "Destroy"),
    ("on_normal_exit", "restart", "Restart"),
    ("on_softreboot_behavior", "destroy", "Destroy"),
    ("on_softreboot_behavior", "preserve", "Preserve"),
    ("on_softreboot_behavior", "restart", "Restart"),
    ("on_softreboot_behavior", "soft_reboot", "Soft reboot"),
    ("tristate_type", "no", "false"),
    ("tristate_type", "yes", "true"),
    ("vdi_type", "cbt_metadata", "CBT metadata"),
    ("vdi_type", "crashdump", "Crashdump"),
    ("vdi_type", "ephemeral", "Ephemeral"),
    ("vdi_type", "ha_statefile", "HA statefile"),
    ("vdi_type", "metadata", "Metadata"),
    ("vdi_type", "pvs_cache", "PVS cache"),
    ("vdi_type", "redo_log", "Redo log"),
    ("vdi_type", "suspend", "Suspend"),
    ("vdi_type", "system", "System"),
    ("vdi_type", "user", "User"),
    ("vm_power_state", "Halted", "halted"),
    ("vm_power_state", "Paused", "paused"),
    ("vm_power_state", "Running", "running"),
    ("vm_power_state", "Suspended", "suspended"),
];

/// Returns the classes of the references in a type whose records can be listed.
pub(crate) fn classes_in(ty: &Type) -> Vec<&'static str> {
    match ty {
        Type::Ref(name) if is_listed(name) => vec![name],
        Type::Set(of) => classes_in(of),
        Type::Map(key, value) => classes_in(key).into_iter().chain(classes_in(value)).collect(),
        _ => Vec::new(),
    }
}

fn is_listed(name: &str) -> bool {
    class(name).is_some_and(|class| class.listed)
}

/// Returns the text of a value; empty if the record does not have it.
pub(crate) fn text(value: Option<&Value>, ty: &Type, tables: &Tables) -> String {
    let Some(value) = value.map(Value::plain) else { return String::new() };
    match (value, ty) {
        (Value::Str(text), Type::Ref(class)) => referred(text, class, tables).into_owned(),
        (Value::Str(text), Type::Enum(of)) => shown(text, of).to_owned(),
        (Value::Str(text), _) => text.clone(),
        (Value::Int(number), _) => number.to_string(),
        (Value::Float(number), _) => format!("{number:.3}"),
        (Value::Bool(yes), _) => yes.to_string(),
        (Value::Date(date), _) => date.to_string(),
        (Value::Set(_), _) => {
            let members = members(Some(value), ty, tables).into_iter().map(|(member, _)| member);
            members.collect::<Vec<_>>().join(BETWEEN)
        }
        (Value::Map(_), _) => {
            let members = members(Some(value), ty, tables).into_iter();
            let members = members.map(|(key, value)| format!("{key}: {value}"));
            members.collect::<Vec<_>>().join(BETWEEN)
        }
        (Value::Null | Value::Encoded(_), _) => String::new(),
    }
}

/// Returns the members of a map with their texts, or those of a set with empty texts.
pub(crate) fn members(value: Option<&Value>, ty: &Type, tables: &Tables) -> Vec<(String, String)> {
    match (value.map(Value::plain), ty) {
        (Some(Value::Set(values)), Type::Set(of)) => {
            values.iter().map(|one| (text(Some(one), of, tables), String::new())).collect()
        }
        (Some(Value::Map(members)), Type::Map(key, of)) => {
            let key_text = |name: &str| match **key {
                Type::Ref(class) => referred(name, class, tables).into_owned(),
                _ => name.to_owned(),
            };
            let member =
                |(name, value): (&String, &Value)| (key_text(name), text(Some(value), of, tables));
            members.iter().map(member).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the UUID of the referenced record.
fn referred<'a>(reference: &'a str, class: &str, tables: &'a Tables) -> Cow<'a, str> {
    if reference.is_empty() || reference == NULL_REF {
        return Cow::Borrowed(NOTHING);
    }
    match tables.record(class, reference) {
        Some(record) => Cow::Borrowed(record.text("uuid")),
        None if is_listed(class) => Cow::Borrowed(NOT_THERE),
        None => Cow::Borrowed(reference),
    }
}

fn shown<'a>(word: &'a str, of: &Enum) -> &'a str {
    let entry = SHOWN.iter().find(|(name, on_wire, _)| *name == of.name && *on_wire == word);
    entry.map_or(word, |(_, _, shown)| shown)
}

/// Parses the value of `name` from text. References are UUIDs.
pub(crate) fn parse(
    xe: &mut XeSession,
    name: &str,
    typed: &str,
    ty: &Type,
) -> Result<Value, XeError> {
    if let Type::Ref(class) = ty {
        let none = typed.is_empty() || typed == NOTHING || typed == NULL_REF;
        return if none { Ok(ty.zero()) } else { xe.by_uuid(class, typed) };
    }
    if let Type::Set(of) = ty {
        let members = typed.split(',').map(str::trim).filter(|member| !member.is_empty());
        let members: Result<_, _> = members.map(|one| parse(xe, name, one, of)).collect();
        return members.map(Value::Set);
    }
    plain(typed, ty).ok_or_else(|| XeError::error(expectation(name, typed, ty)))
}

fn plain(typed: &str, ty: &Type) -> Option<Value> {
    match ty {
        Type::Str => Some(Value::text(typed)),
        Type::Bool => parse::flag(typed).map(Value::Bool),
        Type::Int => {
            let negative = || typed.parse().ok();
            parse::size(typed).or_else(negative).map(Value::Int)
        }
        Type::Float => typed.parse().ok().map(Value::Float),
        Type::Enum(of) => {
            let entry = SHOWN
                .iter()
                .find(|(name, _, shown)| *name == of.name && shown.eq_ignore_ascii_case(typed));
            let word = entry.map_or(typed, |(_, on_wire, _)| on_wire);
            coerce::coerce(Value::text(word), ty, "").ok()
        }
        Type::Date => coerce::coerce(Value::text(typed), ty, "").ok(),
        _ => None,
    }
}

fn expectation(name: &str, typed: &str, ty: &Type) -> String {
    let expected = match ty {
        Type::Bool => "true or false".to_owned(),
        Type::Int => "a whole number, with KiB, MiB, GiB or TiB or without".to_owned(),
        Type::Float => "a number".to_owned(),
        Type::Date => "a moment such as 20261121T20:00:00Z".to_owned(),
        Type::Enum(of) => format!("one of {}", of.words.join(", ")),
        _ => return format!("'{name}' is a map: use {name}:key=value"),
    };
    format!("'{name}' is {expected}, and not '{typed}'")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use xenapi::Date;
    use xenapi::table::enums;

    use super::*;

    fn rendered(value: &Value, ty: &Type) -> String {
        text(Some(value), ty, &Tables::default())
    }

    #[test]
    fn values_as_they_are_read() {
        let words = Value::Set(vec![Value::text("start"), Value::text("clone")]);
        let pairs = BTreeMap::from([
            ("b".to_owned(), Value::text("2")),
            ("a".to_owned(), Value::text("x: y")),
        ]);
        const PAIRS: Type = Type::Map(&Type::Str, &Type::Str);
        for (value, ty, shown) in [
            (Value::text("a\nb"), Type::Str, "a\nb"),
            (Value::Int(-1), Type::Int, "-1"),
            (Value::Float(0.5), Type::Float, "0.500"),
            (Value::Bool(true), Type::Bool, "true"),
            (Value::Date(Date(0)), Type::Date, "19700101T00:00:00Z"),
            (Value::text("Running"), Type::Enum(&enums::VM_POWER_STATE), "running"),
            (Value::text("user"), Type::Enum(&enums::VDI_TYPE), "User"),
            (Value::text("RW"), Type::Enum(&enums::VBD_MODE), "RW"),
            (words, Type::Set(&Type::Str), "start; clone"),
            (Value::Map(pairs), PAIRS, "a: x: y; b: 2"),
            (Value::Set(vec![]), Type::Set(&Type::Str), ""),
            (Value::text(NULL_REF), Type::Ref("VM"), NOTHING),
            (Value::text("OpaqueRef:x"), Type::Ref("VM"), NOT_THERE),
            // A class without known records.
            (Value::text("OpaqueRef:x"), Type::Ref("VGPU"), "OpaqueRef:x"),
        ] {
            assert_eq!(rendered(&value, &ty), shown);
        }
        assert_eq!(text(None, &Type::Int, &Tables::default()), "");
    }

    #[test]
    fn every_word_that_is_shown_is_one() {
        let all = xenapi::table::classes().iter().flat_map(|class| class.fields);
        let mut found = std::collections::BTreeSet::new();
        for field in all {
            if let Type::Enum(of) = field.ty {
                found.extend(of.words.iter().map(|word| (of.name, *word)));
            }
        }
        for (name, word, _) in SHOWN {
            assert!(found.contains(&(*name, *word)), "{name} {word}");
        }
    }

    #[test]
    fn values_as_they_are_typed() {
        for (typed, ty, value) in [
            ("a", Type::Str, Value::text("a")),
            ("2GiB", Type::Int, Value::Int(2 << 30)),
            ("-1", Type::Int, Value::Int(-1)),
            ("yes", Type::Bool, Value::Bool(true)),
            ("0.5", Type::Float, Value::Float(0.5)),
            ("restart", Type::Enum(&enums::ON_NORMAL_EXIT), Value::text("restart")),
            ("Restart", Type::Enum(&enums::ON_NORMAL_EXIT), Value::text("restart")),
            ("halted", Type::Enum(&enums::VM_POWER_STATE), Value::text("Halted")),
            (
                "core dump and restart",
                Type::Enum(&enums::ON_CRASH_BEHAVIOUR),
                Value::text("coredump_and_restart"),
            ),
            ("19700101T00:00:00Z", Type::Date, Value::Date(Date(0))),
        ] {
            assert_eq!(plain(typed, &ty), Some(value), "{typed}");
        }
        for (typed, ty, expected) in [
            ("x", Type::Int, "whole number"),
            ("x", Type::Bool, "true or false"),
            ("x", Type::Float, "a number"),
            ("x", Type::Date, "a moment"),
            ("x", Type::Enum(&enums::VBD_MODE), "one of RO, RW, and not 'x'"),
            ("x", Type::Map(&Type::Str, &Type::Str), "use n:key=value"),
        ] {
            assert_eq!(plain(typed, &ty), None);
            assert!(expectation("n", typed, &ty).contains(expected), "{expected}");
        }
    }
}
