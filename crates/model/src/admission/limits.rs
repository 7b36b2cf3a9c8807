//! How many device steps may run at once.

use std::time::Duration;

use crate::spec::{SpecError, refuse};

/// Device steps on the host. Each costs memory while it runs and gains nothing once the storage
/// is busy; 16 is what XenServer's pool of workers has.
pub const DEFAULT_HOST: u16 = 16;
/// Device steps of one machine.
pub const DEFAULT_MACHINE: u16 = 10;
/// Device steps on one SR, or on the network.
pub const DEFAULT_SR: u16 = 12;
/// Host slots kept from SRs of which nobody knows yet that they answer: what [`DEFAULT_SR`] leaves
/// of [`DEFAULT_HOST`].
pub const DEFAULT_RESERVE: u16 = DEFAULT_HOST - DEFAULT_SR;
/// Age at which a step counts as stuck: four times what a slow attach takes.
pub const DEFAULT_STUCK: Duration = Duration::from_secs(2);
/// Highest of the counts. A larger one is a mistake: no storage gains from a thousand at once.
pub const MAX_STEPS: u16 = 1024;
/// Lowest age at which a step may count as stuck. Below it, storage that is merely slow would
/// lose its place, and the host's limit with it.
pub const MIN_STUCK: Duration = Duration::from_millis(100);
/// Highest age at which a step must count as stuck: for so long, hung storage holds others up.
pub const MAX_STUCK: Duration = Duration::from_secs(60);

/// The reserve is at most this part of the host's slots, so that a small pool is not all reserve.
const RESERVE_PART: u16 = 4;

/// Limits in force. They can be changed while steps run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Steps on the host, stuck ones aside.
    pub host: u16,
    /// Steps of one machine, stuck ones aside.
    pub machine: u16,
    /// Steps on one SR or on the network, with the stuck ones.
    pub sr: u16,
    /// Host slots kept from lanes that do not count as alive, never more than a quarter of `host`;
    /// 0 keeps none. See rule 2 of the [module](super).
    pub reserve: u16,
    /// Age at which a step counts as stuck.
    pub stuck: Duration,
}

impl Default for StepLimits {
    fn default() -> Self {
        Self {
            host: DEFAULT_HOST,
            machine: DEFAULT_MACHINE,
            sr: DEFAULT_SR,
            reserve: DEFAULT_RESERVE,
            stuck: DEFAULT_STUCK,
        }
    }
}

impl StepLimits {
    /// Checks ranges.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn validate(&self) -> Result<(), SpecError> {
        steps("limits.host", self.host, 1)?;
        steps("limits.machine", self.machine, 1)?;
        steps("limits.sr", self.sr, 1)?;
        steps("limits.reserve", self.reserve, 0)?;
        if (MIN_STUCK..=MAX_STUCK).contains(&self.stuck) {
            return Ok(());
        }
        let (least, most) = (MIN_STUCK.as_millis(), MAX_STUCK.as_millis());
        let given = self.stuck.as_millis();
        refuse("limits.stuck", format!("{given} ms is not in {least} to {most} ms"))
    }

    /// Host slots that are kept.
    pub(super) fn kept(&self) -> u16 {
        self.reserve.min(self.host / RESERVE_PART)
    }

    /// Host slots that one SR may come to hold out of those kept. Half of them: the second SR to
    /// come does not take what the third will need.
    pub(super) fn share(&self) -> u16 {
        self.kept().div_ceil(2)
    }
}

fn steps(field: &'static str, count: u16, least: u16) -> Result<(), SpecError> {
    if (least..=MAX_STEPS).contains(&count) {
        return Ok(());
    }
    refuse(field, format!("{count} is not in {least} to {MAX_STEPS} steps"))
}
