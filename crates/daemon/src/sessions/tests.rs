use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use xenapi::table::host;

use super::*;
use crate::auth::throttle::AT_ONCE_MAX;
use crate::clock::tests::Hands;

fn tcp() -> Origin {
    Origin::Tcp(SocketAddr::from(([10, 0, 0, 1], 1)))
}

struct Room {
    _dir: tempfile::TempDir,
    path: PathBuf,
    hands: Hands,
    db: Db,
    sessions: Sessions,
}

fn room() -> Room {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("password");
    fs::write(&path, "root\nsecret\n\nwatcher\nw\nread-only\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let hands = Hands::default();
    let sessions = Sessions::new(hands.clock(), Users::File(path.clone()));
    let db = Db::new(0, crate::random::bytes, |_| Ok(()));
    Room { _dir: dir, path, hands, db, sessions }
}

impl Room {
    fn begin(&self, name: &str) -> Ref {
        let identity = Identity { name: name.to_owned(), role: Role::ReadOnly };
        let authenticated_user = AuthenticatedUser { identity, from: tcp(), stamp: None };
        self.sessions.begin(&self.db, authenticated_user, "test").unwrap()
    }

    fn records(&self) -> usize {
        self.db.read(|view| view.count(&session::CLASS))
    }

    fn find(&self, reference: &Ref) -> Result<Session, ApiError> {
        self.sessions.find(&self.db, reference.as_str())
    }
}

#[test]
fn a_session_is_a_record_until_it_ends() {
    let room = room();
    let host = room.db.change(|tx| tx.create(&host::CLASS, Vec::new())).unwrap();
    let reference = room.begin("watcher");
    let session = room.find(&reference).unwrap();
    assert_eq!(
        (session.user.as_str(), session.role, session.root),
        ("watcher", Role::ReadOnly, false)
    );
    room.db.read(|view| {
        let get = |field: session::Field| view.get(&reference, field).unwrap().clone();
        assert_eq!(get(session::Field::this_host), host.value());
        assert_eq!(get(session::Field::auth_user_name), Value::text("watcher"));
        assert_eq!(get(session::Field::originator), Value::text("test"));
        assert_eq!(get(session::Field::is_local_superuser), Value::Bool(false));
    });
    room.sessions.end(&room.db, &reference).unwrap();
    let gone = room.find(&reference).unwrap_err();
    assert_eq!(gone.details(), ["SESSION_INVALID", reference.as_str()]);
    assert_eq!(room.records(), 0);
    assert!(room.sessions.end(&room.db, &reference).is_err());
}

#[test]
fn a_connection_has_one_session_until_it_ends() {
    let (room, connection_session) = (room(), ConnectionSession::default());
    assert!(!room.sessions.left(&room.db, &connection_session), "nothing was called");
    let find = || room.sessions.own(&room.db, &connection_session, "xe").unwrap();
    let session = find();
    assert_eq!((session.user.as_str(), session.role, session.root), (ROOT, Role::PoolAdmin, true));
    assert_eq!(session.from, Origin::Unix);
    assert_eq!(find(), session);
    assert_eq!(room.records(), 1);
    // The session is logged out, but the connection continues.
    room.sessions.end(&room.db, &session.reference).unwrap();
    let anew = find();
    assert_ne!(anew.reference, session.reference);
    assert!(room.sessions.left(&room.db, &connection_session));
    assert_eq!(room.records(), 0);
    assert!(room.find(&anew.reference).is_err());
    assert!(!room.sessions.left(&room.db, &connection_session));
}

#[test]
fn use_keeps_a_session() {
    let room = room();
    let (used, idle) = (room.begin("watcher"), room.begin("watcher"));
    for _ in 0..3 {
        room.hands.pass(IDLE_MAX.as_secs() as i64 / 2);
        room.find(&used).unwrap();
    }
    assert_eq!(room.find(&idle).unwrap_err().details(), ["SESSION_INVALID", idle.as_str()]);
    assert_eq!(room.records(), 1, "its record is gone as well");
    room.hands.set(0);
    assert!(room.find(&used).is_ok(), "a clock that is set ends nothing");
}

#[test]
fn a_record_tells_of_use_now_and_then() {
    let room = room();
    let reference = room.begin("watcher");
    let last_active = || {
        let field = session::Field::last_active;
        room.db.read(|view| view.get(&reference, field).unwrap().clone())
    };
    let (start, generation) = (last_active(), room.db.read(|view| view.generation()));
    room.hands.pass(RECORD_INTERVAL.as_secs() as i64 - 1);
    room.find(&reference).unwrap();
    assert_eq!(last_active(), start);
    assert_eq!(room.db.read(|view| view.generation()), generation, "nobody is woken");
    room.hands.pass(1);
    room.find(&reference).unwrap();
    assert_ne!(last_active(), start);
}

#[test]
fn a_user_has_a_bound_and_another_has_its_own() {
    let room = room();
    let other = room.begin("other");
    let all: Vec<Ref> = (0..OF_USER_MAX).map(|_| room.begin("watcher")).collect();
    room.find(&all[0]).unwrap();
    let newest = room.begin("watcher");
    assert!(room.find(&all[1]).is_err(), "the one that was used least recently");
    for one in [&all[0], &all[2], &newest, &other] {
        assert!(room.find(one).is_ok());
    }
    assert_eq!(room.records(), OF_USER_MAX + 1);
}

#[tokio::test]
async fn the_unix_socket_is_root() {
    let room = room();
    for (user, password) in [("root", ""), ("", ""), ("root", "whatever")] {
        let root = room.sessions.admitted(user, password, Origin::Unix).await.unwrap();
        assert_eq!((root.identity.name.as_str(), root.identity.role), (ROOT, Role::PoolAdmin));
    }
    let watcher = room.sessions.admitted("watcher", "w", Origin::Unix).await.unwrap();
    assert_eq!(watcher.identity.role, Role::ReadOnly, "who names somebody else is that one");
}

#[tokio::test(start_paused = true)]
async fn a_wrong_password_takes_a_while() {
    let room = room();
    for (user, password) in [("root", ""), ("root", "wrong"), ("", ""), ("nobody", "secret")] {
        let began = tokio::time::Instant::now();
        let refused = room.sessions.admitted(user, password, tcp()).await.unwrap_err();
        let expected = ["SESSION_AUTHENTICATION_FAILED", user, "name or password is wrong"];
        assert_eq!(refused.details(), expected);
        assert!(began.elapsed() >= Duration::from_secs(1));
    }
    let root = room.sessions.admitted("root", "secret", tcp()).await.unwrap();
    assert_eq!(root.identity.role, Role::PoolAdmin);
}

#[tokio::test(start_paused = true)]
async fn passwords_that_cannot_be_read_let_nobody_in() {
    let room = room();
    let sessions = Sessions::new(room.hands.clock(), Users::File("/nowhere/password".into()));
    let refused = sessions.admitted("root", "", tcp()).await.unwrap_err();
    assert_eq!(refused.code, "SESSION_AUTHENTICATION_FAILED");
    assert!(refused.params[1].contains("log"), "{refused}");
    assert!(sessions.admitted("root", "", Origin::Unix).await.is_ok(), "root still can see to it");
}

#[tokio::test(start_paused = true)]
async fn who_hangs_up_has_waited_all_the_same() {
    let room = room();
    for _ in 0..AT_ONCE_MAX {
        let login = room.sessions.admitted("root", "guessed", tcp());
        let _gone = tokio::time::timeout(std::time::Duration::ZERO, login).await;
    }
    let refused = room.sessions.admitted("root", "secret", tcp()).await.unwrap_err();
    assert!(refused.params[1].contains("under way"), "{refused}");
}

impl Room {
    async fn log_in(&self, user: &str, password: &str) -> Ref {
        let authenticated_user = self.sessions.admitted(user, password, tcp()).await.unwrap();
        self.sessions.begin(&self.db, authenticated_user, "test").unwrap()
    }
}

#[tokio::test]
async fn a_session_ends_with_its_password() {
    let room = room();
    let (root, watcher) = (room.log_in("root", "secret").await, room.log_in("watcher", "w").await);
    let here = room.sessions.admitted("", "", Origin::Unix).await.unwrap();
    let here = room.sessions.begin(&room.db, here, "test").unwrap();
    assert!(!room.sessions.end_unstamped(&room.db).await);
    // A half-written file is invalid.
    fs::write(&room.path, "root\n").unwrap();
    assert!(!room.sessions.end_unstamped(&room.db).await);
    for (text, ended) in [
        ("root\nsecret\n\nwatcher\nanother\nread-only\n", &watcher),
        ("root\nanother\n\nwatcher\nanother\nread-only\n", &root),
    ] {
        assert!(room.find(ended).is_ok());
        fs::write(&room.path, text).unwrap();
        assert!(room.sessions.end_unstamped(&room.db).await);
        assert!(room.find(ended).is_err());
    }
    assert!(room.find(&here).is_ok(), "the host itself needs no password");
    assert_eq!(room.records(), 1);
}

#[tokio::test]
async fn a_session_ends_with_its_role() {
    let room = room();
    let watcher = room.log_in("watcher", "w").await;
    fs::write(&room.path, "root\nsecret\n\nwatcher\nw\nvm-operator\n").unwrap();
    assert!(room.sessions.end_unstamped(&room.db).await);
    assert!(room.find(&watcher).is_err());
}
