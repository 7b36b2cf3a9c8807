//! Freezing a session, encoding its state, and continuing it in another place.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::*;
use serde_json::{Value, json};
use vhost_user::features::PROTOCOL_FEATURES;
use vhost_user::{NEWEST_FORMAT, Session, SessionState, StateError};

/// State in format 1, as encoded when that was the newest format.
const FORMAT_1: &str = include_str!("../fixtures/session-1.json");

/// Descriptors that the front-end stores.
struct Held {
    memory: OwnedFd,
    kick: OwnedFd,
}

/// Creates a session with every setting in use. One ring runs with records, one runs and is polled,
/// one is partly configured, one is disabled.
fn whole() -> (Peer, Held) {
    let peer = Peer::negotiated(FEATURES | PROTOCOL_FEATURES);
    let (memory, kick) = (memfd(0x2_0000), event());
    peer.send(31, PLAIN, &[words(&[0, 0]), words(&[0x0100_0004])].concat(), &[]);
    let (_, region, fds) = peer.receive_with_fds();
    peer.done(32, &region, &[fds[0].as_fd()]);
    let (way, _) = UnixStream::pair().unwrap();
    peer.done(21, &[], &[way.as_fd()]);
    peer.done(5, &table(&[MEMORY]), &[memory.as_fd()]);
    peer.done(37, &single([0x80_0000, 0x1_0000, 0x9000_0000, 0x1_0000]), &[memory.as_fd()]);
    for index in [0, 1, 3] {
        peer.configure_ring(index, &kick);
    }
    peer.done(13, &words(&[0]), &[event().as_fd()]);
    peer.done(14, &words(&[0]), &[event().as_fd()]);
    peer.done(12, &words(&[1 << 8 | 1]), &[]);
    peer.done(10, &state(2, 77), &[]);
    for (index, enable) in [(0, 1), (1, 1), (3, 0)] {
        peer.done(18, &state(index, enable), &[]);
    }
    (peer, Held { memory, kick })
}

fn frozen() -> (UnixStream, SessionState, Held) {
    let (peer, held) = whole();
    peer.take();
    let (socket, mut state, events) = peer.freeze();
    assert_eq!(events, [], "the device hears nothing of it");
    assert_eq!(state.running().collect::<Vec<_>>(), [0, 1]);
    state.stopped_at(0, 12);
    state.stopped_at(1, 65535);
    (socket, state, held)
}

fn text(data: &Value) -> String {
    serde_json::to_string_pretty(data).unwrap() + "\n"
}

fn owned(state: &SessionState) -> (Value, Vec<OwnedFd>) {
    let (data, fds) = state.encode(NEWEST_FORMAT).unwrap();
    (data, fds.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect())
}

#[test]
fn the_recorded_format_is_written_byte_for_byte_and_read() {
    let (socket, state, held) = frozen();
    let (data, fds) = state.encode(1).unwrap();
    assert_eq!(text(&data), FORMAT_1);
    let fds: Vec<_> = fds.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
    drop(state);

    let state = SessionState::decode(serde_json::from_str(FORMAT_1).unwrap(), fds).unwrap();
    assert_eq!(text(&state.encode(1).unwrap().0), FORMAT_1);
    let peer = Peer::restored(socket, state);
    assert_eq!(peer.ask_u64(17), u64::from(QUEUES));
    let start = |index, next_avail, kick, call| Event::Start {
        index,
        ring: ring(next_avail),
        kick,
        call,
        err: call,
        features: FEATURES,
    };
    let recorded = Event::Recorded;
    assert_eq!(
        peer.take(),
        [
            Event::Channel,
            Event::Features(FEATURES),
            start(0, 12, true, true),
            recorded(0),
            start(1, 65535, false, false),
            recorded(1),
        ]
    );
    // All replies are the same as without the freeze.
    assert_eq!(peer.ask(11, &state_of(0)), crate::common::state(0, 12 + u32::from(SERVED)));
    assert_eq!(peer.ask(11, &state_of(1)), crate::common::state(1, u32::from(SERVED) - 1));
    assert_eq!(peer.ask(11, &state_of(2)), crate::common::state(2, 77));
    assert_eq!(peer.ask(11, &state_of(3)), crate::common::state(3, 5));
    // Reading the base cleared the kick of ring 3. Its other settings are still known.
    peer.done(12, &words(&[3]), &[held.kick.as_fd()]);
    assert_eq!(peer.take(), [Event::Stop(0), Event::Stop(1)]);
    peer.done(18, &crate::common::state(3, 1), &[]);
    assert_eq!(peer.take(), [started(3, 5), recorded(3)]);
    peer.done(38, &single([0x80_0000, 0x1_0000, 0x9000_0000, 0]), &[]);
    assert_eq!(peer.take(), [Event::Memory(1)]);
    peer.refused(38, &single([0x80_0000, 0x1_0000, 0x9000_0000, 0]), &[]);
    peer.done(37, &single([0x80_0000, 0x1_0000, 0x9000_0000, 0]), &[held.memory.as_fd()]);
    peer.channel().config_changed().unwrap_err();
}

