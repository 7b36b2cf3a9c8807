//! Poller of a hub: receives frames from other reactors.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use memory::Buffers;
use reactor::{Context, PollControl, PollOutcome, Poller, WaitTarget};

use crate::frame_sink::EgressFrame;
use crate::hub::Hub;
use crate::link::{LinkRecord, Reader};

/// Records that are read from a link before the next link is served.
const BATCH: usize = 64;

/// Hub, and the links through which frames from other reactors arrive.
pub(crate) struct HubPoller {
    pub(crate) hub: Rc<RefCell<Hub>>,
    links: Vec<Reader>,
    /// Bytes of the current frame.
    body: Buffers,
    poll_control: Arc<PollControl>,
}

impl HubPoller {
    pub(crate) fn new(hub: Hub, links: Vec<Reader>, poll_control: Arc<PollControl>) -> Self {
        let hub = Rc::new(RefCell::new(hub));
        Self { hub, links, body: Buffers::with_capacity(1), poll_control }
    }

    /// Processes a batch of a link; returns the number of records.
    fn take(link: &mut Reader, hub: &mut Hub, body: &mut Buffers, now_ns: u64) -> usize {
        let mut taken = 0;
        while taken < BATCH {
            let Some(record) = link.next(body) else { break };
            match record {
                LinkRecord::Station(station_update) => hub.learn(station_update, now_ns),
                LinkRecord::Frame(to, header, since_ns) => {
                    hub.arrive(to, &EgressFrame { header, head: &[], body, since_ns });
                }
            }
            link.release();
            taken += 1;
            // Checked here, so that each link gets at least one record per turn.
            if hub.is_spent() {
                break;
            }
        }
        taken
    }
}

impl Poller for HubPoller {
    fn poll(&mut self, context: &mut Context<'_>) -> PollOutcome {
        let now_ns = context.now_ns();
        let mut hub = self.hub.borrow_mut();
        let mut taken = 0;
        for link in &mut self.links {
            taken += Self::take(link, &mut hub, &mut self.body, now_ns);
        }
        if taken == 0 {
            return PollOutcome::Idle;
        }
        self.body.clear();
        hub.flush(context);
        PollOutcome::Busy
    }

    fn on_runnable(&mut self) {
        // All links share one sleep state.
        if let Some(link) = self.links.first() {
            link.cancel_sleep();
        }
    }

    fn arm(&mut self) -> bool {
        if let Some(link) = self.links.first() {
            link.prepare_sleep();
        }
        let more = self.links.iter_mut().any(Reader::has_more);
        if more {
            self.on_runnable();
        }
        more
    }

    fn polling(&self) -> Option<&PollControl> {
        Some(&self.poll_control)
    }

    fn waits_for(&self) -> WaitTarget {
        // Other reactors act as its driver: while it polls, they need not wake it.
        if self.links.is_empty() { WaitTarget::Event } else { WaitTarget::Driver }
    }
}
