//! Dispatch queue of one reactor.

mod backlog;
mod dispatch;
mod held;
mod in_flight;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

use crate::depth::{self, WINDOW_NS};
use crate::error::ShareError;
use crate::profile::{Op, OpKind, Profile};
use crate::share::{DiskId, ReactorId, Share};
use crate::state::{DiskCell, Header, ReactorCell, State, Tokens};
use crate::survey::Survey;
use crate::{charge, order, state, turn};
use backlog::Backlog;
use dispatch::Part;
use held::{HeldRequest, HeldRequests};
use in_flight::{InFlight, Operation};

/// Time after which a reactor that holds requests looks again without a kick, in nanoseconds.
const TICK_NS: u64 = 1_000_000;

/// Answer to a request.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Submitted {
    /// Send it to the storage now, as a whole.
    Send(Permit),
    /// It is held. [`DispatchQueue::next`] returns its key, perhaps at once.
    Held,
    /// The queue holds enough requests of this disk, of which one at least is of this submitter
    /// ([`Op::first`]). Keep it until [`DispatchQueue::next`] has returned the last piece of that one.
    Full,
}

/// Right to have an operation in flight. It goes back by [`DispatchQueue::complete`].
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Permit(u32);

impl Permit {
    /// Returns whether the operation has a token: not while its disk alone uses the storage.
    pub fn is_counted(&self) -> bool {
        self.0 != UNCOUNTED
    }
}

/// Number of a permit that is not counted.
const UNCOUNTED: u32 = u32::MAX;

/// Piece of a request that goes to the storage now.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Dispatch<K> {
    /// Permit of the piece.
    pub permit: Permit,
    /// Disk of the request.
    pub disk: DiskId,
    /// Key of the request.
    pub key: K,
    /// First byte of the piece, from the start of the request.
    pub offset: u64,
    /// Bytes of the piece.
    pub bytes: u64,
    /// True if no piece of the request follows.
    pub last: bool,
}

/// Requests that a reactor holds for one storage, and its operations in flight. `K` is a key by
/// which the caller knows a request.
///
/// After each batch of submissions and completions, after a kick and at the deadline, the caller
/// calls [`DispatchQueue::next`] until it returns `None`, then wakes the reactors that
/// [`DispatchQueue::take_kick`] returns. When the queue runs out of requests of a disk that has
/// refused ones, these are submitted before the next call: the disk may still be the next.
///
/// All times are nanoseconds of one monotonic clock that all processes share.
#[derive(Debug)]
pub struct DispatchQueue<M: AsRef<[AtomicU64]>, K> {
    share: Arc<Share<M>>,
    reactor: ReactorId,
    profile: Profile,
    /// Number of the profile.
    profiles: u64,
    /// Largest request that a sole disk sends without counting it.
    uncounted_max: u64,
    disks: Vec<HeldRequests<K>>,
    backlog: Backlog,
    in_flight: InFlight,
    /// Requests held so far.
    requests: u64,
    /// True after a discard has completed, until a reactor that waits for one is kicked.
    discard_freed: bool,
    /// Reactors to wake.
    kicks: Vec<ReactorId>,
    last_now: u64,
    has_window_ended: bool,
    /// Time of the next look at old operations and at the latency window.
    next_window: u64,
}

/// Operation that goes to the storage.
#[derive(Clone, Copy, Debug)]
struct Sent {
    disk: DiskId,
    cost: u64,
    /// Device time in flight before it.
    ahead: u64,
    discard: bool,
    /// Device time that the disk was charged for, if that can be taken back.
    charged: u64,
    /// Number of the request, if more pieces of it follow; otherwise 0.
    request: u64,
}

impl<M: AsRef<[AtomicU64]>, K: Copy> DispatchQueue<M, K> {
    /// Opens the dispatch queue of a reactor.
    ///
    /// # Errors
    /// The storage has no profile, or the table of reactors is full.
    pub fn open(share: &Arc<Share<M>>) -> Result<Self, ShareError> {
        let profile = share.profile()?;
        let reactor = share.claim_reactor()?;
        let mut queue = Self {
            share: Arc::clone(share),
            reactor,
            profile,
            profiles: 0,
            uncounted_max: 0,
            disks: Vec::new(),
            backlog: Backlog::default(),
            in_flight: InFlight::default(),
            requests: 0,
            discard_freed: false,
            kicks: Vec::new(),
            last_now: 0,
            has_window_ended: false,
            next_window: 0,
        };
        queue.refresh_profile();
        Ok(queue)
    }

