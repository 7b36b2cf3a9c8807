//! Upgrades of the serving program under guests that write and verify: no error, every byte as it
//! was written, and pauses that guests do not notice.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use testkit::guest::{Guest, Kind, Machine, VhostDisk};
use testkit::process::RingwayIo;
use testkit::rounds;

/// Far longer than any boot and pass of fio, also when several guests share two busy cores.
const DEADLINE: Duration = Duration::from_secs(240);
const DISK_BYTES: u64 = 4 << 20;

/// Guest script that writes the whole disk with checksums and reads it back, pass after pass, and
/// prints the longest request of each. A line on the console ends it. User-Mode Linux has no input,
/// so its script ends after a number of passes.
const SCRIPT: &str = r#"
set -u
D=$(disk RINGWAY)
[ @PASSES@ -gt 0 ] || (read stop </dev/console; touch /tmp/stop) &
n=0
while [ ! -e /tmp/stop ] && { [ @PASSES@ -eq 0 ] || [ $n -lt @PASSES@ ]; }; do
    n=$((n + 1))
    fio --name=pass --filename=$D --rw=randwrite --bs=4k --size=@BYTES@ --randseed=$n \
        --verify=crc32c --verify_fatal=1 --verify_state_save=0 --direct=1 --ioengine=libaio \
        --iodepth=16 --thread --eta=never --output-format=json --output=/tmp/fio.log \
        || { cat /tmp/fio.log; exit 1; }
    longest=$(tr -d ' ,' </tmp/fio.log | grep '"lat_ns"' -A2 | grep '"max"' | cut -d: -f2 \
        | cut -d. -f1 | sort -n | tail -1)
    echo "pass $n longest $longest ns"
done
dmesg | grep -i -E 'I/O error|critical .* error|Buffer I/O|reset|timed out' && exit 2
echo "all passes good"
"#;

/// Returns the milliseconds of each `longest N ns` in a guest's output.
fn longest(output: &str) -> Vec<f64> {
    let words: Vec<_> = output.split_whitespace().collect();
    let pairs = words.windows(2).filter(|pair| pair.first() == Some(&"longest"));
    pairs.filter_map(|pair| pair.get(1)?.parse::<f64>().ok()).map(|ns| ns / 1e6).collect()
}

fn guest_does_not_notice(kind: Kind, queues: u16, upgrades: usize) {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(DISK_BYTES).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut io = RingwayIo::start(dir.path(), &[]).unwrap();
    io.attach("d1", image.path(), &[&format!("queues={queues}"), "serial=RINGWAY"]).unwrap();
    let disks = vec![VhostDisk { socket: io.socket("d1"), queues }];
    let machine =
        Machine { disks, cpus: usize::from(queues).try_into().unwrap(), ..Machine::default() };
    let passes = if kind == Kind::Uml { upgrades + 1 } else { 0 };
    let script = SCRIPT.replace("@BYTES@", &DISK_BYTES.to_string());
    let script = script.replace("@PASSES@", &passes.to_string());
    let mut guest = Guest::start(kind, &machine, &script).unwrap();
    guest.wait_for("pass 1 ", DEADLINE).unwrap();
    let mut paused = Vec::new();
    for round in 0..upgrades {
        let reply = io.ringway(&["io", "upgrade"]).unwrap();
        let (_, after) = reply.split_once("\"paused_ms\":").unwrap();
        let number: String =
            after.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        paused.push(number.parse::<f64>().unwrap());
        // Pause between upgrades, so that requests are in flight at each.
        std::thread::sleep(Duration::from_millis(100 + 37 * (round as u64 % 9)));
    }
    if kind == Kind::Qemu {
        guest.skip();
        guest.wait_for("pass ", DEADLINE).unwrap();
        guest.type_in("stop\n").unwrap();
    }
    let outcome = guest.finish(DEADLINE).unwrap();
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    assert!(outcome.output.contains("all passes good"), "{}", outcome.output);
    let mut took = longest(&outcome.output);
    took.sort_by(f64::total_cmp);
    paused.sort_by(f64::total_cmp);
    println!(
        "{upgrades} upgrades; not served {paused:.1?} ms; longest request of a pass {took:.1?} ms"
    );
    let ended = io.process.terminate().unwrap();
    assert!(ended.success(), "{ended}: {}", io.process.stderr());
}

#[test]
fn a_qemu_guest_does_not_notice_upgrades() {
    guest_does_not_notice(Kind::Qemu, 2, rounds(5, 50));
}

#[test]
fn a_user_mode_linux_guest_does_not_notice_upgrades() {
    guest_does_not_notice(Kind::Uml, 1, rounds(5, 50));
}
