//! Guests that end, by themselves and because somebody asked, also while no daemon is there.

use std::fs;

use rustix::process::Signal;
use testkit::process::eventually;
use xenapi::Value;
use xenapi::client::ClientError;

use super::records::{of, start, with};
use super::world::{Machine, PATIENCE, World};

#[test]
fn what_a_guest_does_itself_gets_what_is_set_for_it() {
    let mut world = World::new();
    let machine = world.guest("itself");
    let vm = machine.reference.clone();
    let set = |world: &mut World, after: &str, what: &str| {
        world.call(&format!("VM.set_actions_after_{after}"), &with(&vm, [Value::text(what)]));
    };
    world.call("VM.start", &start(&machine.reference));
    let mut shell = world.shell(&machine);
    machine.write(&mut shell, 3, "kept");

    let first = world.domid(&machine);
    shell.last("reboot", PATIENCE).unwrap();
    world.until_again(&machine, first);
    let mut shell = world.shell(&machine);
    assert_eq!(machine.read(&mut shell, 3), "kept");
    assert_eq!(world.messages(&machine), ["VM_REBOOTED"]);

    set(&mut world, "shutdown", "restart");
    set(&mut world, "reboot", "destroy");
    let second = world.domid(&machine);
    shell.last("poweroff", PATIENCE).unwrap();
    world.until_again(&machine, second);
    let shell = world.shell(&machine);
    assert_eq!(world.messages(&machine), ["VM_REBOOTED", "VM_SHUTDOWN"]);
    shell.last("reboot", PATIENCE).unwrap();
    world.until_power(&machine, "Halted");

    // While no daemon is there: the next one does it.
    set(&mut world, "shutdown", "destroy");
    world.call("VM.start", &start(&machine.reference));
    let shell = world.shell(&machine);
    world.daemon.process.kill().unwrap();
    shell.last("poweroff", PATIENCE).unwrap();
    world.daemon.start_again().unwrap();
    world.client = world.daemon.client().unwrap();
    world.until_power(&machine, "Halted");
    let told = ["VM_REBOOTED", "VM_SHUTDOWN", "VM_REBOOTED", "VM_SHUTDOWN"];
    world.until("what is told", |world| world.messages(&machine) == told);
    assert_eq!(world.daemon.leftovers(), Vec::<String>::new());
    assert_eq!(machine.stored(3), "kept");
}

/// Its guest stands until somebody looks, who gives the machine what is set for a reboot.
#[test]
fn a_reboot_while_nobody_looks_gets_its_domain_later() {
    let mut world = World::new();
    let machine = world.guest("unseen");
    world.call("VM.start", &start(&machine.reference));
    let mut shell = world.shell(&machine);
    machine.write(&mut shell, 7, "kept");

    let first = world.domid(&machine);
    world.daemon.process.kill().unwrap();
    shell.last("reboot", PATIENCE).unwrap();
    until_it_stands(&world, &machine);
    world.daemon.start_again().unwrap();
    world.client = world.daemon.client().unwrap();
    world.until_again(&machine, first);
    let mut shell = world.shell(&machine);
    assert_eq!(machine.read(&mut shell, 7), "kept");
    assert_eq!(world.messages(&machine), ["VM_REBOOTED"]);

    // There is one, which is held up.
    let second = world.domid(&machine);
    world.daemon.process.signal(Signal::STOP).unwrap();
    shell.last("reboot", PATIENCE).unwrap();
    until_it_stands(&world, &machine);
    world.daemon.process.signal(Signal::CONT).unwrap();
    world.until_again(&machine, second);
    let shell = world.shell(&machine);
    assert_eq!(world.messages(&machine), ["VM_REBOOTED"; 2]);

    let halt = with(&machine.reference, [Value::text("destroy")]);
    world.call("VM.set_actions_after_reboot", &halt);
    world.daemon.process.kill().unwrap();
    shell.last("reboot", PATIENCE).unwrap();
    until_it_stands(&world, &machine);
    world.daemon.start_again().unwrap();
    world.client = world.daemon.client().unwrap();
    world.until_power(&machine, "Halted");
    world.until("an end of all", |world| world.is_quiet(&machine));
    assert_eq!(world.messages(&machine), ["VM_REBOOTED"; 3]);
    assert_eq!(world.daemon.leftovers(), Vec::<String>::new());
    assert_eq!(machine.stored(7), "kept");
}

/// Waits until the machine's QEMU says that its guest has ended.
fn until_it_stands(world: &World, machine: &Machine) {
    let said = world.daemon.dir().join("run/vm").join(&machine.uuid).join("stderr");
    eventually("the guest's end", || fs::read_to_string(&said).unwrap().contains("(shutdown)"));
}

/// Its guest is asked once more, or has ended meanwhile; it is no guest's own end.
#[test]
fn a_shutdown_and_a_reboot_go_on_after_the_daemons_death() {
    let mut world = World::new();
    let machine = world.guest("asked");
    for (after, what) in [("shutdown", "restart"), ("reboot", "destroy")] {
        let set = with(&machine.reference, [Value::text(what)]);
        world.call(&format!("VM.set_actions_after_{after}"), &set);
    }
    world.call("VM.start", &start(&machine.reference));
    let mut shell = world.shell(&machine);
    machine.write(&mut shell, 5, "flushed");
    let first = world.domid(&machine);

    cut(&mut world, "VM.clean_reboot", &machine.reference);
    world.until_again(&machine, first);
    world.until("an end of all", |world| world.is_quiet(&machine));
    let mut shell = world.shell(&machine);
    assert_eq!(machine.read(&mut shell, 5), "flushed");

    cut(&mut world, "VM.clean_shutdown", &machine.reference);
    world.until_power(&machine, "Halted");
    world.until("an end of all", |world| world.is_quiet(&machine));
    assert_eq!(machine.stored(5), "flushed");
    assert!(!world.lives(&machine));
    assert_eq!(world.daemon.leftovers(), Vec::<String>::new());
    assert_eq!(world.messages(&machine), Vec::<String>::new(), "nobody has crashed");
}

/// Begins an operation, and kills the daemon as soon as it is under way and on disk: what it dies
/// with before that was never done.
fn cut(world: &mut World, method: &str, machine: &str) {
    let pending_call = world.client.begin(method, &of(machine)).unwrap();
    world.until("its beginning", |world| {
        world.record("VM", machine).pairs("other_config").contains_key("owed_operation")
    });
    // An answer to a change comes when all before it is stored.
    world.call("VM.set_name_description", &with(machine, [Value::text(method)]));
    world.killed();
    match world.client.end(pending_call, PATIENCE) {
        Err(ClientError::Api(error)) => assert_eq!(error.code, "INTERNAL_ERROR", "{error}"),
        other => panic!("{other:?}"),
    }
}
