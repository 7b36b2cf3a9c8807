//! Records arrive whole or not at all.

use vhost_user::{Access, Listener};

use serde_json::Value;

use super::entry::SocketFile;
use super::*;

#[test]
fn a_holding_arrives_whole_and_can_be_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let listener = Listener::bind(&path, &Access::default()).unwrap();
    let sockets = vec![listener.parts().unwrap()];
    listener.close_keep_files();
    let data = serde_json::json!({"a": [1, 2]});
    let fds = vec![std::fs::File::open("/dev/null").unwrap().into()];
    let preserved_entry = PreservedEntry { sockets, data: data.clone(), fds, stop_ms: 5 };

    let (one, two) = Link::pair().unwrap();
    let two = Link::new(two);
    let twin = preserved_entry.try_clone().unwrap();
    let (what, fds) = twin.written("d");
    one.send(&WorkerMessage::Hold { seq: 7, what }, &fds).unwrap();
    let (record, fds) = two.receive().unwrap().unwrap();
    let WorkerMessage::Hold { seq: 7, what } = record else { panic!("{record:?}") };
    drop((preserved_entry, twin));
    let (key, found) = PreservedEntry::read(what, fds).unwrap();
    assert_eq!((key.as_str(), &found.data, found.fds.len()), ("d", &data, 1));
    assert_eq!(found.stop_ms, 5);
    found.remove();
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    drop(one);
    assert!(two.receive::<WorkerMessage>().unwrap().is_none());
}

#[test]
fn what_is_no_holding_is_refused() {
    let file = SocketFile { path: "/s".into(), identity: None };
    let (key, sockets) = ("d".into(), vec![file]);
    let what = PreservedEntryData { key, sockets, data: Value::Null, stop_ms: 0 };
    assert!(PreservedEntry::read(what, Vec::new()).is_err());
    let (one, two) = Link::pair().unwrap();
    let long = "x".repeat(MAX_RECORD_BYTES);
    assert!(one.send(&long, &[]).is_err());
    rustix::io::write(&two, b"{}").unwrap();
    assert!(one.receive::<WorkerMessage>().is_err());
}
