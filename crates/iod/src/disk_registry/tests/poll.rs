//! Preserved polling settings.

use model::poll::PollChange;
use model::spec::{EffectivePolling, PollMode};

use super::*;

fn defaults(disk_registry: &DiskRegistry) -> EffectivePolling {
    disk_registry.stats(None).unwrap().poll_defaults.unwrap()
}

fn off() -> PollChange {
    PollChange { poll: Some(Some(PollMode::Off)), ..PollChange::default() }
}

#[test]
fn defaults_that_cannot_be_held_change_nothing() {
    let (disk_registry, keeper) = table(BTreeMap::new());
    let keeper = std::thread::spawn(move || {
        answer(&keeper, Some("not today"));
        let held = answer(&keeper, None);
        (held, answer(&keeper, None))
    });
    let error = disk_registry.set_poll_defaults(off()).unwrap_err();
    assert!(error.code == code::FAILED && error.message.contains("not today"), "{error}");
    assert_eq!(defaults(&disk_registry), EffectivePolling::default());
    assert_eq!(disk_registry.set_poll_defaults(off()).unwrap().mode, PollMode::Off);
    assert_eq!(defaults(&disk_registry).mode, PollMode::Off);
    let back = PollChange { poll: Some(None), ..PollChange::default() };
    assert_eq!(disk_registry.set_poll_defaults(back).unwrap(), EffectivePolling::default());
    let (held, nothing) = keeper.join().unwrap();
    assert_eq!((held.unwrap(), nothing), (json!({"poll": "off"}), None), "then it is forgotten");
}

#[test]
fn an_upgrade_does_not_begin_in_the_middle_of_a_change() {
    let (disk_registry, keeper) = table(BTreeMap::new());
    let caller = std::thread::spawn({
        let disk_registry = Arc::clone(&disk_registry);
        move || disk_registry.set_poll_defaults(off())
    });
    // The request is not answered yet: a successor would find the former settings.
    let (WorkerMessage::Hold { seq, .. }, _) = keeper.receive().unwrap().unwrap() else { panic!() };
    for error in [
        disk_registry.begin_upgrade().unwrap_err(),
        disk_registry.set_poll_defaults(off()).unwrap_err(),
    ] {
        let named = error.message.contains("another poll.defaults call");
        assert!(error.code == code::BUSY && named, "{error}");
    }
    // One that waits begins when the change has ended.
    let upgrade = std::thread::spawn({
        let disk_registry = Arc::clone(&disk_registry);
        move || disk_registry.begin_upgrade().map(drop)
    });
    keeper.send(&KeeperMessage::Done { seq, problem: None }, &[]).unwrap();
    caller.join().unwrap().unwrap();
    upgrade.join().unwrap().unwrap();
    let error = disk_registry.set_poll_defaults(off()).unwrap_err();
    assert!(error.message.contains("an upgrade is under way"), "{error}");
}

#[test]
fn no_upgrade_begins_while_nobody_knows_what_is_held() {
    let (disk_registry, keeper) = table(BTreeMap::new());
    let error = disk_registry.set_poll_defaults(off()).unwrap_err();
    assert!(error.message.contains("does not answer"), "{error}");
    assert_eq!(defaults(&disk_registry), EffectivePolling::default());
    let unknown = || {
        let error = disk_registry.begin_upgrade().unwrap_err();
        let named = error.message.contains("repeat poll.defaults");
        assert!(error.code == code::WRONG_STATE && named, "{error}");
    };
    unknown();
    let keeper = std::thread::spawn(move || {
        answer(&keeper, None); // Too late.
        answer(&keeper, Some("not today"));
        answer(&keeper, None);
    });
    disk_registry.set_poll_defaults(off()).unwrap_err();
    unknown();
    assert_eq!(disk_registry.set_poll_defaults(off()).unwrap().mode, PollMode::Off);
    disk_registry.begin_upgrade().unwrap();
    keeper.join().unwrap();
}

#[test]
fn what_is_held_is_found_and_what_is_not_understood_is_not_done() {
    let usual = EffectivePolling::default();
    for (data, expected) in [
        (json!({"poll": "off"}), EffectivePolling { mode: PollMode::Off, ..usual }),
        (json!({"poll_max_us": 5, "novel": 1}), EffectivePolling { max_us: 5, ..usual }),
        (json!({"poll_max_us": 10_001}), usual),
        (json!({"poll": "novel", "poll_max_us": 5}), usual),
        (json!(7), usual),
    ] {
        let held = PreservedEntry { data, ..PreservedEntry::default() };
        let (disk_registry, _keeper) = table([("poll".to_owned(), held)].into());
        assert_eq!(defaults(&disk_registry), expected);
    }
}

/// Returns a disk's record after its restore has preserved it again.
fn held_again(folder: &Path, record: Value) -> Value {
    let listener = Listener::bind(&folder.join("s"), &Access::default()).unwrap();
    let sockets = vec![listener.parts().unwrap()];
    listener.close_keep_files();
    let held = PreservedEntry { sockets, data: record, ..PreservedEntry::default() };
    let (disk_registry, keeper) = table([("disk/d".to_owned(), held)].into());
    disk_registry.restore();
    let again = answer(&keeper, None).unwrap();
    let keeper = std::thread::spawn(move || [answer(&keeper, None), answer(&keeper, None)]);
    while disk_registry.detach("d", true).is_err() {
        // A thread restores the disk and does not notify this test, so poll.
        std::thread::yield_now();
    }
    keeper.join().unwrap();
    again
}

#[test]
fn records_of_a_former_version_and_ours_are_each_others() {
    let folder = tempfile::tempdir().unwrap();
    let spec = |poll: Option<&str>| {
        let mut spec = json!({
            "id": "d", "socket": folder.path().join("s"), "backend": {"null": 4096}, "queues": 1,
            "read_only": false, "cache": "none", "on_full": "wait", "activate": true, "record": true,
            "stop_deadline_ms": 30_000,
        });
        if let Some(poll) = poll {
            spec["poll"] = json!(poll);
        }
        spec
    };
    // That version wrote every mode and had no other polling field.
    let written = |poll| {
        let held = json!({"format": 1, "spec": spec(Some(poll)), "active": false, "paused": false,
            "leaving": false, "size": 4096, "exports": []});
        held_again(folder.path(), held)["spec"].clone()
    };
    assert_eq!(written("off"), spec(Some("off")));
    assert_eq!(written("always"), spec(Some("always")));
    let plain = json!({"format": 1, "spec": spec(None), "active": false, "size": 4096});
    assert_eq!(held_again(folder.path(), plain)["spec"], spec(None), "nothing it does not know");
}
