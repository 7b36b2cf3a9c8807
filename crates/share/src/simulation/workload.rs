//! Workload of a disk.

use crate::profile::OpKind;

/// Requests that a guest sends.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    /// Bytes of a request.
    pub(super) bytes: u64,
    /// Requests that the guest keeps outstanding.
    pub(super) depth: u64,
    pub(super) sequential: bool,
    /// Percentages of writes, discards, flushes and urgent writes. The rest are reads.
    pub(super) mix: [u64; 4],
    /// Time between a completion and the next request, in nanoseconds.
    pub(super) think_ns: u64,
    /// Reactors of the queues. Requests use them in turn.
    pub(super) queues: Vec<usize>,
    /// Times at which the guest works and rests, in turn; (0, 0) for always.
    pub(super) on_off_ns: (u64, u64),
    /// Time of the first request, and after which none follows.
    pub(super) from_ns: u64,
    pub(super) until_ns: u64,
    /// Cap in bytes a second; 0 for none.
    pub(super) cap: u64,
    /// True if this request never completes.
    pub(super) hangs: Option<u64>,
}

impl Workload {
    /// Reads at random places.
    pub(super) fn reads(bytes: u64, depth: u64) -> Self {
        Self {
            bytes,
            depth,
            sequential: false,
            mix: [0; 4],
            think_ns: 20_000,
            queues: vec![0],
            on_off_ns: (0, 0),
            from_ns: 0,
            until_ns: u64::MAX,
            cap: 0,
            hangs: None,
        }
    }

    pub(super) fn on(mut self, queues: &[usize]) -> Self {
        self.queues = queues.to_vec();
        self
    }

    pub(super) fn sequential(mut self) -> Self {
        self.sequential = true;
        self
    }

    /// Returns kind and urgency of a request, by a number below 100.
    pub(super) fn kind(&self, percent: u64) -> (OpKind, bool) {
        let kinds = [
            (OpKind::Write, false),
            (OpKind::Discard, false),
            (OpKind::Flush, false),
            (OpKind::Write, true),
        ];
        let mut end = 0;
        for (share, kind) in self.mix.iter().zip(kinds) {
            end += share;
            if percent < end {
                return kind;
            }
        }
        (OpKind::Read, false)
    }
}
