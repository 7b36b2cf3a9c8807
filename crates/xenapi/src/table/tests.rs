use std::collections::BTreeSet;

use super::resolve::{Method, methods, resolve, written};
use super::*;
use crate::Value;
use crate::coerce::fits;

/// Classes that fields refer to but the table omits. References to them are null.
const ABSENT: [&str; 22] = [
    "Certificate",
    "DR_task",
    "Feature",
    "GPU_group",
    "PCI",
    "PGPU",
    "PUSB",
    "Repository",
    "VGPU",
    "VMPP",
    "VMSS",
    "VM_appliance",
    "VTPM",
    "VUSB",
    "crashdump",
    "host_crashdump",
    "host_patch",
    "network_sriov",
    "pool_patch",
    "pool_update",
    "tunnel",
    "user",
];

/// Result records that belong to no class.
const SHAPES: [&str; 5] =
    ["<class>", "data_source", "event_batch", "probe_result", "vdi_nbd_server_info"];

fn fields() -> impl Iterator<Item = (&'static Class, &'static Field)> {
    classes().iter().flat_map(|class| class.fields.iter().map(move |field| (*class, field)))
}

/// Returns all types of the table, each with its place.
fn types() -> Vec<(String, Type)> {
    let mut types: Vec<_> = fields()
        .map(|(class, field)| (format!("{}.{}", class.name, field.name), field.ty))
        .collect();
    for class in classes() {
        for message in class.messages {
            let name = format!("{}.{}", class.name, message.name);
            types.extend(message.params.iter().map(|param| (name.clone(), param.ty)));
            types.push((name, message.result));
        }
    }
    types
}

/// Returns the type and its nested types.
fn parts(ty: Type) -> Vec<Type> {
    let mut parts = match ty {
        Type::Set(inner) => parts(*inner),
        Type::Map(key, value) => [parts(*key), parts(*value)].concat(),
        _ => vec![],
    };
    parts.push(ty);
    parts
}

fn twice<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = BTreeSet::new();
    names.filter(|name| !seen.insert(*name)).collect()
}

#[test]
fn nothing_is_there_twice() {
    assert_eq!(twice(classes().iter().map(|class| class.name)), [""; 0]);
    assert_eq!(twice(enums::ALL.iter().map(|one| one.name)), [""; 0]);
    for class in classes() {
        assert_eq!(twice(class.fields.iter().map(|field| field.name)), [""; 0], "{}", class.name);
        assert_eq!(twice(class.messages.iter().map(|one| one.name)), [""; 0], "{}", class.name);
        for message in class.messages {
            let names = message.params.iter().map(|param| param.name);
            assert_eq!(twice(names), [""; 0], "{}.{}", class.name, message.name);
        }
    }
    for one in enums::ALL {
        assert_eq!(twice(one.words.iter().copied()), [""; 0], "{}", one.name);
        assert!(!one.words.is_empty(), "{}", one.name);
    }
}

#[test]
fn every_class_named_by_a_type_exists() {
    for (place, ty) in types() {
        for part in parts(ty) {
            match part {
                Type::Ref(name) => assert!(
                    class(name).is_some() || ABSENT.contains(&name),
                    "{place}: no class {name}"
                ),
                Type::Record(name) => assert!(
                    class(name).is_some() || SHAPES.contains(&name),
                    "{place}: no class {name}"
                ),
                _ => {}
            }
        }
    }
    assert!(ABSENT.iter().all(|name| class(name).is_none()), "a class is there and left out");
}

#[test]
fn every_enumeration_is_of_use() {
    let parts: Vec<_> = types().into_iter().flat_map(|(_, ty)| parts(ty)).collect();
    for one in enums::ALL {
        assert!(parts.contains(&Type::Enum(one)), "nothing holds {}", one.name);
    }
}

/// Checks that an enumeration has the same values as the type that implements it.
macro_rules! same_words {
    ($($words:ident $kind:ty),+ $(,)?) => {$(
        let names: Vec<_> = <$kind>::ALL.iter().map(|one| one.name()).collect();
        assert_eq!(enums::$words.words, names, "{}", enums::$words.name);
    )+};
}

