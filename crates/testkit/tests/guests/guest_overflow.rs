//! A guest whose write cache is full: its writes wait, and go on when there is room.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::guest::{Guest, Kind, Machine, VhostDisk};
use testkit::in_namespace::in_little_room;
use testkit::process::{RingwayIo, Target, eventually};
use testkit::{is_soak, rounds};

/// Far longer than any boot and load.
const DEADLINE: Duration = Duration::from_secs(300);
/// Longest time from room to the next write, with `make soak`.
const GOES_ON: Duration = Duration::from_secs(2);
const MIB: u64 = 1 << 20;

/// Guest script that fills its disk and verifies it, then discards a part while another write waits.
const SCRIPT: &str = r#"
set -e
D=$(disk RINGWAY)
load() {
    fio --name=load --filename=$D --rw=write --bs=64k --direct=1 --ioengine=libaio --iodepth=16 --thread \
        --verify=crc32c --verify_fatal=1 --verify_state_save=0 --eta=never --output=/tmp/fio.log "$@" \
        || { cat /tmp/fio.log; exit 1; }
}
echo "begins"
load --size=40m
echo "is filled"
(read discard </dev/console; blkdiscard -o 0 -l 33554432 $D; echo "is discarded") &
load --offset=40m --size=20m
wait
dmesg | grep -i -E 'I/O error|critical .* error|reset|timed out|abort' && exit 2
dmesg | grep -i 'blocked for more' | sed 's/^/note: /' || true
exit 0
"#;

fn disk(io: &RingwayIo) -> Value {
    let stats: Value = serde_json::from_str(&io.ringway(&["io", "stats"]).unwrap()).unwrap();
    stats["disks"][0].clone()
}

/// Waits until writes wait, and then for some seconds. Nothing changes meanwhile.
fn wait_while_full(io: &RingwayIo, seconds: usize) {
    eventually("writes wait", || disk(io)["state"] == "waiting");
    let written = disk(io)["requests"]["write"].clone();
    for _ in 0..seconds {
        std::thread::sleep(Duration::from_secs(1));
        let now = disk(io);
        assert_eq!((&now["state"], &now["errors"]), (&json!("waiting"), &json!(0)));
        assert_eq!(now["requests"]["write"], written, "a write went on without room");
    }
}

/// Reports how long after `room` the next write went on.
fn goes_on(io: &RingwayIo, what: &str, written: &Value, room: Instant) {
    while disk(io)["requests"]["write"] == *written {
        assert!(room.elapsed() < DEADLINE, "never after {what}");
    }
    println!("{what}: the next write ended after {:?}", room.elapsed());
    assert!(!is_soak() || room.elapsed() < GOES_ON, "{what}: {:?}", room.elapsed());
}

const FULL: &str = concat!(module_path!(), "::a_guest_waits_for_room_without_an_error");

#[test]
fn a_guest_waits_for_room_without_an_error() {
    print!("{}", in_little_room(FULL, 12, full).unwrap());
}

fn full(dir: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let io = RingwayIo::start(folder.path(), &[]).unwrap();
    let base = folder.path().join("base.raw");
    std::fs::File::create(&base).unwrap().set_len(64 * MIB).unwrap();
    let overlay = json!({"base": {"file": base}, "ram": 4 * MIB, "overflow": dir.join("over")});
    let target = Target::Tree(json!({ "overlay": overlay }));
    // A note says that the overflow file is in memory.
    io.attach_noted("d", &target, &["serial=RINGWAY", "cache=writeback"]).unwrap();
    let disks = vec![VhostDisk { socket: io.socket("d"), queues: 1 }];
    let machine = Machine { disks, ..Machine::default() };
    let mut guest = Guest::start(Kind::Qemu, &machine, SCRIPT).unwrap();
    guest.wait_for("begins\n", DEADLINE).unwrap();
    wait_while_full(&io, rounds(1, 600));
    let written = disk(&io)["requests"]["write"].clone();
    let room = Instant::now();
    let status = Command::new("mount").args(["-o", "remount,size=40m"]).arg(dir).status().unwrap();
    assert!(status.success());
    goes_on(&io, "room in the file system", &written, room);
    guest.wait_for("is filled\n", DEADLINE).unwrap();
    wait_while_full(&io, rounds(1, 10));
    let written = disk(&io)["requests"]["write"].clone();
    let room = Instant::now();
    guest.type_in("discard\n").unwrap();
    guest.wait_for("is discarded\n", DEADLINE).unwrap();
    goes_on(&io, "a discard, with the time of the guest's shell", &written, room);
    let outcome = guest.finish(DEADLINE).unwrap();
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    outcome
        .output
        .lines()
        .filter(|line| line.contains("note: "))
        .for_each(|line| println!("{line}"));
    assert_eq!(disk(&io)["errors"], 0);
}
