//! What a hub knows of a port.

use std::sync::Arc;

use net::Reason;
use net::flow::{QUEUES_MAX, Steering};
use net::header::Offloads;

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
    /// Which policy of the port is in force. All hubs give it the same number.
    pub(super) term: u32,
    pub(super) steering: Steering,
    seats: Box<[Seat]>,
    /// Queues from the first on that take frames: over these they are spread.
    open: u8,
}

impl Known {
    pub(super) fn new(counts: Arc<Counts>) -> Self {
        let seats = vec![Seat::Nobody; QUEUES_MAX.into()].into();
        let (takes, steering) = (Offloads::default(), Steering::new(1));
        Self { counts, takes, epoch: 0, term: 0, steering, seats, open: 0 }
    }

    /// Somebody else sits there from now on; who did before.
    pub(super) fn sit(&mut self, queue: u16, seat: Seat) -> Seat {
        let Some(place) = self.seats.get_mut(usize::from(queue)) else { return seat };
        let former = std::mem::replace(place, seat);
        let open = self.seats.iter().take_while(|seat| **seat != Seat::Nobody).count();
        // There are QUEUES_MAX seats.
        let open = open as u8;
        if open != self.open {
            self.open = open;
            self.steering.set_queues(open);
        }
        former
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
