//! Clones on a file system that shares blocks.

use std::os::unix::fs::FileExt;

use testkit::in_namespace::on_reflinks;

use super::*;

const SHARED: &str =
    concat!(module_path!(), "::a_clone_shares_blocks_unless_they_are_in_many_pieces");

#[test]
fn a_clone_shares_blocks_unless_they_are_in_many_pieces() {
    on_reflinks(SHARED, inside).unwrap();
}

impl World {
    /// Returns the number of files with this extension.
    fn files(&self, extension: &str) -> usize {
        let names = self.folder.read_dir().unwrap().map(|one| one.unwrap().file_name());
        names.filter(|name| name.to_str().unwrap().ends_with(extension)).count()
    }

    fn clone_of(&mut self, disk: &str) -> String {
        self.made("VDI.clone", &[Value::text(disk), record([])])
    }
}

fn inside(dir: &Path) {
    let mut world = World::new();
    world.use_sr_at(dir.join("sr"));
    let (disk, content, other) = (world.disk(), bytes(4), bytes(6));
    assert_eq!(world.put(&format!("vdi={disk}"), &content).status, 200);
    let clone = world.clone_of(&disk);
    assert_eq!((world.files(".raw"), world.files(".qcow2")), (2, 0));
    assert!(world.content(&clone) == content);
    assert_eq!(world.client.record("VDI", &clone).unwrap().text("name_label"), "d");
    // A write to one is none to the other.
    let uuid = world.client.record("VDI", &clone).unwrap().text("uuid").to_owned();
    let path = world.folder.join(uuid + ".raw");
    let mark = rustix::fs::getxattr(&path, model::signature::MARK, &mut [0_u8; 8][..]);
    assert!(mark.is_ok(), "a scan takes it for what its guest wrote");
    let file = std::fs::OpenOptions::new().write(true).open(path);
    file.unwrap().write_all_at(&other, 0).unwrap();
    assert!(world.content(&disk) == content && world.content(&clone) == other);
    // A snapshot is a chain, and so is a clone of a disk with a chain.
    world.snapshot(&disk);
    world.clone_of(&disk);
    assert!(world.files(".raw") == 2 && world.files(".qcow2") > 1);
    // Every second block of a file: more pieces than are shared.
    let pieces = world.clone_of(&clone);
    assert_eq!(world.files(".raw"), 3);
    let uuid = world.client.record("VDI", &pieces).unwrap().text("uuid").to_owned();
    let path = world.folder.join(uuid + ".raw");
    std::fs::remove_file(&path).unwrap();
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(64 << 20).unwrap();
    for at in (0..64 << 20).step_by(8192) {
        file.write_all_at(&[1; 4096], at).unwrap();
    }
    world.clone_of(&pieces);
    assert_eq!(world.files(".raw"), 3);
}
