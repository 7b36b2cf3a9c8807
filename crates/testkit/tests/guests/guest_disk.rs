//! Guests on vhost-user disks of a backend. Each test takes the backend as a parameter.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use testkit::guest::{Guest, Kind, Machine, Outcome, VhostDisk};
use testkit::process::{Backend, StorageDaemon, Target};

/// Far longer than any boot and load, also when several guests share two busy cores.
const DEADLINE: Duration = Duration::from_secs(240);
const DISK_BYTES: u64 = 16 << 20;

/// A backend under test.
struct Peer {
    /// Function that serves an image on some queues.
    start: fn(&Path, u16) -> Backend,
    /// Serial of its disk.
    serial: &'static str,
}

const STORAGE_DAEMON: Peer = Peer { start: storage_daemon, serial: "vhost_user_blk" };

const RINGWAY_BLK: Peer = Peer { start: ringway_blk, serial: "RINGWAY" };

fn storage_daemon(image: &Path, queues: u16) -> Backend {
    let mut options = StorageDaemon::new(Target::File(image.into()));
    options.queues = queues;
    options.direct = false;
    Backend::storage_daemon(&options).unwrap()
}

fn ringway_blk(image: &Path, queues: u16) -> Backend {
    let image = image.to_str().unwrap();
    let queues = queues.to_string();
    let serial = RINGWAY_BLK.serial;
    Backend::ringway_blk(&["--blk-file", image, "--num-queues", &queues, "--serial", serial])
        .unwrap()
}

fn image() -> tempfile::NamedTempFile {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(DISK_BYTES).unwrap();
    image
}

fn run(kind: Kind, backend: &Backend, queues: u16, script: &str) -> Outcome {
    let disks = vec![VhostDisk { socket: backend.socket().into(), queues }];
    let machine = Machine { disks, cpus: queues.into(), ..Machine::default() };
    Guest::start(kind, &machine, script).unwrap().finish(DEADLINE).unwrap()
}

/// Returns a script that runs fio on the whole disk with checksums, in random order.
fn fio(peer: &Peer, more: &str) -> String {
    format!(
        "fio --name=verify --filename=$(disk {}) --rw=randwrite --bs=4k --size={DISK_BYTES} \
         --verify=crc32c --verify_fatal=1 --verify_state_save=0 --direct=1 --ioengine=libaio \
         --iodepth=16 --thread {more}",
        peer.serial
    )
}

fn checksums_hold_and_a_changed_byte_is_found(peer: &Peer, kind: Kind, queues: u16) {
    let image = image();
    let backend = (peer.start)(image.path(), queues);
    let written = run(kind, &backend, queues, &fio(peer, ""));
    assert_eq!(written.code, 0, "{}", written.output);
    assert!(written.output.contains("err= 0"), "{}", written.output);
    let mut magic = [0; 2];
    let last_block = DISK_BYTES - 4096;
    image.as_file().read_exact_at(&mut magic, last_block).unwrap();
    assert_ne!(magic, [0; 2], "fio wrote nothing at the disk's end");
    if kind == Kind::Qemu {
        return; // What follows proves fio, not the backend: once is enough.
    }

    flip_a_byte(image.as_file(), last_block + 2000);
    let read = run(kind, &backend, queues, &fio(peer, "--verify_only"));
    assert_ne!(read.code, 0, "fio did not see a changed byte:\n{}", read.output);
}

fn flip_a_byte(file: &File, at: u64) {
    let mut byte = [0; 1];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[!byte[0]], at).unwrap();
}

/// Data synced before the crash is there after it, and the file system is consistent.
fn ext4_survives_a_killed_guest(peer: &Peer) {
    let image = image();
    let backend = (peer.start)(image.path(), 1);
    let serial = peer.serial;
    let load = format!(
        "set -e; D=$(disk {serial}); mkfs.ext4 -q $D; mount $D /mnt; cd /mnt; n=0
         while :; do n=$((n + 1)); seq $n 400 >f$n; sync; echo synced $n; done"
    );
    let machine = Machine::with_disk(backend.socket());
    let mut guest = Guest::start(Kind::Qemu, &machine, &load).unwrap();
    guest.wait_for("synced 5\n", DEADLINE).unwrap();
    guest.kill().unwrap();

    let check = format!(
        "set -e; D=$(disk {serial}); mount $D /mnt; cd /mnt
         for n in 1 2 3 4 5; do seq $n 400 | cmp - f$n; done
         cd /; umount /mnt; fsck.ext4 -f -n $D"
    );
    // User-Mode Linux boots faster, and mounts what the killed guest left as well.
    let checked = run(Kind::Uml, &backend, 1, &check);
    assert_eq!(checked.code, 0, "{}", checked.output);
}

#[test]
fn qemu_checksums_hold_on_two_queues_of_storage_daemon() {
    checksums_hold_and_a_changed_byte_is_found(&STORAGE_DAEMON, Kind::Qemu, 2);
}

#[test]
fn uml_checksums_hold_on_storage_daemon() {
    checksums_hold_and_a_changed_byte_is_found(&STORAGE_DAEMON, Kind::Uml, 1);
}

#[test]
fn ext4_survives_a_killed_guest_on_storage_daemon() {
    ext4_survives_a_killed_guest(&STORAGE_DAEMON);
}

#[test]
fn qemu_checksums_hold_on_two_queues_of_ringway_blk() {
    checksums_hold_and_a_changed_byte_is_found(&RINGWAY_BLK, Kind::Qemu, 2);
}

#[test]
fn uml_checksums_hold_on_ringway_blk() {
    checksums_hold_and_a_changed_byte_is_found(&RINGWAY_BLK, Kind::Uml, 1);
}

#[test]
fn ext4_survives_a_killed_guest_on_ringway_blk() {
    for _ in 0..testkit::rounds(1, 20) {
        ext4_survives_a_killed_guest(&RINGWAY_BLK);
    }
}

#[test]
fn uml_guests_take_several_disks() {
    let images = [image(), image()];
    let backends = images.each_ref().map(|image| storage_daemon(image.path(), 1));
    let disks = backends.each_ref().map(|b| VhostDisk { socket: b.socket().into(), queues: 1 });
    let machine = Machine { disks: disks.into(), ..Machine::default() };
    let script = "echo first >/dev/vda; echo second >/dev/vdb; sync";
    assert_eq!(
        Guest::start(Kind::Uml, &machine, script).unwrap().finish(DEADLINE).unwrap().code,
        0
    );
    for (image, text) in images.iter().zip(["first\n", "second\n"]) {
        let mut start = vec![0; text.len()];
        image.as_file().read_exact_at(&mut start, 0).unwrap();
        assert_eq!(start, text.as_bytes());
    }
}
