//! Flash: channels that work side by side.

use super::{Command, transfer_ns};
use crate::profile::OpKind;

/// Flash. A command consists of chunks on successive channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flash {
    /// Number of channels.
    pub channels: usize,
    /// Bytes a second that a channel reads.
    pub bytes_per_second: u64,
    /// Latency in nanoseconds.
    pub latency_ns: u64,
    /// Bytes after which the next channel follows.
    pub stripe: u64,
    /// Smallest chunk in bytes.
    pub chunk: u64,
    /// Channels that one command uses at most. Larger commands have larger chunks.
    pub width: u64,
    /// Time of a write in percent of a read's.
    pub write_percent: u64,
    /// Background work: each channel stalls this often, this long, in nanoseconds; 0 for never.
    pub stall: (u64, u64),
}

impl Flash {
    /// Striped flash of 32 channels and 2 GB/s. A command uses at most half of them.
    pub const STRIPED: Self = Self {
        channels: 32,
        bytes_per_second: 62_500_000,
        latency_ns: 80_000,
        stripe: 16 << 10,
        chunk: 32 << 10,
        width: 16,
        write_percent: 250,
        stall: (0, 0),
    };
    /// Flash that has 64 MiB on each channel: one command uses one channel, and so do its pieces.
    pub const UNSTRIPED: Self =
        Self { bytes_per_second: 500_000_000, channels: 8, stripe: 64 << 20, width: 1, ..Self::STRIPED };
}

#[derive(Debug)]
pub(super) struct State {
    /// Time at which each channel is free.
    channels: Vec<u64>,
}

impl State {
    pub(super) fn new(model: &Flash) -> Self {
        Self { channels: vec![0; model.channels.max(1)] }
    }

    /// Starts a command. Returns its end.
    pub(super) fn start(
        &mut self,
        model: &Flash,
        now: u64,
        command: Command,
        scale: impl Fn(u64) -> u64,
    ) -> u64 {
        let chunk = model.chunk.max(command.bytes.div_ceil(model.width.max(1))).max(1);
        let chunks = command.bytes.div_ceil(chunk).max(1);
        let first = command.offset / model.stripe.max(1);
        let time = transfer_ns(command.bytes / chunks, model.bytes_per_second);
        let percent = if command.kind == OpKind::Write { model.write_percent } else { 100 };
        let time = scale(time * percent / 100);
        let count = self.channels.len() as u64;
        let ends = (0..chunks).map(|at| {
            let channel = ((first + at) % count) as usize;
            let from = after_stall(model, channel, self.channels[channel].max(now));
            self.channels[channel] = from + time;
            from + time
        });
        ends.max().unwrap_or(now) + model.latency_ns
    }
}

/// Returns when a channel can begin that is free at `from`: after its stall, if one is on.
fn after_stall(model: &Flash, channel: usize, from: u64) -> u64 {
    let (every, length) = model.stall;
    if every == 0 {
        return from;
    }
    // The channels stall one after the other.
    let phase = (from + every / model.channels.max(1) as u64 * channel as u64) % every;
    if phase < length { from + length - phase } else { from }
}
