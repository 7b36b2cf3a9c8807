//! MAC table of a network, learnt from the frames of its stations (IEEE 802.1Q, 8.7, 8.8).
//!
//! Memory is bounded and allocated at the start. Look-ups and learning take constant time. Aged
//! entries are removed while learning, each once, oldest first.
//!
//! One reactor owns a table. [`LearnOutcome::should_broadcast`] says whether the network's
//! tables on other reactors should learn a station too.

mod index;
mod slab;

use std::num::NonZeroU64;

use crate::mac::Mac;
use crate::port::PortId;
use crate::switch::PORTS_MAX;
use index::Index;
use slab::{Entry, Slab, UNUSED};

/// Shortest time between two writes of an entry in use, in nanoseconds. So an entry may age too
/// early by as much, and a frame seldom writes anything.
pub const REFRESH_NS: u64 = 1_000_000_000;

/// Bounds of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacTableLimits {
    /// Most stations in the table.
    pub entries: u32,
    /// Most stations learnt from one port, unless the port has its own limit.
    pub per_port: u32,
    /// Time after which a silent station is forgotten, in nanoseconds; at least [`REFRESH_NS`].
    pub age_ns: u64,
    /// Shortest time between two moves of a station, in nanoseconds. It bounds the changes caused
    /// by two ports that claim the same address.
    pub move_gap_ns: u64,
}

impl Default for MacTableLimits {
    /// Returns 8,192 stations, 1,024 of a port, 300 s (IEEE 802.1Q, table 8-6), one move a second.
    fn default() -> Self {
        let second = 1_000_000_000;
        Self { entries: 8192, per_port: 1024, age_ns: 300 * second, move_gap_ns: second }
    }
}

/// Result of learning a frame's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LearnOutcome {
    /// The station was known and is unchanged.
    Known,
    /// The station is new.
    New,
    /// The station was known and its time was renewed.
    Refreshed,
    /// The station has moved from that port.
    Moved(PortId),
    /// The station stays at that port, because it may not move again yet.
    Held(PortId),
    /// The address cannot be a station's.
    NoStation,
    /// The port has reached its limit of stations.
    PortFull,
    /// The table is full, and the port has its share of it.
    TableFull,
}

impl LearnOutcome {
    /// Returns whether other tables of the network should learn the station too.
    pub fn should_broadcast(self) -> bool {
        matches!(self, Self::New | Self::Refreshed | Self::Moved(_))
    }
}

/// VLAN and address as a number, never 0.
type Key = NonZeroU64;

fn key(vlan: u16, mac: Mac) -> Key {
    // One additional bit makes the number nonzero.
    NonZeroU64::MIN | (u64::from(vlan & 0xfff) << 49) | (mac.number() << 1)
}

/// Returns the VLAN and address of a [`key`].
fn unkey(key: Key) -> (u16, Mac) {
    ((key.get() >> 49) as u16 & 0xfff, Mac::of_number(key.get() >> 1))
}

/// Stations of one network.
#[derive(Debug)]
pub struct MacTable {
    limits: MacTableLimits,
    index: Index,
    slab: Slab,
    per_port: Box<[PortEntries]>,
    /// Ports with learnt stations, except those with a higher limit.
    sharers: u32,
}

/// Entries of one port.
#[derive(Clone, Copy, Debug)]
struct PortEntries {
    /// Stations that were learnt from the port.
    learnt: u32,
    /// Limit of stations for the port.
    most: u32,
}

impl MacTable {
    /// Creates an empty table. It takes about 56 bytes for each entry, and 8 for each possible
    /// port.
    pub fn new(limits: MacTableLimits) -> Self {
        let most = limits.entries.clamp(1, 1 << 20);
        let limits =
            MacTableLimits { entries: most, age_ns: limits.age_ns.max(REFRESH_NS), ..limits };
        let per_port = vec![PortEntries { learnt: 0, most: limits.per_port }; PORTS_MAX].into();
        let (index, slab) = (Index::new(most), Slab::new(most));
        Self { limits, index, slab, per_port, sharers: 0 }
    }

    /// Sets the limit of stations for `port`; `None` for the common limit.
    pub fn set_port_limit(&mut self, port: PortId, most: Option<u32>) {
        let most = most.unwrap_or(self.limits.per_port);
        self.change(port, |port_entries| port_entries.most = most);
    }

    /// Returns the number of known stations, including aged ones that are not removed yet.
    pub fn len(&self) -> u32 {
        self.slab.used()
    }

    /// Returns whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the port of a station at `now_ns`.
    pub fn lookup(&self, vlan: u16, mac: Mac, now_ns: u64) -> Option<PortId> {
        let entry = self.slab.get(self.find(key(vlan, mac))?)?;
        (!self.has_aged(entry, now_ns)).then_some(entry.port)
    }

    /// Returns the learnt stations, in no order: VLAN, address, port, and the time of the last
    /// frame.
    pub fn learnt(&self) -> impl Iterator<Item = (u16, Mac, PortId, u64)> {
        let entries = (0..self.limits.entries).filter_map(|at| self.slab.get(at));
        entries.filter_map(|entry| {
            let (vlan, mac) = unkey(entry.key?);
            Some((vlan, mac, entry.port, entry.seen_ns))
        })
    }

