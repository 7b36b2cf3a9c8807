//! NICs that a keeper preserves, and records that it cannot or need not preserve.

use std::thread::JoinHandle;

use serde_json::{Value, json};
use vhost_user::{Access, Listener, StopSignal};

use super::*;
use crate::keeper_link::{KeeperInfo, KeeperMessage, Link, PreservedEntry, WorkerMessage};

/// Returns NICs whose keeper has restored `holdings` and gives `answers` in this order. The thread
/// returns the keys that were to be preserved or forgotten.
fn kept(
    holdings: BTreeMap<String, PreservedEntry>,
    answers: Vec<Option<&'static str>>,
) -> (NicRegistry, JoinHandle<Vec<String>>) {
    let (link, theirs) = Link::pair().unwrap();
    let link = Arc::new(link);
    let keeper_client =
        KeeperClient::open(Arc::clone(&link), KeeperInfo::default(), holdings, false);
    let (attending, end) = (keeper_client.clone(), StopSignal::new().unwrap());
    std::thread::spawn(move || attending.run_link(&link, &end));
    let keeper = Link::new(theirs);
    let answers = std::thread::spawn(move || {
        let answer = |problem: Option<&str>| {
            let (seq, request) = match keeper.receive().unwrap().unwrap() {
                (WorkerMessage::Hold { seq, what }, fds) => {
                    let (key, preserved_entry) = PreservedEntry::read(what, fds).unwrap();
                    (seq, format!("{key} leaving={}", preserved_entry.data["leaving"]))
                }
                (WorkerMessage::Forget { seq, key }, _) => (seq, key),
                (other, _) => panic!("{other:?}"),
            };
            let problem = problem.map(Into::into);
            keeper.send(&KeeperMessage::Done { seq, problem }, &[]).unwrap();
            request
        };
        answers.into_iter().map(answer).collect()
    });
    (NicRegistry::new(pool(), keeper_client), answers)
}

#[test]
fn what_the_keeper_does_not_hold_is_not_done() {
    let fine = None;
    let (nics, keeper) = kept(
        BTreeMap::new(),
        vec![
            // An attach, which is undone.
            fine,
            Some("not today"),
            fine,
            fine,
            // An attach that succeeds.
            fine,
            fine,
            // A detach that fails to begin, and one that succeeds.
            Some("nor this"),
            fine,
            fine,
            fine,
        ],
    );
    let folder = tempfile::tempdir().unwrap();
    let a = spec(&folder, "a", "lan");
    assert_eq!(code_of(attach(&nics, &a), "not today"), code::FAILED);
    assert_eq!((names(folder.path()), nics.network_stats().len()), (0, 0));
    attach(&nics, &a).unwrap();
    assert_eq!(code_of(nics.detach("a"), "nor this"), code::FAILED);
    assert_eq!((names(folder.path()), nics.has("a")), (2, true));
    assert_eq!(attach(&nics, &a).unwrap().id, "a", "it is there, as before");
    nics.detach("a").unwrap();
    let begun = ["nic/a leaving=true", "nic/a leaving=false"];
    let over = ["uplink/lan", "nic/a"];
    let requests = keeper.join().unwrap();
    assert_eq!(requests, [begun, over, begun, [begun[0]; 2], over].concat());
    assert_eq!(names(folder.path()), 0);
}

/// Returns a keeper's entry of a NIC, with its socket.
fn held(spec: &NicSpec, data: Value) -> (String, PreservedEntry) {
    let listener = Listener::bind(&spec.socket, &Access::default()).unwrap();
    let sockets = vec![listener.parts().unwrap()];
    listener.close_keep_files();
    (format!("nic/{}", spec.id), PreservedEntry { sockets, data, ..PreservedEntry::default() })
}

#[test]
fn a_new_worker_finds_what_was_there_ends_what_was_leaving_and_leaves_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let [there, leaving, novel, lost] =
        ["there", "leaving", "novel", "lost"].map(|id| spec(&folder, id, "lan"));
    let jumbo = NicSpec { mtu: Some(9000), ..there.clone() };
    let plain = NicSpec { mtu: Some(1500), ..lost.clone() };
    let holdings = [
        held(&there, json!({"format": 1, "spec": jumbo, "leaving": false})),
        held(&leaving, json!({"format": 1, "spec": leaving, "leaving": true})),
        held(&novel, json!({"format": 2, "what": "is this"})),
        // This NIC is restored before "there", whose MTU does not fit the network then.
        held(&lost, json!({"format": 1, "spec": plain, "leaving": false})),
    ];
    // One reply for the detach of "leaving", and two each for "there" and "novel".
    let (nics, keeper) = kept(holdings.into(), vec![None; 5]);
    nics.restore();
    assert!(!leaving.socket.exists() && !nics.has("leaving"));
    let all = nics.stats(|_| true);
    let [lost_stats, there_stats] = &all[..] else { panic!("{all:?}") };
    assert!(lost_stats.refused.is_none() && there_stats.refused.as_ref().unwrap().contains("MTU"));
    assert_eq!(code_of(attach(&nics, &there), "refused"), code::WRONG_STATE);
    assert_eq!(code_of(attach(&nics, &novel), "newer version"), code::WRONG_STATE);
    assert!(there.socket.exists() && novel.socket.exists(), "guests wait");
    nics.detach("there").unwrap();
    nics.detach("novel").unwrap();
    assert!(!there.socket.exists() && !novel.socket.exists() && lost.socket.exists());
    let requests = keeper.join().unwrap();
    let left = |id: &str| [format!("nic/{id} leaving=true"), format!("nic/{id}")];
    let expected = [vec!["nic/leaving".to_owned()], left("there").into(), left("novel").into()];
    assert_eq!(requests, expected.concat());
}
