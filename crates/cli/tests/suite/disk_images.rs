//! Tests of `xe vdi-export` and `xe vdi-import` against a `ringwayd` with real storage, with `qemu-img`
//! as the other side.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use testkit::ringwayd::Ringwayd;

/// Size of the disks in bytes.
const GIB: u64 = 1 << 30;

/// A daemon with real storage.
struct Storage {
    daemon: Ringwayd,
    sr: String,
}

impl Storage {
    fn new() -> Self {
        let daemon = Ringwayd::start(&["--hypervisor", "qemu"]).unwrap();
        let sr = daemon.xe_prints(&["sr-list", "type=dir", "--minimal"]).unwrap();
        Self { daemon, sr: format!("sr-uuid={sr}") }
    }

    fn xe(&self, words: &[&str]) -> String {
        self.daemon.xe_prints(words).unwrap()
    }

    fn fails(&self, words: &[&str]) -> String {
        let output = self.daemon.xe_output(words).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Creates a disk whose image has this format.
    fn disk_of(&self, format: &str) -> String {
        let (size, format) = (format!("virtual-size={GIB}"), format!("sm-config:type={format}"));
        let made = self.xe(&["vdi-create", &self.sr, "name-label=d", &size, &format]);
        format!("uuid={made}")
    }

    /// Returns the extensions of the images of the storage repository, and the number of each.
    fn images(&self) -> BTreeMap<String, usize> {
        let folder = self.daemon.dir().join("state/sr").join(self.sr.replace("sr-uuid=", ""));
        let names = folder.read_dir().unwrap();
        let names = names.map(|one| one.unwrap().file_name().into_string().unwrap());
        let mut found = BTreeMap::new();
        for name in names.filter(|name| !name.starts_with('.')) {
            let extension = name.split_once('.').unwrap().1.to_owned();
            *found.entry(extension).or_default() += usize::from(!name.ends_with(".vdi"));
        }
        found.retain(|_, count| *count > 0);
        found
    }

    fn path(&self, name: &str) -> PathBuf {
        self.daemon.dir().join(name)
    }

    fn file(&self, name: &str) -> String {
        format!("filename={}", self.path(name).display())
    }

    fn export(&self, disk: &str, name: &str, more: &[&str]) {
        let _absent = std::fs::remove_file(self.path(name));
        let file = self.file(name);
        let words = [&["vdi-export", disk, &*file], more].concat();
        assert_eq!(self.xe(&words), "VDI export succeeded");
    }

    fn import(&self, disk: &str, name: &str, more: &[&str]) {
        let file = self.file(name);
        let words = [&["vdi-import", disk, &*file], more].concat();
        assert_eq!(self.xe(&words), "VDI import succeeded");
    }

    /// Creates a sparse raw image with these bytes.
    fn raw(&self, name: &str, parts: &[(u64, &[u8])]) {
        let file = File::create(self.path(name)).unwrap();
        file.set_len(GIB).unwrap();
        parts.iter().for_each(|(at, bytes)| file.write_all_at(bytes, *at).unwrap());
    }

    /// Runs `qemu-img` in the directory of the daemon.
    fn qemu_img(&self, words: &str) {
        let mut command = Command::new("qemu-img");
        let output =
            command.args(words.split(' ')).current_dir(self.daemon.dir()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{words}: {text}{output:?}");
    }
}

#[test]
fn a_sparse_disk_moves_in_files_of_every_format() {
    sparse_disks_move("raw");
}

#[test]
fn a_sparse_disk_in_a_vhd_moves_in_files_of_every_format() {
    let storage = sparse_disks_move("vhd");
    assert_eq!(storage.images().keys().collect::<Vec<_>>(), ["vhd"]);
}

/// Moves disks whose images have this format.
fn sparse_disks_move(format: &str) -> Storage {
    let storage = Storage::new();
    let (disk, other) = (storage.disk_of(format), storage.disk_of(format));
    let parts: [(u64, &[u8]); 3] =
        [(0, &[1; 4096]), (700 << 20, &[2; 100_000]), (GIB - 512, &[3; 512])];
    storage.raw("a", &parts);
    storage.qemu_img("convert -f raw -O qcow2 a a.qcow2");
    storage.import(&disk, "a.qcow2", &["format=qcow2"]);
    storage.export(&disk, "x.vhd", &["format=vhd", "--progress"]);
    storage.export(&disk, "x.qcow2", &["format=qcow2"]);
    storage.qemu_img("compare -f raw -F vpc a x.vhd");
    storage.qemu_img("compare -f raw -F qcow2 a x.qcow2");
    storage.qemu_img("check -f qcow2 x.qcow2");
    assert!(storage.path("x.vhd").metadata().unwrap().len() < 16 << 20);
    storage.import(&other, "x.vhd", &["format=vhd", "progress=true"]);
    storage.export(&other, "y.qcow2", &["format=qcow2"]);
    storage.qemu_img("compare -f raw -F qcow2 a y.qcow2");
    let uuid = ["vdi-list", &other, "params=physical-utilisation", "--minimal"];
    assert!(storage.xe(&uuid).parse::<u64>().unwrap() < 16 << 20, "zeroes take no space");
    // A snapshot, what changed since, and both on another disk.
    let snapshot = storage.xe(&["vdi-snapshot", &disk]);
    storage.raw("b", &[parts[0], (700 << 20, &[2; 50_000]), (300 << 20, &[9; 9000]), parts[2]]);
    storage.qemu_img("convert -f raw -O vpc -o force_size=on b b.vhd");
    storage.import(&disk, "b.vhd", &["format=vhd"]);
    storage.export(&disk, "delta.vhd", &["format=vhd", &format!("base={snapshot}")]);
    assert!(storage.path("delta.vhd").metadata().unwrap().blocks() < (16 << 20) / 512);
    storage.export(&format!("uuid={snapshot}"), "base.qcow2", &["format=qcow2"]);
    storage.qemu_img("compare -f raw -F qcow2 a base.qcow2");
    storage.import(&other, "delta.vhd", &["format=vhd"]);
    storage.export(&other, "z.qcow2", &["format=qcow2"]);
    storage.qemu_img("compare -f raw -F qcow2 b z.qcow2");
    let of_snapshot = format!("uuid={snapshot}");
    let error = storage.fails(&["vdi-import", &of_snapshot, &storage.file("x.vhd"), "format=vhd"]);
    assert!(error.contains("The image is not one") || error.contains("written to"), "{error}");
    storage
}

/// A disk in a VHD has what other disks have: clones, growth, resets and merges, all in VHDs.
#[test]
fn a_disk_in_a_vhd_is_cloned_grows_and_is_reset() {
    let storage = Storage::new();
    let disk = storage.disk_of("vhd");
    storage.raw("a", &[(0, &[1; 4096]), (GIB - 512, &[3; 512])]);
    storage.import(&disk, "a", &[]);
    let snapshot = storage.xe(&["vdi-snapshot", &disk]);
    let clone = format!("uuid={}", storage.xe(&["vdi-clone", &format!("uuid={snapshot}")]));
    let config = |of: &str| storage.xe(&["vdi-param-get", of, "param-name=sm-config"]);
    assert!(config(&clone).contains("type: vhd"));
    let copy = format!("uuid={}", storage.xe(&["vdi-copy", &clone, &storage.sr]));
    assert_eq!(config(&copy), "");
    storage.xe(&["vdi-resize", &clone, "disk-size=2GiB"]);
    storage.xe(&["vdi-param-set", &clone, "on-boot=reset"]);
    storage.xe(&["vdi-param-set", &clone, "on-boot=persist"]);
    storage.export(&clone, "c.vhd", &["format=vhd"]);
    storage.qemu_img("convert -f raw -O raw a b");
    storage.qemu_img("resize -q -f raw b 2G");
    storage.qemu_img("compare -f raw -F vpc b c.vhd");
    for disk in [&disk, &copy] {
        storage.export(disk, "d.vhd", &["format=vhd"]);
        storage.qemu_img("compare -f raw -F vpc a d.vhd");
    }
    storage.xe(&["sr-scan", &storage.sr.replace("sr-", "")]);
    assert_eq!(storage.images().keys().collect::<Vec<_>>(), ["raw", "vhd"]);
    for disk in [disk, clone, copy, format!("uuid={snapshot}")] {
        storage.xe(&["vdi-destroy", &disk]);
    }
    assert_eq!(storage.images(), BTreeMap::new());
    // What cannot be is refused, and leaves nothing.
    let create = |size: &str, format: &str| {
        storage.fails(&["vdi-create", &storage.sr, "name-label=d", size, format])
    };
    let error = create("virtual-size=3TiB", "sm-config:type=vhd");
    assert!(error.contains("2,040 GiB") && error.contains("qcow2"), "{error}");
    let error = create("virtual-size=1GiB", "sm-config:type=vmdk");
    assert!(error.contains("is not raw, qcow2 or vhd"), "{error}");
    assert_eq!(storage.images(), BTreeMap::new());
}

#[test]
fn files_and_streams_are_checked() {
    let storage = Storage::new();
    let disk = storage.xe(&["vdi-create", &storage.sr, "name-label=d", "virtual-size=1MiB"]);
    let disk = format!("uuid={disk}");
    std::fs::write(storage.path("a"), [7; 1 << 20]).unwrap();
    // Standard input has no length.
    let mut command = storage.daemon.xe(&["vdi-import", &disk, "filename=-"]).unwrap();
    command.stdin(Stdio::from(File::open(storage.path("a")).unwrap()));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for name in ["filename=-", "filename="] {
        let output = storage.daemon.xe_output(&["vdi-export", &disk, name]).unwrap();
        assert!(output.stdout == [7; 1 << 20], "{output:?}");
    }
    // A file is never overwritten, and none is left of a failure.
    let error = storage.fails(&["vdi-export", &disk, &storage.file("a")]);
    assert!(error.contains("name a new file"), "{error}");
    let error = storage.fails(&["vdi-export", &disk, &storage.file("b"), "format=zip"]);
    assert!(error.contains("is not raw, qcow2 or vhd"), "{error}");
    assert!(!storage.path("b").exists());
    let error = storage.fails(&["vdi-import", &disk, &storage.file("b")]);
    assert!(error.contains("cannot read"), "{error}");
    std::fs::write(storage.path("b"), [7; 4096]).unwrap();
    let error = storage.fails(&["vdi-import", &disk, &storage.file("b")]);
    assert!(error.contains("has 4096 bytes, and the disk 1048576"), "{error}");
    // A file that begins like an image is no raw one, unless that is said.
    let mut bytes = vec![0; 1 << 20];
    for (head, says) in [(&b"QFI\xfb"[..], "give format=qcow2"), (b"KDMV", "convert -p -f vmdk")] {
        bytes[..4].copy_from_slice(head);
        std::fs::write(storage.path("b"), &bytes).unwrap();
        let error = storage.fails(&["vdi-import", &disk, &storage.file("b")]);
        assert!(error.contains(says) && error.contains("give format=raw"), "{error}");
    }
    storage.import(&disk, "b", &["format=raw"]);
    assert_eq!(storage.xe(&["task-list", "--minimal"]), "", "tasks are forgotten");
}

#[test]
fn a_disk_that_a_machine_writes_is_neither_read_nor_replaced() {
    let daemon = Ringwayd::simulator(&[]).unwrap();
    let xe = |words: &[&str]| daemon.xe_prints(words).unwrap();
    xe(&["vm-install", "template=Other install media", "new-name-label=a"]);
    let vm = format!("vm-uuid={}", xe(&["vm-list", "name-label=a", "--minimal"]));
    let sr = format!("sr-uuid={}", xe(&["pool-list", "params=default-SR", "--minimal"]));
    let disk = xe(&["vdi-create", &sr, "name-label=d", "virtual-size=1MiB"]);
    let (of, uuid) = (format!("vdi-uuid={disk}"), format!("uuid={disk}"));
    xe(&["vbd-create", &vm, &of, "device=1"]);
    let file = format!("filename={}", daemon.dir().join("image").display());
    xe(&["vdi-export", &uuid, &file]);
    xe(&["vdi-import", &uuid, &file]);
    xe(&["vm-start", "vm=a"]);
    for words in [["vdi-export", &uuid, "filename=-"], ["vdi-import", &uuid, &file]] {
        let output = daemon.xe_output(&words).unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.starts_with("The disk is in use.\n"), "{words:?}: {error}");
    }
    let snapshot = xe(&["vdi-snapshot", &uuid]);
    let image = daemon.xe_output(&["vdi-export", &format!("uuid={snapshot}"), "filename=-"]);
    assert_eq!(image.unwrap().stdout.len(), 1 << 20);
}
