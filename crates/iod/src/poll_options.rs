//! Options of polling, which both programs have.

use clap::{Args, ValueEnum};
use model::poll::{MAX_POLL_IDLE_THRESHOLD, MAX_POLL_US};
use model::spec::{EffectivePolling, PollMode, PollSpec};

/// How queues wait when they have nothing to do.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Polling")]
pub struct PollOptions {
    /// Whether reactors look for requests instead of sleeping until they are woken: auto while that
    /// pays and no one else wants the CPU, or never, or always, which takes a CPU for each reactor
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Poll::Auto)]
    poll: Poll,
    /// Longest look, and the most CPU time that a request which is found by looking may cost in the
    /// mean, in microseconds: 0 to 10000
    #[arg(
        long,
        value_name = "US",
        default_value_t = EffectivePolling::default().max_us,
        value_parser = clap::value_parser!(u16).range(..=i64::from(MAX_POLL_US))
    )]
    poll_max_us: u16,
    /// How much of a CPU must be free for each reactor that looks, in percent: 0 to 100
    #[arg(
        long,
        value_name = "PERCENT",
        default_value_t = EffectivePolling::default().idle_threshold,
        value_parser = clap::value_parser!(u8).range(..=i64::from(MAX_POLL_IDLE_THRESHOLD))
    )]
    poll_idle_threshold: u8,
}

/// Whether reactors look for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Poll {
    /// While it pays.
    Auto,
    /// Sleep until woken.
    Off,
    /// Look for ever.
    Always,
}

impl PollOptions {
    /// What differs from what is so anyhow.
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
