//! Cases of the experiment and their bars.

use crate::blk::fleet::BackendKind;
use crate::experiment::{Comparison, Figure, Side};

/// Least rate of a busy disk beside idle ones, over the same disk alone.
const BAR: f64 = 0.95;
/// Most CPU time of an idle process, in percent of one core.
const CPU_PERCENT: f64 = 0.5;
/// Most sleeps of an idle process in ten seconds. Fewer than one a second means that no timer runs
/// periodically.
const SWITCHES: f64 = 9.0;
pub(super) const IDLE_DISKS: usize = 100;
/// Queues of each idle disk: beside a busy disk, and if all disks are idle.
pub(super) const QUEUES_BESIDE: u16 = 32;
const QUEUES_IDLE: u16 = 4;
/// Open files that `ringway-io` needs: per queue, per disk, and for the rest of the process
/// including the busy disk.
const FILES_PER_QUEUE: u64 = 3;
const FILES_PER_DISK: u64 = 60;
const FILES_BESIDE: u64 = 400;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    /// A busy disk, whose client has this number of requests in flight.
    Busy(u16),
    /// Only idle disks.
    Idle,
}

pub(super) const CASES: [Case; 3] = [Case::Busy(1), Case::Busy(32), Case::Idle];

/// Key of a process that runs for the whole run: program, number of idle disks, queues per disk.
pub(super) type Key = (BackendKind, usize, u16);

impl Case {
    pub(super) fn id(self) -> String {
        match self {
            Self::Busy(depth) => format!("busy-d{depth}"),
            Self::Idle => "idle".to_owned(),
        }
    }

    /// Returns how many idle disks this number of open files allows, at most [`IDLE_DISKS`].
    pub(super) fn disks(self, files: u64) -> usize {
        let queues = if self == Self::Idle { QUEUES_IDLE } else { QUEUES_BESIDE };
        let fit = files.saturating_sub(FILES_BESIDE)
            / (FILES_PER_DISK + FILES_PER_QUEUE * u64::from(queues));
        IDLE_DISKS.min(usize::try_from(fit).unwrap_or(IDLE_DISKS))
    }

    pub(super) fn title(self, disks: usize) -> String {
        match self {
            Self::Busy(depth) => format!(
                "a null disk, 4 KiB, depth {depth}, polling client; beside {disks} idle disks x \
                 {QUEUES_BESIDE} queues"
            ),
            Self::Idle => format!("{disks} idle disks x {QUEUES_IDLE} queues, nothing else"),
        }
    }

    /// Returns the systems by name, with the key of their process.
    pub(super) fn systems(self, disks: usize, control: bool) -> Vec<(String, Key)> {
        let ours = if control { "qsd in the place of ringway-io" } else { "ringway-io" };
        let backend_kind = if control { BackendKind::Daemon } else { BackendKind::Ringway };
        let all = [(ours, backend_kind), ("qsd", BackendKind::Daemon)].into_iter();
        match self {
            Self::Busy(_) => all
                .flat_map(|(name, backend_kind)| {
                    let beside = format!("{name}, beside {disks} idle disks");
                    [
                        (beside, (backend_kind, disks, QUEUES_BESIDE)),
                        (format!("{name}, alone"), (backend_kind, 0, QUEUES_BESIDE)),
                    ]
                })
                .collect(),
            Self::Idle => all
                .map(|(name, backend_kind)| (name.to_owned(), (backend_kind, disks, QUEUES_IDLE)))
                .collect(),
        }
    }

    pub(super) fn comparisons(self, disks: usize, control: bool) -> Vec<Comparison> {
        let names = names(&self.systems(disks, control));
        let promised = !control;
        let of = |ours: &str, peers: &[&str]| Comparison {
            cell: self.id(),
            ours: ours.to_owned(),
            peers: peers.iter().map(|peer| (*peer).to_owned()).collect(),
            ..Comparison::default()
        };
        let alone = |ours: &str, metric: &str, bar: f64| Comparison {
            metric: Some(metric.to_owned()),
            figure: Figure::Alone,
            side: Side::AtMost,
            bar: promised.then_some(bar),
            ..of(ours, &[])
        };
        match (self, names.as_slice()) {
            (Self::Busy(_), [beside, single, daemon_beside, daemon_single]) => vec![
                Comparison { bar: promised.then_some(BAR), ..of(beside, &[single]) },
                of(daemon_beside, &[daemon_single]),
                of(beside, &[daemon_beside]),
            ],
            (Self::Idle, [ours, daemon]) => vec![
                alone(ours, "cpu_percent", CPU_PERCENT),
                alone(ours, "voluntary_switches", SWITCHES),
                alone(ours, "reactor_wakeups", 0.0),
                Comparison { bar: None, ..alone(daemon, "cpu_percent", 0.0) },
                Comparison { bar: None, ..alone(daemon, "voluntary_switches", 0.0) },
            ],
            _ => Vec::new(),
        }
    }
}

pub(super) fn names(systems: &[(String, Key)]) -> Vec<String> {
    systems.iter().map(|(name, _)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blk::idle::OPEN_FILES;

    #[test]
    fn what_is_promised_of_idle_queues() {
        let all = CASES.into_iter().flat_map(|case| case.comparisons(IDLE_DISKS, false));
        let bars: Vec<_> =
            all.filter_map(|c| Some((c.cell, c.metric.unwrap_or_default(), c.bar?))).collect();
        let expected = [
            ("busy-d1", "", 0.95),
            ("busy-d32", "", 0.95),
            ("idle", "cpu_percent", 0.5),
            ("idle", "voluntary_switches", 9.0),
            ("idle", "reactor_wakeups", 0.0),
        ];
        assert_eq!(bars, expected.map(|(cell, of, bar)| (cell.to_owned(), of.to_owned(), bar)));
        let mut all = CASES.into_iter().flat_map(|case| case.comparisons(IDLE_DISKS, true));
        assert!(all.all(|c| c.bar.is_none()));
    }

    #[test]
    fn few_open_files_are_fewer_disks() {
        let disks = |files| CASES.map(|case| case.disks(files));
        assert_eq!(disks(OPEN_FILES), [100, 100, 100]);
        assert_eq!(disks(20_000), [100, 100, 100]);
        assert_eq!(disks(10_000), [61, 61, 100]);
        assert_eq!(disks(1024), [4, 4, 8]);
        assert_eq!(disks(256), [0, 0, 0]);
    }
}
