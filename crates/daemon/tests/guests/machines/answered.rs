//! Answered changes survive a kill of the daemon, however soon it comes.

use xenapi::Value;

use super::records::{of, record, start, with};
use super::world::World;

#[test]
fn a_death_after_an_answer_loses_nothing() {
    let mut world = World::new();
    let machine = world.plain("answered");
    let vm = machine.reference.as_str();

    world.call("VM.set_name_label", &with(vm, [Value::text("another name")]));
    world.killed();
    assert_eq!(world.record("VM", vm).text("name_label"), "another name");

    let (slot, disk) = world.device(vm);
    world.killed();
    assert_eq!(world.record("VBD", &slot).text("VDI"), disk);

    world.call("VM.start", &start(vm));
    world.killed();
    let now = world.record("VM", vm);
    assert_eq!(now.text("power_state"), "Running");
    assert!(world.lives(&machine));
    assert!(world.record("VBD", &slot).flag("currently_attached"));
    let before = world.domid(&machine);

    for (method, power) in [("VM.pause", "Paused"), ("VM.unpause", "Running")] {
        world.call(method, &of(vm));
        world.killed();
        assert_eq!(world.power(&machine), power);
        assert_eq!(world.domid(&machine), before, "the same guest");
    }
    let limits = with(&slot, [record([("iops", Value::text("7"))])]);
    world.call("VBD.set_qos_algorithm_type", &with(&slot, [Value::text("ringway")]));
    world.call("VBD.set_qos_algorithm_params", &limits);
    world.killed();
    assert_eq!(world.record("VBD", &slot).pairs("qos_algorithm_params")["iops"], "7");

    world.call("VM.hard_reboot", &of(vm));
    world.killed();
    assert_eq!(world.power(&machine), "Running");
    assert_ne!(world.domid(&machine), before);

    world.call("VM.hard_shutdown", &of(vm));
    world.killed();
    assert_eq!(world.power(&machine), "Halted");
    assert!(!world.lives(&machine));
    assert_eq!(world.daemon.leftovers(), Vec::<String>::new());

    world.call("VBD.destroy", &of(&slot));
    world.call("VDI.destroy", &of(&disk));
    world.killed();
    for (class, gone) in [("VBD", &slot), ("VDI", &disk)] {
        assert!(world.client.record(class, gone).is_err(), "{class}");
    }
    assert_eq!(world.messages(&machine), Vec::<String>::new());
}