#[test]
fn words_with_a_meaning_are_those_of_the_model() {
    same_words!(
        VM_POWER_STATE model::vm::PowerState,
        VM_OPERATIONS model::vm::VmOp,
        ON_NORMAL_EXIT model::vm::exits::OnExit,
        ON_CRASH_BEHAVIOUR model::vm::exits::OnCrash,
        VBD_OPERATIONS model::vbd::VbdOp,
        VBD_TYPE model::vbd::VbdKind,
        VBD_MODE model::vdi::automaton::Access,
        VDI_OPERATIONS model::vdi::VdiOp,
        VIF_OPERATIONS model::vif::VifOp,
        STORAGE_OPERATIONS model::sr::SrOp,
    );
}

#[test]
fn every_inverse_has_its_partner() {
    let mut partners = BTreeSet::new();
    for (from, field) in fields() {
        let Some((name, partner)) = field.inverse else { continue };
        let place = format!("{}.{}", from.name, field.name);
        let other = class(name).unwrap_or_else(|| panic!("{place}: no class {name}"));
        let found = other.field(partner).unwrap_or_else(|| panic!("{place}: no {name}.{partner}"));
        assert_eq!(found.1.ty, from.reference, "{place}: {name}.{partner} does not name it");
        assert_eq!(field.ty, Type::Set(&other.reference), "{place} does not gather {name}");
        assert_eq!(field.access, Access::RoRuntime, "{place} is not the database's alone");
        assert!(partners.insert((name, partner)), "{place}: {name}.{partner} is gathered twice");
    }
    assert_eq!(partners.len(), 20);
}

#[test]
fn every_default_fits_its_type() {
    for (class, field) in fields() {
        let value = field.initial();
        assert!(fits(&value, &field.ty), "{}.{}: {value:?}", class.name, field.name);
    }
    for class in classes() {
        for (message, param) in
            class.messages.iter().flat_map(|one| one.params.iter().map(move |p| (one, p)))
        {
            let value = param.default.map(|default_value| default_value.value(&param.ty));
            let fits = value.as_ref().is_none_or(|value| fits(value, &param.ty));
            assert!(fits, "{}.{} {}: {value:?}", class.name, message.name, param.name);
        }
    }
    let policy = vm::Field::actions_after_softreboot.into();
    assert_eq!(
        class("VM").unwrap().field_at(policy).unwrap().initial(),
        Value::text("soft_reboot")
    );
    let (_, licence) = class("host").unwrap().field("license_server").unwrap();
    assert!(matches!(licence.initial(), Value::Map(map) if map["port"] == Value::text("27000")));
    assert_eq!(Type::Void.zero(), Value::text(""));
}

#[test]
fn every_record_has_a_uuid_and_what_has_none_is_not_told() {
    for class in classes().iter().filter(|class| class.record_storage != RecordStorage::Nowhere) {
        assert_eq!(
            class.fields.first().map(|field| (field.name, field.ty)),
            Some(("uuid", Type::Str))
        );
        assert!(class.reads <= class.writes, "{}", class.name);
    }
    for class in classes().iter().filter(|class| class.record_storage == RecordStorage::Nowhere) {
        assert!(!class.listed && !class.events && class.constructor.is_none(), "{}", class.name);
    }
}

#[test]
fn every_comment_is_a_sentence() {
    for class in classes() {
        assert!(!class.doc.is_empty() && !class.doc.ends_with('.'), "{}", class.name);
        let fields = class.fields.iter().map(|field| (field.name, field.doc));
        for (name, doc) in fields.chain(class.messages.iter().map(|one| (one.name, one.doc))) {
            let begins = doc.starts_with(|letter: char| letter.is_ascii_uppercase());
            assert!(begins && doc.ends_with('.'), "{}.{name}: {doc:?}", class.name);
        }
    }
}

