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
fn a_parameter_that_a_command_does_not_have_is_an_error() {
    let check = |line: &str| {
        let mut words = line.split(' ');
        let command = find(words.next().unwrap()).unwrap();
        let pair = |word: &str| {
            let (name, value) = word.split_once('=').unwrap();
            (name.to_owned(), value.to_owned())
        };
        let checked = command.check(&Params::new(words.map(pair).collect()));
        checked.map_err(|error| error.errors())
    };
    for known in [
        "vdi-export uuid=1 filename=a format=vhd username=root minimal=true",
        "sr-create name-label=a type=dir device-config:location=/a device-config-mode=x",
        "vm-start vm=a whatever=b",
        "event-wait class=vm uuid=1",
        "vm-param-set uuid=1 name-label=a",
        "vm-param-add uuid=1 param-name=other-config key=value",
    ] {
        assert_eq!(check(known), Ok(()), "{known}");
    }
    for (unknown, name) in [
        ("vdi-export uuid=1 filename=a fromat=vhd", "fromat"),
        ("vdi-create name-label=a sr-uuid=1 virtual-size=1 sm-configtype=vhd", "sm-configtype"),
        ("vm-param-get uuid=1 param-name=a kye=b", "kye"),
        ("sr-scan uuid=1 deep=true", "deep"),
    ] {
        let error = check(unknown).unwrap_err();
        assert!(error.contains(&format!("'{name}' is no parameter")), "{unknown}: {error}");
    }
    let missing = check("vdi-export uuid=1 fromat=vhd").unwrap_err();
    assert!(missing.contains("filename") && missing.contains("'fromat'"), "{missing}");
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
