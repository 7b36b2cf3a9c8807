//! Many clones of one disk.

use super::*;

/// Number of clones.
const CLONES: usize = 100;

#[test]
fn a_hundred_clones_share_the_images_of_their_disk() {
    let mut world = World::new();
    let sr = world.one("SR");
    let disk = world.disk(&sr);
    let folder = world.daemon.dir().join("state/sr");
    let folder = folder.join(world.client.record("SR", &sr).unwrap().text("uuid"));
    let files = |extension: &str| {
        let names = folder.read_dir().unwrap();
        let names = names.map(|one| one.unwrap().file_name().into_string().unwrap());
        // Files with a dot are about to get their names.
        let named = names.filter(|name| !name.starts_with('.'));
        named.filter(|name| name.ends_with(&format!(".{extension}"))).count()
    };
    let clone = |world: &mut World| world.made("VDI.clone", &[Value::text(&*disk), record([])]);
    let clones: Vec<_> = (0..CLONES).map(|_| clone(&mut world)).collect();
    // One new top for the disk itself, which nobody writes, and one for each clone.
    assert_eq!((files("raw"), files("qcow2"), files("vdi")), (1, CLONES + 1, CLONES + 1));
    world.call("VDI.destroy", &[Value::text(&*disk)]);
    assert_eq!((files("raw"), files("qcow2"), files("vdi")), (1, CLONES, CLONES));
    for clone in clones {
        world.call("VDI.destroy", &[Value::text(clone)]);
    }
    assert_eq!((files("raw"), files("qcow2"), files("vdi")), (0, 0, 0));
}
