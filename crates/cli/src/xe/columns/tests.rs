use std::collections::{BTreeMap, BTreeSet};

use xenapi::table::classes;
use xenapi::{NULL_REF, Value};

use super::*;
use crate::object_types::KINDS;

fn class_of(name: &str) -> &'static Class {
    class(name).unwrap()
}

fn column(class: &str, name: &str) -> Column {
    of(class_of(class)).into_iter().find(|column| column.is(name)).unwrap()
}

fn record(fields: &[(&str, Value)]) -> Record {
    let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
    Record::of(Value::Map(fields.collect())).unwrap()
}

#[test]
fn every_class_has_its_columns_once_and_the_uuid_first() {
    for class in classes().iter().filter(|class| class.listed) {
        let columns = of(class);
        assert_eq!(columns[0].name, "uuid", "{}", class.name);
        let names: BTreeSet<_> = columns.iter().map(|column| column.name.to_string()).collect();
        assert_eq!(names.len(), columns.len(), "{}: {names:?}", class.name);
    }
}

#[test]
fn what_is_renamed_is_there() {
    for (class, field, columns) in RENAMED {
        let found = of(class_of(class)).into_iter().filter(|column| column.field == *field);
        assert_eq!(found.count(), columns.len(), "{class}.{field}");
    }
    let fields: BTreeSet<_> =
        classes().iter().flat_map(|class| class.fields).map(|field| field.name).collect();
    for name in UNDERSCORED {
        assert!(fields.contains(name), "{name}");
    }
}

#[test]
fn headings_say_who_may_write() {
    for (class, name, heading) in [
        ("VM", "uuid", "uuid ( RO)"),
        ("VM", "name-label", "name-label ( RW)"),
        ("VM", "power-state", "power-state ( RO)"),
        ("VM", "memory-static-max", "memory-static-max ( RW)"),
        ("VM", "other-config", "other-config (MRW)"),
        ("VM", "os-version", "os-version (MRO)"),
        ("VM", "tags", "tags (SRW)"),
        ("VM", "allowed-operations", "allowed-operations (SRO)"),
        ("VM", "current-operations", "current-operations (SRO)"),
        ("VM", "allowed-VBD-devices", "allowed-VBD-devices (SRO)"),
        ("VDI", "name-label", "name-label ( RW)"),
        ("VBD", "qos-algorithm-params", "qos_algorithm_params (MRW)"),
        ("SR", "host", "host ( RO)"),
        ("PIF", "ip-configuration-mode", "IP-configuration-mode ( RO)"),
    ] {
        if name == "ip-configuration-mode" {
            assert!(!of(class_of(class)).iter().any(|column| column.is(name)), "case matters");
            continue;
        }
        assert_eq!(column(class, name).heading(), heading);
    }
}

#[test]
fn what_a_record_refers_to() {
    let vm = record(&[("uuid", Value::text("vm1")), ("name_label", Value::text("web"))]);
    let tables = Tables::default().with("VM", BTreeMap::from([("OpaqueRef:vm".to_owned(), vm)]));
    let vbd = |reference: &str| record(&[("VM", Value::text(reference))]);
    let shown = |reference: &str| {
        ["vm-uuid", "vm-name-label"].map(|name| column("VBD", name).text(&vbd(reference), &tables))
    };
    assert_eq!(shown("OpaqueRef:vm"), ["vm1", "web"]);
    assert_eq!(shown(NULL_REF), ["<not in database>"; 2]);
    assert_eq!(shown("OpaqueRef:gone"), ["<invalid reference>"; 2]);
    let needs = column("VBD", "vm-name-label").needs();
    assert_eq!(needs, ["VM"]);
}

#[test]
fn storage_has_the_host_that_is_connected() {
    let tables = Tables::default()
        .with(
            "PBD",
            BTreeMap::from([(
                "OpaqueRef:p".to_owned(),
                record(&[("host", Value::text("OpaqueRef:h"))]),
            )]),
        )
        .with(
            "host",
            BTreeMap::from([(
                "OpaqueRef:h".to_owned(),
                record(&[("name_label", Value::text("one"))]),
            )]),
        );
    let shown = |connections: &[&str]| {
        let set = connections.iter().map(|one| Value::text(*one)).collect();
        column("SR", "host").text(&record(&[("PBDs", Value::Set(set))]), &tables)
    };
    assert_eq!(shown(&["OpaqueRef:p"]), "one");
    assert_eq!(shown(&[]), "<not in database>");
    assert_eq!(shown(&["OpaqueRef:p", "OpaqueRef:q"]), "<shared>");
}

#[test]
fn operations_under_way_are_told_without_their_tasks() {
    let operations =
        [("OpaqueRef:a".to_owned(), Value::text("start")), ("b".to_owned(), Value::text("pause"))];
    let vm = record(&[("current_operations", Value::Map(operations.into()))]);
    let column = column("VM", "current-operations");
    assert_eq!(column.text(&vm, &Tables::default()), "start; pause");
    let members = column.members(&vm, &Tables::default());
    assert_eq!(members.len(), 2);
}

#[test]
fn a_list_reads_few_classes() {
    // `vm-list` needs only one call, for the machines.
    let vm = KINDS.iter().find(|kind| kind.name == "vm").unwrap();
    for name in vm.shown {
        assert!(column("VM", name).needs().is_empty(), "{name}");
    }
}