#[test]
fn a_number_names_a_field_of_its_own_class_only() {
    let vm = class("VM").unwrap();
    for (ix, field) in vm.numbers() {
        assert_eq!(vm.field(field.name).unwrap().0, ix);
        assert_eq!(vm.field_at(ix).unwrap().name, field.name);
    }
    let ix = FieldIx::from(vm::Field::name_label);
    assert_eq!((ix.class(), vm.field_at(ix).unwrap().name), ("VM", "name_label"));
    assert_eq!(FieldIx::from(vbd::Field::r#type), class("VBD").unwrap().field("type").unwrap().0);
    assert!(class("host").unwrap().field_at(ix).is_none());
    assert_eq!(vm.fields.get(ix.at()).unwrap().name, "name_label");
}

#[test]
fn every_call_that_is_told_means_something() {
    let all = methods();
    assert_eq!(twice(all.iter().map(String::as_str)), [""; 0]);
    for name in &all {
        let (method, asynchronous) = resolve(name).unwrap_or_else(|| panic!("{name}"));
        assert!(!asynchronous, "{name}");
        for param in method.params().iter() {
            assert_ne!(param.ty, Type::Void, "{name} takes nothing as {}", param.name);
        }
        let task = resolve(&format!("Async.{name}"));
        assert_eq!(
            task.is_some_and(|(_, asynchronous)| asynchronous),
            method.has_async(),
            "{name}"
        );
    }
    assert_eq!(all.last().map(String::as_str), Some("system.listMethods"));
    assert!(all.len() > 1_000, "{}", all.len());
}

#[test]
fn a_call_knows_its_own_name() {
    for name in methods() {
        let (method, _) = resolve(&name).unwrap();
        assert_eq!(method.name(), name);
    }
    let (method, asynchronous) = resolve("Async.VM.start").unwrap();
    assert_eq!((method.name().as_str(), asynchronous), ("VM.start", true));
}

#[test]
fn a_message_may_be_no_more_than_the_writing_of_a_field() {
    let written = |of: &str, what| written(class(of).unwrap(), what).map(|method| method.name());
    assert_eq!(written("VM", "set_order").as_deref(), Some("VM.set_order"));
    assert_eq!(written("VM", "add_to_NVRAM").as_deref(), Some("VM.add_to_NVRAM"));
    assert_eq!(written("VIF", "add_ipv4_allowed").as_deref(), Some("VIF.add_ipv4_allowed"));
    assert_eq!(written("VM", "add_order"), None, "a number has no members");
    assert_eq!(written("VM", "start"), None);
}

fn call(name: &str) -> (Vec<(&'static str, Type)>, Type, Role, MessageKind) {
    let (method, _) = resolve(name).unwrap_or_else(|| panic!("{name}"));
    let params = method.params().iter().map(|param| (param.name, param.ty)).collect();
    (params, method.result(), method.least(), method.kind())
}

#[test]
fn calls_follow_from_fields() {
    let (vm, net) = (("self", Type::Ref("VM")), ("self", Type::Ref("network")));
    let key = ("key", Type::Str);
    let cases = [
        ("VM.get_name_label", vec![vm], Type::Str, Role::ReadOnly),
        ("VM.set_name_label", vec![vm, ("value", Type::Str)], Type::Void, Role::VmAdmin),
        ("VM.set_affinity", vec![vm, ("value", Type::Ref("host"))], Type::Void, Role::VmPowerAdmin),
        ("VM.add_to_other_config", vec![vm, key, ("value", Type::Str)], Type::Void, Role::VmAdmin),
        ("VM.remove_from_other_config", vec![vm, key], Type::Void, Role::VmAdmin),
        ("VM.add_tags", vec![vm, ("value", Type::Str)], Type::Void, Role::VmOperator),
        ("VM.remove_tags", vec![vm, ("value", Type::Str)], Type::Void, Role::VmOperator),
        ("VM.get_record", vec![vm], Type::Record("VM"), Role::ReadOnly),
        ("network.set_MTU", vec![net, ("value", Type::Int)], Type::Void, Role::VmAdmin),
        ("network.set_name_label", vec![net, ("value", Type::Str)], Type::Void, Role::PoolOperator),
        ("secret.get_value", vec![("self", Type::Ref("secret"))], Type::Str, Role::PoolOperator),
    ];
    for (name, params, result, least) in cases {
        assert_eq!(call(name), (params, result, least, MessageKind::Short), "{name}");
    }
    let blocked = call("VM.add_to_blocked_operations").0;
    assert_eq!(blocked[1], ("key", Type::Enum(&enums::VM_OPERATIONS)));
}

#[test]
fn calls_follow_from_classes() {
    let vms = Type::Set(&Type::Ref("VM"));
    let records = Type::Map(&Type::Ref("VM"), &Type::Record("VM"));
    let cases = [
        ("VM.get_all", vec![], vms),
        ("VM.get_all_records", vec![], records),
        ("VM.get_all_records_where", vec![("expr", Type::Str)], records),
        ("VM.get_by_uuid", vec![("uuid", Type::Str)], Type::Ref("VM")),
        ("VM.get_by_name_label", vec![("label", Type::Str)], vms),
    ];
    for (name, params, result) in cases {
        assert_eq!(call(name), (params, result, Role::ReadOnly, MessageKind::Short), "{name}");
    }
    let args = vec![("args", Type::Record("VM"))];
    assert_eq!(call("VM.create"), (args, Type::Ref("VM"), Role::VmAdmin, MessageKind::Long));
    assert_eq!(call("VBD.destroy").3, MessageKind::Short);
}

#[test]
fn what_is_written_down_comes_first() {
    let (method, _) = resolve("VDI.set_name_label").unwrap();
    assert!(matches!(method, Method::Explicit(_, message) if message.kind == MessageKind::Long));
    assert_eq!(call("VLAN.create").0.len(), 3);
    let names: Vec<_> = call("VIF.move").0.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["self", "network"]);
}

#[test]
fn parameters_at_the_end_may_be_left_out() {
    let defaults = |name: &str| -> Vec<_> {
        let (method, _) = resolve(name).unwrap();
        method.params().iter().map(|param| param.default).collect()
    };
    let login = defaults("session.login_with_password");
    assert_eq!(login, [None, None, Some(DefaultValue::Zero), Some(DefaultValue::Zero)]);
    assert_eq!(defaults("VDI.introduce")[11], Some(DefaultValue::Yes));
}

#[test]
fn some_calls_answer_with_a_task() {
    for name in ["Async.VM.start", "Async.VBD.create", "Async.VDI.destroy", "Async.SR.create"] {
        let (method, asynchronous) = resolve(name).unwrap_or_else(|| panic!("{name}"));
        assert!(asynchronous && method.needs_session(), "{name}");
    }
    let never = [
        "Async.VM.get_name_label",
        "Async.VM.set_name_label",
        "Async.session.logout",
        "Async.task.cancel",
        "Async.event.from",
        "Async.system.listMethods",
        "Async.Async.VM.start",
    ];
    for name in never {
        assert!(resolve(name).is_none(), "{name}");
    }
}

#[test]
fn only_two_calls_need_no_session() {
    let open = |name: &&String| resolve(name).is_some_and(|(method, _)| !method.needs_session());
    let all = methods();
    let open: Vec<_> = all.iter().filter(open).collect();
    assert_eq!(open, ["session.login_with_password", "system.listMethods"]);
    assert_eq!(call("event.from").3, MessageKind::Waits);
}

#[test]
fn what_is_not_in_the_table_means_nothing() {
    let unknown = [
        "",
        ".",
        "VM",
        "VM.",
        "vm.start",
        "VM.Start",
        "VM.get_",
        "VM.get_nothing",
        "VM.set_power_state",
        "VM.set_uuid",
        "VM.add_to_tags",
        "VM.add_other_config",
        "VM.remove_from_tags",
        "VM.add_VBDs",
        "session.get_all",
        "event.get_record",
        "event.get_id",
        "auth.get_all",
        "VBD.get_by_name_label",
        "host.create",
        "VMPP.get_all",
        "system.listmethods",
    ];
    for name in unknown {
        assert!(resolve(name).is_none(), "{name}");
    }
}

#[test]
fn an_underscore_stands_for_the_dot() {
    for (name, is) in [
        ("event_from", "event.from"),
        ("VM_start", "VM.start"),
        ("Async.VM_start", "VM.start"),
        ("VM_get_name_label", "VM.get_name_label"),
        ("VM_metrics_get_all", "VM_metrics.get_all"),
        ("VM_guest_metrics_get_record", "VM_guest_metrics.get_record"),
        ("host_cpu_get_all_records", "host_cpu.get_all_records"),
    ] {
        assert_eq!(resolve(name).map(|(method, _)| method.name()).as_deref(), Some(is), "{name}");
    }
    for name in ["", "_", "VM", "VM_", "_start", "VMstart", "VM_fly", "VM_metrics.start"] {
        assert!(resolve(name).is_none(), "{name}");
    }
}
