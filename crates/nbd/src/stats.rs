//! Counters of an export.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters over all connections since the export was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Clients that completed the handshake.
    pub clients: u64,
    /// Read requests.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
    /// All other requests.
    pub others: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Polls of a client's socket without sleeping.
    pub polls: u64,
}

/// Counters shared by connections on several reactors. Each connection adds to them once per turn.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    clients: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    others: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    errors: AtomicU64,
    polls: AtomicU64,
}

impl Shared {
    pub(crate) fn add(&self, more: &Counts) {
        for (counter, by) in [
            (&self.clients, more.clients),
            (&self.reads, more.reads),
            (&self.writes, more.writes),
            (&self.others, more.others),
            (&self.read_bytes, more.read_bytes),
            (&self.written_bytes, more.written_bytes),
            (&self.errors, more.errors),
            (&self.polls, more.polls),
        ] {
            if by > 0 {
                counter.fetch_add(by, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            clients: load(&self.clients),
            reads: load(&self.reads),
            writes: load(&self.writes),
            others: load(&self.others),
            read_bytes: load(&self.read_bytes),
            written_bytes: load(&self.written_bytes),
            errors: load(&self.errors),
            polls: load(&self.polls),
        }
    }
}
