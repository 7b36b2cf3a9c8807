//! Profile of a device: costs of requests in device time, and the amount of it to keep in flight.

mod confirm;
mod fit;

use crate::error::ShareError;

pub use confirm::{CONFIRM_BYTES, CONFIRM_ROUNDS};
pub use fit::Sample;

/// Nanoseconds of a second.
pub(crate) const SECOND: u64 = 1_000_000_000;
/// Words of a stored profile.
pub(crate) const WORDS: usize = 12;

/// Device time of a request: the time by which it delays all others on a busy device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Nanoseconds a request, at most a second.
    pub request_ns: u64,
    /// Picoseconds a byte, at most a microsecond.
    pub byte_ps: u64,
}

impl Cost {
    /// Returns the device time of a request in nanoseconds.
    #[inline]
    pub(crate) fn of(self, bytes: u64) -> u64 {
        // No request has more than 4 GiB, so nothing overflows.
        self.request_ns + bytes.min(u64::from(u32::MAX)) * self.byte_ps / 1000
    }
}

/// Size in which the device serves large requests faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Bytes of a piece, a multiple of 512, at most 1 GiB.
    pub bytes: u64,
    /// Gain over whole requests that the calibration measured, in percent.
    pub gain_percent: u64,
}

/// Turns on a device that seeks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Bytes of a turn, 1 to 1 GiB.
    pub bytes: u64,
    /// Time for which the device stays idle for the next request of the turn's disk, in
    /// nanoseconds, at most a second.
    pub idle_ns: u64,
}

impl Turn {
    /// Turns of 8 MiB with 2 ms of anticipation.
    pub const DEFAULT: Self = Self { bytes: 8 << 20, idle_ns: 2_000_000 };
}

/// Profile of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Cost of a read.
    pub read: Cost,
    /// Cost of a write.
    pub write: Cost,
    /// Device time of a flush in nanoseconds, at most a second.
    pub flush_ns: u64,
    /// Device time in flight that reaches 95% of the best throughput, in nanoseconds; 1 us to 10 s.
    pub knee_ns: u64,
    /// Requests in flight that reach 95% of the best throughput however large they are; 2 to 1024.
    pub requests_min: u64,
    /// Mean latency of a request at the knee, in nanoseconds, at most 10 s.
    pub latency_ns: u64,
    /// Best piece. `None` if the device gains nothing from splitting.
    pub piece: Option<Piece>,
    /// Turns, for a device that seeks.
    pub turn: Option<Turn>,
}

/// Kind of an operation, as far as its cost depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// Read.
    Read,
    /// Write, or writing zeroes without unmapping.
    Write,
    /// Discard, or writing zeroes that may unmap. At most two are in flight on a storage.
    Discard,
    /// Flush. Never waits.
    Flush,
}

/// Operation on the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Kind of the operation.
    pub kind: OpKind,
    /// Bytes that it moves; 0 for a flush or a discard.
    pub bytes: u64,
    /// True if it must not wait: metadata, and requests that others wait for. Its cost becomes debt.
    pub urgent: bool,
    /// True if it cannot be split.
    pub whole: bool,
    /// True if its submitter holds no other request, discards aside. It is never refused, so that the
    /// submitters of one disk take turns.
    pub first: bool,
}

impl Op {
    /// Operation that waits for its share.
    pub fn new(kind: OpKind, bytes: u64) -> Self {
        Self { kind, bytes, urgent: false, whole: false, first: false }
    }
}

impl Profile {
    /// Checks that all numbers are in their range.
    ///
    /// # Errors
    /// [`ShareError::Profile`] names the first one that is not.
    pub fn check(&self) -> Result<(), ShareError> {
        let in_range = |field, value, low, high| {
            let fine = (low..=high).contains(&value);
            if fine { Ok(()) } else { Err(ShareError::Profile { field, value, low, high }) }
        };
        in_range("cost of a read", self.read.request_ns, 1, SECOND)?;
        in_range("cost of a byte read", self.read.byte_ps, 0, 1_000_000)?;
        in_range("cost of a write", self.write.request_ns, 1, SECOND)?;
        in_range("cost of a byte written", self.write.byte_ps, 0, 1_000_000)?;
        in_range("cost of a flush", self.flush_ns, 0, SECOND)?;
        in_range("knee", self.knee_ns, 1000, 10 * SECOND)?;
        in_range("least number of requests", self.requests_min, 2, 1024)?;
        in_range("latency", self.latency_ns, 0, 10 * SECOND)?;
        if let Some(piece) = self.piece {
            in_range("piece", piece.bytes, 512, 1 << 30)?;
            in_range("rest of the piece over 512", piece.bytes % 512, 0, 0)?;
        }
        let Some(turn) = self.turn else { return Ok(()) };
        in_range("turn", turn.bytes, 1, 1 << 30)?;
        in_range("anticipation", turn.idle_ns, 0, SECOND)
    }

    /// Returns the largest token: no operation counts for more, so that enough of them fit.
    #[inline]
    pub(crate) fn token_max(&self) -> u64 {
        self.knee_ns / self.requests_min
    }

    /// Returns the device time of an operation in nanoseconds, at least 1.
    #[inline]
    pub fn cost(&self, op: Op) -> u64 {
        let cost = match op.kind {
            OpKind::Read => self.read,
            OpKind::Write | OpKind::Discard => self.write,
            OpKind::Flush => return self.flush_ns.max(1),
        };
        cost.of(op.bytes)
    }

    pub(crate) fn to_words(self) -> [u64; WORDS] {
        let piece = self.piece.unwrap_or(Piece { bytes: 0, gain_percent: 0 });
        let turn = self.turn.unwrap_or(Turn { bytes: 0, idle_ns: 0 });
        [
            self.read.request_ns,
            self.read.byte_ps,
            self.write.request_ns,
            self.write.byte_ps,
            self.flush_ns,
            self.knee_ns,
            self.latency_ns,
            piece.bytes,
            piece.gain_percent,
            turn.bytes,
            turn.idle_ns,
            self.requests_min,
        ]
    }

    pub(crate) fn from_words(words: [u64; WORDS]) -> Result<Self, ShareError> {
        let cost = |at: usize| Cost { request_ns: words[at], byte_ps: words[at + 1] };
        let profile = Self {
            read: cost(0),
            write: cost(2),
            flush_ns: words[4],
            knee_ns: words[5],
            requests_min: words[11],
            latency_ns: words[6],
            piece: (words[7] > 0).then_some(Piece { bytes: words[7], gain_percent: words[8] }),
            turn: (words[9] > 0).then_some(Turn { bytes: words[9], idle_ns: words[10] }),
        };
        profile.check().map(|()| profile)
    }
}

#[cfg(test)]
mod tests;
