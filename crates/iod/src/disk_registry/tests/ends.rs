//! Attaches and detaches that a dead worker left unfinished.

use std::time::{Duration, Instant};

use super::*;

/// Upper bound for every event in these tests, even on a slow machine.
const FAR: Duration = Duration::from_secs(60);

fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let until = Instant::now() + FAR;
    while !check() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn an_attach_that_is_cut_off_before_its_socket_is_held_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let (first, keeper) = table(BTreeMap::new());
    let twin = socket.clone();
    let keeper = std::thread::spawn(move || {
        let (record, fds) = keeper.receive().unwrap().unwrap();
        let WorkerMessage::Hold { seq, what } = record else { panic!("{record:?}") };
        assert!(fds.is_empty() && !twin.exists(), "nothing is made before somebody knows of it");
        keeper.send(&KeeperMessage::Done { seq, problem: None }, &[]).unwrap();
        let whole = answer(&keeper, None).unwrap();
        assert!(twin.exists() && whole["leaving"] == false, "{whole}");
        answer(&keeper, None);
        answer(&keeper, None);
        PreservedEntry::read(what, fds).unwrap().1.data
    });
    first.attach(serde_json::from_value(spec(folder.path())).unwrap(), Default::default()).unwrap();
    first.detach("d", true).unwrap();
    let data = keeper.join().unwrap();
    // Files that exist when the worker dies in between.
    Listener::bind(&socket, &Access::default()).unwrap().close_keep_files();
    assert_eq!(folder.path().read_dir().unwrap().count(), 2);
    let held = PreservedEntry { data, ..PreservedEntry::default() };
    let (second, keeper) = table([("disk/d".to_owned(), held)].into());
    second.restore();
    assert_eq!(answer(&keeper, None), None, "it is forgotten");
    eventually("it is gone", || second.stats(Some("d")).is_err());
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}

#[test]
fn a_detach_of_a_disk_without_a_socket_that_is_cut_off_is_completed() {
    let folder = tempfile::tempdir().unwrap();
    let export = Listener::bind(&folder.path().join("e"), &Access::default()).unwrap();
    let sockets = vec![export.parts().unwrap()];
    export.close_keep_files();
    let exports = json!([{"id": "d", "socket": folder.path().join("e")}]);
    let spec = json!({"id": "d", "backend": {"memory": 4096}});
    let data =
        json!({"format": 2, "spec": spec, "active": false, "leaving": true, "exports": exports});
    let held = PreservedEntry { sockets, data, ..PreservedEntry::default() };
    let (disk_registry, keeper) = table([("disk/d".to_owned(), held)].into());
    disk_registry.restore();
    assert_eq!(answer(&keeper, None), None, "it is forgotten");
    eventually("it is gone", || disk_registry.stats(Some("d")).is_err());
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}

#[test]
fn what_is_not_of_the_attach_that_was_cut_off_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let held = json!({"format": 1, "spec": spec(folder.path()), "active": false, "leaving": true});
    let _other = std::os::unix::net::UnixListener::bind(folder.path().join("s")).unwrap();
    let held = PreservedEntry { data: held, ..PreservedEntry::default() };
    let (disk_registry, keeper) = table([("disk/d".to_owned(), held)].into());
    disk_registry.restore();
    assert_eq!(answer(&keeper, None), None);
    assert!(folder.path().join("s").exists());
}

#[test]
fn the_end_of_a_detach_waits_behind_a_fence_on_one_thread() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = folder.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let socket = folder.path().join("s");
    const DEADLINE: Duration = Duration::from_millis(100);
    let spec = json!({"id": "d", "socket": socket, "backend": {"file": image},
        "stop_deadline_ms": DEADLINE.as_millis() as u64, "cache": "writeback"});
    let former =
        crate::open_disk::open(&serde_json::from_value(spec.clone()).unwrap(), Default::default())
            .unwrap();
    former.disk.activate().unwrap();
    let listener = Listener::bind(&socket, &Access::default()).unwrap();
    let sockets = vec![listener.parts().unwrap()];
    listener.close_keep_files();
    let data = json!({"format": 1, "spec": spec, "active": true, "leaving": true});
    let held = PreservedEntry { sockets, data, ..PreservedEntry::default() };
    let (disk_registry, keeper) = table([("disk/d".to_owned(), held)].into());
    disk_registry.restore();
    let shown = || disk_registry.stats(Some("d")).unwrap().disks.remove(0);
    eventually("it waits", || shown().fence.is_some());
    // No caller waits for the reply. Work with a deadline gives up and leaves one thread each time.
    std::thread::sleep(3 * DEADLINE);
    assert!(shown().fence.is_some() && shown().refused.is_none());
    former.disk.deactivate().unwrap();
    assert_eq!(answer(&keeper, None), None, "it is detached");
    eventually("it is gone", || disk_registry.stats(Some("d")).is_err());
    assert!(!socket.exists());
}
