//! Limits of concurrent device steps.

use std::time::Duration;

use crate::boot_pace::DEFAULT_PLACES;
use crate::spec::{SpecError, refuse};

/// Default limit of device steps on the host. Each step costs memory and gains nothing once the
/// storage is busy. 16 is the size of XenServer's worker pool.
pub const DEFAULT_HOST: u16 = 16;
/// Default limit of device steps of one machine.
pub const DEFAULT_MACHINE: u16 = 10;
/// Default limit of device steps on one SR, or on the network.
pub const DEFAULT_SR: u16 = 12;
/// Default number of host slots that are reserved from SRs not yet known to answer: the part of
/// [`DEFAULT_HOST`] beyond [`DEFAULT_SR`].
pub const DEFAULT_RESERVE: u16 = DEFAULT_HOST - DEFAULT_SR;
/// Default age at which a step counts as stuck: four times the duration of a slow attach.
pub const DEFAULT_STUCK: Duration = Duration::from_secs(2);
/// Highest accepted limit. A larger one is a mistake: no storage gains from 1,024 concurrent steps.
pub const MAX_STEPS: u16 = 1024;
/// Lowest age at which a step may count as stuck. With less, slow storage would lose its slots, and
/// the host's limit would have no effect.
pub const MIN_STUCK: Duration = Duration::from_millis(100);
/// Highest age at which a step counts as stuck. Until then, hung storage delays other storage.
pub const MAX_STUCK: Duration = Duration::from_secs(60);

/// Divisor that limits the reserve to a part of the host's slots, for small pools.
const RESERVE_PART: u16 = 4;

/// Limits in force. They may change while steps run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Maximum number of steps on the host that are not stuck.
    pub host: u16,
    /// Maximum number of steps of one machine that are not stuck.
    pub machine: u16,
    /// Maximum number of steps on one SR or on the network, including stuck ones.
    pub sr: u16,
    /// Host slots reserved from fault domains that are not alive, at most a quarter of `host`; 0
    /// reserves none. See rule 2 of the [module](super).
    pub reserve: u16,
    /// Age at which a step counts as stuck.
    pub stuck: Duration,
    /// Number of machines that boot at the same time on a host without idle CPUs; see
    /// [`boot_pace`](crate::boot_pace).
    pub boots: u16,
}

impl Default for StepLimits {
    fn default() -> Self {
        Self {
            host: DEFAULT_HOST,
            machine: DEFAULT_MACHINE,
            sr: DEFAULT_SR,
            reserve: DEFAULT_RESERVE,
            stuck: DEFAULT_STUCK,
            boots: DEFAULT_PLACES,
        }
    }
}

impl StepLimits {
    /// Checks that all limits are in range.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn validate(&self) -> Result<(), SpecError> {
        steps("limits.host", self.host, 1)?;
        steps("limits.machine", self.machine, 1)?;
        steps("limits.sr", self.sr, 1)?;
        steps("limits.reserve", self.reserve, 0)?;
        steps("limits.boots", self.boots, 1)?;
        if (MIN_STUCK..=MAX_STUCK).contains(&self.stuck) {
            return Ok(());
        }
        let (least, most) = (MIN_STUCK.as_millis(), MAX_STUCK.as_millis());
        let given = self.stuck.as_millis();
        refuse("limits.stuck", format!("{given} ms is not in {least} to {most} ms"))
    }

    /// Returns the number of reserved host slots.
    pub(super) fn kept(&self) -> u16 {
        self.reserve.min(self.host / RESERVE_PART)
    }

    /// Returns the number of reserved host slots that one SR may take. Half of them: the second
    /// new SR leaves enough for the third.
    pub(super) fn share(&self) -> u16 {
        self.kept().div_ceil(2)
    }
}

fn steps(field: &'static str, count: u16, least: u16) -> Result<(), SpecError> {
    if (least..=MAX_STEPS).contains(&count) {
        return Ok(());
    }
    refuse(field, format!("{count} is not in {least} to {MAX_STEPS}"))
}