fn state_of(index: u32) -> Vec<u8> {
    crate::common::state(index, 0)
}

#[test]
fn a_session_goes_on_in_the_same_process() {
    let (mut peer, _held) = whole();
    for round in 0..20u16 {
        peer.take();
        let (socket, mut state, _) = peer.freeze();
        let ran: Vec<_> = state.running().collect();
        ran.iter().for_each(|index| state.stopped_at(*index, 100 + round));
        peer = Peer::restored(socket, state);
        assert_eq!(peer.ask_u64(17), u64::from(QUEUES));
        let starts = peer.take().into_iter().filter_map(|event| match event {
            Event::Start { index, ring, .. } => Some((index, ring.next_avail)),
            _ => None,
        });
        assert_eq!(starts.collect::<Vec<_>>(), [(0, 100 + round), (1, 100 + round)]);
    }
}

#[test]
fn no_message_is_lost_or_carried_out_twice() {
    let call = event();
    for split in 0..=12 {
        let peer = Peer::negotiated(FEATURES);
        // If half a message has been read already, the session finishes it first.
        let bytes = [17, PLAIN, 0].map(u32::to_ne_bytes).concat();
        peer.send_raw(&bytes[..split], &[]);
        peer.handle.freeze();
        peer.send_raw(&bytes[split..], &[]);
        let (socket, state, _) = peer.freeze();
        let (data, fds) = owned(&state);
        let peer = Peer::restored(socket, SessionState::decode(data, fds).unwrap());
        assert_eq!(peer.receive().0, 17);
        assert_eq!(peer.ask_u64(36), 509);
        // A whole message waits in the socket, with its descriptor.
        peer.handle.freeze();
        peer.send(13, ACK, &words(&[0]), &[call.as_fd()]);
        let (socket, state, _) = peer.freeze();
        let peer = Peer::restored(socket, state);
        assert_eq!(peer.receive(), (13, vec![0; 8]));
    }
}

/// Longer than any step of these tests.
const LONG: Duration = Duration::from_secs(300);
/// Time after which a front-end that has not received a reply does not read.
const PAUSE: Duration = Duration::from_millis(200);

/// Waits until the session sees the front-end within a message.
fn until_within(peer: &Peer) {
    let end = Instant::now() + LONG;
    while peer.handle.await_message(Instant::now()) {
        assert!(Instant::now() < end);
        std::thread::yield_now();
    }
}

#[test]
fn who_is_within_a_message_is_waited_for_until_it_has_ended_it() {
    let settles = |peer: &Peer| assert!(peer.handle.await_message(Instant::now() + LONG));
    let mut peer = Peer::negotiated(FEATURES);
    settles(&peer);
    let bytes = [17, PLAIN, 0].map(u32::to_ne_bytes).concat();
    for split in 1..12 {
        peer.send_raw(&bytes[..split], &[]);
        until_within(&peer);
        let handle = peer.handle.clone();
        let waits = std::thread::spawn(move || handle.await_message(Instant::now() + LONG));
        peer.send_raw(&bytes[split..], &[]);
        assert!(waits.join().unwrap());
        assert_eq!(peer.receive().0, 17);
    }
    // The front-end reads no replies until the socket is full.
    peer.socket.set_nonblocking(true).unwrap();
    let (mut asked, end) = (0, Instant::now() + LONG);
    while peer.handle.await_message(Instant::now() + PAUSE) {
        assert!(Instant::now() < end);
        if let Ok(sent) = peer.socket.write(&bytes) {
            assert_eq!(sent, bytes.len());
            asked += 1;
        }
    }
    peer.socket.set_nonblocking(false).unwrap();
    assert!(asked > 0);
    (0..asked).for_each(|_| assert_eq!(peer.receive().0, 17));
    settles(&peer);
    // A session that has ended has nothing to wait for.
    peer.send_raw(&bytes[..3], &[]);
    until_within(&peer);
    let handle = peer.handle.clone();
    handle.close();
    peer.ended().0.unwrap();
    assert!(handle.await_message(Instant::now()));
}

#[test]
fn one_that_has_ended_is_not_frozen() {
    let peer = Peer::negotiated(FEATURES);
    let handle = peer.handle.clone();
    peer.ended().0.unwrap();
    handle.freeze();
    handle.close();
    // The front-end disconnects after the freeze. The restored session detects that.
    let (socket, state, _) = Peer::negotiated(FEATURES).freeze();
    drop(socket);
    let shared = Arc::default();
    let mut backend = Recorder(Arc::clone(&shared));
    let session = Session::restore(state, &backend).unwrap();
    session.run(&mut backend).unwrap();
    assert_eq!(shared.lock().unwrap().events.last(), Some(&Event::Disconnected));
}

fn refused(change: impl FnOnce(&mut Value), name: &str) -> StateError {
    let (_socket, state, _held) = frozen();
    let (mut data, fds) = owned(&state);
    change(&mut data);
    match SessionState::decode(data, fds) {
        Err(error) => error,
        Ok(state) => Session::restore(state, &Recorder(Arc::default())).expect_err(name),
    }
}

