//! Quiescing of disks during other work on them.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use serde_json::json;
use testkit::raw::{Guest, Setup};
use vhost_user::NEWEST_FORMAT;

use super::rebalance::serve;
use crate::served_disk::{DiskFormats, ServedDisk, ServedDiskError};

/// Upper bound for every wait in these tests, even on a slow machine.
const FAR: Duration = Duration::from_secs(60);

#[test]
fn one_whose_rings_are_held_by_what_hangs_holds_up_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let (served_disk, _pool) = serve(folder.path(), 1, json!({}));
    let rings = served_disk.queues.lock();
    let (sender, receiver) = channel();
    let twin = Arc::clone(&served_disk);
    let standing = std::thread::spawn(move || {
        let outcome = twin.quiesce(Instant::now() + Duration::from_millis(20)).map(drop);
        sender.send(outcome).unwrap();
    });
    // A front-end's stop of a ring on hung storage looks the same: the wait continues.
    let outcome = receiver.recv_timeout(FAR).expect("it waits for the rings");
    assert!(matches!(outcome, Err(ServedDiskError::NotDrained { .. })), "{outcome:?}");
    drop(rings);
    standing.join().unwrap();
    let quiesced_disk = served_disk.quiesce(Instant::now() + FAR).unwrap();
    served_disk.unquiesce(quiesced_disk).unwrap();
    served_disk.detach().unwrap();
}

#[test]
fn one_whose_storage_got_stuck_meanwhile_does_not_stand_still() {
    let folder = tempfile::tempdir().unwrap();
    let (served_disk, _pool) = serve(folder.path(), 1, json!({}));
    // A stop does this when it abandons I/O, before another thread can lock the rings.
    served_disk.queues.lock().mark_stuck();
    let outcome = served_disk.quiesce(Instant::now() + FAR).map(drop);
    assert!(matches!(outcome, Err(ServedDiskError::NotDrained { .. })), "{outcome:?}");
    served_disk.queues.lock().clear_stuck();
    let quiesced_disk = served_disk.quiesce(Instant::now() + FAR).unwrap();
    served_disk.unquiesce(quiesced_disk).unwrap();
    served_disk.detach().unwrap();
}

#[test]
fn a_session_that_has_changed_on_its_way_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let (served_disk, pool) = serve(folder.path(), 1, json!({"queues": 1}));
    let guest = Guest::start(&folder.path().join("s"), &Setup::default()).unwrap();
    let quiesced_disk = served_disk.quiesce(Instant::now() + FAR).unwrap();
    let arrived = |pool| {
        let formats = DiskFormats { record: 3, session: NEWEST_FORMAT };
        let (record, fds) = served_disk.to_handover_state(&quiesced_disk, formats).unwrap();
        let fds = fds.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        let (held, held_fds) = (served_disk.to_preserved(), served_disk.preserved_fds().unwrap());
        ServedDisk::from_handover_state(held, held_fds, record, fds, pool)
    };
    assert!(arrived(Arc::clone(&pool)).unwrap().has_session());
    // The source has checked the memory before.
    guest.memory.truncate(guest.memory.regions()[0].mmap_offset + (4 << 20)).unwrap();
    assert!(!arrived(pool).unwrap().has_session());
    served_disk.unquiesce(quiesced_disk).unwrap();
    served_disk.detach().unwrap();
}