    /// Returns the slot of the reactor, by which others kick it.
    pub fn reactor(&self) -> ReactorId {
        self.reactor
    }

    /// Submits a request of a disk.
    #[inline]
    pub fn submit(&mut self, disk: DiskId, op: Op, key: K, now: u64) -> Submitted {
        let uncounted = op.bytes <= self.uncounted_max && op.kind != OpKind::Discard;
        if uncounted && self.share.is_sole(disk) {
            return Submitted::Send(Permit(UNCOUNTED));
        }
        self.submit_counted(disk, op, key, now)
    }

    fn submit_counted(&mut self, disk: DiskId, op: Op, key: K, now: u64) -> Submitted {
        self.refresh(now);
        self.share.mark_active(disk, now);
        let cost = self.profile.cost(op);
        if op.urgent || op.kind == OpKind::Flush {
            charge::add_debt(self.share.disk(disk), cost);
            let discard = op.kind == OpKind::Discard;
            let own = self.share.reactor(self.reactor).reactor(ReactorCell::Discards);
            state::add(own, discard.into());
            let ahead = self.survey(now).costs;
            let sent = Sent { disk, cost, ahead, discard, charged: cost, request: 0 };
            return Submitted::Send(self.take_token(sent, now));
        }
        if let Some(permit) = self.send_at_once(disk, op, cost, now) {
            return Submitted::Send(permit);
        }
        self.hold(disk, op, cost, key, now)
    }

    /// Sends a request past the queue, if nothing is held anywhere and there is room.
    fn send_at_once(&mut self, disk: DiskId, op: Op, cost: u64, now: u64) -> Option<Permit> {
        let special = self.profile.turn.is_some() || op.kind == OpKind::Discard;
        if special || !self.backlog.is_empty() || op.bytes > self.uncounted_max {
            return None;
        }
        let survey = self.survey(now);
        let used = survey.in_flight.ns;
        if survey.other.is_some() || !self.has_room(&survey, false) {
            return None;
        }
        // Below half of the knee the storage is not contended: nothing is charged.
        let mut charged = 0;
        if used.saturating_add(cost) > self.depth() / 2 {
            charged = cost;
            let slot = self.share.disk(disk);
            charge::lift(slot, survey.virtual_time, self.credit());
            let part = Part { cost, bytes: op.bytes, last: true, by_floor: false };
            self.charge(disk, part, &survey, now);
        }
        let ahead = survey.costs;
        let sent = Sent { disk, cost, ahead, discard: false, charged, request: 0 };
        Some(self.take_token(sent, now))
    }

    fn hold(&mut self, disk: DiskId, op: Op, cost: u64, key: K, now: u64) -> Submitted {
        if self.disks.len() <= disk.slot() {
            self.disks.resize_with(disk.slot() + 1, HeldRequests::default);
        }
        let credit = self.credit();
        // A discard may wait long for others. It must not keep requests out of the queue.
        let cost = if op.kind == OpKind::Discard { 0 } else { cost };
        let Some(held) = self.disks.get_mut(disk.slot()) else { return Submitted::Full };
        if !op.first && held.cost > 0 && held.cost + cost > credit {
            return Submitted::Full;
        }
        if held.is_empty() {
            self.backlog.add(disk);
        }
        let had_only_discards = held.has_only_discards();
        self.requests += 1;
        let number = self.requests;
        held.push(HeldRequest {
            key,
            op,
            sent: 0,
            piece: 0,
            pieces: 0,
            number,
            in_flight: 0,
            token: 0,
            since: now,
            cost,
        });
        let state = self.share.state();
        let slot = state.disk(disk.slot());
        // While a disk holds discards alone, virtual time does not wait for its tag.
        if slot.disk(DiskCell::Held).fetch_add(1, AcqRel) == 0 || had_only_discards {
            let virtual_time = Survey::take(state, self.reactor.slot(), now).virtual_time;
            charge::lift(slot, virtual_time, credit);
        }
        if let Some(kind) = self.profile.turn {
            turn::arrive(state, kind, disk, now);
        }
        Submitted::Held
    }

