//! The queue against hand-made rings and against `virtio-queue`.

use std::os::fd::AsFd;

use proptest::prelude::*;
use virtio_queue::{Queue as Oracle, QueueT};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

use crate::driver::{BUFFERS, Driver, INDIRECT, NEXT, WRITE};
use crate::{MAX_CHAIN, Queue, RingError, UsedEventTracker};

const MEMORY: u64 = 0x40_0000;

fn pair(size: u16, event_idx: bool) -> (Driver, Queue) {
    let driver = Driver::new(size, MEMORY, event_idx);
    let queue = Queue::new(driver.config, driver.table.clone(), None).unwrap();
    (driver, queue)
}

#[test]
fn a_chain_goes_round() {
    for event_idx in [false, true] {
        let (mut driver, mut queue) = pair(8, event_idx);
        for round in 0..200u32 {
            let head = (round % 2 * 4) as u16;
            driver.put_chain(head, &[(BUFFERS, 16, false), (BUFFERS + 64, 512, true)]);
            driver.offer(head);
            driver.publish();
            let chain = queue.pop().unwrap().unwrap();
            assert_eq!((chain.readable.len(), chain.writable.len()), (16, 512));
            assert!(queue.pop().unwrap().is_none());
            queue.push(chain, round);
            assert_eq!(driver.used(), None, "not before publish");
            let _ = queue.publish();
            assert_eq!(driver.used(), Some((u32::from(head), round)));
            assert_eq!(queue.in_flight(), 0);
        }
        assert_eq!(queue.next_avail(), 200);
    }
}

#[test]
fn kicks_are_wanted_only_when_armed() {
    for event_idx in [false, true] {
        let (mut driver, mut queue) = pair(8, event_idx);
        let kick = |driver: &mut Driver| {
            driver.put_chain(0, &[(BUFFERS, 16, false)]);
            driver.offer(0);
            driver.publish()
        };
        assert!(!queue.arm());
        assert!(kick(&mut driver), "armed: a kick is wanted");
        queue.suppress();
        let chain = queue.pop().unwrap().unwrap();
        queue.push(chain, 0);
        let _ = queue.publish();
        assert!(!kick(&mut driver), "served: no kick");
        assert!(queue.arm(), "the request between is found by arming");
        queue.pop().unwrap().unwrap().abandon();
        assert!(!queue.arm());
        queue.suppress();
        assert!(!kick(&mut driver), "woken by something else: no kick");
    }
}

#[test]
fn one_call_decision_a_batch() {
    let (mut driver, mut queue) = pair(8, true);
    for round in 0..3u16 {
        let mut chains = Vec::new();
        for head in 0..4 {
            driver.put_chain(head, &[(BUFFERS, 16, false)]);
            driver.offer(head);
        }
        driver.publish();
        while let Some(chain) = queue.pop().unwrap() {
            chains.push(chain);
        }
        assert_eq!(chains.len(), 4);
        // The driver requests a call at the last completion of the batch, then at one far ahead.
        let wanted = round != 2;
        driver.set_used_event(if wanted { round * 4 + 3 } else { 1000 });
        for chain in chains {
            queue.push(chain, 0);
        }
        assert_eq!(queue.publish(), wanted);
        assert!(!queue.publish(), "nothing new");
    }
}

#[test]
fn a_postponed_call_is_decided_for_all_that_was_published() {
    let (mut driver, mut queue) = pair(8, true);
    for round in 0..6u16 {
        for head in 0..3 {
            driver.put_chain(head, &[(BUFFERS, 16, false)]);
            driver.offer(head);
        }
        driver.publish();
        assert!(queue.looks_active() && !queue.looks_active(), "the driver was active once");
        let begin = round * 3;
        // The driver wants a call at each of the three in turn, then at none.
        let wanted = round < 3;
        driver.set_used_event(if wanted { begin + round } else { 1000 });
        for shown in 1..=3 {
            let chain = queue.pop().unwrap().unwrap();
            queue.push(chain, 0);
            queue.publish_without_call();
            assert_eq!((driver.used_idx(), queue.unpublished()), (begin + shown, 0));
        }
        assert_eq!(queue.publish(), wanted, "round {round}");
        assert!(!queue.publish(), "decided once");
    }
}

