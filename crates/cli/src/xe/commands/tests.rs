use std::collections::BTreeSet;

use xenapi::table::resolve::resolve;

use super::*;

#[test]
fn every_command_is_there_once_and_is_found() {
    let all = all();
    let names: BTreeSet<_> = all.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(names.len(), all.len());
    for (name, _) in &all {
        let resolved_command = find(name).unwrap_or_else(|| panic!("{name}"));
        assert!(
            !resolved_command.help().is_empty() && resolved_command.help().ends_with('.'),
            "{name}"
        );
    }
    for none in ["", "vm", "vm-", "-list", "vm-lists", "nothing-list", "task-param-listen"] {
        assert!(find(none).is_none(), "{none}");
    }
    assert!(all.len() > 200, "{}", all.len());
}

#[test]
fn what_a_command_calls_is_there() {
    for command in WRITTEN.iter().flat_map(|commands| commands.iter()) {
        let method = match command.run {
            Run::OnUuid(method) => {
                assert_eq!(command.required, ["uuid"], "{}", command.name);
                method
            }
            Run::OnSelected(_, method) | Run::Naming(_, method) => method,
            Run::Own(_) => continue,
        };
        let (means, _) = resolve(method).unwrap_or_else(|| panic!("{method}"));
        let given = if matches!(command.run, Run::Naming(..)) { 2 } else { 1 };
        let params = means.params();
        let needed = params.iter().filter(|param| param.default.is_none()).count();
        assert_eq!(needed, given, "{method}");
    }
}

#[test]
fn a_verb_without_anything_to_do_is_no_command() {
    assert!(find("vm-param-set").is_some() && find("vm-param-add").is_some());
    assert!(find("message-list").is_some() && find("message-param-get").is_some());
    assert!(find("message-param-set").is_none() && find("message-param-add").is_none());
}

#[test]
fn a_uuid_is_one_of_the_class_of_its_command() {
    for (name, class) in [
        ("vbd-plug", "VBD"),
        ("vm-start", "VM"),
        ("vm-param-get", "VM"),
        ("template-param-get", "VM"),
        ("sr-scan", "SR"),
        ("vdi-create", "VDI"),
        ("host-disable", "host"),
    ] {
        assert_eq!(find(name).unwrap().class(), Some(class), "{name}");
    }
}
