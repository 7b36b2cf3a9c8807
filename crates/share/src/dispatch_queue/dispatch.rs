//! Choice of the next request.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::backlog::Look;
use super::held::{Counted, Place};
use super::{Dispatch, DispatchQueue, Sent};
use crate::charge::TURN_KEY;
use crate::profile::{Op, OpKind};
use crate::share::{DiskId, ReactorId};
use crate::state::{DiskCell, Header, NO_KEY, ReactorCell, Tokens};
use crate::survey::{self, Survey};
use crate::{charge, order, turn};

/// Discards in flight on a storage at most.
const DISCARDS_MAX: u64 = 2;
/// Size of a piece, in pieces of the profile, while more than half of the depth is in flight, or
/// another disk waits or has a piece in flight: others keep the device busy.
const BUSY_PIECES: u64 = 8;
/// Divisor of the knee by which a reactor may be ahead of one with a lower key: fewer wake-ups.
const LEAD: u64 = 8;
/// Device time that floors may get for each that others get by weight: floors beyond the storage
/// starve no disk.
const FLOOR_SHARE: u64 = 4;

impl<M: AsRef<[AtomicU64]>, K: Copy> DispatchQueue<M, K> {
    /// Returns the next piece to send now. `None` if nothing is held, there is no room, or another
    /// reactor goes first.
    pub fn next(&mut self, now: u64) -> Option<Dispatch<K>> {
        self.refresh(now);
        let kicked = self.share.reactor(self.reactor).reactor(ReactorCell::Kicked);
        if survey::is_stalled(kicked.load(Relaxed), now) {
            self.forget_stall(now);
        }
        order::take_kick(kicked);
        match self.choose(true, now) {
            Ok(dispatch) => dispatch,
            Err(NoDiscardSlot) => self.choose(false, now).unwrap_or(None),
        }
    }

    /// Lifts the disks of this reactor after others have passed it over: what they got meanwhile was a
    /// share that nobody used. Otherwise a disk of much weight would keep all others out until it
    /// has caught up.
    fn forget_stall(&self, now: u64) {
        // Virtual time is that of the others.
        order::publish(self.share.reactor(self.reactor).reactor(ReactorCell::Key), NO_KEY);
        let virtual_time = self.survey(now).virtual_time;
        for (slot, _) in self.disks.iter().enumerate().filter(|(_, held)| !held.is_empty()) {
            charge::lift(self.share.state().disk(slot), virtual_time, self.credit());
        }
    }

    /// Chooses among all held requests, or among all but discards. Fails if a discard would be next
    /// and must wait for one in flight.
    fn choose(&mut self, discards: bool, now: u64) -> Result<Option<Dispatch<K>>, NoDiscardSlot> {
        let floors = self.has_floors() && !self.has_floor_excess();
        let lowest = self.lowest(discards, floors, now);
        let key = lowest.map_or(NO_KEY, |(key, _)| key);
        let own = self.share.reactor(self.reactor).reactor(ReactorCell::Key);
        if key != NO_KEY || own.load(Relaxed) != NO_KEY {
            order::publish(own, key);
        }
        let survey = self.survey(now);
        if let Some((_, other)) = survey.discard_waits
            && std::mem::take(&mut self.discard_freed)
        {
            self.kick(other, now);
        }
        // On a device that seeks, a floor only decides whose turn is next.
        let due = charge::is_due_key(key) && self.profile.turn.is_none();
        if !self.has_room(&survey, due) {
            return Ok(None);
        }
        let lead = self.profile.knee_ns / LEAD;
        if let Some((other, other_key)) =
            survey.other.filter(|other| other.1.saturating_add(lead) < key)
        {
            if other_key == TURN_KEY || !self.is_others_turn(now) {
                self.kick(other, now);
            }
            return Ok(None);
        }
        let Some((_, disk)) = lowest else { return Ok(None) };
        if let Some(kind) = self.profile.turn
            && !turn::begin(self.share.state(), &self.profile, kind, disk, now)
        {
            return Ok(None);
        }
        self.dispatch(disk, discards, due, &survey, now)
    }

