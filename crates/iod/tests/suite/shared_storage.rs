//! Disks of several processes that share one storage.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::caps::Storm;
use crate::common::*;
use crate::shares::{attach, stats, store, store_changed, use_profile, wait_for_ratio};
use model::calibration::ProfileReply;
use serde_json::{Value, json};
use testkit::process::eventually;
use testkit::storage::{Partitions, store_profile};

/// Folder in memory, as `/run` is.
fn memory_folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn start(share_folder: &Path) -> Io {
    let io = Io::start_with(&["--reactors", "2", "--share-folder", share_folder.to_str().unwrap()]);
    store(&io);
    io
}

fn entries(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn processes_share_a_storage_by_weights_and_one_may_be_killed() {
    let folder = memory_folder();
    let ios = [start(folder.path()), start(folder.path())];
    let mut callers = ios.each_ref().map(Io::caller);
    attach(&ios[0], &mut callers[0], "light", Value::Null);
    attach(&ios[1], &mut callers[1], "heavy", json!({"weight": 400}));
    let storms = [Storm::start(&ios[0], "light", 4096), Storm::start(&ios[1], "heavy", 4096)];
    wait_for_ratio([&storms[0], &storms[1]], 3.0..5.0);
    eventually("the disk of the other process is named", || {
        stats(&mut callers[0], "light").share.unwrap().behind.as_deref() == Some("heavy")
    });
    callers[1].disk("disk.weight", json!({"id": "heavy", "weight": 100}));
    wait_for_ratio([&storms[0], &storms[1]], 0.8..1.25);

    // An upgrade leaves and enters.
    callers[0].call("upgrade", Value::Null).unwrap();
    callers[0] = ios[0].caller();
    callers[0].disk("disk.weight", json!({"id": "light", "weight": 400}));
    wait_for_ratio([&storms[1], &storms[0]], 3.0..5.0);

    // What a killed process had in flight goes back.
    let [_io, killed] = ios;
    let [light, heavy] = storms;
    heavy.abandon();
    drop(killed);
    let waiting = |caller: &mut Caller| stats(caller, "light").share.unwrap().waiting;
    eventually("the disk is alone", || waiting(&mut callers[0]) == 0);
    light.end();
    callers[0].call("shutdown", Value::Null).unwrap();
    eventually("nothing is left", || entries(folder.path()).is_empty());
}

#[test]
fn a_profile_that_one_process_stores_is_that_of_all() {
    let folder = memory_folder();
    let [one, other] = [start(folder.path()), start(folder.path())];
    let (mut caller, mut other_caller) = (one.caller(), other.caller());
    attach(&one, &mut caller, "a", Value::Null);
    attach(&other, &mut other_caller, "b", Value::Null);
    store_changed(&one, |profile| profile["knee_ns"] = json!(40_000));
    assert_eq!(use_profile(&one, &mut caller).disks, ["a"]);
    let depth = stats(&mut other_caller, "b").share.unwrap().depth_seconds;
    assert!((2e-5..=4e-5).contains(&depth), "{depth}");
    // The process that comes later takes it too.
    let later = start(folder.path());
    let mut later_caller = later.caller();
    attach(&later, &mut later_caller, "c", Value::Null);
    let depth = stats(&mut later_caller, "c").share.unwrap().depth_seconds;
    assert!((2e-5..=4e-5).contains(&depth), "{depth}");
}

#[test]
fn partitions_of_one_device_are_one_storage() {
    let partitions = Partitions::new().unwrap();
    let places = partitions.places();
    let identities = places.each_ref().map(|place| {
        let device = std::fs::metadata(place).unwrap().dev();
        (device, calibrate::identity(device))
    });
    let [(one_device, one), (other_device, other)] = identities;
    assert_ne!(one_device, other_device);
    assert!(one == other && one.name.as_deref().unwrap().starts_with("loop"), "{one:?}");
    let share_folder = memory_folder();
    let options = ["--share-folder", share_folder.path().to_str().unwrap()];
    let ios = [Io::start_with(&options), Io::start_with(&options)];
    let mut callers = ios.each_ref().map(Io::caller);
    for (at, id) in [(0, "a"), (1, "b")] {
        let path = places[at].join("disk.raw");
        std::fs::write(&path, [1; 4096]).unwrap();
        // Each process has disks on both partitions.
        for caller in 0..2 {
            let (spec_id, file) = (format!("{id}{caller}"), json!({ "file": path }));
            let mut spec = ios[caller].spec(&spec_id, file);
            spec["read_only"] = json!(true);
            callers[caller].disk("disk.attach", spec);
        }
    }
    // One folder has a profile. It is that of the disks on both partitions, in both processes.
    store_profile(&places[1], one).unwrap();
    for (number, caller) in callers.iter_mut().enumerate() {
        let used = caller.call("storage.profile", json!({ "path": places[1] })).unwrap();
        let used: ProfileReply = serde_json::from_value(used).unwrap();
        assert_eq!(used.disks, [format!("a{number}"), format!("b{number}")], "{used:?}");
        assert!(used.notes.is_empty(), "{used:?}");
        for id in used.disks {
            assert!(stats(caller, &id).share.is_some(), "{id}");
        }
    }
    // The state, and a file of each process.
    let state = format!("share-3-{:x}", calibrate::whole_device(one_device));
    let names = ["", ".1", ".2"].map(|process| format!("{state}{process}"));
    assert_eq!(entries(share_folder.path()), names);
}

#[test]
fn a_folder_that_cannot_be_used_leaves_disks_as_they_are() {
    let folder = memory_folder();
    let device = std::fs::metadata(std::env::temp_dir()).unwrap().dev();
    let device = calibrate::whole_device(device);
    let name = format!("share-3-{device:x}");
    let foreign = folder.path().join(&name);
    std::fs::write(&foreign, "mine").unwrap();
    let io = start(folder.path());
    let mut caller = io.caller();
    attach(&io, &mut caller, "d", json!({"weight": 400}));
    assert_eq!(stats(&mut caller, "d").share.unwrap().share.weight, 400);
    assert_eq!(std::fs::read(foreign).unwrap(), b"mine");
    assert_eq!(entries(folder.path()), [name]);
}
