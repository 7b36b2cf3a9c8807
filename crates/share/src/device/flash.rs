//! Flash: channels that work side by side.

use super::{Command, transfer_ns};
use crate::profile::OpKind;

/// Flash. A command is spread over the channels by its offset.
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
    /// Bytes a second of one command at most, however many channels it uses.
    pub command_bytes_per_second: u64,
    /// Time of a write in percent of a read's.
    pub write_percent: u64,
    /// Background work: each channel stalls this often, this long, in nanoseconds; 0 for never.
    pub stall: (u64, u64),
}

impl Flash {
    /// Striped flash of 32 channels and 2 GB/s, half of it for one command.
    pub const STRIPED: Self = Self {
        channels: 32,
        bytes_per_second: 62_500_000,
        latency_ns: 80_000,
        stripe: 16 << 10,
        command_bytes_per_second: 1_000_000_000,
        write_percent: 250,
        stall: (0, 0),
    };
    /// Flash of 8 channels with 64 MiB on each: a command and its pieces are on one channel.
    pub const UNSTRIPED: Self =
        Self { bytes_per_second: 500_000_000, channels: 8, stripe: 64 << 20, ..Self::STRIPED };
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
        let percent = if command.kind == OpKind::Write { model.write_percent } else { 100 };
        let stripe = model.stripe.max(1);
        let last = command.offset + command.bytes.max(1);
        let (mut offset, mut end) = (command.offset, now);
        while offset < last {
            let next = last.min((offset / stripe + 1) * stripe);
            let bytes = if command.bytes == 0 { 0 } else { next - offset };
            let channel = (offset / stripe % self.channels.len() as u64) as usize;
            let from = after_stall(model, channel, self.channels[channel].max(now));
            let time = transfer_ns(bytes, model.bytes_per_second) * percent / 100;
            self.channels[channel] = from + scale(time);
            end = end.max(self.channels[channel]);
            offset = next;
        }
        let alone = now + scale(transfer_ns(command.bytes, model.command_bytes_per_second));
        end.max(alone) + model.latency_ns
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
