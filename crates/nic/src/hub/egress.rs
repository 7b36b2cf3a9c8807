//! The ways out of a hub: outlets on its reactor, and links to others.

use std::cell::RefCell;
use std::rc::Rc;

use net::Reason;
use reactor::{Context, PeerNotifier};

use super::port_state::QueueLocation;
use crate::frame_sink::{EgressFrame, FrameSink};
use crate::link::{LinkAddress, StationUpdate, Writer};

/// An outlet, and whether it got something in this batch.
struct SinkEntry {
    outlet: Rc<RefCell<dyn FrameSink>>,
    is_touched: bool,
    /// It is among those that are looked at.
    is_watched: bool,
}

/// The ways out of a hub.
#[derive(Default)]
pub(super) struct Egress {
    outlets: Vec<Option<SinkEntry>>,
    /// Outlets that got something in this batch, each once.
    touched: Vec<usize>,
    /// Outlets that are looked at after each batch, each once.
    watched: Vec<usize>,
    /// By number of the reactor; none to our own.
    links: Vec<Option<(Writer, PeerNotifier)>>,
}

impl Egress {
    pub(super) fn add_link(&mut self, number: usize, link: Writer, bell: PeerNotifier) {
        if self.links.len() <= number {
            self.links.resize_with(number + 1, || None);
        }
        if let Some(place) = self.links.get_mut(number) {
            *place = Some((link, bell));
        }
    }

    /// A place for an outlet.
    pub(super) fn add_sink(&mut self, outlet: Rc<RefCell<dyn FrameSink>>) -> QueueLocation {
        let at = match self.outlets.iter().position(Option::is_none) {
            Some(at) => at,
            None => {
                self.outlets.push(None);
                // Nothing is allocated when frames come.
                self.touched.reserve(self.outlets.len());
                self.watched.reserve(self.outlets.len());
                self.outlets.len() - 1
            }
        };
        if let Some(place) = self.outlets.get_mut(at) {
            // What was watched at this place before is still listed.
            let is_watched = self.watched.contains(&at);
            *place = Some(SinkEntry { outlet, is_touched: false, is_watched });
        }
        QueueLocation::Here(at)
    }

    /// Nobody sits there any more.
    pub(super) fn remove_sink(&mut self, seat: QueueLocation) {
        if let QueueLocation::Here(at) = seat
            && let Some(place) = self.outlets.get_mut(at)
        {
            *place = None;
        }
    }

    /// Gives a frame to whoever sits there; see [`FrameSink::deliver`].
    pub(super) fn deliver(
        &mut self,
        seat: QueueLocation,
        to: LinkAddress,
        frame: &EgressFrame<'_>,
        more: &mut usize,
    ) -> Result<(), Reason> {
        match seat {
            QueueLocation::Nobody => Err(Reason::ReceiverClosed),
            QueueLocation::Here(at) => {
                let place = self.outlets.get_mut(at).and_then(Option::as_mut);
                let place = place.ok_or(Reason::ReceiverClosed)?;
                if !std::mem::replace(&mut place.is_touched, true) {
                    self.touched.push(at);
                }
                place.outlet.borrow_mut().deliver(frame, more)
            }
            QueueLocation::There(number) => {
                let link = self.links.get_mut(number).and_then(Option::as_mut);
                let (link, _) = link.ok_or(Reason::ReceiverClosed)?;
                link.put(to, frame).then_some(()).ok_or(Reason::ReactorBusy)
            }
        }
    }

    /// Where the last frame ends that went to reactor `number`.
    pub(super) fn written(&self, number: usize) -> u64 {
        self.link(number).map_or(0, Writer::written)
    }

    /// Up to where reactor `number` has passed on what went there.
    pub(super) fn arrived(&self, number: usize) -> u64 {
        self.link(number).map_or(0, Writer::arrived)
    }

    fn link(&self, number: usize) -> Option<&Writer> {
        self.links.get(number)?.as_ref().map(|(link, _)| link)
    }

    /// Tells all other reactors where a station is. One whose link is full does without, and
    /// floods until the station is heard again.
    pub(super) fn broadcast_station(&mut self, news: StationUpdate) {
        for (link, _) in self.links.iter_mut().flatten() {
            link.tell(news);
        }
    }

    pub(super) fn flush(&mut self, context: &mut Context<'_>) {
        for at in self.touched.drain(..) {
            if let Some(place) = self.outlets.get_mut(at).and_then(Option::as_mut) {
                place.is_touched = false;
                let mut outlet = place.outlet.borrow_mut();
                outlet.flush(context);
                if !place.is_watched && outlet.poll_consumption() {
                    place.is_watched = true;
                    self.watched.push(at);
                }
            }
        }
        // Few, and seldom: those that somebody waits for.
        let outlets = &mut self.outlets;
        self.watched.retain(|at| {
            let place = outlets.get_mut(*at).and_then(Option::as_mut);
            place.is_some_and(|place| {
                place.is_watched = place.outlet.borrow_mut().poll_consumption();
                place.is_watched
            })
        });
        for (link, bell) in self.links.iter_mut().flatten() {
            if link.show() {
                context.notify(bell);
            }
        }
    }
}