#[test]
fn the_first_publish_after_a_start_calls() {
    let (mut driver, mut queue) = pair(8, true);
    driver.set_used_event(1000);
    driver.put_chain(0, &[(BUFFERS, 16, false)]);
    driver.offer(0);
    driver.publish();
    let chain = queue.pop().unwrap().unwrap();
    queue.push(chain, 0);
    assert!(queue.publish());
}

type Break = fn(&mut Driver);

#[test]
fn what_the_driver_has_taken_shows_in_what_it_does_next() {
    for event_idx in [false, true] {
        let mut driver = Driver::new(8, MEMORY, event_idx);
        driver.start_at(0xfffc);
        driver.set_used_event(0xfffc);
        let mut queue = Queue::new(driver.config, driver.table.clone(), None).unwrap();
        (0..8).for_each(|head| {
            driver.put_chain(head, &[(BUFFERS, 16, true)]);
            driver.offer(head);
        });
        driver.publish();
        let mut used_event_tracker = UsedEventTracker::default();
        let mut untaken = |queue: &Queue, pushed| queue.unconsumed(pushed, &mut used_event_tracker);
        assert_eq!(untaken(&queue, 0), 0, "all entries are the device's");
        for _ in 0..6 {
            let chain = queue.pop().unwrap().unwrap();
            queue.push(chain, 1);
        }
        assert_eq!(untaken(&queue, 6), 6, "nothing is published");
        let _ = queue.publish();
        assert_eq!(untaken(&queue, 6), 6);
        (0..5).for_each(|_| _ = driver.used().unwrap());
        assert_eq!(untaken(&queue, 6), 6, "the driver has told nothing");
        (0..2).for_each(|head| driver.offer(head));
        driver.publish();
        assert_eq!(untaken(&queue, 6), 4);
        // The driver requests a call for the first completion that it has not taken.
        let _ = driver.arm();
        assert_eq!(untaken(&queue, 6), if event_idx { 1 } else { 4 });
        driver.set_used_event(0x40);
        assert_eq!(untaken(&queue, 6), 4, "an event ahead says nothing");
        // The used index is 2. An event of 0 does not prove that the driver took completions.
        driver.set_used_event(0);
        assert_eq!(untaken(&queue, 6), 4, "no event says nothing");
        driver.jump(0x7000);
        assert!(untaken(&queue, 6) <= 8, "nonsense is no more than a ring");
    }
}

#[test]
fn every_broken_rule_fails_the_ring_once_and_for_good() {
    let cases: [(&str, Break); 14] = [
        ("IndexJump", |d| d.jump(9)),
        ("BadIndex", |d| d.offer(8)),
        ("BadIndex", |d| {
            d.put_desc(0, BUFFERS, 16, NEXT, 8);
            d.offer(0);
        }),
        ("TooLong", |d| {
            d.put_desc(0, BUFFERS, 16, NEXT, 1);
            d.put_desc(1, BUFFERS, 16, NEXT, 0);
            d.offer(0);
        }),
        ("TooLarge", |d| {
            d.put_chain(0, &[(0, MEMORY as u32, false); 7]);
            d.put_desc(6, 0, u32::MAX, 0, 0);
            d.offer(0);
        }),
        ("Empty", |d| {
            d.put_chain(0, &[(BUFFERS, 0, false)]);
            d.offer(0);
        }),
        ("Order", |d| {
            d.put_chain(0, &[(BUFFERS, 16, true), (BUFFERS, 16, false)]);
            d.offer(0);
        }),
        ("Memory", |d| {
            d.put_chain(0, &[(MEMORY - 8, 16, false)]);
            d.offer(0);
        }),
        ("Memory", |d| {
            d.put_chain(0, &[(u64::MAX - 8, 16, true)]);
            d.offer(0);
        }),
        ("Indirect", |d| {
            d.put_desc(0, BUFFERS, 24, INDIRECT, 0);
            d.offer(0);
        }),
        ("Indirect", |d| {
            d.put_desc(0, BUFFERS, 0, INDIRECT, 0);
            d.offer(0);
        }),
        ("Indirect", |d| {
            d.put_desc(0, BUFFERS, 16, INDIRECT, 0);
            d.write(BUFFERS, &Driver::descriptor(BUFFERS, 16, INDIRECT, 0));
            d.offer(0);
        }),
        ("TooLong", |d| {
            d.put_desc(0, BUFFERS, 16 * (MAX_CHAIN + 1), INDIRECT, 0);
            d.offer(0);
        }),
        ("Memory", |d| {
            d.put_desc(0, MEMORY, 32, INDIRECT, 0);
            d.offer(0);
        }),
    ];
    for (name, breakage) in cases {
        let (mut driver, mut queue) = pair(8, false);
        breakage(&mut driver);
        driver.publish();
        let error = queue.pop().unwrap_err();
        assert!(format!("{error:?}").starts_with(name), "{name}: {error:?}");
        assert!(queue.failed());
        driver.put_chain(4, &[(BUFFERS, 16, false)]);
        driver.offer(4);
        driver.publish();
        assert!(queue.pop().unwrap().is_none(), "a failed ring yields nothing");
        assert!(!queue.publish() && !queue.arm());
    }
}

