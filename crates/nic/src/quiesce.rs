//! Quiescing a switch, and the state that another process needs to continue it.
//!
//! Frames that have left their sender's ring and are still in a link would be lost. So they are
//! delivered before receivers are stopped.

use std::collections::HashMap;
use std::sync::Arc;

use net::switch::LearntStation;
use reactor::{PollOutcome, Poller, Stopped};

use crate::fabric::Fabric;
use crate::hub_poller::HubPoller;

impl Fabric {
    /// Delivers all frames in the links between reactors. All senders must be stopped.
    ///
    /// # Errors
    /// [`Stopped`] if a reactor has ended.
    pub fn drain(&self) -> Result<(), Stopped> {
        for hub_handle in self.nodes() {
            let node = hub_handle.node;
            let done =
                hub_handle.handle.call(move |context| {
                    context.with_poller(node, |hub_poller: &mut HubPoller, context| {
                        while hub_poller.poll(context) == PollOutcome::Busy {}
                    })
                })?;
            done.ok_or(Stopped)?;
        }
        Ok(())
    }

    /// Returns the stations that any hub has learnt: each once, the one that was silent longest
    /// first.
    ///
    /// # Errors
    /// [`Stopped`] if a reactor has ended.
    pub fn stations(&self) -> Result<Vec<LearntStation>, Stopped> {
        let mut latest = HashMap::new();
        for hub_handle in self.nodes() {
            for station in hub_handle.with(|hub| hub.stations())? {
                let key = (station.network, station.vlan, station.mac);
                let known = latest.entry(key).or_insert(station);
                if known.seen_ns < station.seen_ns {
                    *known = station;
                }
            }
        }
        let mut all: Vec<_> = latest.into_values().collect();
        all.sort_unstable_by_key(|station| (station.seen_ns, station.mac));
        Ok(all)
    }

    /// Restores the stations of another switch, the one that was silent longest first. Their ports
    /// must exist.
    ///
    /// # Errors
    /// [`Stopped`] if a reactor has ended.
    pub fn recall(&self, stations: &Arc<[LearntStation]>) -> Result<(), Stopped> {
        for hub_handle in self.nodes() {
            let stations = Arc::clone(stations);
            hub_handle.with(move |hub| {
                stations.iter().for_each(|station| hub.restore_station(station))
            })?;
        }
        Ok(())
    }
}
