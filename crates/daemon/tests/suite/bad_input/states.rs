//! Operations in wrong power states, and two concurrent operations on one VM.

use xenapi::Value;

use super::{World, refused, row};

const STATES: [&str; 3] = ["halted", "paused", "running"];

/// Operations, their further parameters, and the power states that allow them.
fn operations() -> Vec<(&'static str, Vec<Value>, &'static str)> {
    let no = || Value::Bool(false);
    vec![
        ("start", vec![no(), no()], "halted"),
        ("clone", vec![Value::text("c")], "halted"),
        ("set_VCPUs_max", vec![Value::Int(2)], "halted"),
        ("pause", vec![], "running"),
        ("unpause", vec![], "paused"),
        ("suspend", vec![], "running"),
        ("clean_shutdown", vec![], "running"),
        ("clean_reboot", vec![], "running"),
        ("hard_reboot", vec![], "paused, running"),
        ("hard_shutdown", vec![], "paused, suspended, running"),
        ("shutdown", vec![], "paused, suspended, running"),
        ("destroy", vec![], "halted, suspended"),
    ]
}

#[test]
fn what_is_not_done_in_a_state_names_those_in_which_it_is() {
    let mut world = World::new();
    let machines = STATES.map(|state| (state, world.machine(state)));
    for (state, vm) in &machines {
        let start = [Value::text(vm.as_str()), Value::Bool(*state == "paused"), Value::Bool(false)];
        if *state != "halted" {
            world.call("VM.start", &start);
        }
    }
    let mut rows = Vec::new();
    for (operation, more, states) in operations() {
        for (state, vm) in &machines {
            if states.split(", ").any(|one| one == *state) {
                continue;
            }
            let expected = ["VM_BAD_POWER_STATE", vm, states, state];
            let methods = [format!("VM.{operation}"), format!("Async.VM.{operation}")];
            // A setter checks the state only when it runs.
            let all = if operation.starts_with("set_") { 1 } else { methods.len() };
            for method in methods.into_iter().take(all) {
                let mut one = row(&method, [Value::text(vm.as_str())], expected);
                one.params.extend_from_slice(&more);
                rows.push(one);
            }
        }
    }
    assert_eq!(rows.len(), 40);
    world.refuses(&rows);
    let running = &machines[2].1;
    world.refuses(&[row(
        "VM.suspend",
        [Value::text(running.as_str())],
        ["NOT_IMPLEMENTED", "VM.suspend"],
    )]);
}

#[test]
fn of_two_that_want_the_same_one_has_it_and_the_other_is_told() {
    const AT_ONCE: usize = 4;
    let mut world = World::new();
    let vm = world.machine("m");
    for (method, more, states) in [
        ("VM.start", vec![Value::Bool(false); 2], ["halted", "running"]),
        ("VM.hard_shutdown", vec![], ["paused, suspended, running", "halted"]),
        ("VM.destroy", vec![], ["", ""]),
    ] {
        let mut params = vec![Value::text(vm.as_str())];
        params.extend(more);
        let callers: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                let (mut client, params) = (world.daemon.client().unwrap(), params.clone());
                std::thread::spawn(move || client.call(method, &params).map_err(|e| e.to_string()))
            })
            .collect();
        let ended: Vec<_> = callers.into_iter().map(|one| one.join().unwrap()).collect();
        assert_eq!(ended.iter().filter(|one| one.is_ok()).count(), 1, "{method}: {ended:?}");
        let late = refused(&mut world.root, method, &params);
        let expected = match states {
            ["", ""] => vec!["HANDLE_INVALID", "VM", &vm],
            [expected, actual] => vec!["VM_BAD_POWER_STATE", &vm, expected, actual],
        };
        assert_eq!(late, expected);
        let code = expected[0];
        let refused = ended.iter().filter_map(|one| one.as_ref().err());
        assert!(refused.into_iter().all(|why| why.contains(code)), "{method}: {ended:?}");
    }
}

#[test]
fn what_somebody_has_forbidden_is_refused_by_its_reason() {
    let mut world = World::new();
    let vm = world.machine("m");
    let it = || Value::text(vm.as_str());
    let why = "the audit is not over";
    world.call("VM.add_to_blocked_operations", &[it(), Value::text("start"), Value::text(why)]);
    let start = || [it(), Value::Bool(false), Value::Bool(false)];
    world.refuses(&[
        row("VM.start", start(), ["OPERATION_BLOCKED", &vm, why]),
        row("Async.VM.start", start(), ["OPERATION_BLOCKED", &vm, why]),
    ]);
    let host = Value::text(world.first("host"));
    world.call("VM.remove_from_blocked_operations", &[it(), Value::text("start")]);
    world.call("host.disable", std::slice::from_ref(&host));
    let disabled = ["HOST_DISABLED".to_owned(), super::text(&host).to_owned()];
    assert_eq!(world.refused("VM.start", &start()), disabled);
    world.call("host.enable", &[host]);
    let template = world.named("VM", "Other install media");
    let no = || Value::Bool(false);
    world.refuses(&[row(
        "VM.start",
        [Value::text(template.as_str()), no(), no()],
        ["VM_IS_TEMPLATE", &template],
    )]);
}
