//! A switch that comes to rest, and what another process needs to go on as if nothing had been.
//!
//! Frames that have left their sender's ring and are still between two reactors would be lost with
//! them: they arrive before receivers are stopped.

use std::collections::HashMap;
use std::sync::Arc;

use net::switch::LearntStation;
use reactor::{PollOutcome, Poller, Stopped};

use crate::fabric::Fabric;
use crate::hub_poller::HubPoller;

impl Fabric {
    /// Has all that is on its way between reactors arrive. Nobody sends any more.
    ///
    /// # Errors
    /// [`Stopped`]: a reactor has ended.
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

    /// Where stations are, as all hubs together know it: each once, the one that was silent for
    /// longest first.
    ///
    /// # Errors
    /// [`Stopped`]: a reactor has ended.
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

    /// Stations are where another switch knew them to be, the one that was silent for longest
    /// first. Their ports are plugged in.
    ///
    /// # Errors
    /// [`Stopped`]: a reactor has ended.
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