#[test]
fn a_state_from_the_future_or_from_nowhere_is_refused() {
    for version in [json!(0), json!(NEWEST_FORMAT + 1), json!(u64::MAX), json!("1"), json!(null)] {
        let error = refused(|data| data["version"] = version.clone(), "version");
        assert!(matches!(error, StateError::Version { .. }), "{version}: {error}");
    }
    let (_socket, state, _held) = frozen();
    assert!(matches!(state.encode(NEWEST_FORMAT + 1), Err(StateError::Version { .. })));
    // An unknown field is refused, because its meaning would be lost.
    for at in ["", "/regions/0", "/rings/0", "/rings/0/addr", "/record/kept"] {
        let add = |data: &mut Value| data.pointer_mut(at).unwrap()["novel"] = json!(1);
        assert!(matches!(refused(add, at), StateError::Format(_)), "{at}");
    }
    for (at, field) in [("", "rings"), ("", "protocol"), ("/rings/0", "kick")] {
        let remove = |data: &mut Value| {
            data.pointer_mut(at).unwrap().as_object_mut().unwrap().remove(field);
        };
        assert!(matches!(refused(remove, field), StateError::Format(_)), "{field}");
    }
}

#[test]
fn descriptors_are_named_once_each() {
    let last = owned(&frozen().1).1.len() as u64 - 1;
    for (at, value) in
        [("/socket", last + 1), ("/socket", 1), ("/channel", 0), ("/regions/1/fd", 65535)]
    {
        let change = |data: &mut Value| *data.pointer_mut(at).unwrap() = json!(value);
        assert!(matches!(refused(change, at), StateError::Descriptor { .. }), "{at} {value}");
    }
    let error = refused(|data| data["channel"] = json!(null), "unnamed");
    assert!(matches!(error, StateError::Unnamed { count: 1 }), "{error}");
    let (_socket, state, _held) = frozen();
    for count in 0..=last as usize {
        let (data, mut fds) = owned(&state);
        fds.truncate(count);
        let error = SessionState::decode(data, fds).unwrap_err();
        assert!(matches!(error, StateError::Descriptor { .. }), "{count}: {error}");
    }
}

#[test]
fn what_no_session_can_have_come_to_is_refused() {
    for (at, value) in [
        ("/regions/0/len", json!(0)),
        ("/regions/0/len", json!(u64::MAX)),
        ("/regions/1/guest_addr", json!(0x10_0000)),
        ("/regions/1/user_addr", json!(0x7000_0000)),
        ("/rings/0/size", json!(3)),
        ("/rings/0/size", json!(2048)),
        // The memory descriptor is no eventfd, and the eventfd is no memory.
        ("/rings/0/kick/event", json!(1)),
        ("/record/kept/queues", json!(5)),
        ("/record/kept/size", json!(128)),
        ("/record/kept/mmap_size", json!(1)),
        // A running queue needs each of these settings.
        ("/rings/0/size", json!(null)),
        ("/rings/0/addr", json!(null)),
        ("/rings/0/next_avail", json!(null)),
        ("/rings/0/kick", json!("unset")),
        ("/rings/0/enabled", json!(false)),
        ("/rings/0/addr/used", json!(0x5000_0000)),
        ("/rings/2/running", json!(true)),
        ("/features", json!(null)),
        ("/features", json!(u64::MAX)),
        ("/protocol", json!(u64::MAX)),
        ("/rings/3", json!("gone")),
    ] {
        let change = |data: &mut Value| *data.pointer_mut(at).unwrap() = value.clone();
        refused(change, &format!("{at} {value}"));
    }
    let error = refused(|data| drop(data["rings"].as_array_mut().unwrap().remove(2)), "queues");
    // The region covers as many queues as the device had before.
    assert!(matches!(error, StateError::Refused(_)), "{error}");
    let error = refused(
        |data| {
            let empty = data["rings"][2].clone();
            data["rings"].as_array_mut().unwrap().push(empty);
        },
        "queues",
    );
    assert!(matches!(error, StateError::Queues { has: 4, needs: 5 }), "{error}");
}

#[test]
fn memory_that_its_owner_has_changed_ends_one_session_and_not_the_reader() {
    let (_socket, state, held) = frozen();
    state.check_mappable().unwrap();
    let own = |state: &SessionState| {
        let error = state.check_mappable().unwrap_err();
        assert!(error.is_front_end_fault(), "{error}");
        let (data, fds) = owned(state);
        let error = SessionState::decode(data, fds).unwrap_err();
        assert!(error.is_front_end_fault(), "{error}");
    };
    rustix::fs::ftruncate(&held.memory, 0x1_8000).unwrap();
    own(&state);
    rustix::fs::ftruncate(&held.memory, 0x2_0000).unwrap();
    state.check_mappable().unwrap();
    let (data, fds) = owned(&state);
    let at = data["record"]["kept"]["fd"].as_u64().unwrap() as usize;
    rustix::io::pwrite(&fds[at], b"no region", 0).unwrap();
    own(&state);
    // Data that no session reaches is not the front-end's.
    let error = SessionState::decode(json!({"version": 1}), Vec::new()).unwrap_err();
    assert!(!error.is_front_end_fault());
}
