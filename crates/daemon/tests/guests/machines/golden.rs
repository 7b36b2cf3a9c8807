//! Machines that share a golden image.

use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use model::report::{DiskState, DiskStats};
use xenapi::Value;

use super::records::{of, record, slot, start, with};
use super::snapshots::kill_datapath;
use super::world::{DISK_BYTES, Machine, PATIENCE, World};

/// Block that tells which state a disk has.
const BLOCK: u64 = 7;

impl World {
    /// Creates an SR of a golden image, whose block has this word. Returns the source and the VDI.
    fn golden(&mut self, word: &str) -> (PathBuf, String) {
        self.golden_with(word, &[])
    }

    /// As [`World::golden`], with more of the configuration.
    fn golden_with(&mut self, word: &str, more: &[&str]) -> (PathBuf, String) {
        let path = self.daemon.dir().join("golden.raw");
        write_source(&path, word);
        let source = format!("device-config:source={}", path.display());
        let sr = ["sr-create", "type=golden", "name-label=golden", &source];
        let sr = [&sr[..], more].concat();
        let sr = format!("sr-uuid={}", self.daemon.xe_prints(&sr).unwrap());
        let vdi = self.daemon.xe_prints(&["vdi-list", &sr, "--minimal"]).unwrap();
        (path, self.made("VDI.get_by_uuid", &of(&vdi)))
    }

    /// Gives a VM this VDI in place of its disk.
    fn put(&mut self, machine: &Machine, disk: &str) -> Machine {
        self.call("VBD.destroy", &of(&machine.slot));
        self.call("VDI.destroy", &of(&machine.disk));
        let slot = self.made("VBD.create", &[slot(&machine.reference, Some(disk))]);
        Machine { slot, disk: disk.into(), ..machine.clone() }
    }

    fn clone_of(&mut self, machine: &Machine, name: &str) -> Machine {
        let reference = self.made("VM.clone", &with(&machine.reference, [Value::text(name)]));
        let made = self.record("VM", &reference);
        let slot = made.texts("VBDs")[0].to_owned();
        assert_eq!(self.record("VBD", &slot).text("VDI"), machine.disk, "the image is shared");
        let uuid = made.text("uuid").to_owned();
        Machine { reference, uuid, slot, ..machine.clone() }
    }

    fn write_cache(&mut self, machine: &Machine, kind: &str) {
        let config = record([("write-cache", Value::text(kind))]);
        self.call("VBD.set_other_config", &with(&machine.slot, [config]));
    }

    /// Starts a VM. Returns the word that its guest reads.
    fn word_after_start(&mut self, machine: &Machine) -> String {
        self.call("VM.start", &start(&machine.reference));
        let mut shell = self.shell(machine);
        machine.read(&mut shell, BLOCK)
    }

    /// Returns the names of the files of layers.
    fn layer_files(&self) -> Vec<String> {
        let folder = self.daemon.dir().join("state/golden").read_dir().unwrap();
        let names = folder.map(|file| file.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".qcow2") || name.ends_with(".overflow")).collect()
    }
}

fn write_source(path: &std::path::Path, word: &str) {
    // A new file: a source is never changed in place.
    let _absent = std::fs::remove_file(path);
    let image = std::fs::File::create(path).unwrap();
    image.set_len(DISK_BYTES.unsigned_abs()).unwrap();
    image.write_all_at(format!("{word}\n").as_bytes(), BLOCK * 512).unwrap();
}

#[test]
fn machines_that_share_an_image_forget_what_they_wrote() {
    let mut world = World::new();
    let one = world.guest("one");
    let (source, disk) = world.golden("golden");
    let one = world.put(&one, &disk);
    let two = world.clone_of(&one, "two");
    for machine in [&one, &two] {
        assert_eq!(world.word_after_start(machine), "golden");
    }
    let mut shells = [&one, &two].map(|machine| world.shell(machine));
    one.write(&mut shells[0], BLOCK, "first");
    two.write(&mut shells[1], BLOCK, "second");
    assert_eq!(one.read(&mut shells[0], BLOCK), "first");
    drop(shells);
    // A guest keeps its writes while it runs, whatever dies.
    world.killed();
    let mut shell = world.shell(&two);
    assert_eq!(two.read(&mut shell, BLOCK), "second");
    drop(shell);
    world.call("VM.hard_shutdown", &of(&two.reference));
    // Machines get a new version of the image at their next boot.
    write_source(&source, "newer");
    world.call("VM.hard_reboot", &of(&one.reference));
    let mut shell = world.shell(&one);
    assert_eq!(one.read(&mut shell, BLOCK), "newer");
    drop(shell);
    assert_eq!(world.word_after_start(&two), "newer");
    // What was only in memory is gone with all processes that had it. The guest must not go on with
    // what was there before.
    kill_datapath(&mut world);
    let is_told = |world: &mut World| {
        world.daemon.process.stderr().matches("guest I/O is blocked: the writes").count() >= 2
    };
    world.until("the end of the writes in memory", is_told);
    assert!([&one, &two].into_iter().all(|machine| world.served(&machine.slot).is_none()));
    world.call("VM.hard_reboot", &of(&one.reference));
    let mut shell = world.shell(&one);
    assert_eq!(one.read(&mut shell, BLOCK), "newer");
    drop(shell);
    for machine in [&one, &two] {
        world.call("VM.hard_shutdown", &of(&machine.reference));
        world.call("VM.destroy", &of(&machine.reference));
    }
    assert_eq!(world.layer_files(), Vec::<String>::new());
}

