//! Guests that end on their own or by request, also while no daemon runs.

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
    let machine = world.sector_guest("itself");
    let vm = machine.reference.clone();
    let set = |world: &mut World, after: &str, what: &str| {
        world.call(&format!("VM.set_actions_after_{after}"), &with(&vm, [Value::text(what)]));
    };
    world.call("VM.start", &start(&machine.reference));
    let mut guest = world.sector_line(&machine);
    guest.write(3, b'k').unwrap();

    let first = world.domid(&machine);
    guest.reboot().unwrap();
    world.until_again(&machine, first);
    let mut guest = world.sector_line(&machine);
    assert_eq!(guest.read(3).unwrap(), b'k');
    assert_eq!(world.messages(&machine), ["VM_REBOOTED"]);

    set(&mut world, "shutdown", "restart");
    set(&mut world, "reboot", "destroy");
    let second = world.domid(&machine);
    guest.power_off().unwrap();
    world.until_again(&machine, second);
    let guest = world.sector_line(&machine);
    assert_eq!(world.messages(&machine), ["VM_REBOOTED", "VM_SHUTDOWN"]);
    guest.reboot().unwrap();
    world.until_power(&machine, "Halted");

    // The guest ends while no daemon runs. The next one handles it.
    set(&mut world, "shutdown", "destroy");
    world.call("VM.start", &start(&machine.reference));
    let guest = world.sector_line(&machine);
    world.daemon.process.kill().unwrap();
    guest.power_off().unwrap();
    world.daemon.start_again().unwrap();
    world.client = world.daemon.client().unwrap();
    world.until_power(&machine, "Halted");
    let expected = ["VM_REBOOTED", "VM_REBOOTED", "VM_SHUTDOWN", "VM_SHUTDOWN"];
    world.until("what is told", |world| world.messages(&machine) == expected);
    assert_eq!(world.daemon.leftovers(), Vec::<String>::new());
    assert_eq!(machine.stored(3), "k");
}

/// The stopped guest waits for the daemon, which carries out the configured action.
#[test]
fn a_reboot_while_nobody_looks_gets_its_domain_later() {
    let mut world = World::new();
    let machine = world.sector_guest("unseen");
    world.call("VM.start", &start(&machine.reference));
    let mut guest = world.sector_line(&machine);
    guest.write(7, b'k').unwrap();

    let first = world.domid(&machine);
    world.daemon.process.kill().unwrap();
    guest.reboot().unwrap();
    until_it_stands(&world, &machine);
    world.daemon.start_again().unwrap();
    world.client = world.daemon.client().unwrap();
    world.until_again(&machine, first);
    let mut guest = world.sector_line(&machine);
    assert_eq!(guest.read(7).unwrap(), b'k');
    assert_eq!(world.messages(&machine), ["VM_REBOOTED"]);

    // A daemon exists but is stopped by a signal.
    let second = world.domid(&machine);
    world.daemon.process.signal(Signal::STOP).unwrap();
    guest.reboot().unwrap();
    until_it_stands(&world, &machine);
    world.daemon.process.signal(Signal::CONT).unwrap();
    world.until_again(&machine, second);
    let guest = world.sector_line(&machine);
    assert_eq!(world.messages(&machine), ["VM_REBOOTED"; 2]);

    let halt = with(&machine.reference, [Value::text("destroy")]);
    world.call("VM.set_actions_after_reboot", &halt);
    world.daemon.process.kill().unwrap();
    guest.reboot().unwrap();
    until_it_stands(&world, &machine);
    world.daemon.start_again().unwrap();
    world.client = world.daemon.client().unwrap();
    world.until_power(&machine, "Halted");
    world.until("an end of all", |world| world.is_quiet(&machine));
    assert_eq!(world.messages(&machine), ["VM_REBOOTED"; 3]);
    assert_eq!(world.daemon.leftovers(), Vec::<String>::new());
    assert_eq!(machine.stored(7), "k");
}

/// Waits until QEMU reports that the guest has ended.
fn until_it_stands(world: &World, machine: &Machine) {
    let log = world.daemon.dir().join("run/vm").join(&machine.uuid).join("trace");
    eventually("the guest's end", || fs::read_to_string(&log).unwrap().contains("(shutdown)"));
}

/// The guest gets the request again, or has ended meanwhile. Neither counts as the guest's own
/// exit.
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

/// Begins an operation, and kills the daemon as soon as the operation is under way and on disk. An
/// operation killed earlier never happened.
fn cut(world: &mut World, method: &str, machine: &str) {
    let pending_call = world.client.begin(method, &of(machine)).unwrap();
    world.until("its beginning", |world| {
        world.record("VM", machine).pairs("other_config").contains_key("owed_operation")
    });
    // The answer to a change implies that all earlier changes are stored.
    world.call("VM.set_name_description", &with(machine, [Value::text(method)]));
    world.killed();
    match world.client.end(pending_call, PATIENCE) {
        Err(ClientError::Api(error)) => assert_eq!(error.code, "INTERNAL_ERROR", "{error}"),
        other => panic!("{other:?}"),
    }
}
