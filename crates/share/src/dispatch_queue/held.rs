//! Requests of a disk that one reactor holds.

use std::collections::VecDeque;

use crate::profile::{Op, OpKind};

/// Request that waits for its share.
#[derive(Debug)]
pub(super) struct HeldRequest<K> {
    pub(super) key: K,
    pub(super) op: Op,
    /// Bytes dispatched.
    pub(super) sent: u64,
    /// Bytes of a piece; 0 before the first.
    pub(super) piece: u64,
    /// Number of pieces dispatched.
    pub(super) pieces: u64,
    pub(super) since: u64,
    pub(super) cost: u64,
}

/// Requests of a disk that one reactor holds. Discards have a queue of their own, so that others
/// pass them.
#[derive(Debug)]
pub(super) struct HeldRequests<K> {
    requests: VecDeque<HeldRequest<K>>,
    discards: VecDeque<HeldRequest<K>>,
    /// Device time of all.
    pub(super) cost: u64,
}

impl<K> Default for HeldRequests<K> {
    fn default() -> Self {
        Self { requests: VecDeque::new(), discards: VecDeque::new(), cost: 0 }
    }
}

impl<K> HeldRequests<K> {
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.discards.is_empty()
    }

    pub(super) fn len(&self) -> u64 {
        (self.requests.len() + self.discards.len()) as u64
    }

    pub(super) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    pub(super) fn push(&mut self, request: HeldRequest<K>) {
        self.cost += request.cost;
        let discard = request.op.kind == OpKind::Discard;
        let queue = if discard { &mut self.discards } else { &mut self.requests };
        queue.push_back(request);
    }

    /// Removes the requests whose key matches. Returns their number.
    pub(super) fn cancel(&mut self, matches: impl Fn(&K) -> bool) -> u64 {
        let before = self.len();
        self.requests.retain(|request| !matches(&request.key));
        self.discards.retain(|request| !matches(&request.key));
        self.cost = self.requests.iter().chain(&self.discards).map(|request| request.cost).sum();
        before - self.len()
    }

    /// Returns the queue whose first request goes next: the older one.
    fn next_queue(&mut self, discards: bool) -> &mut VecDeque<HeldRequest<K>> {
        let since = |queue: &VecDeque<HeldRequest<K>>| queue.front().map(|first| first.since);
        let discard = match (since(&self.requests), since(&self.discards)) {
            (Some(request), Some(discard)) => discards && discard < request,
            (request, _) => request.is_none() && discards,
        };
        if discard { &mut self.discards } else { &mut self.requests }
    }

    /// Returns the next request. `discards` is whether it may be a discard.
    pub(super) fn front_mut(&mut self, discards: bool) -> Option<&mut HeldRequest<K>> {
        self.next_queue(discards).front_mut()
    }

    /// Removes the next request.
    pub(super) fn pop(&mut self, discards: bool) -> Option<HeldRequest<K>> {
        let request = self.next_queue(discards).pop_front()?;
        self.cost -= request.cost;
        Some(request)
    }
}