/// Writes a request of three descriptors, in the ring's table or in an indirect one.
fn put_request(driver: &Driver, pieces: [(u64, u32, bool); 3], indirect: bool) {
    driver.put_chain(0, &pieces);
    if indirect {
        driver.write(BUFFERS + 4096, &driver.read(driver.config.desc, 48));
        driver.put_desc(0, BUFFERS + 4096, 48, INDIRECT, 0);
    }
}

#[test]
fn an_address_outside_memory_fails_its_request_alone() {
    let (header, data) = ((BUFFERS, 16, false), (BUFFERS + 512, 512, true));
    let (status, answer) = ((BUFFERS + 2048, 1, true), (BUFFERS + 2000, 49, true));
    for (pieces, at) in [
        ([header, (MEMORY, 512, true), status], MEMORY),
        ([header, (MEMORY - 8, 512, true), status], MEMORY - 8),
        ([header, (u64::MAX - 8, 512, true), status], u64::MAX - 8),
        ([header, (MEMORY - 8, 512, false), status], MEMORY - 8),
        ([header, (u64::MAX, 1, true), answer], u64::MAX),
        ([(MEMORY + 4096, 16, false), (MEMORY, 512, true), status], MEMORY + 4096),
        ([(MEMORY, 16, false), data, status], MEMORY),
    ] {
        for indirect in [false, true] {
            let (mut driver, mut queue) = pair(8, false);
            put_request(&driver, pieces, indirect);
            driver.put_chain(4, &[header, data, status]);
            [0, 4].into_iter().for_each(|head| driver.offer(head));
            driver.publish();
            let failed = queue.pop().unwrap().unwrap();
            let outside = failed.outside().unwrap().to_string();
            assert!(outside.contains(&format!("at {at:#x} is in no memory")), "{outside}");
            assert!(outside.contains("share=on"), "{outside}");
            assert_eq!((failed.readable.len(), failed.writable.len()), (0, 1), "{pieces:?}");
            failed.writable.write(&[7]);
            let next = queue.pop().unwrap().unwrap();
            assert!(next.outside().is_none());
            assert_eq!((next.readable.len(), next.writable.len()), (16, 513));
            [failed, next].into_iter().for_each(|chain| queue.push(chain, 1));
            let _ = queue.publish();
            assert_eq!((driver.used(), driver.used()), (Some((0, 1)), Some((4, 1))));
            assert_eq!(driver.read(BUFFERS + 2048, 1), [7]);
            // The lists of both are used again.
            [4, 0].into_iter().for_each(|head| driver.offer(head));
            driver.publish();
            let again = queue.pop().unwrap().unwrap();
            assert!(again.outside().is_none() && again.readable.len() == 16);
            let other = queue.pop().unwrap().unwrap();
            assert!(other.outside().is_some() && other.readable.is_empty());
            [again, other].into_iter().for_each(crate::Chain::abandon);
        }
    }
}

/// A driver that sees a disk's request complete reads its status byte, which may be an old one.
#[test]
fn a_request_that_cannot_be_answered_does_not_complete() {
    let pieces = [(BUFFERS, 16, false), (BUFFERS + 512, 512, true), (MEMORY, 1, true)];
    let (mut driver, mut queue) = pair(8, false);
    put_request(&driver, pieces, false);
    driver.offer(0);
    driver.publish();
    let error = queue.pop().unwrap_err();
    assert!(matches!(error, RingError::Memory { part: "buffer", .. }), "{error:?}");
    assert!(error.summary().contains("memory that is not shared"));
    assert_eq!((queue.next_avail(), queue.in_flight(), queue.failed()), (0, 0, true));
    // The buffers of a NIC need no answer.
    let mut queue = Queue::in_order(driver.config, driver.table.clone()).unwrap();
    let chain = queue.pop().unwrap().unwrap();
    assert!(chain.outside().is_some() && chain.readable.is_empty() && chain.writable.is_empty());
    queue.push(chain, 0);
    assert!(queue.publish() && driver.used() == Some((0, 0)));
}

