//! Reports of polling.

use serde::{Deserialize, Serialize};

use crate::poll::EffectivePolling;

/// Reason why idle queues poll or sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PollReason {
    /// The queues have not been idle yet.
    #[default]
    Never,
    /// The queues poll: that pays.
    Pays,
    /// The queues poll during a few waits, to measure the cost.
    Probing,
    /// The queues always poll, as configured.
    Always,
    /// The queues sleep: waits are too long or too uncertain for polling to pay.
    TooLong,
    /// The queues sleep: polling is turned off.
    Off,
    /// The queues sleep: the idle share of a CPU is too small.
    NoFreeCpu,
    /// The queues sleep: other threads want the CPU of their reactor.
    CpuWanted,
    /// The queues sleep: unsuccessful polls have used up their budget.
    BudgetUsed,
    /// The queues sleep: the CPU quota of a control group leaves no CPU for polling.
    QuotaUsed,
    /// A reason that this version does not know.
    #[serde(other)]
    Unknown,
}

impl PollReason {
    /// All reasons that are reported.
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

    /// Returns the name on the wire.
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

/// Waits without polling, by the reason that denied it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PollRefusals {
    /// Polling would not have paid.
    pub too_long: u64,
    /// The idle share of a CPU was too small.
    pub no_free_cpu: u64,
    /// Other threads wanted the CPU.
    pub cpu_wanted: u64,
    /// Unsuccessful polls had used up their budget.
    pub budget_used: u64,
    /// The CPU quota of a control group left no CPU.
    #[serde(default)]
    pub quota_used: u64,
}

/// Polling of a device's queues, with its cost and gain since the counts began.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PollStats {
    /// Settings in force.
    pub set: EffectivePolling,
    /// Sum over all queues.
    #[serde(flatten)]
    pub queues: QueuePolling,
    /// Waits without polling.
    pub refused: PollRefusals,
}

/// Polling of one queue, or of all queues of a device, with its cost and gain since the counts
/// began.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueuePolling {
    /// Whether the queue polls while it is idle; of several queues, whether some do.
    #[serde(alias = "armed")]
    pub polling: bool,
    /// Reason for that.
    pub reason: PollReason,
    /// Waits that ended during polling.
    pub hits: u64,
    /// Waits during which it polled and then slept.
    pub misses: u64,
    /// Time spent polling, in seconds.
    #[serde(alias = "spun_seconds")]
    pub poll_seconds: f64,
    /// Wake-up time that all hits saved, in microseconds.
    #[serde(alias = "saved_us")]
    pub saved_wakeup_us: f64,
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
