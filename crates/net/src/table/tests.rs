//! Compares the table with a map that is searched completely.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::test_frames::mac;

const SECOND: u64 = 1_000_000_000;

fn small() -> MacTableLimits {
    MacTableLimits { entries: 8, per_port: 4, age_ns: 10 * SECOND, move_gap_ns: 2 * SECOND }
}

#[test]
fn who_is_no_station_is_not_learnt() {
    let mut table = MacTable::new(small());
    for nobody in [Mac::default(), Mac::BROADCAST, Mac([1, 0, 0x5e, 0, 0, 1])] {
        assert_eq!(table.learn(0, nobody, PortId(1), 0), LearnOutcome::NoStation);
    }
    assert!(table.is_empty());
}

#[test]
fn stations_of_vlans_are_apart() {
    let mut table = MacTable::new(small());
    assert_eq!(table.learn(0, mac(1), PortId(1), 0), LearnOutcome::New);
    assert_eq!(table.learn(7, mac(1), PortId(2), 0), LearnOutcome::New);
    assert_eq!(table.lookup(0, mac(1), 0), Some(PortId(1)));
    assert_eq!(table.lookup(7, mac(1), 0), Some(PortId(2)));
    assert_eq!(table.lookup(8, mac(1), 0), None);
    table.forget_port(PortId(2));
    assert_eq!(table.lookup(7, mac(1), 0), None);
    assert_eq!(table.lookup(0, mac(1), 0), Some(PortId(1)));
}

#[test]
fn moves_are_bounded_and_a_first_one_is_free() {
    let mut table = MacTable::new(small());
    table.learn(0, mac(1), PortId(1), 0);
    assert_eq!(table.learn(0, mac(1), PortId(2), 1), LearnOutcome::Moved(PortId(1)));
    assert_eq!(table.learn(0, mac(1), PortId(1), 2), LearnOutcome::Held(PortId(2)));
    assert_eq!(table.lookup(0, mac(1), 2), Some(PortId(2)));
    assert_eq!(table.learn(0, mac(1), PortId(1), 1 + 2 * SECOND), LearnOutcome::Moved(PortId(2)));
}

/// A flood of invented addresses fills its port's limit and no more.
#[test]
fn a_flood_leaves_room_for_others() {
    let mut table = MacTable::new(MacTableLimits::default());
    for number in 0..100_000u32 {
        let [a, b, c, d] = number.to_be_bytes();
        let learn_outcome = table.learn(0, Mac([2, 1, a, b, c, d]), PortId(1), 0);
        assert_eq!(
            learn_outcome,
            if number < 1024 { LearnOutcome::New } else { LearnOutcome::PortFull }
        );
    }
    assert_eq!(table.learn(0, mac(1), PortId(2), 0), LearnOutcome::New);
    assert_eq!(
        table.learn(0, mac(2), PortId(PORTS_MAX as u16), 0),
        LearnOutcome::PortFull,
        "no such port"
    );
}

/// Ports that fill the table together yield to a port below its share, and only to such ports.
#[test]
fn a_full_table_is_shared() {
    let mut table = MacTable::new(MacTableLimits { entries: 12, per_port: 6, ..small() });
    for nth in 0..12 {
        assert_eq!(
            table.learn(0, mac(nth), PortId(u16::from(nth) / 6), nth.into()),
            LearnOutcome::New
        );
    }
    // With a third port the share is two.
    assert_eq!(table.learn(0, mac(20), PortId(2), 20), LearnOutcome::New);
    assert_eq!(
        (table.len(), table.lookup(0, mac(0), 20)),
        (12, None),
        "the one silent for longest"
    );
    assert_eq!(table.learn(0, mac(21), PortId(2), 20), LearnOutcome::New);
    assert_eq!(table.learn(0, mac(22), PortId(2), 20), LearnOutcome::TableFull, "it has its share");
    assert_eq!(table.learn(0, mac(0), PortId(0), 20), LearnOutcome::TableFull, "it has more");
    // The host's device has half of the table.
    table.set_port_limit(PortId(9), Some(u32::MAX));
    for nth in 30..36 {
        assert_eq!(table.learn(0, mac(nth), PortId(9), 30), LearnOutcome::New);
    }
    assert_eq!(table.learn(0, mac(36), PortId(9), 30), LearnOutcome::TableFull);
    let left = |port| table.learnt().filter(|(.., at, _)| *at == PortId(port)).count();
    assert_eq!([0, 1, 2, 9].map(left), [2, 2, 2, 6]);
}

#[test]
fn a_port_may_have_more_stations_than_others() {
    let mut table = MacTable::new(small());
    table.set_port_limit(PortId(1), Some(u32::MAX));
    (0..8).for_each(|nth| assert_eq!(table.learn(0, mac(nth), PortId(1), 0), LearnOutcome::New));
    assert_eq!(table.learn(0, mac(9), PortId(1), 0), LearnOutcome::TableFull);
    table.set_port_limit(PortId(1), None);
    assert_eq!(table.learn(0, mac(9), PortId(1), 0), LearnOutcome::PortFull);
}