    /// Returns whether floors got more than their part.
    fn has_floor_excess(&self) -> bool {
        survey::floor_excess(self.share.state()) > self.profile.knee_ns as i64
    }

    /// Counts device time that a floor got, or that was given by weight.
    fn count_floor_excess(&self, cost: u64, by_floor: bool) {
        let excess = self.share.reactor(self.reactor).reactor(ReactorCell::FloorExcess);
        let step = if by_floor { cost as i64 } else { -((cost * FLOOR_SHARE) as i64) };
        let limit = self.profile.knee_ns as i64;
        let sum = (excess.load(Relaxed) as i64).saturating_add(step).clamp(-limit, 16 * limit);
        excess.store(sum as u64, Relaxed);
    }

    /// Returns the lowest key, and its disk.
    fn lowest(&mut self, discards: bool, floors: bool, now: u64) -> Option<(u64, DiskId)> {
        let mut backlog = std::mem::take(&mut self.backlog);
        let state = self.share.state();
        let lowerings = (state.header(Header::Lowerings).load(Acquire), self.profiles);
        let (turns, any_floor) = (self.profile.turn.is_some(), self.has_floors());
        let look = |disk: DiskId| {
            if self.disks.get(disk.slot()).is_none_or(|held| held.is_empty()) {
                return Look::Empty;
            }
            if self.next_place(disk, discards).is_none() {
                return Look::Waits;
            }
            let slot = state.disk(disk.slot());
            if turns && turn::is_turn(state, disk, now) {
                return Look::TimedKey(TURN_KEY);
            }
            let key = charge::key(slot, floors, now);
            let timed = turns || any_floor && charge::has_floor(slot);
            if timed { Look::TimedKey(key) } else { Look::Key(key) }
        };
        let lowest = backlog.lowest(lowerings, look);
        self.backlog = backlog;
        lowest
    }

    /// Returns whether another disk has its turn, and none that is held here.
    fn is_others_turn(&self, now: u64) -> bool {
        self.profile.turn.is_some() && !turn::has_ended(self.share.state(), now)
    }

    fn kick(&mut self, slot: usize, now: u64) {
        let kicked = self.share.state().reactor(slot).reactor(ReactorCell::Kicked);
        if order::kick(kicked, now) {
            self.kicks.push(ReactorId(slot as u16));
        }
    }

    fn dispatch(
        &mut self,
        disk: DiskId,
        discards: bool,
        by_floor: bool,
        survey: &Survey,
        now: u64,
    ) -> Result<Option<Dispatch<K>>, NoDiscardSlot> {
        let Some(place) = self.next_place(disk, discards) else { return Ok(None) };
        if matches!(place, Place::Discard) && !self.claim_discard(survey, now) {
            return Err(NoDiscardSlot);
        }
        let (depth, split) = (self.depth(), self.profile.piece);
        let own = Tokens::from_bits(self.share.disk(disk).disk(DiskCell::InFlight).load(Relaxed));
        let others = survey.in_flight.minus(own).ns;
        let is_alone = survey.other.is_none() && self.backlog.len() == 1;
        let Some(held) = self.disks.get_mut(disk.slot()) else { return Ok(None) };
        let Some(request) = held.get_mut(place) else { return Ok(None) };
        let (key, op, offset) = (request.key, request.op, request.sent);
        let left = op.bytes - offset;
        if let Some(piece) = split.filter(|_| request.piece == 0 && !request.op.whole) {
            // A disk that has as much in flight as it may waits as well, but holds no key.
            let is_alone = is_alone && others < self.profile.cost(Op { bytes: piece.bytes, ..op });
            let few = survey.in_flight.ns <= depth / 2 && is_alone;
            request.piece = if few { piece.bytes } else { piece.bytes * BUSY_PIECES };
        }
        let bytes = if request.piece == 0 { left } else { left.min(request.piece) };
        let Some(counted) = held.count_piece(place, bytes) else { return Ok(None) };
        let last = counted.last;
        if last {
            self.finish(disk, counted, now);
        }
        let cost = self.profile.cost(Op { bytes, ..op });
        self.charge(disk, Part { cost, bytes, last, by_floor }, survey, now);
        if self.has_floors() {
            self.count_floor_excess(cost, by_floor);
        }
        if self.profile.turn.is_some() {
            turn::count(self.share.state(), bytes, cost);
        }
        let request = if last { 0 } else { counted.number };
        let discard = op.kind == OpKind::Discard;
        // Floors have an account of their own, and the time of a turn is charged by the clock.
        let charged = if by_floor || self.profile.turn.is_some() { 0 } else { cost };
        let sent = Sent { disk, cost, ahead: survey.costs, discard, charged, request };
        let permit = self.take_token(sent, now);
        Ok(Some(Dispatch { permit, disk, key, offset, bytes, last }))
    }

