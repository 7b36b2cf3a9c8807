//! Listening sockets and their lock files.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind as bind_to, listen,
    socket_with,
};
use tempfile::TempDir;
use vhost_user::{Access, FilesState, Listener, SocketError, StopSignal, connect};

/// Far longer than any step of these tests.
const DEADLINE: Duration = Duration::from_secs(60);

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.sock");
    (folder, path)
}

fn bind(path: &Path) -> Result<Listener, SocketError> {
    Listener::bind(path, &Access::default())
}

fn names(folder: &TempDir) -> Vec<String> {
    let entries = folder.path().read_dir().unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_socket_and_its_lock_come_and_go_together() {
    let (folder, path) = folder();
    let listener = bind(&path).unwrap();
    assert_eq!(names(&folder), ["disk.sock", "disk.sock.lock"]);
    let waiting = UnixStream::connect(&path).unwrap();
    let second = UnixStream::connect(&path).unwrap();
    let stop = StopSignal::new().unwrap();
    assert!(listener.accept(&stop).unwrap().is_some());
    assert!(listener.accept(&stop).unwrap().is_some());
    drop((waiting, second, listener));
    assert_eq!(names(&folder), [""; 0]);
}

#[test]
fn a_listener_goes_on_in_another_process() {
    let (folder, path) = folder();
    let listener = bind(&path).unwrap();
    let held = listener.parts().unwrap();
    // Like a killed process: no destructor runs, and its descriptors close.
    listener.close_keep_files();
    let mut waiting = UnixStream::connect(&path).unwrap();
    assert!(matches!(bind(&path), Err(SocketError::Taken { .. })), "the lock is held");
    let successor = Listener::adopt(held).unwrap();
    assert_eq!(successor.path(), path);
    let stop = StopSignal::new().unwrap();
    let mut accepted = successor.accept(&stop).unwrap().unwrap();
    std::io::Write::write_all(&mut waiting, b"x").unwrap();
    std::io::Read::read_exact(&mut accepted, &mut [0]).unwrap();
    drop(successor);
    assert_eq!(names(&folder), [""; 0]);
}

#[test]
fn what_others_bound_since_is_left_alone() {
    let (folder, path) = folder();
    let listener = bind(&path).unwrap();
    for name in ["disk.sock", "disk.sock.lock"] {
        std::fs::remove_file(folder.path().join(name)).unwrap();
    }
    // The new file may have the inode number of the old one.
    let theirs = bind(&path).unwrap();
    drop(listener);
    assert_eq!(names(&folder), ["disk.sock", "disk.sock.lock"]);
    drop(theirs);
}

#[test]
fn a_given_socket_is_served_and_left() {
    let (folder, path) = folder();
    let given = UnixListener::bind(&path).unwrap();
    let listener = Listener::given(OwnedFd::from(given.try_clone().unwrap())).unwrap();
    let _waiting = UnixStream::connect(&path).unwrap();
    assert!(listener.accept(&StopSignal::new().unwrap()).unwrap().is_some());
    let again = Listener::given(OwnedFd::from(given.try_clone().unwrap()));
    assert!(matches!(again, Err(SocketError::Taken { .. })), "one process serves it");
    drop(listener);
    assert_eq!(names(&folder), ["disk.sock"]);
    let (one, _two) = UnixStream::pair().unwrap();
    for wrong in [OwnedFd::from(one), std::fs::File::open("/dev/null").unwrap().into()] {
        assert!(matches!(Listener::given(wrong), Err(SocketError::NotListening)));
    }
}

#[test]
fn a_live_socket_is_refused_and_left_alone() {
    let (folder, path) = folder();
    let listener = bind(&path).unwrap();
    let error = bind(&path).unwrap_err();
    assert!(matches!(error, SocketError::Taken { .. }), "{error}");
    assert!(error.to_string().contains("use another path"), "{error}");
    assert_eq!(names(&folder), ["disk.sock", "disk.sock.lock"]);
    UnixStream::connect(&path).unwrap();
    drop(listener);
}

#[test]
fn a_stale_socket_is_replaced() {
    let (folder, path) = folder();
    // A killed server leaves both files, but no listener and no lock.
    drop(UnixListener::bind(&path).unwrap());
    std::fs::write(folder.path().join("disk.sock.lock"), "").unwrap();
    let listener = bind(&path).unwrap();
    UnixStream::connect(&path).unwrap();
    drop(listener);
    assert_eq!(names(&folder), [""; 0]);
}

#[test]
fn a_server_without_a_lock_file_is_alive_all_the_same() {
    let (folder, path) = folder();
    let other = UnixListener::bind(&path).unwrap();
    let error = bind(&path).unwrap_err();
    assert!(matches!(error, SocketError::Taken { .. }), "{error}");
    assert_eq!(names(&folder), ["disk.sock"]);
    drop(other);
}

#[test]
fn other_files_are_not_removed() {
    let (folder, path) = folder();
    std::fs::write(&path, "precious").unwrap();
    let error = bind(&path).unwrap_err();
    assert!(matches!(error, SocketError::NotASocket { .. }), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    assert_eq!(names(&folder), ["disk.sock"]);
}

#[test]
fn what_somebody_else_put_there_since_is_not_removed() {
    let (folder, path) = folder();
    let listener = bind(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "precious").unwrap();
    std::fs::remove_file(folder.path().join("disk.sock.lock")).unwrap();
    std::fs::write(folder.path().join("disk.sock.lock"), "other").unwrap();
    drop(listener);
    assert_eq!(names(&folder), ["disk.sock", "disk.sock.lock"]);
}

#[test]
fn mode_and_group_are_applied() {
    let (_folder, path) = folder();
    let own = std::fs::metadata(_folder.path()).unwrap().gid();
    let access = Access { mode: Some(0o640), group: Some(own.to_string()) };
    let listener = Listener::bind(&path, &access).unwrap();
    let meta = path.symlink_metadata().unwrap();
    assert_eq!((meta.permissions().mode() & 0o777, meta.gid()), (0o640, own));
    drop(listener);
    let access = Access { mode: None, group: Some("no-such-group".into()) };
    let error = Listener::bind(&path, &access).unwrap_err();
    assert!(matches!(error, SocketError::NoSuchGroup { .. }), "{error}");
    assert_eq!(names(&_folder), [""; 0]);
}

#[test]
fn a_path_that_no_socket_can_have_is_refused() {
    let (folder, _) = folder();
    let path = folder.path().join("x".repeat(108));
    let error = bind(&path).unwrap_err();
    assert!(matches!(error, SocketError::PathTooLong { .. }), "{error}");
    let stop = StopSignal::new().unwrap();
    assert!(matches!(connect(&path, &stop), Err(SocketError::PathTooLong { .. })));
    assert_eq!(names(&folder), [""; 0]);
}

#[test]
fn the_longest_path_works() {
    let (folder, _) = folder();
    let used = folder.path().as_os_str().len() + 1;
    let path = folder.path().join("x".repeat(vhost_user::MAX_SOCKET_PATH_BYTES - used));
    let listener = bind(&path).unwrap();
    UnixStream::connect(&path).unwrap();
    drop(listener);
    assert_eq!(names(&folder), [""; 0]);
}

#[test]
fn waiting_ends_when_told_to_stop() {
    let (_folder, path) = folder();
    let listener = bind(&path).unwrap();
    let stop = StopSignal::new().unwrap();
    let waiter = {
        let stop = stop.clone();
        std::thread::spawn(move || listener.accept(&stop).unwrap().is_none())
    };
    stop.stop();
    assert!(waiter.join().unwrap());
    assert!(connect(&path, &stop).unwrap().is_none());
}

#[test]
fn connecting_waits_until_the_front_end_listens() {
    let (_folder, path) = folder();
    let stop = StopSignal::new().unwrap();
    let connecting = {
        let (path, stop) = (path.clone(), stop.clone());
        std::thread::spawn(move || connect(&path, &stop).unwrap().is_some())
    };
    let front_end = UnixListener::bind(&path).unwrap();
    assert!(front_end.accept().is_ok());
    assert!(connecting.join().unwrap());
}

/// Creates a listener whose backlog is full, and the connections that fill it.
fn full(path: &Path) -> (OwnedFd, Vec<OwnedFd>) {
    let socket = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
    };
    let (listener, address) = (socket(), SocketAddrUnix::new(path).unwrap());
    bind_to(&listener, &address).unwrap();
    listen(&listener, 0).unwrap();
    let mut waiting = Vec::new();
    loop {
        let next = socket();
        match rustix::net::connect(&next, &address) {
            Ok(()) => waiting.push(next),
            Err(error) => {
                assert_eq!(error, Errno::AGAIN);
                return (listener, waiting);
            }
        }
    }
}

/// Connects on another thread, which sends the result.
fn connecting(path: &Path, stop: &StopSignal) -> mpsc::Receiver<Option<UnixStream>> {
    let (path, stop, (sender, receiver)) = (path.to_owned(), stop.clone(), mpsc::channel());
    std::thread::spawn(move || sender.send(connect(&path, &stop).unwrap()));
    receiver
}

#[test]
fn a_full_backlog_is_waited_out() {
    let (_folder, path) = folder();
    let (listener, waiting) = full(&path);
    let stop = StopSignal::new().unwrap();
    let outcome = connecting(&path, &stop);
    // No result arrives, however long the test waits.
    assert!(outcome.recv_timeout(Duration::from_millis(100)).is_err());
    for _ in &waiting {
        accept(&listener).unwrap();
    }
    let stream = outcome.recv_timeout(DEADLINE).unwrap().unwrap();
    let flags = rustix::fs::fcntl_getfl(&stream).unwrap();
    assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK), "a session sleeps in its reads");
}

