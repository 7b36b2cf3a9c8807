//! Backends that are killed and started again under a guest that writes and verifies. The guest
//! sees a pause, no error, and every byte as it wrote it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use testkit::guest::{Guest, Kind, Machine, VhostDisk};
use testkit::process::{
    RestartingDisk, RestartingServer, ServerProgram, Target, eventually, find_tool,
};
use testkit::rounds;

/// Far longer than any boot and pass of fio, also when several guests share two busy cores.
const DEADLINE: Duration = Duration::from_secs(240);
const DISK_BYTES: u64 = 4 << 20;

/// Guest script that writes the whole disk with checksums and reads it back, pass after pass. Each
/// pass has its own seed, so that data of an earlier pass is detected. A read every tenth of a
/// second shows when the disk responds. A line on the console ends both.
const SCRIPT: &str = r#"
set -u
D=$(disk RINGWAY)
(while :; do
    dd if=$D of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null || echo "tick failed"
    echo tick
    sleep 0.1
done) &
ticks=$!
(read stop </dev/console; touch /tmp/stop) &
n=0
while [ ! -e /tmp/stop ]; do
    n=$((n + 1))
    fio --name=pass --filename=$D --rw=randwrite --bs=4k --size=@BYTES@ --randseed=$n \
        --verify=crc32c --verify_fatal=1 --verify_state_save=0 --direct=1 --ioengine=libaio \
        --iodepth=16 --thread --eta=never --output=/tmp/fio.log || { cat /tmp/fio.log; exit 1; }
    echo "pass $n"
done
kill $ticks
# What the kernel says of the disk; that a task waited long is a remark, not an error.
dmesg | grep -i -E 'I/O error|critical .* error|Buffer I/O|reset|timed out' && exit 2
dmesg | grep -i -E 'blocked for more' | sed 's/^/remark: /'
echo "last seed $n"
"#;

fn script() -> String {
    SCRIPT.replace("@BYTES@", &DISK_BYTES.to_string())
}

/// Returns a time that differs from round to round and from run to run.
fn moment(round: usize) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    Duration::from_millis(RandomState::new().hash_one(round) % 1500)
}

/// Kills the server several times. A `ringway-blk` is down for the outage each time.
fn guest_goes_on(program: ServerProgram, outages: &[Duration]) {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(DISK_BYTES).unwrap();
    let target = Target::File(image.path().to_owned());
    let disk = RestartingDisk { program, target, queues: 2, cache: "none" };
    let mut server = RestartingServer::start(&disk).unwrap();
    let disks = vec![VhostDisk { socket: server.socket(), queues: 2 }];
    let machine = Machine { disks, cpus: 2, ..Machine::default() };
    let mut guest = Guest::start(Kind::Qemu, &machine, &script()).unwrap();
    guest.wait_for("tick\n", DEADLINE).unwrap();

    let mut pauses = Vec::new();
    for (round, outage) in outages.iter().enumerate() {
        std::thread::sleep(moment(round));
        server.serving().unwrap().kill().unwrap();
        std::thread::sleep(*outage);
        server.start_again().unwrap();
        let restarted = Instant::now();
        // Wait for two: the first may have been on its way to the console when the backend died.
        guest.skip();
        for _ in 0..2 {
            guest.wait_for("tick\n", DEADLINE).unwrap();
        }
        pauses.push(restarted.elapsed());
    }
    // Wait for a pass that ends after the last kill. The next one is then a whole pass.
    guest.skip();
    guest.wait_for("pass ", DEADLINE).unwrap();
    guest.type_in("stop\n").unwrap();
    let outcome = guest.finish(DEADLINE).unwrap();
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    assert!(!outcome.output.contains("tick failed"), "{}", outcome.output);
    for remark in outcome.output.lines().filter(|line| line.starts_with("remark: ")) {
        println!("{remark}");
    }
    let ended = server.process().terminate().unwrap();
    assert!(ended.success(), "{ended}: {}", server.process().stderr());
    let seed = outcome.output.rsplit_once("last seed ").unwrap().1.trim();
    assert_contents(image.path(), seed);

    pauses.sort();
    println!("outages {outages:?}: pauses after the restarts {pauses:?}");
}

/// Checks with the host's fio that the image contains the data of the guest's last pass.
fn assert_contents(image: &Path, seed: &str) {
    let output = Command::new(find_tool("fio", "fio").unwrap())
        .args(["--name=pass", "--rw=randwrite", "--bs=4k", "--verify=crc32c", "--verify_only"])
        .args(["--verify_fatal=1", "--verify_state_save=0", "--direct=0", "--ioengine=psync"])
        .args([format!("--size={DISK_BYTES}"), format!("--randseed={seed}")])
        .arg(format!("--filename={}", image.display()))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn qemu_guest_does_not_notice_a_killed_ringway_blk_and_waits_out_a_long_outage() {
    let mut outages = vec![Duration::ZERO; rounds(3, 20)];
    outages.extend(vec![Duration::from_secs(rounds(3, 120) as u64); rounds(1, 2)]);
    guest_goes_on(ServerProgram::Blk, &outages);
}

#[test]
fn qemu_guest_does_not_notice_a_killed_worker_of_ringway_io() {
    guest_goes_on(ServerProgram::Io, &vec![Duration::ZERO; rounds(3, 20)]);
}

/// Guest script that stops the disk's driver, starts it again after a line on the console, and reads.
const NO_DRIVER: &str = r#"
D=$(disk RINGWAY)
V=$(readlink -f /sys/block/${D#/dev/}/device)
cd /sys/bus/virtio/drivers/virtio_blk
echo ${V##*/} >unbind
echo 'no driver'
read go </dev/console
echo ${V##*/} >bind
head -c 3 $(disk RINGWAY)
"#;

/// A firmware's menu and a paused boot are such times as well.
#[test]
fn qemu_guest_has_its_disk_after_a_death_while_no_driver_runs() {
    let image = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(image.path(), [b'x'; 4096]).unwrap();
    let target = Target::File(image.path().to_owned());
    let disk = RestartingDisk { program: ServerProgram::Blk, target, queues: 2, cache: "none" };
    let mut server = RestartingServer::start(&disk).unwrap();
    let disks = vec![VhostDisk { socket: server.socket(), queues: 2 }];
    let machine = Machine { disks, cpus: 2, ..Machine::default() };
    let mut guest = Guest::start(Kind::Qemu, &machine, NO_DRIVER).unwrap();
    guest.wait_for("no driver\n", DEADLINE).unwrap();
    for _ in 0..2 {
        server.serving().unwrap().kill().unwrap();
        server.start_again().unwrap();
        eventually("QEMU is back", || server.process().stderr().contains("front-end connected"));
    }
    guest.type_in("go\n").unwrap();
    let outcome = guest.finish(DEADLINE).unwrap();
    assert!(outcome.code == 0 && outcome.output.ends_with("xxx"), "{}", outcome.output);
}
