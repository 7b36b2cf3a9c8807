//! Malformed and hostile front-ends: each one is refused or disconnected, and none causes a panic.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::common::*;
use proptest::prelude::*;
use vhost_user::features::PROTOCOL_FEATURES;
use vhost_user::{SessionEnd, SessionError};

#[test]
fn a_message_in_single_bytes_is_understood() {
    let peer = Peer::negotiated(FEATURES);
    let memory = memfd(0x1_0000);
    let payload = table(&[MEMORY]);
    let mut bytes = [5, ACK, payload.len() as u32].map(u32::to_ne_bytes).concat();
    bytes.extend_from_slice(&payload);
    // The descriptor arrives with the twentieth byte, which the protocol does not forbid.
    for (at, byte) in bytes.iter().enumerate() {
        let fds: &[BorrowedFd<'_>] = if at == 20 { &[memory.as_fd()] } else { &[] };
        peer.send_raw(&[*byte], fds);
    }
    assert_eq!(peer.receive(), (5, words(&[0])));
    let kick = event();
    peer.configure_ring(0, &kick);
    assert_eq!(peer.take(), [started(0, 5)]);
}

#[test]
fn two_messages_in_one_write_are_two() {
    let peer = Peer::new();
    let one = [17u32, 1, 0].map(u32::to_ne_bytes).concat();
    peer.send_raw(&[one.clone(), one].concat(), &[]);
    assert_eq!(peer.receive(), (17, words(&[QUEUES.into()])));
    assert_eq!(peer.receive(), (17, words(&[QUEUES.into()])));
}

#[test]
fn a_connection_that_ends_within_a_message_is_an_error() {
    let whole = [[8u32, 1, 8].map(u32::to_ne_bytes).concat(), state(0, 256)].concat();
    for cut in 1..whole.len() {
        let peer = Peer::new();
        peer.send_raw(&whole[..cut], &[]);
        let (end, events) = peer.ended();
        let Err(SessionError::Truncated { got, need }) = end else { panic!("{end:?}") };
        assert!(got == cut && need == if cut < 12 { 12 } else { 20 });
        assert_eq!(events, [Event::Disconnected]);
    }
}

#[test]
fn headers_that_are_not_ours_end_the_session() {
    for flags in [0u32, 2, 3, 5, u32::MAX] {
        let peer = Peer::new();
        peer.send(1, flags, &[], &[]);
        peer.hung_up();
        let (end, _) = peer.ended();
        assert!(matches!(end, Err(SessionError::BadHeader { .. })), "{end:?}");
    }
}

#[test]
fn messages_beyond_the_limit_end_the_session() {
    for size in [4109u32, 1 << 20, u32::MAX] {
        let peer = Peer::new();
        peer.send_raw(&[24, 1, size].map(u32::to_ne_bytes).concat(), &[]);
        peer.hung_up();
        let (end, _) = peer.ended();
        assert!(matches!(end, Err(SessionError::Oversized { .. })), "{end:?}");
    }
}

#[test]
fn descriptors_of_the_wrong_kind_are_refused() {
    let peer = Peer::negotiated(FEATURES);
    let (read, write) = pipe();
    let file: OwnedFd = File::open("/proc/self/exe").unwrap().into();
    let memory = memfd(0x1000);
    for wrong in [&read, &write, &file, &memory] {
        peer.refused(12, &words(&[0]), &[wrong.as_fd()]);
    }
    for wrong in [&file, &memory] {
        peer.refused(13, &words(&[0]), &[wrong.as_fd()]);
        peer.refused(14, &words(&[0]), &[wrong.as_fd()]);
        peer.refused(21, &[], &[wrong.as_fd()]);
    }
    // Memory must be a file that can be mapped.
    for wrong in [&read, &event()] {
        peer.refused(5, &table(&[MEMORY]), &[wrong.as_fd()]);
        peer.refused(37, &single(MEMORY), &[wrong.as_fd()]);
    }
    assert_eq!(peer.take(), []);
}

#[test]
fn descriptors_in_the_wrong_number_are_refused() {
    let peer = Peer::negotiated(FEATURES);
    let (memory, kick) = (memfd(0x1_0000), event());
    let two = [memory.as_fd(), memory.as_fd()];
    peer.refused(5, &table(&[MEMORY]), &[]);
    peer.refused(5, &table(&[MEMORY]), &two);
    peer.refused(37, &single(MEMORY), &[]);
    peer.refused(37, &single(MEMORY), &two);
    peer.refused(12, &words(&[0]), &[]);
    peer.refused(12, &words(&[0]), &[kick.as_fd(), kick.as_fd()]);
    peer.refused(12, &words(&[0x100]), &[kick.as_fd()]);
    peer.refused(21, &[], &[]);
    // 33 and more regions are too many for any message.
    let region = |n: u64| [n << 20, 0x1000, n << 20, 0];
    let many: Vec<_> = (0..33).map(region).collect();
    for count in [33, 253] {
        let fds = vec![memory.as_fd(); count];
        peer.refused(5, &table(&many), &fds);
        peer.refused(5, &table(&many[..32]), &fds);
    }
    peer.done(5, &table(&many[..32]), &[memory.as_fd(); 32]);
}

#[test]
fn descriptors_that_nobody_wants_are_closed() {
    let peer = Peer::negotiated(FEATURES);
    let (read, write) = pipe();
    for code in [1, 3, 8, 99] {
        peer.send(code, PLAIN, &[], &[write.as_fd(), write.as_fd()]);
    }
    peer.send(12, PLAIN, &words(&[0]), &[write.as_fd()]);
    drop(write);
    // The reply arrives after the session has handled all earlier messages.
    peer.receive();
    assert_eq!(peer.ask_u64(17), u64::from(QUEUES));
    // End of file: no write end is open in the session or in the test.
    assert_eq!(rustix::io::read(&read, &mut [0; 1]), Ok(0));
}

#[test]
fn memory_tables_that_contradict_themselves_are_refused() {
    let peer = Peer::negotiated(FEATURES);
    let memory = memfd(0x1_0000);
    let two = [memory.as_fd(), memory.as_fd()];
    let [guest, len, user, _] = MEMORY;
    // Equal guest addresses; equal user addresses; ends that wrap; zero length; beyond the file.
    peer.refused(5, &table(&[MEMORY, [guest + len - 1, 0x1000, 0, 0]]), &two);
    peer.refused(5, &table(&[MEMORY, [0, 0x1000, user + len - 1, 0]]), &two);
    for bad in [
        [u64::MAX - 0xfff, 0x2000, user, 0],
        [guest, 0x2000, u64::MAX - 0xfff, 0],
        [guest, len, user, u64::MAX],
        [guest, u64::MAX, user, 0],
        [guest, 0, user, 0],
        [guest, len, user, 1],
        [guest, len + 1, user, 0],
    ] {
        peer.refused(5, &table(&[bad]), &[memory.as_fd()]);
        peer.refused(37, &single(bad), &[memory.as_fd()]);
    }
    // A refusal leaves the table unchanged.
    peer.done(37, &single(MEMORY), &[memory.as_fd()]);
    peer.refused(37, &single(MEMORY), &[memory.as_fd()]);
    peer.refused(38, &single([guest, len - 1, user, 0]), &[]);
    peer.done(38, &single(MEMORY), &[]);
}

#[test]
fn rings_outside_memory_do_not_start() {
    let peer = Peer::negotiated(FEATURES | PROTOCOL_FEATURES);
    let (memory, kick) = (memfd(0x1_0000), event());
    peer.configure(0, &memory, &kick);
    for outside in [0, 0x6fff_ffff, 0x7001_0000, 0x7000_f000, u64::MAX - 0x1000] {
        peer.done(9, &ring_addr(0, outside), &[]);
        peer.refused(18, &state(0, 1), &[]);
        peer.done(18, &state(0, 0), &[]);
    }
    // The address is in memory, but the device refuses it.
    peer.done(9, &ring_addr(0, 0x7000_1008), &[]);
    peer.refused(18, &state(0, 1), &[]);
    assert_eq!(peer.take(), []);
    peer.done(9, &ring_addr(0, 0x7000_1000), &[]);
    assert_eq!(peer.take(), [started(0, 5)]);
}

#[test]
fn sizes_and_indices_out_of_range_are_refused() {
    let peer = Peer::negotiated(FEATURES);
    for size in [0, 3, 1025, 2048, 32768, 65536, u32::MAX] {
        peer.refused(8, &state(0, size), &[]);
    }
    peer.done(8, &state(0, 1024), &[]);
    let kick = event();
    for index in [u32::from(QUEUES), 255] {
        peer.refused(8, &state(index, 256), &[]);
        peer.refused(9, &ring_addr(index, 0), &[]);
        peer.refused(10, &state(index, 0), &[]);
        peer.refused(18, &state(index, 1), &[]);
        for code in [12, 13, 14] {
            peer.refused(code, &words(&[index.into()]), &[kick.as_fd()]);
        }
    }
    peer.refused(8, &state(u32::MAX, 256), &[]);
    peer.refused(10, &state(0, 65536), &[]);
}

/// One step of a random front-end.
#[derive(Clone, Debug)]
struct Step {
    code: u32,
    payload: Vec<u8>,
    fds: Vec<u8>,
    pieces: usize,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Small numbers make many messages nearly valid.
    let word = prop_oneof![
        4 => 0u64..6,
        3 => (0u64..16).prop_map(|page| 0x7000_0000 + page * 0x1000),
        2 => Just(0x10_0000u64),
        1 => any::<u64>(),
    ];
    let payload = prop_oneof![
        4 => prop::collection::vec(word, 0..11).prop_map(|list| words(&list)),
        2 => (0u32..5, prop_oneof![Just(1u32), Just(256), 0u32..5]).prop_map(|(i, n)| state(i, n)),
        2 => Just(table(&[MEMORY])),
        1 => Just(single(MEMORY)),
        1 => (0u32..5).prop_map(|index| ring_addr(index, 0x7000_1000)),
        1 => prop::collection::vec(any::<u8>(), 0..100),
    ];
    let step = (0u32..42, payload, prop::collection::vec(0u8..4, 0..3), 1usize..4)
        .prop_map(|(code, payload, fds, pieces)| Step { code, payload, fds, pieces });
    prop::collection::vec(step, 0..60)
}

fn play(steps: &[Step]) {
    let peer = Peer::new();
    let things = [memfd(0x1_0000), event(), pipe().1, memfd(0)];
    peer.socket.set_write_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    // A separate thread discards the replies, so that neither side waits for the other.
    let mut answers = peer.socket.try_clone().unwrap();
    let reader = std::thread::spawn(move || std::io::copy(&mut answers, &mut std::io::sink()));
    for step in steps {
        let fds: Vec<_> = step.fds.iter().map(|at| things[usize::from(*at)].as_fd()).collect();
        let mut bytes = [step.code, ACK, step.payload.len() as u32].map(u32::to_ne_bytes).concat();
        bytes.extend_from_slice(&step.payload);
        let (head, tail) = bytes.split_at(bytes.len() / step.pieces);
        if !head.is_empty() {
            let _ = (&peer.socket).write_all(head);
        }
        if !send_gently(&peer, tail, &fds) {
            break;
        }
    }
    peer.socket.shutdown(std::net::Shutdown::Write).unwrap_or(());
    let (end, events) = peer.ended();
    reader.join().unwrap().unwrap_or(0);
    assert!(
        matches!(
            end,
            Ok(SessionEnd::HungUp)
                | Err(SessionError::Unanswerable { .. } | SessionError::Os { .. })
        ),
        "{end:?}"
    );
    assert_eq!(events.last(), Some(&Event::Disconnected));
}

/// Sends the bytes and returns whether that worked: the session may have ended.
fn send_gently(peer: &Peer, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let iov = [std::io::IoSlice::new(bytes)];
    sendmsg(&peer.socket, &iov, &mut control, SendFlags::NOSIGNAL).is_ok()
}

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..Default::default() }
}

proptest! {
    #![proptest_config(config())]

    /// After any messages, a disconnect ends the session with every queue stopped. The recording
    /// device checks that starts and stops alternate.
    #[test]
    fn random_conversations_end(steps in steps()) {
        play(&steps);
    }
}