#[test]
fn news_are_what_others_must_know() {
    let mut table = MacTable::new(small());
    assert!(table.learn(0, mac(1), PortId(1), 0).should_broadcast());
    assert!(!table.learn(0, mac(1), PortId(1), REFRESH_NS - 1).should_broadcast());
    assert_eq!(table.learn(0, mac(1), PortId(1), REFRESH_NS), LearnOutcome::Refreshed);
    assert!(
        LearnOutcome::Refreshed.should_broadcast()
            && table.learn(0, mac(1), PortId(2), REFRESH_NS).should_broadcast()
    );
}

/// Reference result, found by a complete search.
#[derive(Debug, Default)]
struct Naive {
    stations: HashMap<(u16, Mac), (PortId, u64, u64)>,
    /// Stations in the order in which they were last seen.
    order: Vec<(u16, Mac)>,
}

impl Naive {
    fn expire(&mut self, now: u64, limits: MacTableLimits) {
        self.stations.retain(|_, (_, seen, _)| now - *seen < limits.age_ns);
        self.order.retain(|key| self.stations.contains_key(key));
    }

    fn seen(&mut self, key: (u16, Mac)) {
        self.order.retain(|other| *other != key);
        self.order.push(key);
    }

    fn learn(
        &mut self,
        key: (u16, Mac),
        port: PortId,
        now: u64,
        limits: MacTableLimits,
    ) -> LearnOutcome {
        if !key.1.is_station() {
            return LearnOutcome::NoStation;
        }
        self.expire(now, limits);
        let on_port = self.stations.values().filter(|(at, ..)| *at == port).count();
        let room = on_port < limits.per_port as usize;
        let full = self.stations.len() >= limits.entries as usize;
        let is_new = room && !self.stations.contains_key(&key);
        if is_new && full && !self.gives_way(on_port, limits) {
            return LearnOutcome::TableFull;
        }
        let answer = match self.stations.get_mut(&key) {
            None if !room => LearnOutcome::PortFull,
            None => {
                self.stations.insert(key, (port, now, 0));
                LearnOutcome::New
            }
            Some((at, seen, _)) if *at == port => {
                if now - *seen < REFRESH_NS {
                    return LearnOutcome::Known;
                }
                *seen = now;
                LearnOutcome::Refreshed
            }
            Some((at, _, free)) if now < *free => LearnOutcome::Held(*at),
            Some(_) if !room => LearnOutcome::PortFull,
            Some((at, seen, free)) => {
                (*seen, *free) = (now, now + limits.move_gap_ns);
                LearnOutcome::Moved(std::mem::replace(at, port))
            }
        };
        if answer.should_broadcast() {
            self.seen(key);
        }
        answer
    }

    /// Removes an entry if a port with this many stations may take one. Returns whether it may.
    fn gives_way(&mut self, on_port: usize, limits: MacTableLimits) -> bool {
        let mut of = HashMap::new();
        for (port, ..) in self.stations.values() {
            *of.entry(*port).or_insert(0) += 1;
        }
        let sharers = of.values().filter(|count| **count > 0).count() + usize::from(on_port == 0);
        let share = limits.entries as usize / 2 / sharers;
        let has_more = |key: &&(u16, Mac)| of[&self.stations[*key].0] > share;
        let Some(key) = self.order.iter().find(has_more).copied().filter(|_| on_port < share)
        else {
            return false;
        };
        self.forget(key);
        true
    }

    fn forget(&mut self, key: (u16, Mac)) {
        self.stations.remove(&key);
        self.order.retain(|other| *other != key);
    }

    fn lookup(&self, key: (u16, Mac), now: u64, limits: MacTableLimits) -> Option<PortId> {
        let (port, seen, _) = self.stations.get(&key)?;
        (now - *seen < limits.age_ns).then_some(*port)
    }
}

proptest! {
    #[test]
    fn it_is_a_map_with_limits(
        entries in 1u32..24,
        per_port in 1u32..12,
        steps in prop::collection::vec((0u8..20, 0u8..40, 0u16..5, 0u64..3 * SECOND), 1..400),
    ) {
        let limits = MacTableLimits { entries, per_port, ..small() };
        let (mut ours, mut naive, mut now) = (MacTable::new(limits), Naive::default(), 0);
        for (step, number, port, pass) in steps {
            let (vlan, port) = (u16::from(number % 2), PortId(port));
            let key = (vlan, mac(number));
            match step {
                0 => now += pass,
                1 if pass < SECOND => {
                    ours.forget_port(port);
                    naive.stations.retain(|_, (at, ..)| *at != port);
                    let left: Vec<_> = naive.stations.keys().copied().collect();
                    naive.order.retain(|key| left.contains(key));
                }
                _ => {
                    now += pass / 16;
                    let learn_outcome = naive.learn(key, port, now, limits);
                    prop_assert_eq!(ours.learn(vlan, key.1, port, now), learn_outcome);
                }
            }
            for number in 0..40 {
                let (vlan, mac) = (u16::from(number % 2), mac(number));
                let expected = naive.lookup((vlan, mac), now, limits);
                prop_assert_eq!(ours.lookup(vlan, mac, now), expected);
            }
            prop_assert!(ours.len() as usize >= naive.stations.len() && ours.len() <= entries);
        }
    }
}