#[test]
fn a_full_backlog_does_not_keep_us_from_stopping() {
    let (_folder, path) = folder();
    let _full = full(&path);
    let stop = StopSignal::new().unwrap();
    let outcome = connecting(&path, &stop);
    assert!(outcome.recv_timeout(Duration::from_millis(100)).is_err());
    stop.stop();
    assert!(outcome.recv_timeout(DEADLINE).unwrap().is_none());
}

#[test]
fn connecting_to_something_that_is_no_socket_fails_at_once() {
    let (_folder, path) = folder();
    let stop = StopSignal::new().unwrap();
    let below = path.join("below");
    std::fs::write(&path, "").unwrap();
    assert!(matches!(connect(&below, &stop), Err(SocketError::Os { .. })));
    assert!(matches!(connect(&path, &stop), Err(SocketError::NotASocket { .. })));
}

#[test]
fn removed_files_come_back_and_nobody_is_lost() {
    let (folder, path) = folder();
    let access = Access { mode: Some(0o640), group: None };
    let listener = Listener::bind(&path, &access).unwrap();
    let files = listener.files(access);
    let stop = StopSignal::new().unwrap();
    let never = |_| panic!("there is nothing to preserve");
    assert_eq!(files.restore(never).unwrap(), FilesState::Intact);
    let both = ["disk.sock", "disk.sock.lock"];
    for removed in [&both[..1], &both[1..], &both] {
        let mut waiting = UnixStream::connect(&path).unwrap();
        removed.iter().for_each(|name| std::fs::remove_file(folder.path().join(name)).unwrap());
        let mut preserved = None;
        let keep = |parts| {
            preserved = Some(parts);
            Ok(())
        };
        assert_eq!(files.restore(keep).unwrap(), FilesState::Restored, "{removed:?}");
        assert_eq!(names(&folder), both);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        // A front-end in the former backlog is the first, and one at the path is the next.
        let mut later = UnixStream::connect(&path).unwrap();
        for (client, byte) in [(&mut waiting, 1), (&mut later, 2)] {
            client.write_all(&[byte]).unwrap();
            let mut accepted = listener.accept(&stop).unwrap().unwrap();
            let mut read = [0];
            accepted.read_exact(&mut read).unwrap();
            assert_eq!(read, [byte], "{removed:?}");
        }
        // Another process goes on with the preserved parts.
        let twin = Listener::adopt(preserved.unwrap()).unwrap();
        assert_eq!(twin.files(Access::default()).restore(never).unwrap(), FilesState::Intact);
        twin.close_keep_files();
        assert!(matches!(bind(&path), Err(SocketError::Taken { .. })), "{removed:?}");
    }
    drop(listener);
    assert_eq!(names(&folder), [""; 0]);
    assert_eq!(files.restore(never).unwrap(), FilesState::Ended);
}

