//! Guests whose disks grow, are capped, or hang.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use testkit::guest::{Guest, Kind, Machine, VhostDisk};
use testkit::process::RingwayIo;
use testkit::storage::Hanging;

/// Far longer than any boot, also when several guests share two busy cores.
const DEADLINE: Duration = Duration::from_secs(240);
const SMALL: u64 = 8 << 20;
const LARGE: u64 = 20 << 20;

/// Guest script that reports when both disks have their new size, and uses the new part of them.
/// Sizes are in sectors.
const GROWTH: &str = r#"
set -eu
F=$(disk FILE); M=$(disk MEMORY)
sizes() { echo $(cat /sys/class/block/${F#/dev/}/size /sys/class/block/${M#/dev/}/size); }
echo "from $(sizes)"
[ "$(sizes)" = "@SMALL@ @SMALL@" ]
seq 2000 | dd of=/tmp/block bs=4k count=1 iflag=fullblock 2>/dev/null
echo "small enough"
until [ "$(sizes)" = "@LARGE@ @LARGE@" ]; do sleep 0.1; done
for disk in $F $M; do
    dd if=/tmp/block of=$disk bs=4k seek=$((@LARGE@ / 8 - 1)) oflag=direct 2>/dev/null
    dd if=$disk bs=4k skip=$((@LARGE@ / 8 - 1)) iflag=direct 2>/dev/null | cmp - /tmp/block
done
dmesg | grep -i 'I/O error' && exit 2
echo grown
"#;

#[test]
fn a_guest_sees_its_disks_grow_without_a_reboot() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(SMALL).unwrap();
    let io = RingwayIo::start(dir.path(), &[]).unwrap();
    io.attach("file", &image, &["queues=2", "serial=FILE", "caps.iops=500"]).unwrap();
    let socket = format!("socket={}", io.socket("memory").display());
    let memory = format!("backend.memory={SMALL}");
    io.ringway(&["io", "disk.attach", "id=memory", &socket, &memory, "serial=MEMORY"]).unwrap();
    let disks = [("file", 2), ("memory", 1)];
    let disks = disks.map(|(id, queues)| VhostDisk { socket: io.socket(id), queues }).to_vec();
    let machine = Machine { disks, cpus: 2, ..Machine::default() };
    let script = GROWTH.replace("@SMALL@", &(SMALL / 512).to_string());
    let script = script.replace("@LARGE@", &(LARGE / 512).to_string());
    let mut guest = Guest::start(Kind::Qemu, &machine, &script).unwrap();
    guest.wait_for("small enough\n", DEADLINE).unwrap();
    let size = format!("size={LARGE}");
    io.ringway(&["io", "disk.resize", "id=memory", &size]).unwrap();
    // The file disk grows while it is paused, and receives caps as well.
    io.ringway(&["io", "disk.pause", "id=file"]).unwrap();
    io.ringway(&["io", "disk.resize", "id=file", &size]).unwrap();
    io.ringway(&["io", "disk.caps", "id=file", "caps.bytes_per_second=1M"]).unwrap();
    io.ringway(&["io", "disk.resume", "id=file"]).unwrap();
    let outcome = guest.finish(DEADLINE).unwrap();
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    assert_eq!(std::fs::metadata(&image).unwrap().len(), LARGE);
}

/// Guest script that writes blocks without end, and reads back each and the one before.
const WRITES: &str = r#"
set -eu
D=$(disk RINGWAY)
block() { yes "block $1" | dd of=/tmp/$1 bs=4k count=1 iflag=fullblock 2>/dev/null; }
same() { dd if=$D bs=4k count=1 skip=$(($1 % 64)) iflag=direct 2>/dev/null | cmp - /tmp/$1; }
n=1
block 0
dd if=/tmp/0 of=$D bs=4k count=1 oflag=direct 2>/dev/null
while block $n; do
    dd if=/tmp/$n of=$D bs=4k count=1 seek=$((n % 64)) oflag=direct 2>/dev/null || break
    same $n && same $((n - 1)) || break
    rm /tmp/$((n - 1))
    n=$((n + 1))
    echo wrote
    sleep 0.05
done
dmesg | tail -20
"#;

fn wait_for_one_in_flight(io: &RingwayIo) {
    wait_until(io, "\"in_flight\":1");
}

fn wait_until(io: &RingwayIo, shown: &str) {
    let waits = Instant::now();
    while !io.ringway(&["io", "stats"]).unwrap().contains(shown) {
        assert!(waits.elapsed() < DEADLINE, "never: {shown}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the guest has written and verified several blocks.
fn goes_on(guest: &mut Guest) {
    for _ in 0..3 {
        guest.skip();
        guest.wait_for("wrote\n", DEADLINE).unwrap();
    }
}

fn stop(guest: &mut Guest) {
    let began = Instant::now();
    guest.qmp().unwrap().execute("stop", &serde_json::json!({})).unwrap();
    assert!(began.elapsed() < DEADLINE / 4, "{:?}", began.elapsed());
}

#[test]
fn a_machine_on_storage_that_hangs_goes_on_stops_and_ends() {
    let hanging = Hanging::new().unwrap();
    let device = hanging.device("disk", 8 << 20).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let io = RingwayIo::start(dir.path(), &[]).unwrap();
    io.attach("d1", &device, &["serial=RINGWAY", "stop_deadline_ms=1000"]).unwrap();
    let machine = Machine::with_disk(&io.socket("d1"));
    let mut guest = Guest::start(Kind::Qemu, &machine, WRITES).unwrap();
    guest.wait_for("wrote\n", DEADLINE).unwrap();

    // A verb ends at its deadline. The front-end keeps its records, stays connected, and waits.
    hanging.hang().unwrap();
    wait_for_one_in_flight(&io);
    let error = io.ringway(&["io", "disk.pause", "id=d1"]).unwrap_err().to_string();
    assert!(error.contains("mend the storage"), "{error}");
    let stats = io.ringway(&["io", "stats"]).unwrap();
    assert!(stats.contains("\"state\":\"stuck\""), "{stats}");
    let why = io.ringway(&["why", "d1"]).unwrap();
    assert!(why.contains("stuck") && why.contains(device.to_str().unwrap()), "{why}");
    // The storage works again. Requests in flight are submitted again, and the guest saw a pause.
    hanging.answer().unwrap();
    let waits = Instant::now();
    while io.ringway(&["io", "disk.resume", "id=d1"]).is_err() {
        assert!(waits.elapsed() < DEADLINE, "stuck for ever");
        std::thread::sleep(Duration::from_millis(20));
    }
    goes_on(&mut guest);

    // The VM stops while its storage hangs. QEMU waits for the ring, but not for ever. The VM
    // continues when both the storage and QEMU continue, in either order.
    let nothing = serde_json::json!({});
    for storage_is_first in [true, false] {
        hanging.hang().unwrap();
        wait_for_one_in_flight(&io);
        stop(&mut guest);
        let stats = io.ringway(&["io", "stats"]).unwrap();
        assert!(stats.contains("\"state\":\"stuck\"") && stats.contains("\"connected\":true"));
        if storage_is_first {
            hanging.answer().unwrap();
            wait_until(&io, "\"state\":\"active\"");
        }
        guest.qmp().unwrap().execute("cont", &nothing).unwrap();
        if !storage_is_first {
            // Stopping again takes no time, because no queue is served.
            stop(&mut guest);
            guest.qmp().unwrap().execute("cont", &nothing).unwrap();
            hanging.answer().unwrap();
        }
        goes_on(&mut guest);
    }

    // After another stop, QEMU quits.
    hanging.hang().unwrap();
    wait_for_one_in_flight(&io);
    stop(&mut guest);
    let began = Instant::now();
    // The reply may be lost with the process.
    let _ = guest.qmp().unwrap().execute("quit", &nothing);
    let ended = guest.finish(DEADLINE).unwrap_err().to_string();
    assert!(ended.contains("ended before"), "{ended}");
    assert!(began.elapsed() < DEADLINE / 4, "{:?}", began.elapsed());
    let error = io.ringway(&["io", "disk.detach", "id=d1"]).unwrap_err().to_string();
    assert!(error.contains("mend the storage"), "{error}");
}
