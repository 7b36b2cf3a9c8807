//! What `vbd-parallel` compares.

use std::time::Duration;

use crate::experiment::{Comparison, Figure, Options, Side};

/// Machines have so many disks.
pub(super) const COUNTS: [u8; 8] = [1, 2, 5, 10, 20, 50, 100, 255];
/// Disks up to which one step at a time is waited for.
const SERIAL_MOST: u8 = 10;
/// One disk in so many is slow, in cells that have slow ones.
const SLOW_EVERY: usize = 10;
/// Disks of a chunk, where somebody works in chunks.
const CHUNK: usize = 10;
/// Ten slow disks over one, and 255 over what they need at ten at once.
const BAR: f64 = 1.3;
/// Memory that a step costs while it runs beside others, in MiB: what XenServer is said to need.
const STEP_MIB: f64 = 15.0;
/// Steps at once when their memory is measured; of real storage, which takes no more calls than 32.
const STEPS: u8 = 255;
const REAL_STEPS: u8 = 30;
/// How long attach and detach take.
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

    /// Of each disk.
    pub(super) fn of(self, disks: u8) -> Vec<Duration> {
        let of = |n| if usize::from(n) % SLOW_EVERY == 0 { self.slow_ms } else { self.usual_ms };
        (0..disks).map(|n| Duration::from_millis(of(n))).collect()
    }

    /// Least time with ten at once.
    pub(super) fn bound(self, disks: u8) -> Duration {
        let all = self.of(disks);
        let longest = all.iter().max().copied().unwrap_or_default();
        longest.max(all.iter().sum::<Duration>() / 10)
    }

    /// Least time in chunks of ten.
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

/// What is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum System {
    /// A machine with so many disks.
    Disks(u8),
    /// The same, one step at a time.
    Serial(u8),
    /// So many machines of ten disks at once, with so many steps on the host at once.
    Machines(u8, u16),
    /// The memory that so many steps take which run beside each other.
    Memory(u8),
}

impl System {
    pub(super) fn name(self) -> String {
        match self {
            Self::Disks(1) => "1 disk".to_owned(),
            Self::Disks(n) => format!("{n} disks"),
            Self::Serial(n) => format!("{n} disks, one step at a time"),
            Self::Machines(1, most) => format!("1 machine, {most} steps at most"),
            Self::Machines(n, most) => format!("{n} machines, {most} steps at most"),
            Self::Memory(steps) => format!("{steps} steps at once"),
        }
    }
}

/// What runs the machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Runs {
    /// Nothing: making a domain and giving it a disk take no time.
    Simulator,
    /// QEMU, on images in directories; the guest is its firmware, which finds nothing to boot.
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
        // 255 disks of half a second each show nothing that the mixed ones do not.
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
    let memory = Case {
        id: "memory".to_owned(),
        title: "memory of the daemon while steps wait for storage".to_owned(),
        runs: Runs::Simulator,
        delay: Delay { id: "wait", usual_ms: 1000, slow_ms: 1000 },
        systems: vec![System::Memory(STEPS)],
    };
    let real_memory = Case {
        id: "memory-qemu".to_owned(),
        title: "QEMU: memory of the daemon and the datapath".to_owned(),
        runs: Runs::Qemu,
        systems: vec![System::Memory(REAL_STEPS)],
        ..memory.clone()
    };
    let real = [real(slow, &[1, 10]), real(mixed, &[255]), real_memory];
    let all = DELAYS.into_iter().map(of).chain([two, memory]).chain(real);
    let wanted = |case: &Case| options.only.as_ref().is_none_or(|only| case.id.contains(only));
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
        // Sixteen at once are two turns for twenty disks. So are twenty at the start, when nobody
        // knows yet whether the SRs answer and four places are kept from them.
        "two-machines" => [(16, None), (20, None), (24, Some(BAR))]
            .into_iter()
            .flat_map(|(most, bar)| over(System::Machines(2, most), System::Machines(1, 16), bar))
            .collect(),
        "memory" => vec![alone(System::Memory(STEPS), "mib_per_step", STEP_MIB)],
        "memory-qemu" => vec![alone(System::Memory(REAL_STEPS), "mib_per_step", STEP_MIB)],
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
