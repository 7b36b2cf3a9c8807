//! What is set while a machine runs and holds from its next domain on.

use xenapi::Value;

use super::world::{Machine, PATIENCE, World, of, start, with};

const WORD: &str = "ringway.pending=1";

fn command_line(world: &mut World, guest: &Machine) -> String {
    world.shell(guest).run("cat /proc/cmdline", PATIENCE).unwrap()
}

#[test]
fn a_reboot_applies_what_was_set_meanwhile() {
    let mut world = World::new();
    let guest = world.guest("pending");
    world.call("VM.start", &start(&guest.reference));
    let args = world.record("VM", &guest.reference).text("PV_args").to_owned();
    let args = Value::text(format!("{args} {WORD}"));
    world.call("VM.set_PV_args", &with(&guest.reference, [args]));
    let before = command_line(&mut world, &guest);
    assert!(!before.contains(WORD), "{before}");
    let domid = world.domid(&guest);
    world.call("VM.clean_reboot", &of(&guest.reference));
    assert_ne!(world.domid(&guest), domid);
    let after = command_line(&mut world, &guest);
    assert!(after.contains(WORD), "{after}");
    world.call("VM.hard_shutdown", &of(&guest.reference));
    assert_eq!(world.daemon.leftovers(), Vec::<String>::new());
}
