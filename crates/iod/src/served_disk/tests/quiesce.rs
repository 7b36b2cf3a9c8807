//! Quiescing of disks during other work on them.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use serde_json::json;

use super::rebalance::serve;
use crate::served_disk::ServedDiskError;

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
