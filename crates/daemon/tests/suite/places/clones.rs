//! Many clones of one disk. On each kind of file system: where `/tmp` is does not matter.

use testkit::in_namespace::{in_little_room, on_reflinks};
use testkit::process::eventually;

use super::*;

/// Number of clones.
const CLONES: usize = 100;
/// Size of the file system in MiB: enough for the tables of the clones.
const ROOM_MIB: u32 = 256;
const CHAINED: &str = concat!(module_path!(), "::a_hundred_clones_share_the_images_of_their_disk");
const SHARED: &str = concat!(module_path!(), "::a_hundred_clones_share_the_blocks_of_their_disk");

#[test]
fn a_hundred_clones_share_the_images_of_their_disk() {
    // One new top for the disk itself, which nobody writes, and one for each clone.
    let with = (1, CLONES + 1, CLONES + 1);
    let inside = |dir: &Path| clones_are_made(dir, with, (1, CLONES, CLONES));
    in_little_room(CHAINED, ROOM_MIB, inside).unwrap();
}

#[test]
fn a_hundred_clones_share_the_blocks_of_their_disk() {
    // Each is a raw image. A record has its name.
    let all = CLONES + 1;
    let inside = |dir: &Path| clones_are_made(dir, (all, 0, all), (CLONES, 0, CLONES));
    on_reflinks(SHARED, inside).unwrap();
}

/// Makes clones, and destroys them. `with` and `without` are the numbers of raw images, qcow2 images
/// and records, with their disk and without it.
fn clones_are_made(dir: &Path, with: (usize, usize, usize), without: (usize, usize, usize)) {
    let mut world = World::new();
    let folder = dir.join("sr");
    let args = world.sr(&folder);
    let sr = world.made("SR.create", &args);
    let disk = world.disk(&sr);
    let files = |extension: &str| {
        let names = folder.read_dir().unwrap();
        let names = names.map(|one| one.unwrap().file_name().into_string().unwrap());
        // Files with a dot are about to get their names.
        let named = names.filter(|name| !name.starts_with('.'));
        named.filter(|name| name.ends_with(&format!(".{extension}"))).count()
    };
    let files = || (files("raw"), files("qcow2"), files("vdi"));
    let clone = |world: &mut World| world.made("VDI.clone", &[Value::text(&*disk), record([])]);
    let clones: Vec<_> = (0..CLONES).map(|_| clone(&mut world)).collect();
    // Names are stored after the calls.
    eventually("images and records are those of all disks", || files() == with);
    world.call("VDI.destroy", &[Value::text(&*disk)]);
    assert_eq!(files(), without);
    for clone in clones {
        world.call("VDI.destroy", &[Value::text(clone)]);
    }
    assert_eq!(files(), (0, 0, 0));
}