#[test]
fn an_address_outside_memory_excuses_no_broken_rule() {
    let outside = (MEMORY, 512, true);
    for (name, breakage) in [
        ("Order", (|d| d.put_chain(0, &[(MEMORY, 8, true), (BUFFERS, 1, false)])) as Break),
        ("Empty", |d| d.put_chain(0, &[(MEMORY, 8, false), (BUFFERS, 0, true)])),
        ("TooLarge", |d| d.put_chain(0, &[(MEMORY, u32::MAX, false), (BUFFERS, 1, true)])),
        ("TooLong", |d| d.put_desc(0, MEMORY, 8, NEXT | WRITE, 0)),
        ("BadIndex", |d| d.put_desc(0, MEMORY, 8, NEXT | WRITE, 8)),
    ] {
        let (mut driver, mut queue) = pair(8, false);
        driver.put_chain(0, &[outside]);
        breakage(&mut driver);
        driver.offer(0);
        driver.publish();
        let error = queue.pop().unwrap_err();
        assert!(format!("{error:?}").starts_with(name), "{name}: {error:?}");
        assert!(error.summary().contains("driver broke the ring"));
    }
}

#[test]
fn a_head_in_flight_cannot_come_again() {
    let (mut driver, mut queue) = pair(8, false);
    driver.put_chain(3, &[(BUFFERS, 16, false)]);
    driver.offer(3);
    driver.offer(3);
    driver.publish();
    let chain = queue.pop().unwrap().unwrap();
    assert!(matches!(queue.pop(), Err(RingError::Busy { head: 3 })));
    chain.abandon();
}

#[test]
fn rings_outside_memory_or_of_odd_size_are_refused() {
    let driver = Driver::new(8, MEMORY, false);
    let table = driver.table.clone();
    let with = |change: fn(&mut crate::QueueConfig)| {
        let mut config = driver.config;
        change(&mut config);
        Queue::new(config, table.clone(), None)
    };
    for size in [0, 3, 100, 40000] {
        let mut config = driver.config;
        config.size = size;
        assert!(matches!(Queue::new(config, table.clone(), None), Err(RingError::BadSize { .. })));
    }
    assert!(matches!(with(|c| c.desc = MEMORY - 16), Err(RingError::Memory { .. })));
    assert!(matches!(with(|c| c.avail = MEMORY - 2), Err(RingError::Memory { .. })));
    assert!(matches!(with(|c| c.used = MEMORY - 68), Err(RingError::Memory { .. })));
    assert!(matches!(with(|c| c.used = 0x1001), Err(RingError::Memory { .. })));
    assert!(matches!(with(|c| c.used = u64::MAX - 3), Err(RingError::Memory { .. })));
}

#[test]
fn chains_in_flight_survive_a_new_memory_table() {
    let (mut driver, mut queue) = pair(8, false);
    driver.write(BUFFERS, &[9; 16]);
    driver.put_chain(0, &[(BUFFERS, 16, false)]);
    driver.offer(0);
    driver.publish();
    let chain = queue.pop().unwrap().unwrap();
    let other = Driver::new(8, MEMORY, false);
    queue.set_memory(other.table.clone()).unwrap();
    drop(driver);
    let mut copy = [0; 16];
    chain.readable.peek(&mut copy);
    assert_eq!(copy, [9; 16]);
    queue.push(chain, 0);
}

/// Result of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    readable: u64,
    writable: u64,
    /// True if an address is outside memory.
    is_outside: bool,
}

/// Returns the shape, or `None` if the ring was refused.
fn ours(mut queue: Queue) -> Option<Shape> {
    match queue.pop() {
        Ok(Some(chain)) => {
            let (readable, writable) = (chain.readable.len() as u64, chain.writable.len() as u64);
            let is_outside = chain.outside().is_some();
            chain.abandon();
            Some(Shape { readable, writable, is_outside })
        }
        _ => None,
    }
}

