//! What a hub knows of a port.

use std::sync::Arc;

use net::control::Asked;
use net::flow::{QUEUES_MAX, Steering};
use net::header::Offloads;
use net::{Mac, Reason};

use crate::counts::Counts;

/// Where a queue takes frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seat {
    /// Nowhere.
    Nobody,
    /// On this reactor: place among its outlets.
    Here(usize),
    /// On the reactor of this number.
    There(usize),
}

/// A port, as far as frames for it are concerned.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) counts: Arc<Counts>,
    /// What may be left to it.
    pub(super) takes: Offloads,
    /// Which life of the port that holds for.
    pub(super) epoch: u32,
    pub(super) steering: Steering,
    /// What its driver has asked for, if it has a control queue.
    asked: Option<Arc<Asked>>,
    seats: Box<[Seat]>,
    /// Queues from the first on that take frames and are in use: over these they are spread.
    spread: u8,
}

impl Known {
    pub(super) fn new(counts: Arc<Counts>) -> Self {
        let seats = vec![Seat::Nobody; QUEUES_MAX.into()].into();
        let (takes, steering) = (Offloads::default(), Steering::new(1));
        Self { counts, takes, epoch: 0, steering, asked: None, seats, spread: 0 }
    }

    /// Somebody else sits there from now on; who did before.
    pub(super) fn sit(&mut self, queue: u16, seat: Seat) -> Seat {
        let Some(place) = self.seats.get_mut(usize::from(queue)) else { return seat };
        let former = std::mem::replace(place, seat);
        self.respread();
        former
    }

    /// Its driver asks for something else from now on.
    pub(super) fn set_asked(&mut self, asked: Option<Arc<Asked>>) {
        self.asked = asked;
        self.respread();
    }

    /// Its driver wants a frame to `dst`, of which nobody knows whose it is.
    pub(super) fn wants(&self, dst: Mac) -> bool {
        self.asked.as_ref().is_none_or(|asked| asked.wants(dst))
    }

    /// Its driver uses this queue. Without a control queue, it does what is started.
    pub(super) fn uses(&self, queue: u16) -> bool {
        self.asked.as_ref().is_none_or(|asked| queue < asked.pairs())
    }

    /// A flow's frames may go to another queue after this, while earlier ones lie in the former: the
    /// driver has asked for that, or the queue is gone.
    fn respread(&mut self) {
        let taking = |(queue, seat): &(u16, &Seat)| **seat != Seat::Nobody && self.uses(*queue);
        // There are QUEUES_MAX seats.
        let spread = (0..).zip(&self.seats).take_while(taking).count() as u8;
        if spread != self.spread {
            self.spread = spread;
            self.steering.set_queues(spread);
        }
    }

    /// Who takes what goes to a queue.
    pub(super) fn seat(&self, queue: u16) -> Option<Seat> {
        self.seats.get(usize::from(queue)).copied()
    }

    /// Everybody.
    pub(super) fn seats(&self) -> impl Iterator<Item = Seat> {
        self.seats.iter().copied()
    }

    /// Counts what came of a frame for it.
    pub(super) fn got(&self, bytes: usize, outcome: Result<(), Reason>) {
        match outcome {
            Ok(()) => self.counts.gets(bytes),
            Err(reason) => self.counts.missed.count(reason),
        }
    }
}