#[test]
fn files_that_cannot_come_back_change_nothing() {
    let (folder, path) = folder();
    let listener = bind(&path).unwrap();
    let files = listener.files(Access::default());
    std::fs::remove_file(&path).unwrap();
    let error = files.restore(|_| Err(std::io::Error::other("no keeper"))).unwrap_err();
    assert!(error.to_string().contains("preserve the new socket"), "{error}");
    assert_eq!(names(&folder), ["disk.sock.lock"]);
    // Another file or server at the path is not touched.
    std::fs::write(&path, "a").unwrap();
    let error = files.restore(|_| Ok(())).unwrap_err();
    assert!(matches!(error, SocketError::NotASocket { .. }), "{error}");
    std::fs::remove_file(&path).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    assert!(matches!(files.restore(|_| Ok(())), Err(SocketError::Taken { .. })));
    drop(other);
    // A stale socket of a dead process is replaced.
    assert_eq!(files.restore(|_| Ok(())).unwrap(), FilesState::Restored);
    let gone = folder.path().to_owned();
    drop(folder);
    assert!(matches!(files.restore(|_| Ok(())), Err(SocketError::NoFolder { .. })));
    assert!(!gone.exists());
    drop(listener);
}

#[test]
fn a_thread_that_accepts_goes_on_with_the_new_socket() {
    let (_folder, path) = folder();
    let listener = bind(&path).unwrap();
    let files = listener.files(Access::default());
    let stop = StopSignal::new().unwrap();
    let (sender, accepted) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while let Some(stream) = listener.accept(&stop).unwrap() {
                sender.send(stream).unwrap();
            }
        });
        for _ in 0..20 {
            let _client = UnixStream::connect(&path).unwrap();
            accepted.recv_timeout(DEADLINE).unwrap();
            std::fs::remove_file(&path).unwrap();
            assert_eq!(files.restore(|_| Ok(())).unwrap(), FilesState::Restored);
        }
        stop.stop();
    });
}
