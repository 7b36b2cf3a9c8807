//! Records arrive whole, or not at all.

use vhost_user::{Access, Listener};

use serde_json::Value;

use super::holding::SocketFile;
use super::*;

#[test]
fn a_holding_arrives_whole_and_can_be_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let listener = Listener::bind(&path, &Access::default()).unwrap();
    let sockets = vec![listener.parts().unwrap()];
    listener.leave();
    let data = serde_json::json!({"a": [1, 2]});
    let fds = vec![std::fs::File::open("/dev/null").unwrap().into()];
    let holding = Holding { sockets, data: data.clone(), fds, stop_ms: 5 };

    let (one, two) = Link::pair().unwrap();
    let two = Link::new(two);
    let twin = holding.twin().unwrap();
    let (what, fds) = twin.written("d");
    one.send(&FromWorker::Hold { seq: 7, what }, &fds).unwrap();
    let (record, fds) = two.receive().unwrap().unwrap();
    let FromWorker::Hold { seq: 7, what } = record else { panic!("{record:?}") };
    drop((holding, twin));
    let (key, found) = Holding::read(what, fds).unwrap();
    assert_eq!((key.as_str(), &found.data, found.fds.len()), ("d", &data, 1));
    assert_eq!(found.stop_ms, 5);
    found.remove();
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    drop(one);
    assert!(two.receive::<FromWorker>().unwrap().is_none());
}

#[test]
fn what_is_no_holding_is_refused() {
    let file = SocketFile { path: "/s".into(), identity: None };
    let (key, sockets) = ("d".into(), vec![file]);
    let what = Written { key, sockets, data: Value::Null, stop_ms: 0 };
    assert!(Holding::read(what, Vec::new()).is_err());
    let (one, two) = Link::pair().unwrap();
    let long = "x".repeat(MAX_RECORD_BYTES);
    assert!(one.send(&long, &[]).is_err());
    rustix::io::write(&two, b"{}").unwrap();
    assert!(one.receive::<FromWorker>().is_err());
}
