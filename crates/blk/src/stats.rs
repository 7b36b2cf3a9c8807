//! What a device counts. Each queue writes its own counters; readers sum them up.

use std::sync::atomic::{AtomicU64, Ordering};

use disk::Kind;

use crate::histogram::{Histogram, Summary};

/// Kinds of request that are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Read,
    Write,
    Flush,
    Discard,
    WriteZeroes,
    GetId,
}

const CLASSES: usize = 6;

impl From<Kind> for Class {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Read => Self::Read,
            Kind::Write { .. } => Self::Write,
            Kind::Flush => Self::Flush,
            Kind::Discard => Self::Discard,
            Kind::WriteZeroes { .. } => Self::WriteZeroes,
        }
    }
}

/// Counters of one queue: one writer, no read-modify-write.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct QueueStats {
    requests: [AtomicU64; CLASSES],
    bytes: [AtomicU64; CLASSES],
    errors: AtomicU64,
    kicks: AtomicU64,
    calls: AtomicU64,
    latency: Histogram,
}

fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

impl QueueStats {
    pub(crate) fn request(&self, class: Class, bytes: u64) {
        let at = class as usize;
        if let (Some(requests), Some(sum)) = (self.requests.get(at), self.bytes.get(at)) {
            bump(requests, 1);
            bump(sum, bytes);
        }
    }

    pub(crate) fn error(&self) {
        bump(&self.errors, 1);
    }

    pub(crate) fn kick(&self) {
        bump(&self.kicks, 1);
    }

    pub(crate) fn call(&self) {
        bump(&self.calls, 1);
    }

    pub(crate) fn latency(&self, ns: u64, count: u64) {
        self.latency.record(ns, count);
    }
}

/// A number for each kind of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// IN.
    pub read: u64,
    /// OUT.
    pub write: u64,
    /// FLUSH.
    pub flush: u64,
    /// DISCARD.
    pub discard: u64,
    /// WRITE_ZEROES.
    pub write_zeroes: u64,
    /// GET_ID.
    pub get_id: u64,
}

impl From<[u64; CLASSES]> for Counts {
    fn from(sums: [u64; CLASSES]) -> Self {
        let [read, write, flush, discard, write_zeroes, get_id] = sums;
        Self { read, write, flush, discard, write_zeroes, get_id }
    }
}

/// Sums over the queues of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Requests that ended.
    pub requests: Counts,
    /// Bytes that they moved, freed or zeroed.
    pub bytes: Counts,
    /// Requests that ended in an error, or could not be answered.
    pub errors: u64,
    /// Kicks received.
    pub kicks: u64,
    /// Calls sent.
    pub calls: u64,
    /// From pop to push, without flushes.
    pub latency: Summary,
}

impl DeviceStats {
    /// Adds up.
    pub(crate) fn sum<'a>(queues: impl Iterator<Item = &'a QueueStats> + Clone) -> Self {
        let (mut requests, mut bytes) = ([0; CLASSES], [0; CLASSES]);
        let mut out = Self::default();
        for queue in queues.clone() {
            let add = |sums: &mut [u64; CLASSES], from: &[AtomicU64; CLASSES]| {
                for (sum, one) in sums.iter_mut().zip(from) {
                    *sum += one.load(Ordering::Relaxed);
                }
            };
            add(&mut requests, &queue.requests);
            add(&mut bytes, &queue.bytes);
            out.errors += queue.errors.load(Ordering::Relaxed);
            out.kicks += queue.kicks.load(Ordering::Relaxed);
            out.calls += queue.calls.load(Ordering::Relaxed);
        }
        out.requests = requests.into();
        out.bytes = bytes.into();
        out.latency = Histogram::summarize(queues.map(|queue| &queue.latency));
        out
    }
}
