//! Polling settings: whether the queues of a disk or NIC sleep or poll while they are idle.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::spec::{SpecError, refuse};

/// Maximum polling time per wait that may be set, in microseconds. Longer polling costs more CPU
/// time than any wake-up.
pub const MAX_POLL_US: u16 = 10_000;
/// Default maximum polling time per wait, in microseconds. It is longer than a wake-up on any
/// measured machine. It is shorter than the gap at which a mostly idle queue would occupy a core.
pub const DEFAULT_POLL_US: u16 = 128;
/// Maximum idle threshold: percentage of a CPU that must be idle.
pub const MAX_POLL_IDLE_THRESHOLD: u8 = 100;
/// Default idle threshold: percentage of a CPU that must be idle.
pub const DEFAULT_POLL_IDLE_THRESHOLD: u8 = 75;

/// Whether a reactor polls for requests instead of sleeping until it is woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PollMode {
    /// Poll while that pays and no other thread wants the CPU.
    #[default]
    Auto,
    /// Sleep until woken.
    Off,
    /// Poll all the time, which occupies one core.
    Always,
}

impl PollMode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Off, Self::Always];

    /// Returns the name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::Always => "always",
        }
    }
}

/// Requested polling settings. An absent field is inherited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PollSpec {
    /// Polling mode.
    #[serde(default, deserialize_with = "mode", skip_serializing_if = "Option::is_none")]
    pub poll: Option<PollMode>,
    /// Maximum polling time per wait, and maximum mean cost of a hit, in microseconds.
    #[serde(default, deserialize_with = "max_us", skip_serializing_if = "Option::is_none")]
    pub poll_max_us: Option<u16>,
    /// Percentage of a CPU that must be idle for a polling reactor.
    #[serde(default, deserialize_with = "idle_threshold", skip_serializing_if = "Option::is_none")]
    pub poll_idle_threshold: Option<u8>,
}

impl PollSpec {
    /// Returns these settings, with absent fields from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            poll: self.poll.or(other.poll),
            poll_max_us: self.poll_max_us.or(other.poll_max_us),
            poll_idle_threshold: self.poll_idle_threshold.or(other.poll_idle_threshold),
        }
    }

    /// Returns the polling in force, with defaults for absent fields.
    pub fn resolve(self) -> EffectivePolling {
        let EffectivePolling { mode, max_us, idle_threshold } = EffectivePolling::default();
        EffectivePolling {
            mode: self.poll.unwrap_or(mode),
            max_us: self.poll_max_us.unwrap_or(max_us),
            idle_threshold: self.poll_idle_threshold.unwrap_or(idle_threshold),
        }
    }

    /// Checks that all fields are in range.
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
    /// Polling mode.
    pub mode: PollMode,
    /// Maximum polling time per wait, in microseconds.
    pub max_us: u16,
    /// Percentage of a CPU that must be idle for a polling reactor.
    pub idle_threshold: u8,
}

impl Default for EffectivePolling {
    fn default() -> Self {
        let (max_us, idle_threshold) = (DEFAULT_POLL_US, DEFAULT_POLL_IDLE_THRESHOLD);
        Self { mode: PollMode::default(), max_us, idle_threshold }
    }
}

/// A change to a [`PollSpec`]: absent fields stay, `null` restores inheritance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PollChange {
    /// Change of [`PollSpec::poll`].
    #[serde(default, deserialize_with = "change::mode")]
    pub poll: Option<Option<PollMode>>,
    /// Change of [`PollSpec::poll_max_us`].
    #[serde(default, deserialize_with = "change::max_us")]
    pub poll_max_us: Option<Option<u16>>,
    /// Change of [`PollSpec::poll_idle_threshold`].
    #[serde(default, deserialize_with = "change::idle_threshold")]
    pub poll_idle_threshold: Option<Option<u8>>,
}

impl PollChange {
    /// Returns the changed settings.
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

/// Reads a number from 0 to `most`, or `null`. For any other value, the error names the range.
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

/// Deserializers for [`PollChange`], where every present field is a change.
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
