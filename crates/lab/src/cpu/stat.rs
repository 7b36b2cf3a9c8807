//! Parser of `/proc/PID/stat` (proc_pid_stat(5)).

use std::fs;

/// Process, with the fields that the lab needs. Times are in clock ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProcessStat {
    /// Id of the parent.
    pub(super) parent: u32,
    /// Time of the process itself, in user and system mode.
    pub(super) own: u64,
    /// Time of its children that have ended and been waited for, with their own such children.
    pub(super) waited: u64,
}

impl ProcessStat {
    /// Reads a process. Returns `None` if it does not exist.
    pub(super) fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses the line. The second field, the name, may contain any characters and ends at the last
    /// parenthesis.
    pub(super) fn parse(stat: &str) -> Option<Self> {
        let (_, rest) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Self {
            parent: field(1)?.try_into().ok()?,
            own: field(11)? + field(12)?,
            waited: field(13)? + field(14)?,
        })
    }
}

/// Converts ticks to seconds.
pub(super) fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 30 12 5 6 20 0 1 0 100 1 1";
        let expected = ProcessStat { parent: 1, own: 42, waited: 11 };
        assert_eq!(ProcessStat::parse(stat), Some(expected));
        assert_eq!(ProcessStat::parse("nonsense"), None);
        assert_eq!(ProcessStat::parse("7 (a) S 1 7 7"), None);
        assert_eq!(ProcessStat::of(u32::MAX), None);
    }
}
