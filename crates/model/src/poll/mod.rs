//! How a disk's queues wait: asleep, or looking for a while.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::spec::{SpecError, refuse};

/// Longest spin that may be set, in microseconds. A wait that is longer costs more CPU than any
/// waking up.
pub const MAX_POLL_US: u16 = 10_000;
/// Longest spin unless something else is set: above what a wake-up costs on any machine that was
/// measured, below the gap at which a queue that is idle most of the time would burn a core.
pub const DEFAULT_POLL_US: u16 = 128;
/// Most of a CPU that must be free, in percent.
pub const MAX_POLL_IDLE_THRESHOLD: u8 = 100;
/// How much of a CPU must be free unless something else is set, in percent.
pub const DEFAULT_POLL_IDLE_THRESHOLD: u8 = 75;

/// Whether a reactor looks for requests instead of sleeping until it is woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PollMode {
    /// While that pays and nobody else wants the CPU.
    #[default]
    Auto,
    /// Sleep until woken.
    Off,
    /// Look for ever: one core is spent.
    Always,
}

impl PollMode {
    /// Every mode.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Off, Self::Always];

    /// As it is on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::Always => "always",
        }
    }
}

/// What was asked for. What is absent is inherited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PollSpec {
    /// Whether it polls.
    #[serde(default, deserialize_with = "mode", skip_serializing_if = "Option::is_none")]
    pub poll: Option<PollMode>,
    /// Longest spin, and the most that a hit may cost in the mean, in microseconds.
    #[serde(default, deserialize_with = "max_us", skip_serializing_if = "Option::is_none")]
    pub poll_max_us: Option<u16>,
    /// How much of a CPU must be free for a reactor that spins, in percent.
    #[serde(default, deserialize_with = "idle_threshold", skip_serializing_if = "Option::is_none")]
    pub poll_idle_threshold: Option<u8>,
}

impl PollSpec {
    /// What is set here, else there.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            poll: self.poll.or(other.poll),
            poll_max_us: self.poll_max_us.or(other.poll_max_us),
            poll_idle_threshold: self.poll_idle_threshold.or(other.poll_idle_threshold),
        }
    }

    /// What is in force where nothing else is set.
    pub fn resolve(self) -> EffectivePolling {
        let EffectivePolling { mode, max_us, idle_threshold } = EffectivePolling::default();
        EffectivePolling {
            mode: self.poll.unwrap_or(mode),
            max_us: self.poll_max_us.unwrap_or(max_us),
            idle_threshold: self.poll_idle_threshold.unwrap_or(idle_threshold),
        }
    }

    /// Checks ranges.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn validate(&self) -> Result<(), SpecError> {
        if let Some(us) = self.poll_max_us.filter(|us| *us > MAX_POLL_US) {
            return refuse("poll_max_us", out_of(us, MAX_POLL_US, "microseconds"));
        }
        let percent = self.poll_idle_threshold.filter(|one| *one > MAX_POLL_IDLE_THRESHOLD);
        if let Some(percent) = percent {
            let problem = out_of(percent, MAX_POLL_IDLE_THRESHOLD, "percent of a free CPU");
            return refuse("poll_idle_threshold", problem);
        }
        Ok(())
    }
}

/// Polling in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectivePolling {
    /// Whether it polls.
    pub mode: PollMode,
    /// Longest spin, in microseconds.
    pub max_us: u16,
    /// How much of a CPU must be free, in percent.
    pub idle_threshold: u8,
}

impl Default for EffectivePolling {
    fn default() -> Self {
        let (max_us, idle_threshold) = (DEFAULT_POLL_US, DEFAULT_POLL_IDLE_THRESHOLD);
        Self { mode: PollMode::default(), max_us, idle_threshold }
    }
}

/// A change to a [`PollSpec`]: what is absent stays, `null` is inherited again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PollChange {
    /// See [`PollSpec::poll`].
    #[serde(default, deserialize_with = "change::mode")]
    pub poll: Option<Option<PollMode>>,
    /// See [`PollSpec::poll_max_us`].
    #[serde(default, deserialize_with = "change::max_us")]
    pub poll_max_us: Option<Option<u16>>,
    /// See [`PollSpec::poll_idle_threshold`].
    #[serde(default, deserialize_with = "change::idle_threshold")]
    pub poll_idle_threshold: Option<Option<u8>>,
}

impl PollChange {
    /// The spec after it.
    #[must_use]
    pub fn apply(self, to: PollSpec) -> PollSpec {
        PollSpec {
            poll: self.poll.unwrap_or(to.poll),
            poll_max_us: self.poll_max_us.unwrap_or(to.poll_max_us),
            poll_idle_threshold: self.poll_idle_threshold.unwrap_or(to.poll_idle_threshold),
        }
    }
}

fn out_of(value: impl std::fmt::Display, most: impl std::fmt::Display, unit: &str) -> String {
    format!("{value} is not a whole number in 0 to {most} ({unit})")
}

/// A number in 0 to `most`, or nothing; whatever else it is, the error names the range.
fn number<'de, D: Deserializer<'de>>(
    deserializer: D,
    (field, most, unit): (&str, u16, &str),
) -> Result<Option<u16>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    if value.is_null() {
        return Ok(None);
    }
    let number = value.as_u64().and_then(|number| u16::try_from(number).ok());
    let number = number.filter(|number| *number <= most);
    let error = || D::Error::custom(format!("{field}: {}", out_of(value, most, unit)));
    number.ok_or_else(error).map(Some)
}

pub(crate) fn mode<'de, D: Deserializer<'de>>(of: D) -> Result<Option<PollMode>, D::Error> {
    let value = Value::deserialize(of)?;
    if value.is_null() {
        return Ok(None);
    }
    let known = PollMode::ALL.into_iter().find(|mode| value == mode.name());
    let error =
        || D::Error::custom(format!("poll: {value} is not \"auto\", \"off\" or \"always\""));
    known.ok_or_else(error).map(Some)
}

pub(crate) fn max_us<'de, D: Deserializer<'de>>(of: D) -> Result<Option<u16>, D::Error> {
    number(of, ("poll_max_us", MAX_POLL_US, "microseconds"))
}

pub(crate) fn idle_threshold<'de, D: Deserializer<'de>>(of: D) -> Result<Option<u8>, D::Error> {
    let most = MAX_POLL_IDLE_THRESHOLD.into();
    let percent = number(of, ("poll_idle_threshold", most, "percent of a free CPU"))?;
    Ok(percent.and_then(|percent| percent.try_into().ok()))
}

/// The same for a [`PollChange`], where whatever is there changes something.
pub(crate) mod change {
    use super::{Deserializer, PollMode};

    pub(crate) fn mode<'de, D: Deserializer<'de>>(
        of: D,
    ) -> Result<Option<Option<PollMode>>, D::Error> {
        super::mode(of).map(Some)
    }

    pub(crate) fn max_us<'de, D: Deserializer<'de>>(
        of: D,
    ) -> Result<Option<Option<u16>>, D::Error> {
        super::max_us(of).map(Some)
    }

    pub(crate) fn idle_threshold<'de, D: Deserializer<'de>>(
        of: D,
    ) -> Result<Option<Option<u8>>, D::Error> {
        super::idle_threshold(of).map(Some)
    }
}

#[cfg(test)]
mod tests;