    /// Takes back held requests of a disk whose key matches, with all of their pieces that are still
    /// to come.
    pub fn cancel(&mut self, disk: DiskId, matches: impl Fn(&K) -> bool) {
        let Some(held) = self.disks.get_mut(disk.slot()) else { return };
        let canceled = held.cancel(matches);
        if held.is_empty() && canceled > 0 {
            self.backlog.count_empty();
        }
        self.share.disk(disk).disk(DiskCell::Held).fetch_sub(canceled, AcqRel);
    }

    /// Returns a permit after its operation has failed. An operation that failed at once, for example
    /// on a full storage, took no time of the device: its disk is charged for the time until then, and
    /// for a request without bytes at least, so that requests which fail do not starve others.
    pub fn fail(&mut self, permit: Permit, now: u64) {
        let failed = self.in_flight.get(permit.0).copied();
        self.complete(permit, now);
        let Some(Operation { disk, sent_at, charged, .. }) = failed else { return };
        let least = self.profile.read.request_ns.max(self.profile.write.request_ns);
        let used = now.saturating_sub(sent_at).max(least);
        if charged > used {
            charge::refund(self.share.disk(disk), charged - used);
            self.share.state().count_lowering();
        }
    }

    /// Returns a permit after its operation has completed.
    #[inline]
    pub fn complete(&mut self, permit: Permit, now: u64) {
        if permit.is_counted() {
            self.complete_counted(permit.0, now);
        }
    }

    fn complete_counted(&mut self, at: u32, now: u64) {
        let Some(operation) = self.in_flight.remove(at) else { return };
        let own = self.share.reactor(self.reactor);
        let add = |cell, value: u64| state::add(own.reactor(cell), value);
        let latency = now.saturating_sub(operation.sent_at);
        add(ReactorCell::Latency, latency);
        add(ReactorCell::Expected, operation.expected);
        add(ReactorCell::Costs, operation.cost.wrapping_neg());
        add(ReactorCell::Discards, u64::from(operation.discard).wrapping_neg());
        self.free(operation.disk, Tokens::one(operation.token));
        self.discard_freed |= operation.discard;
        if operation.request > 0
            && let Some(held) = self.disks.get_mut(operation.disk.slot())
        {
            held.complete(operation.request, operation.token + operation.given_back);
            // The disk may have had too many pieces in flight to use its share.
            let virtual_time = self.survey(now).virtual_time;
            charge::lift(self.share.disk(operation.disk), virtual_time, self.credit());
        }
        if let Some(kind) = self.profile.turn {
            turn::complete(self.share.state(), kind, operation.disk, now);
        }
    }

    /// Returns tokens of a disk.
    fn free(&self, disk: DiskId, tokens: Tokens) {
        let own = self.share.reactor(self.reactor).reactor(ReactorCell::Tokens);
        order::publish(own, Tokens::from_bits(own.load(Relaxed)).minus(tokens).bits());
        let disk = self.share.disk(disk).disk(DiskCell::InFlight);
        let _ = disk.fetch_update(AcqRel, Relaxed, |bits| {
            Some(Tokens::from_bits(bits).minus(tokens).bits())
        });
    }

    /// Takes the token of an operation, at most [`Profile::token_max`].
    fn take_token(&mut self, sent: Sent, now: u64) -> Permit {
        let Sent { disk, cost, ahead, discard, charged, request } = sent;
        let token = cost.min(self.profile.token_max());
        let own = self.share.reactor(self.reactor);
        let tokens = own.reactor(ReactorCell::Tokens);
        let taken = Tokens::from_bits(tokens.load(Relaxed)).plus(Tokens::one(token));
        tokens.store(taken.bits(), Release);
        state::add(own.reactor(ReactorCell::Costs), cost);
        self.share.disk(disk).disk(DiskCell::InFlight).fetch_add(Tokens::one(token).bits(), AcqRel);
        if request > 0
            && let Some(held) = self.disks.get_mut(disk.slot())
        {
            held.take(request, token);
        }
        let expected = self.profile.latency_ns.max(ahead.saturating_add(cost));
        Permit(self.in_flight.insert(Operation {
            disk,
            sent_at: now,
            token,
            given_back: 0,
            cost,
            charged,
            expected,
            discard,
            request,
        }))
    }

    /// Returns a reactor to wake. Each is returned once.
    pub fn take_kick(&mut self) -> Option<ReactorId> {
        self.kicks.pop()
    }

    /// Returns whether 100 ms have gone by since this last returned true: the caller then calls
    /// [`Share::release_process`] for processes that have ended.
    pub fn take_window(&mut self) -> bool {
        std::mem::take(&mut self.has_window_ended)
    }

