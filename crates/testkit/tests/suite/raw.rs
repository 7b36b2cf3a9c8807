//! The raw front-end against backends.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::fd::AsFd;
use std::time::Duration;

use crate::common::{Served, Start, number, numbered_image};
use testkit::raw::guest::{MemoryBy, drain, wait_readable};
use testkit::raw::hostile::{Hostile, HostileOutcome};
use testkit::raw::malformed::Expect;
use testkit::raw::request::{Request, kind, status};
use testkit::raw::wire::feature;
use testkit::raw::{Frontend, Guest, Malformed, Setup};

const IMAGE_BYTES: u64 = 1 << 20;

/// Long enough for a queue that will reply. A failed queue stays silent for as long.
const VERDICT: Duration = Duration::from_millis(250);

fn a_guest_reads_writes_and_flushes(start: Start) {
    let image = numbered_image(IMAGE_BYTES);
    let backend = start(&Served { image: image.path(), queues: 1, read_only: false });
    let plain = !(feature::RING_EVENT_IDX | feature::RING_INDIRECT_DESC | feature::RING_PACKED);
    for (memory_by, features) in [(MemoryBy::Table, u64::MAX), (MemoryBy::Slots, plain)] {
        let features = features & !(feature::RING_PACKED | feature::LOG_ALL);
        let setup = Setup { memory_by, features, ..Setup::default() };
        let mut guest = Guest::start(backend.socket(), &setup).unwrap();
        assert_eq!(guest.config().unwrap().capacity_sectors, IMAGE_BYTES / 512);

        let done = guest.run(0, &Request::read_parts(10, &[512, 1024, 512])).unwrap();
        assert_eq!((done.status, done.written), (status::OK, 2049));
        let numbers: Vec<u64> = done.data.chunks(512).map(number).collect();
        assert_eq!(numbers, [10, 11, 12, 13]);

        let done = guest.run(0, &Request::write(100, &[0x77; 1024])).unwrap();
        assert_eq!((done.status, done.written), (status::OK, 1));
        assert_eq!(guest.run(0, &Request::flush()).unwrap().status, status::OK);
        assert_eq!(guest.run(0, &Request::read(101, 512)).unwrap().data, [0x77; 512]);
        let zero = Request::range(kind::WRITE_ZEROES, 100, 2, 0);
        assert_eq!(guest.run(0, &zero).unwrap().status, status::OK);
        assert_eq!(guest.run(0, &Request::read(101, 512)).unwrap().data, [0; 512]);
        assert_eq!(guest.run(0, &Request::get_id()).unwrap().status, status::OK);
        assert_eq!(guest.queues[0].kicks, 7);
    }
}

fn a_sleeping_guest_is_called(start: Start) {
    let image = numbered_image(IMAGE_BYTES);
    let backend = start(&Served { image: image.path(), queues: 1, read_only: false });
    let mut guest = Guest::start(backend.socket(), &Setup::default()).unwrap();
    for round in 0..3 {
        let queue = &guest.queues[0];
        queue.ring.set_used_event(&guest.memory, round).unwrap();
        drain(&queue.call).unwrap();
        let pending = guest.submit(0, &Request::read(0, 512)).unwrap();
        guest.kick(0).unwrap();
        let call = guest.queues[0].call.as_fd();
        assert_eq!(wait_readable(&[call], Duration::from_secs(10)).unwrap(), Some(0));
        assert_eq!(guest.finish(0, &pending).unwrap().status, status::OK);
    }
}

fn many_requests_may_end_in_any_order(start: Start) {
    let image = numbered_image(IMAGE_BYTES);
    let backend = start(&Served { image: image.path(), queues: 1, read_only: false });
    let mut guest = Guest::start(backend.socket(), &Setup::default()).unwrap();
    let reads: Vec<Request> = (0..8).map(|sector| Request::read(sector, 512)).collect();
    let mut pending = guest.submit_all(0, &reads).unwrap();
    pending.reverse();
    guest.kick(0).unwrap();
    let done = guest.finish_all(0, &pending).unwrap();
    let numbers: Vec<u64> = done.iter().map(|one| number(&one.data)).collect();
    assert_eq!(numbers, [7, 6, 5, 4, 3, 2, 1, 0], "each as asked");
    // A completion for which the caller does not wait is an error, and is not skipped.
    let known = guest.submit(0, &Request::read(0, 512)).unwrap();
    guest.kick(0).unwrap();
    let error = guest.finish_all(0, &pending[..1]).unwrap_err().to_string();
    assert!(error.contains(&format!("id: {}", known.head)), "{error}");
}

fn a_queue_stops_and_goes_on(start: Start) {
    let image = numbered_image(IMAGE_BYTES);
    let backend = start(&Served { image: image.path(), queues: 2, read_only: false });
    let setup = Setup { queues: 2, ..Setup::default() };
    let mut guest = Guest::start(backend.socket(), &setup).unwrap();
    for sector in 0..5 {
        let done = guest.run(1, &Request::read(sector, 512)).unwrap();
        assert_eq!(number(&done.data), sector);
    }
    assert_eq!(guest.stop_queue(1).unwrap(), 5);
    assert_eq!(guest.stop_queue(0).unwrap(), 0);
    guest.start_queue(1, 5).unwrap();
    assert_eq!(number(&guest.run(1, &Request::read(77, 512)).unwrap().data), 77);
}

