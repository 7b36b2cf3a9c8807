//! Verdict on a disk or NIC, with its evidence.

use model::diagnosis::{
    DiskFacts, DiskVerdict, NicFacts, NicVerdict, duration, judge, judge_nic, judge_refused,
};
use model::report::{BrokenRing, DiskStats, NicStats, PortStats, Stats};
use serde_json::{Value, json};

use super::{disk, nic};

/// Verdict with the statistics that it comes from.
#[derive(Debug)]
pub(super) enum Report {
    /// On a disk of the process that this sample is of.
    Disk(DiskVerdict, Box<DiskStats>, Box<Stats>),
    /// On a NIC.
    Nic(NicVerdict, Box<PortStats>),
    /// On a NIC that is not served at all.
    RefusedNic(NicVerdict, Box<NicStats>),
}

impl Report {
    /// Judges a device from two samples of its process, and `full`, all that is known of it. Returns
    /// `None` if it was detached meanwhile. If a disk and a NIC have the same id, the disk is judged.
    pub(super) fn new(earlier: &Stats, now: &Stats, full: &Stats, id: &str) -> Option<Self> {
        if let Some(disk) = full.disks.first() {
            let verdict = judge(&DiskFacts::new(earlier, now, disk));
            return Some(Self::Disk(verdict, disk.clone().into(), now.clone().into()));
        }
        if let Some((nic, verdict)) =
            full.nics.iter().find_map(|nic| Some((nic, judge_refused(nic)?)))
        {
            return Some(Self::RefusedNic(verdict, nic.clone().into()));
        }
        let port = full.ports.first()?;
        let verdict = judge_nic(&NicFacts::new(earlier, now, id)?);
        Some(Self::Nic(verdict, port.clone().into()))
    }

    /// Returns the verdict and the evidence.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Disk(verdict, disk, now) => disk::report_text(verdict, disk, now),
            Self::Nic(verdict, port) => nic::report_text(verdict, port),
            Self::RefusedNic(..) => self.verdict_text(),
        }
    }

    /// Returns the verdict alone.
    pub(super) fn verdict_text(&self) -> String {
        match self {
            Self::Disk(verdict, ..) => disk::verdict_text(verdict),
            Self::Nic(verdict, _) | Self::RefusedNic(verdict, _) => nic::verdict_text(verdict),
        }
    }

    /// Returns the verdict and the statistics.
    pub(super) fn json(&self) -> Value {
        match self {
            Self::Disk(verdict, disk, now) => {
                let process = json!({
                    "pid": now.pid, "uptime_seconds": now.uptime_seconds, "start": now.start,
                });
                json!({ "verdict": verdict, "disk": disk, "process": process })
            }
            Self::Nic(verdict, port) => json!({ "verdict": verdict, "nic": port }),
            Self::RefusedNic(verdict, nic) => json!({ "verdict": verdict, "nic": nic }),
        }
    }
}

/// Returns a line for each broken ring.
pub(super) fn broken_rings(all: &[BrokenRing]) -> String {
    let line = |one: &BrokenRing| {
        format!("Broken: {one}, for {}: {}\n", duration(one.since_seconds), one.cause)
    };
    all.iter().map(line).collect()
}