    /// Returns the size of the largest request in bytes that a disk alone sends as it is.
    pub fn pass_bytes(&mut self) -> u64 {
        self.refresh_profile();
        self.uncounted_max
    }

    /// Returns whether the queue holds requests. While all requests of a guest's queue are held,
    /// nothing of them is at the device.
    pub fn is_holding(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Returns whether the queue holds requests of a disk.
    pub fn holds(&self, disk: DiskId) -> bool {
        self.disks.get(disk.slot()).is_some_and(|held| !held.is_empty())
    }

    /// Returns the time at which the caller calls [`DispatchQueue::next`] without a kick. `None` if
    /// no time matters.
    pub fn deadline(&self) -> Option<u64> {
        if !self.backlog.is_empty() {
            let tick = self.last_now + TICK_NS;
            let idle = self.share.state().header(Header::TurnIdleUntil).load(Relaxed);
            let turn = self.profile.turn.is_some() && idle > self.last_now;
            return Some(if turn { tick.min(idle) } else { tick });
        }
        (!self.in_flight.is_empty()).then_some(self.next_window)
    }

    /// Returns the number of looks at disks so far.
    #[cfg(test)]
    pub(crate) fn looks(&self) -> u64 {
        self.backlog.looks
    }

    fn survey(&self, now: u64) -> Survey {
        Survey::take(self.share.state(), self.reactor.slot(), now)
    }

    fn depth(&self) -> u64 {
        self.share.state().header(Header::Depth).load(Relaxed)
    }

    /// Returns whether a disk has or had a floor.
    fn has_floors(&self) -> bool {
        self.share.state().header(Header::Floors).load(Relaxed) != 0
    }

    /// Returns whether tokens are free. A floor that is due has as many again, because others may
    /// have filled the device with large requests.
    fn has_room(&self, survey: &Survey, due: bool) -> bool {
        survey.in_flight.ns < self.depth() << u32::from(due)
    }

    /// Virtual time by which a disk that returns is ahead: a quarter of the knee, or the longest turn.
    fn credit(&self) -> u64 {
        match self.profile.turn {
            Some(turn) => turn::longest(&self.profile, turn),
            None => self.profile.knee_ns / 4,
        }
    }

    fn refresh_profile(&mut self) {
        if let Some((number, Ok(profile))) = self.share.state().profile() {
            self.profiles = number;
            self.profile = profile;
            self.uncounted_max = profile.piece.map_or(u64::MAX, |piece| piece.bytes);
        }
    }

    /// Looks at the profile, and every 100 ms at old operations and latency.
    fn refresh(&mut self, now: u64) {
        self.last_now = now;
        if self.share.state().header(Header::Profiles).load(Relaxed) != self.profiles {
            self.refresh_profile();
        }
        if now < self.next_window {
            return;
        }
        self.next_window = now + WINDOW_NS;
        self.has_window_ended = true;
        self.give_back(now);
        depth::end_window(self.share.state(), &self.profile, now);
        self.share.end_contention(now);
    }

    /// Gives back the tokens of old operations, half of a knee at a time.
    fn give_back(&mut self, now: u64) {
        let (given, cost) = self.in_flight.give_back(self.profile.knee_ns / 2, now);
        let own = self.share.reactor(self.reactor);
        state::add(own.reactor(ReactorCell::Costs), cost.wrapping_neg());
        for (disk, token) in given {
            self.free(disk, Tokens { count: 0, ns: token });
        }
    }
}

impl<M: AsRef<[AtomicU64]>, K> Drop for DispatchQueue<M, K> {
    /// Returns all tokens, and frees the slot.
    fn drop(&mut self) {
        let state: State<'_> = self.share.state();
        for operation in self.in_flight.drain() {
            let disk = state.disk(operation.disk.slot()).disk(DiskCell::InFlight);
            let _ = disk.fetch_update(AcqRel, Relaxed, |bits| {
                Some(Tokens::from_bits(bits).minus(Tokens::one(operation.token)).bits())
            });
        }
        for (slot, held) in self.disks.iter().enumerate().filter(|(_, held)| !held.is_empty()) {
            state.disk(slot).disk(DiskCell::Held).fetch_sub(held.len(), AcqRel);
        }
        state.release_reactor(self.reactor.slot());
    }
}

#[cfg(test)]
mod tests;
