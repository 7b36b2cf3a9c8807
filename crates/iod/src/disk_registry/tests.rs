//! Preserved disks, and disks whose keeper does not answer.

mod ends;
mod poll;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use model::report::DiskState;
use model::rpc::code;
use model::spec::PollSpec;
use serde_json::{Value, json};
use vhost_user::{Access, Listener, StopSignal};

use super::DiskRegistry;
use crate::keeper_client::KeeperClient;
use crate::keeper_link::{KeeperInfo, KeeperMessage, Link, PreservedEntry, WorkerMessage};
use crate::pool::{Pool, PoolSize};

/// Returns a registry whose keeper has restored `holdings`, and the keeper's end of the link.
fn table(holdings: BTreeMap<String, PreservedEntry>) -> (Arc<DiskRegistry>, Link) {
    let (link, theirs) = Link::pair().unwrap();
    let link = Arc::new(link);
    let keeper_client =
        KeeperClient::open(Arc::clone(&link), KeeperInfo::default(), holdings, false);
    let (attending, end) = (keeper_client.clone(), StopSignal::new().unwrap());
    std::thread::spawn(move || attending.run_link(&link, &end));
    let pool = Arc::new(Pool::start(PoolSize::asked(1)).unwrap());
    (
        Arc::new(DiskRegistry::with(pool, 1 << 20, keeper_client, PollSpec::default())),
        Link::new(theirs),
    )
}

/// Receives one message and answers it with `problem`.
fn answer(keeper: &Link, problem: Option<&str>) -> Option<Value> {
    let (seq, data) = match keeper.receive().unwrap().unwrap() {
        (WorkerMessage::Hold { seq, what }, fds) => {
            (seq, Some(PreservedEntry::read(what, fds).unwrap().1.data))
        }
        (WorkerMessage::Forget { seq, .. }, _) => (seq, None),
        (other, _) => panic!("{other:?}"),
    };
    keeper.send(&KeeperMessage::Done { seq, problem: problem.map(Into::into) }, &[]).unwrap();
    data
}

fn spec(folder: &Path) -> Value {
    json!({"id": "d", "socket": folder.join("s"), "backend": {"memory": 4096}})
}

#[test]
fn a_disk_that_a_newer_version_has_held_is_shown_and_can_be_detached() {
    let folder = tempfile::tempdir().unwrap();
    let mut novel = spec(folder.path());
    novel["novel"] = json!(true);
    for (data, why) in [
        (
            json!({"format": 3, "spec": spec(folder.path()), "fds": ["novel", "memory"]}),
            "format 3, and this program reads up to 2",
        ),
        (json!({"format": 1, "spec": novel, "active": true}), "unknown field `novel`"),
        (json!({"format": "x", "spec": spec(folder.path())}), "has no format"),
        (json!(7), "cannot be decoded"),
    ] {
        let listener = Listener::bind(&folder.path().join("s"), &Access::default()).unwrap();
        let sockets = vec![listener.parts().unwrap()];
        listener.close_keep_files();
        let held = PreservedEntry { sockets, data, ..PreservedEntry::default() };
        let (disk_registry, keeper) = table([("disk/d".to_owned(), held)].into());
        disk_registry.restore();
        let shown = disk_registry.stats(Some("d")).unwrap().disks.remove(0);
        let reason = shown.refused.unwrap();
        assert!(shown.state == DiskState::Refused && shown.unknown_format);
        assert!(reason.contains(why) && reason.contains("or detach"), "{reason}");
        // A disk with a partly understood record is not served by any verb.
        let error = disk_registry.activate("d").unwrap_err();
        assert_eq!((error.code, error.message), (code::WRONG_STATE, reason));
        assert_eq!(disk_registry.pause("d").unwrap_err().code, code::WRONG_STATE);
        assert!(folder.path().join("s").exists(), "its guest waits");
        let keeper = std::thread::spawn(move || [answer(&keeper, None), answer(&keeper, None)]);
        disk_registry.detach("d", true).unwrap();
        let [left, forgotten] = keeper.join().unwrap();
        assert_eq!((left.unwrap()["leaving"].as_bool().unwrap_or(true), forgotten), (true, None));
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
        assert!(disk_registry.stats(Some("d")).is_err());
    }
}

#[test]
fn a_detach_that_cannot_be_held_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let (disk_registry, keeper) = table(BTreeMap::new());
    let keeper = std::thread::spawn(move || {
        answer(&keeper, None);
        answer(&keeper, None);
        answer(&keeper, Some("not today"));
        // After a late or failed reply the keeper's state is unknown until the disk is preserved
        // again.
        assert_eq!(answer(&keeper, None).unwrap()["leaving"], false);
        let last = answer(&keeper, None);
        // The detach stays preserved, whether or not this call succeeds.
        answer(&keeper, Some("not this either"));
        last
    });
    disk_registry
        .attach(serde_json::from_value(spec(folder.path())).unwrap(), Default::default())
        .unwrap();
    let error = disk_registry.detach("d", true).unwrap_err();
    assert!(error.code == code::FAILED && error.message.contains("not today"), "{error}");
    assert_eq!(disk_registry.stats(Some("d")).unwrap().disks[0].state, DiskState::Active);
    disk_registry.activate("d").unwrap();
    disk_registry.detach("d", true).unwrap();
    assert_eq!(keeper.join().unwrap().unwrap()["leaving"], true);
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}
