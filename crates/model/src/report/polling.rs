//! How the queues of a disk wait.

use serde::{Deserialize, Serialize};

use crate::poll::EffectivePolling;

/// What a disk's queues do when they have nothing to do, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PollReason {
    /// They have not waited yet.
    #[default]
    Never,
    /// They look: that pays.
    Pays,
    /// They look at a few waits, to see what that would cost.
    Probing,
    /// They always look, as they were told to.
    Always,
    /// They sleep: waits are too long, or too uncertain, so that looking would not pay.
    TooLong,
    /// They sleep: polling is turned off.
    Off,
    /// They sleep: too little of a CPU is free.
    NoFreeCpu,
    /// They sleep: others want the CPU of their reactor.
    CpuWanted,
    /// They sleep: looks that found nothing have used up what they may cost.
    BudgetUsed,
    /// They sleep: the CPU quota of a control group does not leave a CPU for looking.
    QuotaUsed,
    /// One that this program does not know.
    #[serde(other)]
    Unknown,
}

impl PollReason {
    /// Every reason that is told.
    pub const ALL: [Self; 10] = [
        Self::Never,
        Self::Pays,
        Self::Probing,
        Self::Always,
        Self::TooLong,
        Self::Off,
        Self::NoFreeCpu,
        Self::CpuWanted,
        Self::BudgetUsed,
        Self::QuotaUsed,
    ];

    /// As it is on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Pays => "pays",
            Self::Probing => "probing",
            Self::Always => "always",
            Self::TooLong => "too_long",
            Self::Off => "off",
            Self::NoFreeCpu => "no_free_cpu",
            Self::CpuWanted => "cpu_wanted",
            Self::BudgetUsed => "budget_used",
            Self::QuotaUsed => "quota_used",
            Self::Unknown => "unknown",
        }
    }
}

/// Waits that were slept at once, by what forbade to look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PollRefusals {
    /// It would not have paid.
    pub too_long: u64,
    /// Too little of a CPU was free.
    pub no_free_cpu: u64,
    /// Others wanted the CPU.
    pub cpu_wanted: u64,
    /// Looks that found nothing had used up what they may cost.
    pub budget_used: u64,
    /// The CPU quota of a control group did not leave a CPU.
    #[serde(default)]
    pub quota_used: u64,
}

/// How the queues of a disk wait, and what that has cost and brought since its counts began.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PollStats {
    /// What is in force.
    pub set: EffectivePolling,
    /// All of them together.
    #[serde(flatten)]
    pub queues: QueuePolling,
    /// Waits that they slept through at once.
    pub refused: PollRefusals,
}

/// How one queue waits, or all of a disk, and what that has cost and brought since the counts
/// began.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueuePolling {
    /// It looks when it has nothing to do; of several, some do.
    pub armed: bool,
    /// Why, or why not.
    pub reason: PollReason,
    /// Waits that ended while it looked.
    pub hits: u64,
    /// Waits that it looked for and then slept through.
    pub misses: u64,
    /// Time for which it looked.
    pub spun_seconds: f64,
    /// What waking up would have taken in all its hits, in microseconds.
    pub saved_us: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_wire_and_a_newer_one_is_no_error() {
        for reason in PollReason::ALL {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.name());
        }
        let newer = serde_json::from_str::<PollReason>("\"too_hot\"").unwrap();
        assert_eq!(newer, PollReason::Unknown);
    }
}
