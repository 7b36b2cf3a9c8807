//! Rings with in-flight records that no process of ours can have left.

use std::collections::HashSet;

use memory::{Buffers, Region, RegionSpec, Table, View};
use proptest::prelude::*;

use crate::driver::{BUFFERS, Driver};
use crate::inflight::{InflightError, InflightRegion};
use crate::{Chain, Queue, RingError};

const SIZE: u16 = 8;
/// First byte of queue 0's part, and of its entries.
const PART: u64 = 64;
const ENTRIES: u64 = PART + 64;

/// A ring with a request at every descriptor, and a window into its region. Three requests are
/// completed in one batch and five are in flight.
struct Left {
    driver: Driver,
    region: InflightRegion,
    view: View,
}

impl Left {
    fn new() -> Self {
        let region = InflightRegion::create(1, SIZE).unwrap();
        let len = region.mmap_size();
        let spec = RegionSpec { guest_addr: 0, user_addr: 0, len, file_offset: 0 };
        let mapped = Region::map(spec, region.fd().unwrap()).unwrap();
        let view = View::new(std::sync::Arc::new(Table::new(vec![mapped]).unwrap()));
        let mut driver = Driver::new(SIZE, BUFFERS + 0x1000, true);
        for head in 0..SIZE {
            driver.put_desc(head, BUFFERS, 16, 0, 0);
            driver.offer(head);
        }
        driver.publish();
        let left = Self { driver, region, view };
        let mut queue = left.start().unwrap();
        let mut chains = Vec::new();
        while let Some(chain) = queue.pop().unwrap() {
            chains.push(chain);
        }
        for chain in chains.drain(..3) {
            queue.push(chain, 0);
        }
        let _ = queue.publish();
        chains.into_iter().for_each(Chain::abandon);
        left
    }

    fn start(&self) -> Result<Queue, RingError> {
        Queue::new(self.driver.config, self.driver.table.clone(), self.region.queue(0))
    }

    fn bytes(&self, at: u64, len: u64) -> Buffers {
        let mut list = Buffers::default();
        list.append(&self.view, at, len as u32).unwrap();
        list
    }

    fn scribble(&self, at: u64, bytes: &[u8]) {
        self.bytes(at, bytes.len() as u64).write(bytes);
    }

    fn snapshot(&self) -> Vec<u8> {
        let mut out = vec![0; self.region.mmap_size() as usize];
        self.bytes(0, out.len() as u64).peek(&mut out);
        out
    }

    fn set_counter(&self, head: u64, value: u64) {
        self.scribble(ENTRIES + 16 * head, &value.to_ne_bytes());
    }

    fn set_mark(&self, head: u64, value: u16) {
        self.scribble(ENTRIES + 16 * head + 8, &value.to_ne_bytes());
    }

    fn set_next(&self, head: u64, value: u16) {
        self.scribble(ENTRIES + 16 * head + 10, &value.to_ne_bytes());
    }

    /// Sets the region's used index and the head at which its last batch begins.
    fn set_part(&self, used: u16, last: u16) {
        self.scribble(PART, &used.to_ne_bytes());
        self.scribble(PART + 2, &last.to_ne_bytes());
    }

    /// Checks that the ring does not start and its region is unchanged. Returns the error.
    fn refused(&self) -> InflightError {
        let before = self.snapshot();
        let refused = self.start().unwrap_err();
        assert_eq!(self.snapshot(), before, "nothing was changed");
        match refused {
            RingError::Inflight(error) => error,
            other => panic!("{other}"),
        }
    }
}

/// Serves all requests of the ring, as a device does. Returns their heads.
fn serve(queue: &mut Queue) -> Vec<u16> {
    let mut heads = Vec::new();
    while let Ok(Some(chain)) = queue.pop() {
        heads.push(chain.head());
        queue.push(chain, 0);
    }
    let _ = queue.publish();
    heads
}

#[test]
fn untouched_it_is_taken_up() {
    let left = Left::new();
    let mut queue = left.start().unwrap();
    assert_eq!((queue.resubmitted(), queue.next_avail()), (5, 8));
    assert_eq!(serve(&mut queue), [3, 4, 5, 6, 7]);
    assert_eq!(left.driver.used_idx(), 8);
}

type Scribble = fn(&Left);

