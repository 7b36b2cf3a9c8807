//! Disk settings that `xe` changes while the guest runs.

use std::time::{Duration, Instant};

use model::caps::Caps;
use model::poll::{EffectivePolling, PollMode};
use model::share::DiskShare;
use testkit::ringwayd::Shell;

use super::world::{Machine, PATIENCE, World};

/// Cap of the disk in bytes per second, and number of bytes read.
const RATE: u64 = 64 << 10;
const READ: u64 = 8 * RATE;

/// `xe` sets polling, share and caps of a disk, which hold at once.
pub(super) fn xe_sets_a_disk(world: &mut World, machine: &Machine, shell: &mut Shell) {
    let knobs = Knobs::of(world, machine);
    knobs.polling(world);
    knobs.share(world);
    knobs.caps(world);

    // Without read-ahead and with an empty cache, each page is one request.
    shell.run("blockdev --setra 0 /dev/vda", PATIENCE).unwrap();
    let count = READ / 4096;
    let reads = format!(
        "echo 1 >/proc/sys/vm/drop_caches; dd if=/dev/vda of=/dev/null bs=4k count={count} 2>&1"
    );
    knobs.set(world, &["qos_algorithm_params:bytes=64K"]);
    world.until_served(&machine.slot, |disk| rate(disk.caps) == Some(RATE));
    let began = Instant::now();
    shell.run(&reads, PATIENCE).unwrap();
    // The bucket holds one second's worth, and another one accrues at most while that is read.
    let (took, allowed) = (began.elapsed(), Duration::from_secs((READ - 2 * RATE) / RATE));
    assert!(took >= allowed, "{READ} bytes in {took:?}, {RATE} a second are allowed");
    // A priority among competing disks is not a cap.
    knobs.xe(world, "clear", &["param-name=qos_algorithm_params"]);
    knobs.set(world, &["qos_algorithm_type=ionice", "qos_algorithm_params:sched=rt"]);
    world.until_served(&machine.slot, |disk| disk.caps.is_none());
    knobs.shares(world, DiskShare { weight: 914, ..DiskShare::default() });
    let algorithm = world.record("VBD", &machine.slot);
    assert_eq!(algorithm.text("qos_algorithm_type"), "ionice");
    assert_eq!(world.record("VBD", &machine.slot).int("status_code"), 0);
}

fn rate(caps: Option<Caps>) -> Option<u64> {
    caps.and_then(|caps| caps.bytes_per_second)
}

/// `xe` commands about the disk of a VM.
struct Knobs {
    slot: String,
    of: String,
}

impl Knobs {
    fn of(world: &mut World, machine: &Machine) -> Self {
        let of = format!("uuid={}", world.record("VBD", &machine.slot).text("uuid"));
        Self { slot: machine.slot.clone(), of }
    }

    fn xe(&self, world: &World, verb: &str, words: &[&str]) -> String {
        let verb = format!("vbd-param-{verb}");
        let words = [&[&*verb, &self.of], words].concat();
        world.daemon.xe_prints(&words).unwrap()
    }

    fn set(&self, world: &World, words: &[&str]) {
        self.xe(world, "set", words);
    }

    fn polls(&self, world: &mut World, wanted: EffectivePolling) {
        world.until_served(&self.slot, |disk| disk.polling.unwrap().set == wanted);
    }

    /// Checks each polling setting alone, and the default after its removal.
    fn polling(&self, world: &mut World) {
        let usual = EffectivePolling::default();
        self.polls(world, usual);
        self.set(world, &["other-config:polling-duration=60"]);
        self.polls(world, EffectivePolling { mode: PollMode::Auto, max_us: 60, ..usual });
        self.set(world, &["other-config:polling-idle-threshold=30"]);
        self.polls(
            world,
            EffectivePolling { mode: PollMode::Auto, max_us: 60, idle_threshold: 30 },
        );
        self.set(world, &["other-config:polling-duration=0"]);
        self.polls(world, EffectivePolling { mode: PollMode::Off, idle_threshold: 30, ..usual });
        for key in ["polling-duration", "polling-idle-threshold"] {
            let key = format!("param-key={key}");
            self.xe(world, "remove", &["param-name=other-config", &key]);
        }
        self.polls(world, usual);
    }

    fn shares(&self, world: &mut World, wanted: DiskShare) {
        world.until_served(&self.slot, |disk| disk.share.as_ref().unwrap().share == wanted);
    }

    /// Checks that one command sets a weight, and that floors are added to it.
    fn share(&self, world: &mut World) {
        self.set(world, &["qos_algorithm_params:weight=4"]);
        let light = DiskShare { weight: 4, ..DiskShare::default() };
        self.shares(world, light);
        assert_eq!(world.record("VBD", &self.slot).text("qos_algorithm_type"), "ringway");
        self.set(world, &["qos_algorithm_params:floor-iops=50"]);
        self.set(world, &["qos_algorithm_params:floor-bytes=1M"]);
        self.shares(world, DiskShare { floor_iops: Some(50), floor_bytes: Some(1 << 20), ..light });
        self.xe(world, "clear", &["param-name=qos_algorithm_params"]);
        self.set(world, &["qos_algorithm_type="]);
        self.shares(world, DiskShare::default());
    }

    /// Checks all caps and a weight together, and none after their removal.
    fn caps(&self, world: &mut World) {
        let words = ["type=ringway", "params:iops=700", "params:iops-burst=900", "params:bytes=1M"];
        let more = ["params:bytes-burst=2M", "params:burst=3", "params:weight=300"];
        for word in words.into_iter().chain(more) {
            self.set(world, &[&format!("qos_algorithm_{word}")]);
        }
        let (iops, iops_burst) = (Some(700), Some(900));
        let (bytes_per_second, bytes_burst) = (Some(1 << 20), Some(2 << 20));
        let all = Caps { iops, iops_burst, bytes_per_second, bytes_burst, burst_seconds: 3 };
        world.until_served(&self.slot, |disk| disk.caps == Some(all));
        self.shares(world, DiskShare { weight: 300, ..DiskShare::default() });
        self.xe(world, "clear", &["param-name=qos_algorithm_params"]);
        world.until_served(&self.slot, |disk| disk.caps.is_none());
        self.shares(world, DiskShare::default());
    }
}
