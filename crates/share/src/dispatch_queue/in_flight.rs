//! Operations of a reactor that are in flight.

use crate::share::DiskId;

/// Age at which an operation gives its token back, in nanoseconds.
const OLD_NS: u64 = 1_000_000_000;

/// Operation in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) disk: DiskId,
    pub(super) sent_at: u64,
    /// Token that it has; 0 after it was given back.
    pub(super) token: u64,
    /// Token that it has given back.
    pub(super) given_back: u64,
    /// Device time of it; 0 after its age was noticed.
    pub(super) cost: u64,
    /// Device time that its disk was charged for, if that can be taken back.
    pub(super) charged: u64,
    /// Latency to expect of it.
    pub(super) expected: u64,
    pub(super) discard: bool,
    /// Number of the request whose piece it is; 0 for a whole request.
    pub(super) request: u64,
}

/// Operations in flight, by the number in their permit.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    operations: Vec<Option<Operation>>,
    free: Vec<u32>,
}

impl InFlight {
    pub(super) fn insert(&mut self, operation: Operation) -> u32 {
        if let Some(at) = self.free.pop() {
            self.operations[at as usize] = Some(operation);
            return at;
        }
        self.operations.push(Some(operation));
        // A guest's rings bound the number.
        u32::try_from(self.operations.len() - 1).unwrap_or(u32::MAX)
    }

    pub(super) fn get(&self, at: u32) -> Option<&Operation> {
        self.operations.get(at as usize)?.as_ref()
    }

    pub(super) fn remove(&mut self, at: u32) -> Option<Operation> {
        let operation = self.operations.get_mut(at as usize)?.take()?;
        self.free.push(at);
        Some(operation)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.operations.len()
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = Operation> {
        self.free.clear();
        self.operations.drain(..).flatten()
    }

    /// Takes back the tokens of old operations, at most `limit` nanoseconds. Returns each disk and
    /// token, and the device time that is not in flight any more.
    pub(super) fn give_back(&mut self, mut limit: u64, now: u64) -> (Vec<(DiskId, u64)>, u64) {
        let (mut given, mut cost) = (Vec::new(), 0);
        let old = |operation: &&mut Operation| now.saturating_sub(operation.sent_at) >= OLD_NS;
        for operation in self.operations.iter_mut().flatten().filter(old) {
            cost += std::mem::take(&mut operation.cost);
            if operation.token > 0 && operation.token <= limit {
                limit -= operation.token;
                operation.given_back = operation.token;
                operation.token = 0;
                given.push((operation.disk, operation.given_back));
            }
        }
        (given, cost)
    }
}
