//! Disks on full storage.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::Write as _;
use std::path::Path;

use crate::common::*;
use model::report::DiskState;
use serde_json::{Value, json};
use testkit::in_namespace::in_little_room;
use testkit::process::eventually;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

const NAME: &str =
    concat!(module_path!(), "::who_waits_for_room_is_told_once_and_when_there_is_room_again");

#[test]
fn who_waits_for_room_is_told_once_and_when_there_is_room_again() {
    in_little_room(NAME, 8, inside).unwrap();
}

/// Call that is answered at once.
const STATS: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"stats\"}\n";

/// Sends a call that waits for a change of the disks on full storage.
fn ask(caller: &mut Caller, known: &[&str]) {
    let params = json!({"known": known});
    let call = json!({"jsonrpc": "2.0", "id": 9, "method": "disk.wait_full", "params": params});
    caller.send_line(format!("{call}\n").as_bytes());
}

fn result(caller: &mut Caller) -> Value {
    caller.receive().unwrap().outcome().unwrap()
}

fn inside(dir: &Path) {
    waits_for_room(dir, |path| json!({"file": path}));
    let part = |path: &Path| json!({"child": {"file": path}, "offset": 1 << 20, "size": 1 << 20});
    waits_for_room(dir, |path| json!({"raw": part(path)}));
}

fn waits_for_room(dir: &Path, backend: impl Fn(&Path) -> Value) {
    let (image, filler) = (dir.join("image"), dir.join("filler"));
    std::fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
    std::fs::write(&filler, vec![1; 16 << 20]).unwrap_err();
    let mut io = Io::start();
    let mut caller = io.caller();
    let spec = |id: &str| {
        let mut spec = io.spec(id, backend(&image));
        spec["cache"] = json!("writeback");
        spec
    };
    caller.disk("disk.attach", spec("full"));
    caller.disk("disk.attach", io.spec("other", json!({"null": 1 << 20})));
    // Without what it knows, a caller does not wait.
    assert_eq!(caller.call("disk.wait_full", json!({})).unwrap(), json!({"disks": []}));

    let mut waiter = io.caller();
    ask(&mut waiter, &[]);
    let mut guest = Guest::start(&io.socket("full"), &Setup::default()).unwrap();
    let pending = guest.submit(0, &Request::write(0, &[7; 4096])).unwrap();
    guest.kick(0).unwrap();
    assert_eq!(result(&mut waiter), json!({"disks": ["full"]}));
    assert_eq!(caller.stats().disks[0].state, DiskState::Waiting);
    ask(&mut waiter, &["full"]);
    // A caller that has gone does not occupy one of the few connections.
    let mut gone: Vec<_> = (0..40).map(|_| io.caller()).collect();
    gone.iter_mut().for_each(|gone| ask(gone, &["full"]));
    drop(gone);
    eventually("those who have gone are forgotten", || {
        let mut others: Vec<_> = (0..40).map(|_| io.caller()).collect();
        others.iter_mut().all(|other| {
            // A rejected caller gets an error without an id.
            let _ = other.stream().write_all(STATS);
            let mut line = String::new();
            other.read_line(&mut line);
            line.contains("\"id\":1")
        })
    });

    std::fs::remove_file(&filler).unwrap();
    assert_eq!(guest.finish(0, &pending).unwrap().status, status::OK);
    assert_eq!(result(&mut waiter), json!({"disks": []}));
    assert_eq!(caller.stats().disks[0].state, DiskState::Active);

    // A worker that ends or hands over lets its callers go.
    ask(&mut waiter, &[]);
    caller.call("upgrade", json!({})).unwrap();
    assert!(waiter.receive().is_none_or(|reply| reply.error.is_some()));
    drop(guest);
    let text = io.process.stderr();
    let lines = |what: &str| text.lines().filter(|line| line.contains(what)).count();
    assert_eq!((lines("is full: writes wait"), lines("no write waits")), (1, 1), "{text}");
    let line = text.lines().find(|line| line.contains("is full: writes wait")).unwrap();
    assert!(line.contains("full") && line.contains(image.to_str().unwrap()), "{line}");
    std::fs::remove_file(&image).unwrap();
}
