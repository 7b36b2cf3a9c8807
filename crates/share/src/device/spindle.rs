//! Disk that spins: one head.

use super::{Command, transfer_ns};

/// Disk that spins. It takes the command nearest to its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spindle {
    /// Bytes a second of a sequential transfer.
    pub bytes_per_second: u64,
    /// Size in bytes.
    pub size: u64,
    /// Shortest and longest seek, in nanoseconds.
    pub seek_ns: (u64, u64),
    /// Half a rotation, in nanoseconds.
    pub rotation_ns: u64,
}

impl Spindle {
    /// Disk of 1 TB with 7,200 rotations a minute.
    pub const DISK: Self = Self {
        bytes_per_second: 150_000_000,
        size: 1_000_000_000_000,
        seek_ns: (3_000_000, 9_000_000),
        rotation_ns: 4_000_000,
    };
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) waiting: Vec<Command>,
    pub(super) busy: bool,
    /// Byte at the head.
    head: u64,
}

impl State {
    /// Starts the nearest command, if the head is free. Returns its end and its number.
    pub(super) fn start(
        &mut self,
        model: &Spindle,
        now: u64,
        scale: impl Fn(u64) -> u64,
    ) -> Option<(u64, u64)> {
        if self.busy {
            return None;
        }
        let distance = |command: &Command| command.offset.abs_diff(self.head);
        let nearest = (0..self.waiting.len()).min_by_key(|at| distance(&self.waiting[*at]))?;
        let command = self.waiting.remove(nearest);
        let far = distance(&command);
        self.busy = true;
        self.head = command.offset + command.bytes;
        let transfer = transfer_ns(command.bytes, model.bytes_per_second);
        Some((now + scale(seek_ns(model, far) + transfer), command.id))
    }
}

/// Returns the time until the first byte passes: 0 for the byte at the head. The head accelerates,
/// so a seek grows with the root of its distance.
fn seek_ns(model: &Spindle, distance: u64) -> u64 {
    if distance == 0 {
        return 0;
    }
    let (short, long) = model.seek_ns;
    let part = (distance as f64 / model.size.max(1) as f64).sqrt().min(1.0);
    short + (long.saturating_sub(short) as f64 * part) as u64 + model.rotation_ns
}
