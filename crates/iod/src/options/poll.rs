//! Polling options of all programs.

use clap::{Args, ValueEnum};
use model::poll::{MAX_POLL_IDLE_THRESHOLD, MAX_POLL_US};
use model::spec::{EffectivePolling, PollMode, PollSpec};

/// Options for the wait of queues without work.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Polling")]
pub struct PollOptions {
    /// Whether reactors poll for requests instead of sleeping: auto polls while it saves time and
    /// no other process needs the CPU; off never polls; always polls and uses one CPU for each
    /// reactor
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Poll::Auto)]
    poll: Poll,
    /// Longest poll, and the most CPU time that a request found by polling may cost on average, in
    /// microseconds: 0 to 10000
    #[arg(
        long,
        value_name = "US",
        default_value_t = EffectivePolling::default().max_us,
        value_parser = clap::value_parser!(u16).range(..=i64::from(MAX_POLL_US))
    )]
    poll_max_us: u16,
    /// Share of a CPU that must be idle for each reactor that polls, in percent: 0 to 100
    #[arg(
        long,
        value_name = "PERCENT",
        default_value_t = EffectivePolling::default().idle_threshold,
        value_parser = clap::value_parser!(u8).range(..=i64::from(MAX_POLL_IDLE_THRESHOLD))
    )]
    poll_idle_threshold: u8,
}

/// Whether reactors poll for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Poll {
    /// Poll while it saves time.
    Auto,
    /// Sleep until woken.
    Off,
    /// Always poll.
    Always,
}

impl PollOptions {
    /// Returns the settings that differ from the defaults.
    pub(crate) fn spec(self) -> PollSpec {
        let usual = EffectivePolling::default();
        let mode = match self.poll {
            Poll::Auto => PollMode::Auto,
            Poll::Off => PollMode::Off,
            Poll::Always => PollMode::Always,
        };
        let Self { poll_max_us: us, poll_idle_threshold: percent, .. } = self;
        PollSpec {
            poll: (mode != usual.mode).then_some(mode),
            poll_max_us: (us != usual.max_us).then_some(us),
            poll_idle_threshold: (percent != usual.idle_threshold).then_some(percent),
        }
    }
}
