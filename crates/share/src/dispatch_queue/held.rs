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
    /// Number of the request in its queue, and tokens of its pieces in flight.
    pub(super) number: u64,
    pub(super) in_flight: u64,
    /// Token of the last piece.
    pub(super) token: u64,
    pub(super) since: u64,
    /// Part of [`HeldRequests::cost`].
    pub(super) cost: u64,
}

/// Place of a request among those of a disk.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Request(usize),
    /// The first discard.
    Discard,
}

/// Piece that was counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    /// Number of the request's pieces so far.
    pub(super) pieces: u64,
    /// Number of the request.
    pub(super) number: u64,
    pub(super) since: u64,
    /// True if no piece follows.
    pub(super) last: bool,
}

/// Requests of a disk that one reactor holds. Discards have a queue of their own, so that others
/// pass them.
#[derive(Debug)]
pub(super) struct HeldRequests<K> {
    requests: VecDeque<HeldRequest<K>>,
    discards: VecDeque<HeldRequest<K>>,
    /// Device time of requests of which nothing is sent, discards aside.
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

    /// Returns whether nothing but discards is held, and some are.
    pub(super) fn has_only_discards(&self) -> bool {
        self.requests.is_empty() && !self.discards.is_empty()
    }

    pub(super) fn len(&self) -> u64 {
        (self.requests.len() + self.discards.len()) as u64
    }

    pub(super) fn push(&mut self, request: HeldRequest<K>) {
        self.cost += request.cost;
        let discard = request.op.kind == OpKind::Discard;
        let queue = if discard { &mut self.discards } else { &mut self.requests };
        queue.push_back(request);
    }

    /// Returns the place of the next request: the oldest whose pieces in flight leave room for one
    /// more within `tokens`. `discards` is whether it may be a discard.
    pub(super) fn next(&self, discards: bool, tokens: u64) -> Option<Place> {
        let request = self.requests.iter().position(|request| {
            request.in_flight == 0 || request.in_flight + request.token <= tokens
        });
        let since = |place: usize| self.requests.get(place).map(|request| request.since);
        let discard = self.discards.front().filter(|_| discards);
        match (request, discard) {
            (Some(place), Some(discard)) if since(place).is_some_and(|at| at <= discard.since) => {
                Some(Place::Request(place))
            }
            (_, Some(_)) => Some(Place::Discard),
            (place, None) => place.map(Place::Request),
        }
    }

    /// Removes the requests whose key matches. Returns their number.
    pub(super) fn cancel(&mut self, matches: impl Fn(&K) -> bool) -> u64 {
        let before = self.len();
        self.requests.retain(|request| !matches(&request.key));
        self.discards.retain(|request| !matches(&request.key));
        let unsent = self.requests.iter().chain(&self.discards).filter(|one| one.pieces == 0);
        self.cost = unsent.map(|request| request.cost).sum();
        before - self.len()
    }

    pub(super) fn get_mut(&mut self, place: Place) -> Option<&mut HeldRequest<K>> {
        match place {
            Place::Request(at) => self.requests.get_mut(at),
            Place::Discard => self.discards.front_mut(),
        }
    }

    /// Counts a piece of a request. Returns the request's number of pieces so far. The request is
    /// removed after its last one.
    pub(super) fn count_piece(&mut self, place: Place, bytes: u64) -> Option<Counted> {
        let request = self.get_mut(place)?;
        request.sent += bytes;
        request.pieces += 1;
        let (pieces, cost) = (request.pieces, request.cost);
        let (number, since, last) =
            (request.number, request.since, request.sent >= request.op.bytes);
        if pieces == 1 {
            self.cost -= cost;
        }
        match place {
            Place::Request(at) if last => drop(self.requests.remove(at)),
            Place::Discard if last => drop(self.discards.pop_front()),
            Place::Request(_) | Place::Discard => {}
        }
        Some(Counted { pieces, number, since, last })
    }

    /// Takes the token of a piece for its request, of which more pieces follow.
    pub(super) fn take(&mut self, number: u64, token: u64) {
        if let Some(request) = self.by_number(number) {
            request.token = token;
            request.in_flight += token;
        }
    }

    /// Returns the token of a piece to its request, if more pieces follow.
    pub(super) fn complete(&mut self, number: u64, token: u64) {
        let request = self.by_number(number);
        request.into_iter().for_each(|request| request.in_flight -= token.min(request.in_flight));
    }

    /// A queue holds few requests, so this is a short search.
    fn by_number(&mut self, number: u64) -> Option<&mut HeldRequest<K>> {
        self.requests.iter_mut().find(|request| request.number == number)
    }
}