fn oracle(driver: &Driver) -> Shape {
    let fd = driver.mapping().fd().unwrap().as_fd().try_clone_to_owned().unwrap();
    let file = FileOffset::new(fd.into(), 0);
    let memory: GuestMemoryMmap =
        GuestMemoryMmap::from_ranges_with_files([(GuestAddress(0), MEMORY as usize, Some(file))])
            .unwrap();
    let mut queue = Oracle::new(32768).unwrap();
    queue.set_size(driver.config.size);
    queue.try_set_desc_table_address(GuestAddress(driver.config.desc)).unwrap();
    queue.try_set_avail_ring_address(GuestAddress(driver.config.avail)).unwrap();
    queue.try_set_used_ring_address(GuestAddress(driver.config.used)).unwrap();
    queue.set_ready(true);
    let (mut readable, mut writable, mut is_outside, mut last) = (0, 0, false, false);
    let chain = queue.pop_descriptor_chain(&memory).unwrap();
    for descriptor in chain {
        let len = u64::from(descriptor.len());
        let end = descriptor.addr().0.checked_add(len);
        let is_inside = end.is_some_and(|end| end <= MEMORY);
        is_outside |= !is_inside;
        if descriptor.is_write_only() {
            writable += len;
            last = is_inside;
        } else {
            readable += len;
        }
    }
    if is_outside {
        Shape { readable: 0, writable: last.into(), is_outside }
    } else {
        Shape { readable, writable, is_outside }
    }
}

fn any_descriptor() -> impl Strategy<Value = (u64, u32, u16, u16)> {
    let addr = prop_oneof![8 => 0..MEMORY, 1 => any::<u64>()];
    let len = prop_oneof![8 => 1u32..5000, 1 => any::<u32>()];
    let flags = prop_oneof![
        6 => Just(NEXT), 3 => Just(NEXT | WRITE), 3 => Just(0), 2 => Just(WRITE),
        1 => Just(INDIRECT), 1 => any::<u16>()
    ];
    let next = prop_oneof![20 => 0u16..16, 1 => any::<u16>()];
    (addr, len, flags, next)
}

proptest! {
    /// The oracle reads every chain that the queue accepts in the same way, and nothing panics.
    #[test]
    fn random_tables_agree_with_the_oracle(
        table in prop::collection::vec(any_descriptor(), 16),
        indirect in prop::collection::vec(any_descriptor(), 16),
        head in 0u16..16,
    ) {
        let mut driver = Driver::new(16, MEMORY, false);
        for (i, (addr, len, flags, next)) in table.iter().enumerate() {
            driver.put_desc(i as u16, *addr, *len, *flags, *next);
        }
        // Some chains are indirect, and their table is always usable.
        if head % 3 == 0 {
            driver.put_desc(head, 0x3f_0000, 16 * 16, INDIRECT, 0);
        }
        for (i, (addr, len, flags, next)) in indirect.iter().enumerate() {
            let raw = Driver::descriptor(*addr, *len, *flags, *next);
            driver.write(0x3f_0000 + 16 * i as u64, &raw);
        }
        driver.offer(head);
        driver.publish();
        let (config, table) = (driver.config, || driver.table.clone());
        let disk = ours(Queue::new(config, table(), None).unwrap());
        let nic = ours(Queue::in_order(config, table()).unwrap());
        if let Some(shape) = nic {
            prop_assert_eq!(shape, oracle(&driver));
            // A disk's request is not popped if it could not be answered.
            let is_mute = shape.is_outside && shape.writable == 0;
            prop_assert_eq!(disk, (!is_mute).then_some(shape));
        } else {
            prop_assert_eq!(disk, None);
        }
    }

    /// A ring with random bytes yields a chain or an error.
    #[test]
    fn random_bytes_never_panic(noise in prop::collection::vec(any::<u8>(), 512), idx in any::<u16>()) {
        let mut driver = Driver::new(16, MEMORY, true);
        driver.write(driver.config.desc, &noise[..256]);
        driver.write(driver.config.avail, &noise[256..290]);
        driver.jump(idx % 20);
        let mut queue = Queue::new(driver.config, driver.table.clone(), None).unwrap();
        for _ in 0..20 {
            match queue.pop() {
                Ok(Some(chain)) => queue.push(chain, 1),
                Ok(None) => break,
                Err(_) => prop_assert!(queue.failed()),
            }
        }
        let _ = queue.publish();
        let _ = queue.arm();
    }
}
