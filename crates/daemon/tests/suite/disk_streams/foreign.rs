//! Files that a user puts into the folder of a storage repository.

use std::process::Command;

use super::*;

pub(super) fn qemu_img(folder: &Path, args: &[&str]) {
    let ran = Command::new("qemu-img").args(args).current_dir(folder).output().unwrap();
    assert!(ran.status.success(), "{args:?}: {ran:?}");
}

impl World {
    fn scan(&mut self) {
        let sr = Value::text(&self.sr);
        self.call("SR.scan", &[sr]);
    }

    /// Returns the disk with this name, and the format that its record states.
    fn named(&mut self, label: &str) -> (String, String) {
        let disks = self.client.records("VDI").unwrap();
        let found = disks.into_iter().find(|(_, disk)| disk.text("name_label") == label);
        let (disk, record) = found.unwrap_or_else(|| panic!("no disk {label}"));
        let format = record.pairs("sm_config").get("type").map(|text| (*text).to_owned());
        (disk, format.unwrap_or_default())
    }

    /// Returns the texts of the messages about files that are passed over.
    fn passed_over(&mut self) -> Vec<String> {
        let messages = self.client.records("message").unwrap().into_iter();
        let of = messages.filter(|(_, one)| one.text("name") == "SR_VOLUMES_PASSED_OVER");
        of.map(|(_, one)| one.text("body").to_owned()).collect()
    }
}

#[test]
fn files_become_disks_by_their_names() {
    let mut world = World::new();
    let folder = world.folder.clone();
    let first = bytes(5);
    write(&folder.join("plain.raw"), &first);
    qemu_img(&folder, &["convert", "-f", "raw", "-O", "qcow2", "plain.raw", "base.qcow2"]);
    let over = ["create", "-q", "-f", "qcow2", "-b", "base.qcow2", "-F", "qcow2"];
    qemu_img(&folder, &[&over[..], &["one.qcow2"]].concat());
    qemu_img(&folder, &[&over[..], &["./two.qcow2"]].concat());
    let vhd = ["convert", "-f", "raw", "-O", "vpc", "-o", "force_size=on"];
    qemu_img(&folder, &[&vhd[..], &["plain.raw", "old.vhd"]].concat());
    write(&folder.join("damaged.qcow2"), b"no image");
    write(&folder.join("odd.raw"), b"seven b");
    write(&folder.join("machine.vmdk"), b"");
    std::fs::copy(folder.join("one.qcow2"), folder.join("misnamed.raw")).unwrap();
    write(&folder.join("secret.raw"), &[1; 512]);
    std::fs::rename(folder.join("secret.raw"), world.daemon.dir().join("secret.raw")).unwrap();
    let secret = world.daemon.dir().join("secret.raw").to_str().unwrap().to_owned();
    qemu_img(&folder, &["create", "-q", "-f", "qcow2", "-b", &secret, "-F", "raw", "thief.qcow2"]);
    world.scan();
    for (label, format) in [("plain", ""), ("one", "qcow2"), ("two", "qcow2"), ("old", "vhd")] {
        let (disk, stated) = world.named(label);
        assert_eq!(stated, format, "{label}");
        assert!(world.content(&disk) == first, "{label}");
    }
    let bodies = world.passed_over();
    let [body] = &*bodies else { panic!("{bodies:?}") };
    for part in [
        "5 files",
        "misnamed.raw: it begins like a qcow2 image",
        "damaged.qcow2: ",
        "odd.raw: ",
        "machine.vmdk: ",
        "thief.qcow2: its parent",
    ] {
        assert!(body.contains(part), "{part}: {body}");
    }
    assert!(folder.join("thief.qcow2").exists() && !folder.join("base.qcow2").exists());
    // Nothing has changed, so nothing is said again.
    world.scan();
    assert_eq!(world.passed_over().len(), 1);
    std::fs::remove_file(folder.join("odd.raw")).unwrap();
    world.scan();
    assert_eq!(world.passed_over().len(), 2);
    // Disks over one image are written apart, and what the database forgets the folder knows.
    let ((one, _), (two, _)) = (world.named("one"), world.named("two"));
    let second = bytes(7);
    assert_eq!(world.put(&format!("vdi={one}"), &second).status, 200);
    assert!(world.content(&one) == second && world.content(&two) == first);
    for label in ["one", "old"] {
        let (disk, format) = world.named(label);
        world.call("VDI.forget", &[Value::text(disk)]);
        world.scan();
        assert_eq!(world.named(label).1, format);
    }
}