    /// Returns the place of the disk's next request. The pieces of one request get three quarters of
    /// a knee at most: a request that hangs holds no other.
    fn next_place(&self, disk: DiskId, discards: bool) -> Option<Place> {
        self.disks.get(disk.slot())?.next(discards, self.profile.knee_ns / 4 * 3)
    }

    /// Takes one of the places of discards in flight, in the order in which reactors wait. Two
    /// reactors that try at once may both fail.
    fn claim_discard(&self, survey: &Survey, now: u64) -> bool {
        let own = self.share.reactor(self.reactor);
        let (count, waits) = (own.reactor(ReactorCell::Discards), ReactorCell::DiscardWaits);
        let waits = own.reactor(waits);
        let since = Some(waits.load(Relaxed)).filter(|since| *since > 0).unwrap_or(now.max(1));
        let present = count.load(Relaxed);
        order::publish(count, present.saturating_add(1));
        let first = survey.discard_waits.is_none_or(|other| (since, self.reactor.slot()) < other);
        let fits = first && self.survey(now).discards <= DISCARDS_MAX;
        waits.store(if fits { 0 } else { since }, Relaxed);
        if !fits {
            order::publish(count, present);
        }
        fits
    }

    /// Counts a request of which all is sent.
    fn finish(&mut self, disk: DiskId, counted: Counted, now: u64) {
        let slot = self.share.disk(disk);
        slot.disk(DiskCell::Held).fetch_sub(1, AcqRel);
        slot.disk(DiskCell::Waited).fetch_add(now.saturating_sub(counted.since), Relaxed);
        if counted.pieces > 1 {
            slot.disk(DiskCell::Splits).fetch_add(1, Relaxed);
        }
        if self.disks.get(disk.slot()).is_none_or(|held| held.is_empty()) {
            self.backlog.count_empty();
        }
    }

    /// Charges a dispatch to its disk.
    pub(super) fn charge(&mut self, disk: DiskId, part: Part, survey: &Survey, now: u64) {
        let slot = self.share.disk(disk);
        let knee = self.profile.knee_ns;
        let start = charge::charge(slot, part.cost, part.by_floor, survey.virtual_time, knee);
        let own = self.share.reactor(self.reactor).reactor(ReactorCell::Start);
        if let Some(start) = start.filter(|start| *start > own.load(Relaxed)) {
            own.store(start, Relaxed);
        }
        if self.has_floors() {
            charge::count_floors(slot, part.bytes, part.last, now);
        }
        slot.disk(DiskCell::Dispatches).fetch_add(1, Relaxed);
    }
}

/// Part of a request, as it is charged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) cost: u64,
    pub(super) bytes: u64,
    /// True if no part follows.
    pub(super) last: bool,
    /// True if a floor pays.
    pub(super) by_floor: bool,
}

/// No discard may be sent now.
struct NoDiscardSlot;
