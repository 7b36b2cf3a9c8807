//! Cases of `vbd-parallel` and their comparisons.

use std::time::Duration;

use crate::experiment::{Comparison, Figure, Options, Side};

/// Numbers of disks of a VM.
pub(super) const COUNTS: [u8; 8] = [1, 2, 5, 10, 20, 50, 100, 255];
/// Most disks with which one step at a time is measured.
const SERIAL_MOST: u8 = 10;
/// VMs of a storm, and with `--quick`.
const STORM: [u8; 2] = [125, 25];
/// Least gain of a storm over plugs one at a time: start and shutdown take at most this part.
const STORM_BAR: f64 = 0.25;
/// One disk in this number is slow, in cells that have slow ones.
const SLOW_EVERY: usize = 10;
/// Disks per chunk, for the calculation of chunked work.
const CHUNK: usize = 10;
/// Most time of ten slow disks over one, and of 255 disks over their time at ten at once.
const BAR: f64 = 1.3;
/// Most memory of a step that runs beside others, in MiB. This is the reported need of XenServer.
const STEP_MIB: f64 = 15.0;
/// Concurrent steps in the memory cells of a full and of a quick run: of the simulator, and of real
/// storage, which accepts no more than 32 calls.
const STEPS: [u8; 2] = [255, 30];
const QUICK_STEPS: [u8; 2] = [50, 10];
/// Duration of attach and detach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Delay {
    pub(super) id: &'static str,
    pub(super) usual_ms: u64,
    pub(super) slow_ms: u64,
}

pub(super) const DELAYS: [Delay; 4] = [
    Delay { id: "0", usual_ms: 0, slow_ms: 0 },
    Delay { id: "50", usual_ms: 50, slow_ms: 50 },
    Delay { id: "500", usual_ms: 500, slow_ms: 500 },
    Delay { id: "mixed", usual_ms: 50, slow_ms: 500 },
];

impl Delay {
    pub(super) fn cell(self) -> String {
        format!("attach-{}", self.id)
    }

    pub(super) fn title(self) -> String {
        match (self.usual_ms, self.slow_ms) {
            (usual, slow) if usual == slow => format!("attach and detach take {usual} ms"),
            (usual, slow) => format!("attach and detach take {usual} ms, of every tenth {slow} ms"),
        }
    }

    /// Returns the delay of each disk.
    pub(super) fn of(self, disks: u8) -> Vec<Duration> {
        let of = |n| if usize::from(n) % SLOW_EVERY == 0 { self.slow_ms } else { self.usual_ms };
        (0..disks).map(|n| Duration::from_millis(of(n))).collect()
    }

    /// Returns the least time with ten at once.
    pub(super) fn bound(self, disks: u8) -> Duration {
        let all = self.of(disks);
        let longest = all.iter().max().copied().unwrap_or_default();
        longest.max(all.iter().sum::<Duration>() / 10)
    }

    /// Returns the least time in chunks of ten.
    pub(super) fn chunks(self, disks: u8) -> Duration {
        self.of(disks).chunks(CHUNK).filter_map(|chunk| chunk.iter().max()).sum()
    }

    pub(super) fn config(self) -> [(&'static str, String); 3] {
        [
            ("delay-ms", self.usual_ms.to_string()),
            ("slow-ms", self.slow_ms.to_string()),
            ("slow-every", SLOW_EVERY.to_string()),
        ]
    }
}

/// System of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum System {
    /// VM with this number of disks.
    Disks(u8),
    /// VM with this number of disks, one step at a time.
    Serial(u8),
    /// This number of VMs with ten disks each at once, with this limit of concurrent steps on the
    /// host.
    Machines(u8, u16),
    /// This number of VMs with eight disks each on one SR, at once.
    Storm(u8, Plugs),
    /// Memory of this number of concurrent steps.
    Memory(u8),
}

/// Concurrent plugs of a storm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plugs {
    /// As many as usual.
    Parallel,
    /// One of each VM.
    OneOfEach,
    /// One on the host.
    Serial,
}

impl System {
    pub(super) fn name(self) -> String {
        match self {
            Self::Disks(1) => "1 disk".to_owned(),
            Self::Disks(n) => format!("{n} disks"),
            Self::Serial(n) => format!("{n} disks, one step at a time"),
            Self::Machines(1, most) => format!("1 machine, {most} steps at most"),
            Self::Machines(n, most) => format!("{n} machines, {most} steps at most"),
            Self::Storm(n, Plugs::Parallel) => format!("{n} machines"),
            Self::Storm(n, Plugs::OneOfEach) => format!("{n} machines, one step of each at a time"),
            Self::Storm(n, Plugs::Serial) => format!("{n} machines, one step at a time"),
            Self::Memory(steps) => format!("{steps} steps at once"),
        }
    }
}

/// Hypervisor of the VMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Runs {
    /// Simulator, in which creating a domain and attaching a disk to it take no time.
    Simulator,
    /// QEMU with images in directories. The guest is its firmware, which finds nothing to boot.
    Qemu,
}

#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) id: String,
    pub(super) title: String,
    pub(super) runs: Runs,
    pub(super) delay: Delay,
    pub(super) systems: Vec<System>,
}