#[test]
fn records_that_nobody_wrote_are_refused() {
    let cases: [(&str, &str, Scribble); 7] = [
        ("a mark of 2", "neither 0 nor 1", |left| left.set_mark(3, 2)),
        ("a mark of 65535", "neither 0 nor 1", |left| left.set_mark(0, u16::MAX)),
        ("two equal counters", "same counter", |left| {
            left.set_counter(4, 5);
            left.set_counter(6, 5);
        }),
        ("a counter that would wrap", "out of range", |left| left.set_counter(7, u64::MAX)),
        ("a batch outside the ring", "leaves the ring", |left| left.set_part(2, SIZE)),
        ("a next outside the ring", "leaves the ring", |left| {
            left.set_part(1, 3);
            left.set_next(3, u16::MAX);
        }),
        ("a batch that loops", "loops", |left| {
            left.set_part(0, 3);
            left.set_next(3, 4);
            left.set_next(4, 3);
        }),
    ];
    for (name, expected, scribble) in cases {
        let left = Left::new();
        scribble(&left);
        let refused = left.refused();
        assert!(matches!(refused, InflightError::Damaged { .. }), "{name}");
        assert!(refused.to_string().contains(expected), "{name}: {refused}");
    }
}

#[test]
fn more_in_flight_than_the_ring_has_open_is_refused() {
    let left = Left::new();
    left.set_mark(0, 1);
    assert!(matches!(left.refused(), InflightError::Stale { recorded: 6, open: 5 }));
    let left = Left::new();
    left.driver.write(left.driver.config.avail + 2, &[3, 0]);
    assert!(matches!(left.refused(), InflightError::Stale { recorded: 5, open: 0 }));
}

#[test]
fn the_records_of_another_ring_are_refused() {
    // The driver started anew, and the front-end reused the region.
    let mut left = Left::new();
    left.driver.start_at(0);
    assert!(matches!(left.refused(), InflightError::OtherRing { region: 3, ring: 0 }));
    for used in [40000, 3u16.wrapping_sub(SIZE + 1)] {
        let left = Left::new();
        left.set_part(used, 0);
        assert!(matches!(left.refused(), InflightError::OtherRing { ring: 3, .. }));
    }
}

#[test]
fn after_a_reset_nothing_is_on_record() {
    let mut left = Left::new();
    left.driver.start_at(0);
    left.region.forget();
    let mut queue = left.start().unwrap();
    assert_eq!((queue.resubmitted(), queue.next_avail()), (0, 0));
    assert_eq!(serve(&mut queue), [0; 0]);
}

#[test]
fn a_ring_of_another_size_is_refused_if_it_does_not_fit() {
    let mut left = Left::new();
    left.driver.config.size = 2 * SIZE;
    assert!(matches!(left.refused(), InflightError::TooSmall { ring: 16, size: 8 }));
    left.driver.config.size = SIZE / 2;
    assert!(matches!(left.refused(), InflightError::Damaged { .. }), "heads above 3 are recorded");
    // If nothing is recorded, a smaller ring is accepted.
    left.driver.config.size = SIZE;
    serve(&mut left.start().unwrap());
    left.driver.config.size = SIZE / 2;
    left.driver.start_at(0);
    assert_eq!(left.start().unwrap().resubmitted(), 0);
}

#[test]
fn a_head_on_record_that_is_offered_again_breaks_the_ring() {
    let mut left = Left::new();
    left.driver.offer(5);
    left.driver.publish();
    let mut queue = left.start().unwrap();
    let mut chains = Vec::new();
    let broken = loop {
        match queue.pop() {
            Ok(chain) => chains.extend(chain),
            Err(error) => break error,
        }
    };
    assert!(matches!(broken, RingError::Busy { head: 5 }), "{broken}");
    chains.into_iter().for_each(Chain::abandon);
}

#[test]
fn a_chain_that_went_bad_since_breaks_the_ring() {
    let left = Left::new();
    left.driver.put_desc(4, u64::MAX, 16, 0, 0);
    let mut queue = left.start().unwrap();
    assert_eq!(serve(&mut queue), [3]);
    assert!(queue.failed() && !queue.recovering());
    // The request is still recorded, with those that were not published since.
    left.driver.put_desc(4, BUFFERS, 16, 0, 0);
    assert_eq!(left.start().unwrap().resubmitted(), 5);
}

proptest! {
    /// Any contents lead to an error, or yield each head once and no more heads than are open.
    #[test]
    fn random_records_are_safe(
        scribbles in prop::collection::vec((0u64..48, any::<u16>(), any::<bool>()), 1..12),
    ) {
        let left = Left::new();
        for (word, value, small) in scribbles {
            let value = if small { value % (2 * SIZE) } else { value };
            let at = PART + 4 * word;
            left.scribble(at, &value.to_ne_bytes());
        }
        match left.start() {
            Err(RingError::Inflight(_)) => {}
            Err(other) => panic!("{other}"),
            Ok(mut queue) => {
                let again = queue.resubmitted();
                prop_assert!(again <= 5);
                prop_assert_eq!(queue.next_avail(), 3 + again);
                let heads = serve(&mut queue);
                let distinct: HashSet<_> = heads.iter().take(again.into()).collect();
                prop_assert_eq!(distinct.len(), usize::from(again).min(heads.len()));
                prop_assert!(heads.iter().all(|head| *head < SIZE));
            }
        }
    }
}
