//! Rings that their drivers have broken. Only their front-end can restart them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use testkit::raw::guest::{WaitEvent, drain};
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

use super::ServedDisk;
use super::tests::rebalance::serve;
use crate::pool::Pool;

const REACTORS: usize = 2;
/// Time in which a wrongly served ring would show.
const LOOK: Duration = Duration::from_millis(50);
const FAR: Duration = Duration::from_secs(60);

fn written(guest: &mut Guest, queue: usize) -> u8 {
    guest.run(queue, &Request::write(0, &[1; 512])).unwrap().status
}

/// Event that restarts all rings of a disk, at once or later.
type RingRestartCause = fn(&Arc<ServedDisk>, &Pool);

fn moves(_: &Arc<ServedDisk>, pool: &Pool) {
    (0..REACTORS).for_each(|at| {
        pool.shift(at);
    });
}

fn pauses(served_disk: &Arc<ServedDisk>, _: &Pool) {
    served_disk.pause().unwrap();
    served_disk.resume().unwrap();
}

fn is_deactivated(served_disk: &Arc<ServedDisk>, _: &Pool) {
    served_disk.deactivate().unwrap();
    served_disk.activate().unwrap();
}

/// Quiesces and unquiesces as a cancelled upgrade does. A completed one continues from the same
/// state.
fn stands_still(served_disk: &Arc<ServedDisk>, _: &Pool) {
    let quiesced_disk = served_disk.quiesce(Instant::now() + FAR).unwrap();
    served_disk.unquiesce(quiesced_disk).unwrap();
}

#[test]
fn one_stays_broken_until_its_front_end_starts_it_anew() {
    let all: [RingRestartCause; 4] = [moves, pauses, is_deactivated, stands_still];
    for (number, happen) in all.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let (served_disk, pool) = serve(folder.path(), REACTORS, json!({}));
        let setup = Setup { queues: 2, ..Setup::default() };
        let mut guest = Guest::start(&folder.path().join("s"), &setup).unwrap();
        assert_eq!(written(&mut guest, 0), status::OK);
        let offered = guest.queues[0].ring.avail_idx;
        guest.queues[0].ring.set_avail_idx(&guest.memory, offered.wrapping_add(1000)).unwrap();
        guest.kick(0).unwrap();
        assert_eq!(guest.wait(0, FAR).unwrap(), WaitEvent::QueueError);
        drain(&guest.queues[0].err).unwrap();
        // The new available index is valid, but the device has reported the ring as not served.
        guest.queues[0].ring.set_avail_idx(&guest.memory, offered).unwrap();
        let pending = guest.submit(0, &Request::write(0, &[2; 512])).unwrap();
        happen(&served_disk, &pool);
        guest.kick(0).unwrap();
        assert_eq!(guest.wait(0, LOOK).unwrap(), WaitEvent::Silent, "{number}");
        // The other ring is not affected.
        assert_eq!(written(&mut guest, 1), status::OK);
        assert_eq!(guest.stop_queue(0).unwrap(), offered);
        guest.start_queue(0, offered).unwrap();
        guest.kick(0).unwrap();
        assert_eq!(guest.finish(0, &pending).unwrap().status, status::OK);
        happen(&served_disk, &pool);
        assert_eq!(written(&mut guest, 0), status::OK);
        drop(guest);
        served_disk.detach().unwrap();
    }
}