/// A guest may have written what a file begins with, so a disk that the database knows stays.
#[test]
fn an_image_with_the_name_of_a_raw_disk_becomes_none() {
    let mut world = World::new();
    let folder = world.folder.clone();
    let known = world.disk();
    let uuid = world.client.record("VDI", &known).unwrap().text("uuid").to_owned();
    qemu_img(&folder, &["create", "-q", "-f", "qcow2", ".image", "1M"]);
    let (first, second) =
        ("00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002");
    let file = |uuid: &str| folder.join(format!("{uuid}.raw"));
    for uuid in [&*uuid, first, second] {
        std::fs::copy(folder.join(".image"), file(uuid)).unwrap();
    }
    let disks = |world: &mut World| {
        let disks = world.client.records("VDI").unwrap().into_iter();
        let ours = disks.filter(|(_, one)| one.text("SR") == world.sr && !one.flag("missing"));
        let mut uuids: Vec<_> = ours.map(|(_, one)| one.text("uuid").to_owned()).collect();
        uuids.sort_by_key(|one| (*one == uuid, one.clone()));
        uuids
    };
    world.scan();
    assert_eq!(disks(&mut world), [&*uuid]);
    let bodies = world.passed_over();
    let [body] = &*bodies else { panic!("{bodies:?}") };
    assert!(body.starts_with("2 files") && !body.contains(&uuid), "{body}");
    assert!(body.contains(&format!("{second}.raw: it begins like a qcow2 image")), "{body}");
    // The command of the message adds the disk, and a mark has the next scan add it.
    let command = body.split("xe ").nth(1).unwrap().split(". ").next().unwrap();
    assert!(command.contains(first), "{command}");
    world.daemon.xe_prints(&command.split_whitespace().collect::<Vec<_>>()).unwrap();
    let mark = model::signature::MARK;
    rustix::fs::setxattr(file(second), mark, b"1", rustix::fs::XattrFlags::empty()).unwrap();
    for starts_again in [false, true] {
        if starts_again {
            world.daemon.stop().unwrap();
            world.daemon.start_again().unwrap();
            world.client = world.daemon.client().unwrap();
        }
        world.scan();
        assert_eq!(disks(&mut world), [first, second, &uuid]);
        assert_eq!(world.passed_over().len(), 1);
    }
}

#[test]
fn an_image_that_another_program_writes_waits() {
    let mut world = World::new();
    let path = world.folder.join("busy.qcow2");
    qemu_img(&world.folder, &["create", "-q", "-f", "qcow2", "busy.qcow2", "1M"]);
    let mut qemu = Command::new("qemu-storage-daemon")
        .args([
            "--blockdev",
            &format!("qcow2,node-name=a,file.driver=file,file.filename={}", path.display()),
        ])
        .args(["--chardev", "stdio,id=c", "--monitor", "c"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // The monitor's greeting comes when the image is open.
    let mut greeting = [0; 1];
    qemu.stdout.as_mut().unwrap().read_exact(&mut greeting).unwrap();
    world.scan();
    let bodies = world.passed_over();
    qemu.kill().unwrap();
    qemu.wait().unwrap();
    assert!(bodies.concat().contains("busy.qcow2: another program writes it"), "{bodies:?}");
    world.scan();
    assert_eq!(world.named("busy").1, "qcow2");
}
