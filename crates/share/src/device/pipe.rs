//! Array or network storage: one pipe with a bandwidth, behind connections and a latency.

use std::collections::VecDeque;

use super::{Command, transfer_ns};

/// Connections over which data arrives. Commands use them in turn, each a single one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// Number of connections.
    pub count: usize,
    /// Bytes a second of each.
    pub bytes_per_second: u64,
}

/// Array or network storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipe {
    /// Bytes a second of the pipe.
    pub bytes_per_second: u64,
    /// Time that a command takes in the pipe besides its data, in nanoseconds.
    pub request_ns: u64,
    /// Latency, or the round trip of a network, in nanoseconds.
    pub latency_ns: u64,
    /// Commands that it runs at once. All others wait.
    pub queue: usize,
    /// Connections.
    pub connections: Connections,
}

impl Pipe {
    /// Array of 820 MB/s with a queue of 32. One reader of 4 MiB at a time gets 580 MB/s.
    pub const ARRAY: Self = Self {
        bytes_per_second: 820_000_000,
        request_ns: 2_000,
        latency_ns: 300_000,
        queue: 32,
        connections: Connections { count: 8, bytes_per_second: 2_300_000_000 },
    };
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) waiting: VecDeque<Command>,
    pub(super) running: usize,
    /// Time at which the pipe is free.
    pipe: u64,
    /// Time at which each connection is free.
    connections: Vec<u64>,
    started: usize,
}

impl State {
    pub(super) fn new(model: &Pipe) -> Self {
        let connections = vec![0; model.connections.count.max(1)];
        Self { waiting: VecDeque::new(), running: 0, pipe: 0, connections, started: 0 }
    }

    /// Starts the next command, if the queue has room. Returns its end and its number.
    pub(super) fn start(
        &mut self,
        model: &Pipe,
        now: u64,
        scale: impl Fn(u64) -> u64,
    ) -> Option<(u64, u64)> {
        if self.running >= model.queue {
            return None;
        }
        let command = self.waiting.pop_front()?;
        self.running += 1;
        let time = model.request_ns + transfer_ns(command.bytes, model.bytes_per_second);
        self.pipe = self.pipe.max(now) + scale(time);
        let index = self.started % self.connections.len();
        self.started += 1;
        let connection = self.connections.get_mut(index)?;
        let time = transfer_ns(command.bytes, model.connections.bytes_per_second);
        *connection = self.pipe.max(*connection) + time;
        Some((*connection + model.latency_ns, command.id))
    }
}