/// Entries that `qemu-storage-daemon` 7.2 accepts: index jumps, and flags of indirect descriptors
/// that it ignores.
const PEER_ACCEPTS: [Malformed; 4] = [
    Malformed::IndexJump,
    Malformed::IndexBack,
    Malformed::IndirectNested,
    Malformed::IndirectWithNext,
];

/// Entries that make `qemu-storage-daemon` 7.2 crash.
const PEER_DIES: [Hostile; 2] = [Hostile::RegionCountLies, Hostile::QueueOutOfRange];

/// Entries with an address outside memory, of which the peer reports a broken queue.
const OUTSIDE: [Malformed; 4] = [
    Malformed::DataOutside,
    Malformed::DataStraddlesEnd,
    Malformed::HeaderOutside,
    Malformed::WrapAround,
];

/// The backend must answer each of `failed` with an error status, and serve the next request.
fn malformed_requests_never_succeed(start: Start, accepted: &[Malformed], failed: &[Malformed]) {
    let image = numbered_image(IMAGE_BYTES);
    let backend = start(&Served { image: image.path(), queues: 1, read_only: false });
    let before = std::fs::read(image.path()).unwrap();
    for bad in Malformed::ALL {
        let mut guest = Guest::start(backend.socket(), &Setup::default()).unwrap();
        let outcome = bad.inflict(&mut guest, 0, VERDICT).unwrap();
        let expect = match failed.contains(&bad) {
            true => Expect::Status(&[status::IOERR]),
            false => bad.expect(),
        };
        let fine = expect.accepts(&outcome) || accepted.contains(&bad);
        assert!(fine, "{bad:?}: {outcome:?}");
        if matches!(expect, Expect::Status(_)) {
            let next = guest.run(0, &Request::read(9, 512)).unwrap();
            assert_eq!((next.status, number(&next.data)), (status::OK, 9), "after {bad:?}");
        }
    }
    let mut guest = Guest::start(backend.socket(), &Setup::default()).unwrap();
    assert_eq!(number(&guest.run(0, &Request::read(9, 512)).unwrap().data), 9);
    assert!(before == std::fs::read(image.path()).unwrap(), "the image was changed");
}

fn hostile_messages_end_at_most_their_session(start: Start, deadly: &[Hostile]) {
    let image = numbered_image(IMAGE_BYTES);
    let backend = start(&Served { image: image.path(), queues: 1, read_only: false });
    for bad in Hostile::ALL.into_iter().filter(|bad| !deadly.contains(bad)) {
        let mut frontend = Frontend::connect(backend.socket()).unwrap();
        let hostile_outcome = bad.send(&mut frontend).unwrap_or_else(|e| panic!("{bad:?}: {e}"));
        assert!(bad != Hostile::HalfHeader || hostile_outcome == HostileOutcome::Closed);
        drop(frontend);
        let mut guest = Guest::start(backend.socket(), &Setup::default())
            .unwrap_or_else(|e| panic!("after {bad:?}: {e}"));
        assert_eq!(number(&guest.run(0, &Request::read(9, 512)).unwrap().data), 9);
    }
}

mod storage_daemon {
    use super::*;

    #[test]
    fn a_guest_reads_writes_and_flushes() {
        super::a_guest_reads_writes_and_flushes(crate::common::storage_daemon);
    }

    #[test]
    fn many_requests_may_end_in_any_order() {
        super::many_requests_may_end_in_any_order(crate::common::storage_daemon);
    }

    #[test]
    fn a_queue_stops_and_goes_on() {
        super::a_queue_stops_and_goes_on(crate::common::storage_daemon);
    }

    #[test]
    fn a_sleeping_guest_is_called() {
        super::a_sleeping_guest_is_called(crate::common::storage_daemon);
    }

    #[test]
    fn malformed_requests_never_succeed() {
        super::malformed_requests_never_succeed(crate::common::storage_daemon, &PEER_ACCEPTS, &[]);
    }

    #[test]
    fn hostile_messages_end_at_most_their_session() {
        super::hostile_messages_end_at_most_their_session(
            crate::common::storage_daemon,
            &PEER_DIES,
        );
    }
}

mod ringway_blk {
    #[test]
    fn a_guest_reads_writes_and_flushes() {
        super::a_guest_reads_writes_and_flushes(crate::common::ringway_blk);
    }

    #[test]
    fn many_requests_may_end_in_any_order() {
        super::many_requests_may_end_in_any_order(crate::common::ringway_blk);
    }

    #[test]
    fn a_queue_stops_and_goes_on() {
        super::a_queue_stops_and_goes_on(crate::common::ringway_blk);
    }

    #[test]
    fn a_sleeping_guest_is_called() {
        super::a_sleeping_guest_is_called(crate::common::ringway_blk);
    }

    #[test]
    fn malformed_requests_never_succeed() {
        super::malformed_requests_never_succeed(crate::common::ringway_blk, &[], &super::OUTSIDE);
    }

    #[test]
    fn hostile_messages_end_at_most_their_session() {
        super::hostile_messages_end_at_most_their_session(crate::common::ringway_blk, &[]);
    }
}
