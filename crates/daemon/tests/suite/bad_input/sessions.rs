//! Invalid sessions, and users without permission.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;
use xenapi::Value;
use xenapi::client::{Address, Client, ClientError};
use xenapi::envelope::Encoding;

use super::{ANY, World, refused, row};

/// Returns a client of the daemon's TCP port.
pub(super) fn tcp(world: &mut World, encoding: Encoding) -> Client {
    let url = world.daemon.url().unwrap();
    let port = url.rsplit_once(':').unwrap().1.parse().unwrap();
    Client::connect(Address::Plain("127.0.0.1".to_owned(), port), encoding).unwrap()
}

#[test]
fn a_session_that_is_none_is_told_so() {
    let mut world = World::new();
    for encoding in [Encoding::Xml, Encoding::Json] {
        let mut nobody = tcp(&mut world, encoding);
        assert_eq!(refused(&mut nobody, "VM.get_all", &[]), ["SESSION_INVALID", ""]);
        // Without a session, the error does not reveal which methods exist.
        assert_eq!(refused(&mut nobody, "VM.fly", &[]), ["SESSION_INVALID", ""]);
        let Err(ClientError::Api(error)) = nobody.login("root", "guess", "test") else {
            panic!("a guess")
        };
        assert_eq!(error.details()[..2], ["SESSION_AUTHENTICATION_FAILED", "root"]);
    }
    // Another client ends the session while it is used.
    let mut other = world.daemon.client().unwrap();
    let session = other.session().unwrap().to_owned();
    let classes = Value::Set(vec![Value::text("vm")]);
    let all = other.call("event.from", &[classes.clone(), Value::text(""), Value::Float(0.0)]);
    let Ok(Value::Map(all)) = all else { panic!("{all:?}") };
    let waits = [classes, all["token"].clone(), Value::Float(3600.0)];
    let waiting = std::thread::spawn(move || {
        (refused(&mut other, "event.from", &waits), refused(&mut other, "VM.get_all", &[]))
    });
    world.call("session.logout_subject_identifier", &[Value::text("root")]);
    let gone = ["SESSION_INVALID".to_owned(), session];
    let (woken, later) = waiting.join().unwrap();
    assert_eq!((&woken[..], &later[..]), (&gone[..], &gone[..]));
    // The session of the caller stays.
    let before = world.root.session().unwrap().to_owned();
    world.call("VM.get_all", &[]);
    for how in ["orderly", "killed"] {
        match how {
            "orderly" => world.daemon.stop().unwrap(),
            _ => drop(world.daemon.process.kill()),
        }
        world.daemon.start_again().unwrap();
        let error = world.refused("VM.get_all", &[]);
        assert_eq!(error, ["SESSION_INVALID", world.root.session().unwrap()], "{how}");
    }
    world.root = world.daemon.client().unwrap();
    assert_ne!(world.root.session(), Some(before.as_str()));
}

/// A killed `xe` leaves no session.
#[test]
fn who_leaves_the_socket_leaves_no_session() {
    let mut world = World::new();
    let mut other = Client::unix(world.daemon.socket()).unwrap();
    other.use_connection_session("test");
    let task = other.call("task.create", &["mine", ""].map(Value::text)).unwrap();
    assert_eq!(other.session(), None);
    let (classes, token) = (Value::Set(vec![Value::text("task")]), Value::text(""));
    let seen = world.call("event.from", &[classes.clone(), token, Value::Float(0.0)]);
    let Value::Map(seen) = seen else { panic!("{seen:?}") };
    assert_eq!(world.call("task.get_status", std::slice::from_ref(&task)), Value::text("pending"));
    drop(other);
    // The session has ended, so its task is ended and reported.
    let batch = world.call("event.from", &[classes, seen["token"].clone(), Value::Float(60.0)]);
    let Value::Map(batch) = batch else { panic!("{batch:?}") };
    let Value::Set(events) = &batch["events"] else { panic!("{batch:?}") };
    assert_eq!(events.len(), 1, "{batch:?}");
    assert_eq!(world.call("task.get_status", &[task]), Value::text("cancelled"));
}

#[test]
fn a_user_who_only_reads_changes_nothing() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("users");
    fs::write(&file, "root\nr\n\nwatcher\nw\nread-only\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let mut world = World::with(&["--password-file", file.to_str().unwrap()]);
    let vm = world.machine("m");
    let before = world.dump();
    let mut watcher = tcp(&mut world, Encoding::Xml);
    watcher.login("watcher", "w", "test").unwrap();
    let it = || Value::text(vm.as_str());
    for (method, params) in [
        ("VM.start", vec![it(), Value::Bool(false), Value::Bool(false)]),
        ("Async.VM.destroy", vec![it()]),
        ("VM.set_name_label", vec![it(), Value::text("x")]),
        ("session.logout_subject_identifier", vec![Value::text("root")]),
    ] {
        let error = refused(&mut watcher, method, &params);
        let name = method.trim_start_matches("Async.").to_ascii_lowercase();
        assert_eq!(error[..2], ["RBAC_PERMISSION_DENIED".to_owned(), name]);
    }
    watcher.call("VM.get_record", &[it()]).unwrap();
    assert!(world.dump() == before);
    let nobody = ["session.logout_subject_identifier", ""];
    let expected = ["INVALID_VALUE", "subject_identifier", ""];
    world.refuses(&[row(nobody[0], [Value::text(nobody[1])], expected)]);
    let denied = ["RBAC_PERMISSION_DENIED", ANY, ANY];
    assert_eq!(refused(&mut watcher, "VM.destroy", &[it()])[0], denied[0]);
    world.call("session.logout_subject_identifier", &[Value::text("watcher")]);
    assert_eq!(refused(&mut watcher, "VM.get_all", &[])[0], "SESSION_INVALID");
}
