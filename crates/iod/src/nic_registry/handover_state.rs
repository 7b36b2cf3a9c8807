//! Handover records of NICs and networks.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use net::port::PortId;
use reactor::clock_ns;
use serde::{Deserialize, Serialize};

use super::NicRegistry;
use super::upgrade::{QuiescedNicEntry, QuiescedNics};
use crate::handover::BrokenRingState;
use crate::served_nic::{NicSessionState, WriteError};

/// Newest format of the records of NICs and networks that is read and written.
pub(crate) const NIC_FORMAT: u32 = 2;
pub(super) const MILLISECOND_NS: u64 = 1_000_000;

/// Handover record of a NIC. The descriptors of its session follow. The keeper has its spec.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NicHandoverState {
    pub(crate) version: u32,
    pub(crate) id: String,
    pub(super) session: Option<NicSessionState>,
    /// Token debt of its rate limit in nanoseconds.
    pub(super) owed_ns: u64,
    /// Broken rings. The first format omits them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) broken: Option<Vec<BrokenRingState>>,
}

/// Formats of a NIC's handover data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NicFormats {
    /// Format of the records of NICs and networks.
    pub(crate) record: u32,
    /// Format of the sessions in them.
    pub(crate) session: u32,
}

/// Handover record of a network. The descriptors of its uplink follow, one for each queue.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkHandoverState {
    pub(crate) version: u32,
    pub(crate) name: String,
    /// TAP device of its uplink.
    pub(super) tap: Option<String>,
    /// Ids of its NICs, in the order to which stations refer. The host comes last.
    pub(super) nics: Vec<String>,
    /// Stations, longest silent first.
    pub(super) stations: Vec<StationState>,
}

/// Learnt station: index of its NIC, VLAN, address, and the time since its last frame in
/// milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StationState(pub(super) u16, pub(super) u16, pub(super) [u8; 6], pub(super) u64);

/// Handover data of all NICs, with their descriptors.
#[derive(Debug, Default)]
pub(crate) struct NicsHandoverState<'a> {
    pub(crate) networks: Vec<(NetworkHandoverState, Vec<OwnedFd>)>,
    pub(crate) nics: Vec<(NicHandoverState, Vec<BorrowedFd<'a>>)>,
}

impl NicRegistry {
    /// Returns the handover data of all NICs in these formats.
    ///
    /// # Errors
    /// The format is unknown, or no descriptors are left.
    pub(crate) fn written<'a>(
        &self,
        all: &'a QuiescedNics,
        formats: NicFormats,
    ) -> Result<NicsHandoverState<'a>, WriteError> {
        let mut written = NicsHandoverState::default();
        let now_ns = clock_ns();
        for QuiescedNicEntry { id, nic, quiesced_nic } in &all.0 {
            let (session, fds) = quiesced_nic.written(formats.session)?;
            let (version, id, owed_ns) = (formats.record, id.clone(), nic.owed_ns(now_ns));
            let broken = (version > 1).then(|| nic.broken_rings());
            written.nics.push((NicHandoverState { version, id, session, owed_ns, broken }, fds));
        }
        written.networks = self.written_networks(all, formats.record, now_ns)?;
        Ok(written)
    }

    fn written_networks(
        &self,
        all: &QuiescedNics,
        version: u32,
        now_ns: u64,
    ) -> Result<Vec<(NetworkHandoverState, Vec<OwnedFd>)>, WriteError> {
        let Some(switch_network) = all.lan() else { return Ok(Vec::new()) };
        let mut stations: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for station in switch_network.stations()? {
            stations.entry(station.network).or_default().push(station);
        }
        let mut written = Vec::new();
        for (name, network) in self.networks().iter() {
            let number = network.switch_network.number();
            let here = all.0.iter().filter(|one| one.nic.lan().number() == number);
            let nics: Vec<_> = here.clone().map(|one| one.id.clone()).collect();
            let uplink =
                network.uplink.as_ref().and_then(|uplink| Some((uplink, uplink.device()?)));
            let host = uplink.map(|(uplink, _)| uplink.port());
            let ports = here.map(|one| one.nic.port()).chain(host);
            let places: BTreeMap<PortId, u16> = ports.zip(0..).collect();
            let station = |station: &net::switch::LearntStation| {
                let silent_ms = now_ns.saturating_sub(station.seen_ns) / MILLISECOND_NS;
                let place = places.get(&station.port)?;
                Some(StationState(*place, station.vlan, station.mac.0, silent_ms))
            };
            let mut fds = Vec::new();
            let queues = uplink
                .into_iter()
                .flat_map(|(_, tap)| (0..tap.queues()).filter_map(|number| tap.queue(number)));
            for fd in queues {
                fds.push(fd.as_fd().try_clone_to_owned()?);
            }
            let of_it = stations.remove(&number).unwrap_or_default();
            let record = NetworkHandoverState {
                version,
                name: name.clone(),
                tap: uplink.map(|(uplink, _)| uplink.name().into()),
                nics,
                stations: of_it.iter().filter_map(station).collect(),
            };
            written.push((record, fds));
        }
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;

    /// Samples of each format, written when that format was the newest.
    const NICS: [&str; 2] = [
        include_str!("../../tests/fixtures/nic-1.json"),
        include_str!("../../tests/fixtures/nic-2.json"),
    ];
    /// The second format is the first one with another number.
    const NETWORK: &str = include_str!("../../tests/fixtures/network-1.json");

    fn check<T: Serialize + DeserializeOwned>(text: &str) {
        let record: T = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string_pretty(&record).unwrap() + "\n", text);
        // An unknown field is refused, because ignoring it would lose its meaning.
        let novel = text.replacen('{', "{\"novel\": 1,", 1);
        assert!(serde_json::from_str::<T>(&novel).is_err());
    }

    #[test]
    fn every_recorded_format_is_read_and_written_byte_for_byte() {
        NICS.into_iter().for_each(check::<NicHandoverState>);
        check::<NetworkHandoverState>(NETWORK);
    }
}
