//! Outputs of a hub: frame sinks on its reactor, and links to other reactors.

use std::cell::RefCell;
use std::rc::Rc;

use net::Reason;
use reactor::{Context, PeerNotifier};

use super::port_state::QueueLocation;
use crate::frame_sink::{EgressFrame, FrameSink};
use crate::link::{LinkAddress, StationUpdate, Writer};

/// Frame sink with its flags. `is_touched`: the sink received a frame in this batch.
struct SinkEntry {
    frame_sink: Rc<RefCell<dyn FrameSink>>,
    is_touched: bool,
    /// True if the consumption of the sink is polled.
    is_watched: bool,
}

/// Outputs of a hub.
#[derive(Default)]
pub(super) struct Egress {
    outlets: Vec<Option<SinkEntry>>,
    /// Sinks that received a frame in this batch, each once.
    touched: Vec<usize>,
    /// Sinks whose consumption is polled after each batch, each once.
    watched: Vec<usize>,
    /// Links by the number of their reactor; `None` for the own one.
    links: Vec<Option<(Writer, PeerNotifier)>>,
}

impl Egress {
    pub(super) fn add_link(&mut self, number: usize, link: Writer, peer_notifier: PeerNotifier) {
        if self.links.len() <= number {
            self.links.resize_with(number + 1, || None);
        }
        if let Some(place) = self.links.get_mut(number) {
            *place = Some((link, peer_notifier));
        }
    }

    /// Adds a frame sink and returns its location.
    pub(super) fn add_sink(&mut self, frame_sink: Rc<RefCell<dyn FrameSink>>) -> QueueLocation {
        let at = match self.outlets.iter().position(Option::is_none) {
            Some(at) => at,
            None => {
                self.outlets.push(None);
                // Allocated now, so that frames cause no allocation.
                self.touched.reserve(self.outlets.len());
                self.watched.reserve(self.outlets.len());
                self.outlets.len() - 1
            }
        };
        if let Some(sink_entry) = self.outlets.get_mut(at) {
            // The former sink at this index may still be in the list.
            let is_watched = self.watched.contains(&at);
            *sink_entry = Some(SinkEntry { frame_sink, is_touched: false, is_watched });
        }
        QueueLocation::Local(at)
    }

    /// Removes the frame sink at a location.
    pub(super) fn remove_sink(&mut self, queue_location: QueueLocation) {
        if let QueueLocation::Local(at) = queue_location
            && let Some(sink_entry) = self.outlets.get_mut(at)
        {
            *sink_entry = None;
        }
    }

    /// Delivers a frame to the queue at a location; see [`FrameSink::deliver`].
    pub(super) fn deliver(
        &mut self,
        queue_location: QueueLocation,
        to: LinkAddress,
        frame: &EgressFrame<'_>,
        more: &mut usize,
    ) -> Result<(), Reason> {
        match queue_location {
            QueueLocation::None => Err(Reason::ReceiverClosed),
            QueueLocation::Local(at) => {
                let sink_entry = self.outlets.get_mut(at).and_then(Option::as_mut);
                let sink_entry = sink_entry.ok_or(Reason::ReceiverClosed)?;
                if !std::mem::replace(&mut sink_entry.is_touched, true) {
                    self.touched.push(at);
                }
                sink_entry.frame_sink.borrow_mut().deliver(frame, more)
            }
            QueueLocation::Remote(number) => {
                let link = self.links.get_mut(number).and_then(Option::as_mut);
                let (link, _) = link.ok_or(Reason::ReceiverClosed)?;
                link.put(to, frame).then_some(()).ok_or(Reason::ReactorBusy)
            }
        }
    }

    /// Returns the end of the last frame that was written to reactor `number`.
    pub(super) fn written(&self, number: usize) -> u64 {
        self.link(number).map_or(0, Writer::written)
    }

    /// Returns the position up to which reactor `number` has processed the frames written to it.
    pub(super) fn arrived(&self, number: usize) -> u64 {
        self.link(number).map_or(0, Writer::arrived)
    }

    fn link(&self, number: usize) -> Option<&Writer> {
        self.links.get(number)?.as_ref().map(|(link, _)| link)
    }

    /// Broadcasts a station's port to all other reactors. A reactor whose link is full misses it,
    /// and floods until the station sends again.
    pub(super) fn broadcast_station(&mut self, station_update: StationUpdate) {
        for (link, _) in self.links.iter_mut().flatten() {
            link.put_station(station_update);
        }
    }

    pub(super) fn flush(&mut self, context: &mut Context<'_>) {
        for at in self.touched.drain(..) {
            if let Some(sink_entry) = self.outlets.get_mut(at).and_then(Option::as_mut) {
                sink_entry.is_touched = false;
                let mut frame_sink = sink_entry.frame_sink.borrow_mut();
                frame_sink.flush(context);
                if !sink_entry.is_watched && frame_sink.poll_consumption() {
                    sink_entry.is_watched = true;
                    self.watched.push(at);
                }
            }
        }
        // Few sinks, and only while a hub requests their consumption.
        let outlets = &mut self.outlets;
        self.watched.retain(|at| {
            let sink_entry = outlets.get_mut(*at).and_then(Option::as_mut);
            sink_entry.is_some_and(|sink_entry| {
                sink_entry.is_watched = sink_entry.frame_sink.borrow_mut().poll_consumption();
                sink_entry.is_watched
            })
        });
        for (link, peer_notifier) in self.links.iter_mut().flatten() {
            if link.show() {
                context.notify(peer_notifier);
            }
        }
    }
}
