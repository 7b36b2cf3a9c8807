//! Guests that share a slow storage by the weights of their disks.

use std::time::Duration;

use testkit::ringwayd::Readers;
use testkit::storage::SlowStorage;

use super::world::{PATIENCE, World};

/// Bytes a second of the storage: few, so that guests on busy CPUs still ask for more.
const RATE: u64 = 8_000_000;
/// Bytes of all disks over which shares count.
const PERIOD: u64 = 12 << 20;

#[test]
fn a_weight_that_xe_sets_moves_the_storage_between_running_guests() {
    let Some(slow) = SlowStorage::new(RATE).unwrap() else { return };
    let world = World::new();
    let readers = Readers::start(&world.daemon, &slow, calibrate::identity, 2, PATIENCE).unwrap();
    let equal = share(&readers);
    assert!((0.4..0.6).contains(&equal), "{equal}");
    readers.set_weight(&world.daemon, 0, 900).unwrap();
    let top = readers.top().unwrap();
    assert!(top.contains(" 900 ") && top.contains(" 100 "), "{top}");
    let heavy = share(&readers);
    assert!(heavy > 0.7, "{heavy} of 0.9\n{top}");
    readers.set_weight(&world.daemon, 0, 11).unwrap();
    let light = share(&readers);
    assert!(light < 0.3, "{light} of 0.1");
}

/// Returns the part of the first disk in what both read from now on.
fn share(readers: &Readers) -> f64 {
    let before = readers.bytes().unwrap();
    loop {
        let now = readers.bytes().unwrap();
        let grown: Vec<u64> = now.iter().zip(&before).map(|(now, before)| now - before).collect();
        let total: u64 = grown.iter().sum();
        if total >= PERIOD {
            return grown[0] as f64 / total as f64;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
