//! Disks that are to stand still while something else is at work on them.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use serde_json::json;

use super::ServedDiskError;
use super::moving::serve;

/// Whatever ends at all has ended in this time, however slow the machine.
const FAR: Duration = Duration::from_secs(60);

#[test]
fn one_whose_rings_are_held_by_what_hangs_holds_up_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let (served_disk, _pool) = serve(folder.path(), 1, json!({}));
    let rings = served_disk.queues.lock();
    let (told, tell) = channel();
    let twin = Arc::clone(&served_disk);
    let standing = std::thread::spawn(move || {
        let outcome = twin.quiesce(Instant::now() + Duration::from_millis(20)).map(drop);
        told.send(outcome).unwrap();
    });
    // As when a front-end stops a ring and storage does not answer: it is not over.
    let outcome = tell.recv_timeout(FAR).expect("it waits for the rings");
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
    // As a stop does when it gives up, before anybody else can have the rings.
    served_disk.queues.lock().mark_stuck();
    let outcome = served_disk.quiesce(Instant::now() + FAR).map(drop);
    assert!(matches!(outcome, Err(ServedDiskError::NotDrained { .. })), "{outcome:?}");
    served_disk.queues.lock().clear_stuck();
    let quiesced_disk = served_disk.quiesce(Instant::now() + FAR).unwrap();
    served_disk.unquiesce(quiesced_disk).unwrap();
    served_disk.detach().unwrap();
}