    /// Learns that a frame came from `mac` on `port`.
    pub fn learn(&mut self, vlan: u16, mac: Mac, port: PortId, now_ns: u64) -> LearnOutcome {
        if !mac.is_station() {
            return LearnOutcome::NoStation;
        }
        let key = key(vlan, mac);
        self.expire(now_ns);
        let found = self.find(key);
        let Some((at, entry)) = found.and_then(|at| Some((at, *self.slab.get(at)?))) else {
            return self.insert(key, port, now_ns);
        };
        match entry {
            Entry { port: there, .. } if there != port => self.relocate(at, entry, port, now_ns),
            _ if now_ns.saturating_sub(entry.seen_ns) < REFRESH_NS => LearnOutcome::Known,
            _ => {
                self.slab.touch(at, now_ns);
                LearnOutcome::Refreshed
            }
        }
    }

    /// Removes all stations of `port`. Walks the whole table.
    pub fn forget_port(&mut self, port: PortId) {
        for at in 0..self.limits.entries {
            if self.slab.get(at).is_some_and(|entry| entry.key.is_some() && entry.port == port) {
                self.remove(at);
            }
        }
    }

    fn insert(&mut self, key: Key, port: PortId, now_ns: u64) -> LearnOutcome {
        if !self.has_room(port) {
            return LearnOutcome::PortFull;
        }
        if self.slab.is_full() {
            self.make_room(port);
        }
        let entry = Entry { key: Some(key), port, seen_ns: now_ns, ..UNUSED };
        let Some(at) = self.slab.take(entry) else { return LearnOutcome::TableFull };
        self.index.insert(key.get(), at);
        self.count(port, 1);
        LearnOutcome::New
    }

    /// Moves the station of `entry`, at `at`, to the port on which it was seen.
    fn relocate(&mut self, at: u32, entry: Entry, port: PortId, now_ns: u64) -> LearnOutcome {
        if now_ns < entry.free_ns {
            return LearnOutcome::Held(entry.port);
        }
        if !self.has_room(port) {
            return LearnOutcome::PortFull;
        }
        self.count(entry.port, -1);
        self.count(port, 1);
        if let Some(moved) = self.slab.get_mut(at) {
            moved.port = port;
            moved.free_ns = now_ns.saturating_add(self.limits.move_gap_ns);
        }
        self.slab.touch(at, now_ns);
        LearnOutcome::Moved(entry.port)
    }

    fn find(&self, key: Key) -> Option<u32> {
        let is = |at| self.slab.get(at).is_some_and(|entry| entry.key == Some(key));
        self.index.find(key.get(), is)
    }

    fn has_aged(&self, entry: &Entry, now_ns: u64) -> bool {
        now_ns.saturating_sub(entry.seen_ns) >= self.limits.age_ns
    }

    /// Removes aged entries.
    fn expire(&mut self, now_ns: u64) {
        while let Some((oldest, entry)) = self.slab.oldest()
            && self.has_aged(entry, now_ns)
        {
            self.remove(oldest);
        }
    }

    /// Makes room for a station of a port that has less than its share. Removes the station that
    /// was silent longest among those of ports with more than their share. The stations skipped by
    /// this search belong to ports within their share, and are therefore few. An entry gained this
    /// way stays until it ages.
    fn make_room(&mut self, port: PortId) {
        let port_entries = self.of(port);
        let newcomer = u32::from(port_entries.learnt == 0 && !self.is_multi_queue(port_entries));
        let sharers = self.sharers + newcomer;
        if port_entries.learnt >= self.share(port_entries, sharers) {
            return;
        }
        let has_more = |entry: &Entry| {
            let port_entries = self.of(entry.port);
            port_entries.learnt > self.share(port_entries, sharers)
        };
        let found = self.slab.by_age().find(|(_, entry)| has_more(entry));
        if let Some((at, _)) = found {
            self.remove(at);
        }
    }

    /// Returns the number of stations that a port may have although the table is full. A port with
    /// a higher limit may have half of the table. All other ports have equal parts of the other
    /// half. The shares together do not exceed the table, so if one port has less than its share,
    /// another has more.
    fn share(&self, port_entries: PortEntries, sharers: u32) -> u32 {
        let half = self.limits.entries / 2;
        if self.is_multi_queue(port_entries) { half } else { half / sharers.max(1) }
    }

    fn is_multi_queue(&self, port_entries: PortEntries) -> bool {
        port_entries.most > self.limits.per_port
    }

    fn of(&self, port: PortId) -> PortEntries {
        self.per_port.get(port.index()).copied().unwrap_or(PortEntries { learnt: 0, most: 0 })
    }

    fn has_room(&self, port: PortId) -> bool {
        let port_entries = self.of(port);
        port_entries.learnt < port_entries.most
    }

    fn count(&mut self, port: PortId, by: i32) {
        self.change(port, |port_entries| {
            port_entries.learnt = port_entries.learnt.saturating_add_signed(by)
        });
    }

    fn change(&mut self, port: PortId, change: impl FnOnce(&mut PortEntries)) {
        let before = self.of(port);
        let Some(port_entries) = self.per_port.get_mut(port.index()) else { return };
        change(port_entries);
        let after = *port_entries;
        let shares = |port_entries: PortEntries| {
            u32::from(port_entries.learnt > 0 && !self.is_multi_queue(port_entries))
        };
        self.sharers = self.sharers + shares(after) - shares(before);
    }

    fn remove(&mut self, at: u32) {
        let Some(Entry { key: Some(key), port, .. }) = self.slab.get(at).copied() else {
            return;
        };
        self.index.remove(key.get(), at, |at| self.slab.get(at)?.key.map(Key::get));
        self.slab.release(at);
        self.count(port, -1);
    }
}

#[cfg(test)]
mod tests;
