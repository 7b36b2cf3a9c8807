//! A state directory on a file system that is really full.

use std::fs;
use std::path::Path;
use std::time::Duration;

use testkit::in_namespace::in_little_room;
use xenapi::Value;

use super::World;

const NAME: &str =
    concat!(module_path!(), "::a_full_state_disk_costs_what_was_asked_for_and_no_machine");
/// Longer than a task of the simulator takes.
const DEADLINE: Duration = Duration::from_secs(120);
/// More VMs than fit.
const MACHINES_MAX: usize = 2_000;

#[test]
fn a_full_state_disk_costs_what_was_asked_for_and_no_machine() {
    in_little_room(NAME, 8, inside).unwrap();
}

fn inside(dir: &Path) {
    // The daemon uses a temporary directory.
    tempfile::env::override_temp_dir(dir).unwrap();
    let mut world = World::new();
    assert!(world.daemon.dir().starts_with(dir));
    let filler = dir.join("filler");
    let (runs, goes) = (world.machine("runs"), world.machine("goes"));
    let of = |vm: &str| [Value::text(vm)];
    let start = [Value::text(runs.as_str()), Value::Bool(false), Value::Bool(false)];
    world.call("VM.start", &start);
    let more = fs::write(&filler, vec![1; 16 << 20]).unwrap_err();
    assert_eq!(more.kind(), std::io::ErrorKind::StorageFull);

    // Create VMs until the database file has no free space either.
    let template = Value::text(world.named("VM", "Other install media"));
    let clone = |name: usize| [template.clone(), Value::text(name.to_string())];
    let mut made = Vec::new();
    let full = (0..MACHINES_MAX).find_map(|name| match world.root.call("VM.clone", &clone(name)) {
        Ok(vm) => {
            made.push(super::text(&vm).to_owned());
            None
        }
        Err(_) => Some(world.refused("VM.clone", &clone(name))),
    });
    let [code, place] = full.expect("the file system is small").try_into().unwrap();
    assert_eq!(code, "OUT_OF_SPACE");
    assert!(place.ends_with("state.redb"), "{place}");
    let count = |world: &mut World| world.root.records("VM").unwrap().len();
    let before = count(&mut world);
    let uuid = world.call("VM.get_uuid", &of(&runs));
    let label = [Value::text(runs.as_str()), Value::text("x".repeat(100 << 10))];
    assert_eq!(world.refused("VM.set_name_label", &label)[0], "OUT_OF_SPACE");
    assert_eq!(world.root.record("VM", &runs).unwrap().text("name_label"), "runs");
    assert_eq!(world.refused("VM.clone", &clone(0))[0], "OUT_OF_SPACE");
    assert_eq!(count(&mut world), before, "what was refused is not there");

    // Deletions and VM operations still work.
    world.root.run("VM.hard_shutdown", &of(&runs), DEADLINE).unwrap();
    world.root.run("VM.destroy", &of(&goes), DEADLINE).unwrap();
    let last = made.pop();
    if let Some(last) = &last {
        world.call("VM.destroy", &of(last));
    }

    // A kill on the full disk loses nothing.
    world.daemon.process.kill().unwrap();
    world.daemon.start_again().unwrap();
    world.root = world.daemon.client().unwrap();
    all_there(&mut world, &runs, &goes, &made);
    assert_eq!(world.call("VM.get_uuid", &of(&runs)), uuid);

    // With free space, no restart is needed.
    fs::remove_file(&filler).unwrap();
    let late = world.made("VM.clone", &clone(MACHINES_MAX));
    world.daemon.process.kill().unwrap();
    world.daemon.start_again().unwrap();
    world.root = world.daemon.client().unwrap();
    world.call("VM.get_uuid", &of(&late));
    all_there(&mut world, &runs, &goes, &made);
}

fn all_there(world: &mut World, runs: &str, goes: &str, made: &[String]) {
    assert_eq!(world.root.record("VM", runs).unwrap().text("power_state"), "Halted");
    for vm in made {
        world.root.record("VM", vm).unwrap();
    }
    assert_eq!(world.refused("VM.get_uuid", &[Value::text(goes)])[0], "HANDLE_INVALID");
}