#[test]
fn a_persistent_write_cache_stays_with_its_machine() {
    let mut world = World::new();
    let machine = world.guest("one");
    let (source, disk) = world.golden("golden");
    let machine = world.put(&machine, &disk);
    world.write_cache(&machine, "persistent");
    assert_eq!(world.word_after_start(&machine), "golden");
    let mut shell = world.shell(&machine);
    machine.write(&mut shell, BLOCK, "myself");
    drop(shell);
    world.call("VM.hard_shutdown", &of(&machine.reference));
    assert_eq!(world.layer_files().len(), 1);
    // The image below stays the one that was there first, which the cache has.
    write_source(&source, "newer");
    assert_eq!(world.word_after_start(&machine), "myself");
    world.call("VM.hard_shutdown", &of(&machine.reference));
    let clone = with(&machine.reference, [Value::text("clone")]);
    let refused = world.client.call("VM.clone", &clone).unwrap_err().to_string();
    assert!(refused.contains("write-cache=persistent"), "{refused}");
    world.call("VM.destroy", &of(&machine.reference));
    world.until("the end of the layer", |world| world.layer_files().is_empty());
}

#[test]
fn a_machine_with_a_full_write_cache_goes_on_when_its_limit_is_raised() {
    let mut world = World::new();
    let machine = world.guest("one");
    let small = ["device-config:write-cache-ram=4M", "device-config:write-cache-overflow=1048576"];
    let (_, disk) = world.golden_with("golden", &small);
    let machine = world.put(&machine, &disk);
    assert_eq!(world.word_after_start(&machine), "golden");
    let mut shell = world.shell(&machine);
    // Whole blocks, all of the disk.
    let fill = "dd of=/dev/vda bs=4096 count=2048 conv=notrunc,fsync iflag=fullblock 2>/dev/null";
    let fill = format!("(yes word | {fill}; echo $? >/tmp/filled) </dev/null >/dev/null 2>&1 &");
    shell.run(&format!("{{ {fill} }}"), PATIENCE).unwrap();
    world.until_served(&machine.slot, |disk| disk.state == DiskState::Waiting);
    let disk = world.served(&machine.slot).unwrap();
    assert_eq!(disk.overlay.unwrap().overflow_size_bytes, Some(1 << 20));
    let command = format!("xe vbd-param-set uuid={} other-config:write-cache-overflow=", disk.id);
    let alert = disk.alert.unwrap();
    assert!(alert.contains(&command), "{alert}");
    let is_told = |world: &mut World| world.daemon.process.stderr().contains(&command);
    world.until("the message of the full write cache", is_told);
    let vbd = format!("uuid={}", disk.id);
    let set = |world: &World, value: &str| {
        let value = format!("other-config:write-cache-overflow={value}");
        world.daemon.xe_prints(&["vbd-param-set", &vbd, &value])
    };
    let refused = format!("{:?}", set(&world, "1000").unwrap_err());
    assert!(refused.contains("no size of at least 1048576 bytes"), "{refused}");
    set(&world, "16M").unwrap();
    let filled = "until [ -s /tmp/filled ]; do sleep 1; done; cat /tmp/filled";
    assert_eq!(shell.run(filled, PATIENCE).unwrap(), "0");
    world.until_served(&machine.slot, |disk| disk.state == DiskState::Active);
    let size = |disk: DiskStats| disk.overlay.unwrap().overflow_size_bytes;
    assert_eq!(size(world.served(&machine.slot).unwrap()), Some(16 << 20));
    assert!(machine.read(&mut shell, 16383).contains("word"));
    drop(shell);
    // It stays for the next start, and a limit that is lower than the file loses nothing.
    world.call("VM.hard_reboot", &of(&machine.reference));
    let mut shell = world.shell(&machine);
    assert_eq!(machine.read(&mut shell, BLOCK), "golden");
    assert_eq!(size(world.served(&machine.slot).unwrap()), Some(16 << 20));
    set(&world, "1M").unwrap();
    let is_lower = |disk: &DiskStats| {
        disk.overlay.as_ref().is_some_and(|overlay| overlay.overflow_size_bytes == Some(1 << 20))
    };
    world.until_served(&machine.slot, is_lower);
    machine.write(&mut shell, BLOCK, "first");
    assert_eq!(machine.read(&mut shell, BLOCK), "first");
}
