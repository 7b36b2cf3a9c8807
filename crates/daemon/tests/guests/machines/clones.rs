//! Clones of a template whose disk has a chain of images: each boots, and has a disk of its own.

use std::process::Command;

use testkit::rounds;
use xenapi::Value;

use super::records::{of, start, with};
use super::snapshots::{disks, nothing_is_left, snapshot};
use super::world::{DISK_BYTES, Machine, PATIENCE, World};

/// Clones of the template. Soak runs boot a hundred.
const CLONES: usize = 2;
const CLONES_SOAK: usize = 100;
/// Guests that run at the same time.
const AT_ONCE: usize = 2;
/// Block that a clone writes.
const BLOCK: u64 = 7;
/// Size of a block in bytes.
const BLOCK_BYTES: usize = 512;

#[test]
fn each_clone_of_a_template_boots() {
    let mut world = World::new();
    let template = world.guest("template");
    // A merge would remove its images some time after the disks.
    let sr = world.record("VDI", &template.disk).text("SR").to_owned();
    let off = ["coalesce", "false"].map(Value::text);
    world.call("SR.add_to_other_config", &with(&sr, off));
    let mut content = vec![0; usize::try_from(DISK_BYTES).unwrap()];
    // Each level of the chain writes other blocks of its own.
    let mut sources = Vec::new();
    for level in 0..3_u8 {
        let blocks = content.chunks_mut(BLOCK_BYTES).enumerate();
        for (at, block) in blocks.filter(|(at, _)| at % 5 >= usize::from(level)) {
            block.fill(level.wrapping_mul(80).wrapping_add((at % 251) as u8).max(1));
        }
        import(&mut world, &template, &content);
        if level < 2 {
            let snapshot = snapshot(&mut world, &template, &format!("level {level}"));
            sources.push((snapshot, content.clone()));
        }
    }
    world.call("VM.set_is_a_template", &with(&template.reference, [Value::Bool(true)]));
    let clones = rounds(CLONES, CLONES_SOAK);
    sources.extend((0..clones).map(|_| (template.reference.clone(), content.clone())));

    let began = std::time::Instant::now();
    let mut clones: Vec<(Machine, Vec<u8>)> = Vec::new();
    for (at, (source, content)) in sources.into_iter().enumerate() {
        clones.push((clone(&mut world, &source, &format!("clone {at}")), content));
    }
    println!("{} clones are made in {:?}", clones.len(), began.elapsed());
    for turn in clones.chunks(AT_ONCE) {
        for (clone, _) in turn {
            world.call("VM.start", &start(&clone.reference));
        }
        for (clone, content) in turn {
            boots(&mut world, clone, content);
        }
    }
    println!("all have booted after {:?}", began.elapsed());

    for (clone, content) in &mut clones {
        let own = format!("{}\n", clone.uuid);
        let at = usize::try_from(BLOCK).unwrap() * BLOCK_BYTES;
        content[at..at + own.len()].copy_from_slice(own.as_bytes());
        assert!(export(&mut world, clone) == *content, "{}", clone.uuid);
        world.call("VM.destroy", &of(&clone.reference));
    }
    nothing_is_left(&mut world, &template);
}

/// Makes a VM of a template or a snapshot.
fn clone(world: &mut World, source: &str, name: &str) -> Machine {
    let reference = world.made("VM.clone", &with(source, [Value::text(name)]));
    world.call("VM.provision", &of(&reference));
    let (slot, disk) = disks(world, &reference).remove(0);
    let uuid = world.record("VM", &reference).text("uuid").to_owned();
    let image = world.image(&disk);
    Machine { reference, uuid, slot, disk, image }
}

/// A guest that has started finds its bytes, writes its name among them, and shuts down.
fn boots(world: &mut World, machine: &Machine, content: &[u8]) {
    let mut shell = world.shell(machine);
    let sum = shell.run("sha256sum /dev/vda", PATIENCE).unwrap();
    assert_eq!(sum.split_whitespace().next(), sum_of(world, content).split_whitespace().next());
    machine.write(&mut shell, BLOCK, &machine.uuid);
    shell.last("poweroff", PATIENCE).unwrap();
    world.until_power(machine, "Halted");
}

/// Returns the sum of these bytes as `sha256sum` prints it.
fn sum_of(world: &World, content: &[u8]) -> String {
    let file = world.daemon.dir().join("content");
    std::fs::write(&file, content).unwrap();
    let ran = Command::new("sha256sum").arg(&file).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    String::from_utf8(ran.stdout).unwrap()
}

fn import(world: &mut World, machine: &Machine, content: &[u8]) {
    let file = world.daemon.dir().join("content");
    std::fs::write(&file, content).unwrap();
    let words =
        [format!("uuid={}", disk_uuid(world, machine)), format!("filename={}", file.display())];
    world.daemon.xe_prints(&["vdi-import", &words[0], &words[1]]).unwrap();
}

fn export(world: &mut World, machine: &Machine) -> Vec<u8> {
    let file = world.daemon.dir().join("exported");
    let words =
        [format!("uuid={}", disk_uuid(world, machine)), format!("filename={}", file.display())];
    world.daemon.xe_prints(&["vdi-export", &words[0], &words[1]]).unwrap();
    let content = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    content
}

fn disk_uuid(world: &mut World, machine: &Machine) -> String {
    world.record("VDI", &machine.disk).text("uuid").to_owned()
}