pub(super) fn cases(options: &Options) -> Vec<Case> {
    let counts: &[u8] = if options.quick { &[1, 10, 255] } else { &COUNTS };
    let serial = counts.iter().filter(|n| (2..=SERIAL_MOST).contains(*n));
    let systems: Vec<System> = counts
        .iter()
        .map(|n| System::Disks(*n))
        .chain(serial.map(|n| System::Serial(*n)))
        .collect();
    let of = |delay: Delay| {
        // The mixed cells already cover 255 disks, so this cell leaves them out.
        let fits = |one: &System| delay.id != "500" || !matches!(one, System::Disks(51..));
        let systems = systems.iter().copied().filter(fits).collect();
        Case { id: delay.cell(), title: delay.title(), runs: Runs::Simulator, delay, systems }
    };
    let real = |delay: Delay, counts: &[u8]| Case {
        id: format!("qemu-{}", delay.id),
        title: format!("QEMU: {}", delay.title()),
        runs: Runs::Qemu,
        delay,
        systems: counts.iter().copied().map(System::Disks).collect(),
    };
    let [.., slow, mixed] = DELAYS;
    let two = Case {
        id: "two-machines".to_owned(),
        title: "machines of ten disks, 500 ms each, on an SR each".to_owned(),
        runs: Runs::Simulator,
        delay: slow,
        systems: [(1, 16), (2, 16), (2, 20), (2, 24)]
            .map(|(count, most)| System::Machines(count, most))
            .into(),
    };
    let machines = STORM[usize::from(options.quick)];
    let storm = Case {
        id: "storm".to_owned(),
        title: "machines of eight disks on one SR start together, 50 ms for each attach".to_owned(),
        runs: Runs::Simulator,
        delay: Delay { id: "storm", usual_ms: 50, slow_ms: 50 },
        systems: [Plugs::Parallel, Plugs::OneOfEach, Plugs::Serial]
            .map(|plugs| System::Storm(machines, plugs))
            .into(),
    };
    let [steps, real_steps] = if options.quick { QUICK_STEPS } else { STEPS };
    let memory = Case {
        id: "memory".to_owned(),
        title: "memory of the daemon while steps wait for storage".to_owned(),
        runs: Runs::Simulator,
        delay: Delay { id: "wait", usual_ms: 1000, slow_ms: 1000 },
        systems: vec![System::Memory(steps)],
    };
    let real_memory = Case {
        id: "memory-qemu".to_owned(),
        title: "QEMU: memory of the daemon and the datapath".to_owned(),
        runs: Runs::Qemu,
        systems: vec![System::Memory(real_steps)],
        ..memory.clone()
    };
    let real = [real(slow, &[1, 10]), real(mixed, &[255]), real_memory];
    let all = DELAYS.into_iter().map(of).chain([two, storm, memory]).chain(real);
    let wanted = |case: &Case| options.selects(&case.id);
    all.filter(wanted).collect()
}

pub(super) fn comparisons(case: &Case) -> Vec<Comparison> {
    let of = |ours: System, metric: &str| Comparison {
        cell: case.id.clone(),
        ours: ours.name(),
        metric: Some(metric.to_owned()),
        side: Side::AtMost,
        ..Comparison::default()
    };
    let over = |ours, peer: System, bar| {
        let both = ["start_ms", "stop_ms"].into_iter();
        both.map(move |metric| Comparison { peers: vec![peer.name()], bar, ..of(ours, metric) })
    };
    let alone = |ours, metric, bar| Comparison {
        figure: Figure::Alone,
        bar: Some(bar),
        ..of(ours, metric)
    };
    let ten = System::Disks(10);
    match &*case.id {
        "attach-500" => over(ten, System::Disks(1), Some(BAR))
            .chain(over(ten, System::Serial(10), None))
            .collect(),
        "qemu-500" => over(ten, System::Disks(1), Some(BAR)).collect(),
        "attach-mixed" | "qemu-mixed" => ["start_over_bound", "stop_over_bound"]
            .map(|metric| alone(System::Disks(255), metric, BAR))
            .into(),
        // Sixteen steps at once serve twenty disks in two batches. So do twenty at the start, while
        // four permits are withheld from SRs that have not answered yet.
        "two-machines" => [(16, None), (20, None), (24, Some(BAR))]
            .into_iter()
            .flat_map(|(most, bar)| over(System::Machines(2, most), System::Machines(1, 16), bar))
            .collect(),
        "storm" => {
            let [parallel, one_of_each, serial] = case.systems[..] else { return Vec::new() };
            over(parallel, serial, Some(STORM_BAR))
                .chain(over(parallel, one_of_each, None))
                .collect()
        }
        "memory" | "memory-qemu" => {
            let systems = case.systems.iter();
            systems.map(|system| alone(*system, "mib_per_step", STEP_MIB)).collect()
        }
        _ => over(ten, System::Serial(10), None).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_calculated_is_what_the_storage_takes() {
        let mixed = DELAYS[3];
        assert_eq!(mixed.of(11).iter().filter(|one| one.as_millis() == 500).count(), 2);
        assert_eq!(mixed.bound(255), Duration::from_millis((26 * 500 + 229 * 50) / 10));
        assert_eq!(mixed.chunks(255), Duration::from_secs(13));
        assert_eq!(DELAYS[2].bound(10), Duration::from_millis(500));
        assert_eq!(DELAYS[2].chunks(20), Duration::from_secs(1));
    }

    #[test]
    fn every_comparison_is_of_systems_that_are_there() {
        for quick in [true, false] {
            for case in cases(&Options { quick, ..Options::default() }) {
                let names: Vec<_> = case.systems.iter().map(|system| system.name()).collect();
                for compared in comparisons(&case) {
                    assert!(names.contains(&compared.ours), "{compared:?}");
                    assert!(compared.peers.iter().all(|peer| names.contains(peer)), "{compared:?}");
                }
            }
        }
    }
}
