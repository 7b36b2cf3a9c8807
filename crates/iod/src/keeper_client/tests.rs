//! A client whose keeper changes.

use std::collections::BTreeMap;

use vhost_user::StopSignal;

use super::*;
use crate::keeper_link::{KeeperMessage, Link, PreservedEntry, WorkerMessage};

fn holding(data: u64) -> PreservedEntry {
    PreservedEntry { data: data.into(), ..PreservedEntry::default() }
}

/// Runs a keeper until the key `last` is stored. Returns its entries.
fn keep(link: &Link, last: &str) -> BTreeMap<String, serde_json::Value> {
    let mut held = BTreeMap::new();
    loop {
        let (record, fds) = link.receive().unwrap().unwrap();
        let seq = match record {
            WorkerMessage::Hold { seq, what } => {
                let (key, preserved_entry) = PreservedEntry::read(what, fds).unwrap();
                held.insert(key, preserved_entry.data);
                seq
            }
            WorkerMessage::Forget { seq, key } => {
                held.remove(&key);
                seq
            }
            other => panic!("{other:?}"),
        };
        link.send(&KeeperMessage::Done { seq, problem: None }, &[]).unwrap();
        if held.contains_key(last) {
            return held;
        }
    }
}

#[test]
fn an_adopting_keeper_ends_with_what_is_newest() {
    for _ in 0..20 {
        let keeper_client = KeeperClient::default();
        for key in ["disk/a", "disk/b", "disk/c"] {
            keeper_client.replace(key.into(), holding(1)).unwrap();
        }
        let end = StopSignal::new().unwrap();
        let (_, theirs) = keeper_client.adopt(&end).unwrap();
        let keeper = std::thread::spawn(move || keep(&Link::new(theirs), "last"));
        // Most likely before the new keeper receives anything.
        keeper_client.replace("disk/b".into(), holding(2)).unwrap();
        keeper_client.forget("c").unwrap();
        keeper_client.replace("last".into(), holding(3)).unwrap();
        let held = keeper.join().unwrap();
        let expected = [("disk/a", 1u64), ("disk/b", 2), ("last", 3)];
        assert_eq!(held, expected.map(|(key, data)| (key.into(), data.into())).into());
    }
}

#[test]
fn a_keeper_that_cannot_be_told_is_none_and_another_one_may_come() {
    let keeper_client = KeeperClient::default();
    let long = "x".repeat(crate::keeper_link::MAX_RECORD_BYTES);
    keeper_client
        .replace("disk/a".into(), PreservedEntry { data: long.into(), ..PreservedEntry::default() })
        .unwrap();
    let end = StopSignal::new().unwrap();
    let (_, theirs) = keeper_client.adopt(&end).unwrap();
    let theirs = Link::new(theirs);
    assert!(theirs.receive::<WorkerMessage>().unwrap().is_none(), "the link is closed");
    assert!(keeper_client.keeper().is_none());
    keeper_client.replace("disk/a".into(), holding(1)).unwrap();
    let (_, theirs) = keeper_client.adopt(&end).unwrap();
    assert_eq!(keep(&Link::new(theirs), "disk/a").len(), 1);
}
