//! Effect of each message, with the test as the front-end.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use crate::common::*;
use vhost_user::features::{CONFIGURE_MEM_SLOTS, OFFERED, PROTOCOL_FEATURES};
use vhost_user::{SessionEnd, SessionError};

#[test]
fn features_are_offered_and_acknowledged() {
    let peer = Peer::new();
    assert_eq!(peer.ask_u64(1), FEATURES | POISON | PROTOCOL_FEATURES);
    // QEMU asks before it sets the owner, and gets no memory slots.
    assert_eq!(peer.ask_u64(15), OFFERED & !CONFIGURE_MEM_SLOTS);
    peer.send(3, 1, &[], &[]);
    assert_eq!(peer.ask_u64(15), OFFERED);
    assert_eq!(OFFERED, 1 | 1 << 3 | 1 << 5 | 1 << 9 | 1 << 12 | 1 << 13 | 1 << 15);
    // User-Mode Linux requests a reply in the message that negotiates replies.
    peer.done(16, &words(&[OFFERED]), &[]);
    assert_eq!(peer.ask_u64(17), u64::from(QUEUES));
    assert_eq!(peer.ask_u64(36), 509);
    peer.done(3, &[], &[]);
    peer.done(2, &words(&[FEATURES | PROTOCOL_FEATURES]), &[]);
    assert_eq!(peer.take(), [Event::Features(FEATURES)]);
    // No ring runs, so the same bits mean that a driver starts anew.
    peer.done(2, &words(&[FEATURES | PROTOCOL_FEATURES]), &[]);
    assert_eq!(peer.take(), [Event::Features(FEATURES)]);
    peer.refused(2, &words(&[1 << 50]), &[]);
    peer.refused(16, &words(&[1 << 10]), &[]);
    peer.refused(2, &words(&[POISON]), &[]);
    assert_eq!(peer.take(), []);
    let (end, events) = peer.ended();
    assert!(matches!(end, Ok(SessionEnd::HungUp)));
    assert_eq!(events, [Event::Disconnected]);
}

#[test]
fn nothing_is_acknowledged_that_was_not_negotiated() {
    let peer = Peer::new();
    peer.send(3, ACK, &[], &[]);
    peer.send(99, ACK, &[], &[]);
    peer.send(16, PLAIN, &words(&[OFFERED & !(1 << 3)]), &[]);
    peer.send(8, ACK, &state(0, 256), &[]);
    // The next message received is the reply to this request.
    assert_eq!(peer.ask_u64(17), u64::from(QUEUES));
}

#[test]
fn unknown_requests_are_refused_and_the_session_goes_on() {
    let peer = Peer::negotiated(FEATURES);
    for code in [0, 6, 7, 19, 22, 28, 33, 39, 41, 1000, u32::MAX] {
        peer.refused(code, &[1, 2, 3], &[]);
        peer.send(code, PLAIN, &[], &[]);
    }
    assert_eq!(peer.ask_u64(17), u64::from(QUEUES));
}

#[test]
fn configuration_is_read_with_zeroes_beyond_its_end() {
    let peer = Peer::negotiated(FEATURES);
    let config = |offset: u32, size: u32| [offset, size, 0].map(u32::to_ne_bytes).concat();
    let ask = |offset, size| {
        let head = config(offset, size);
        let request = [head.clone(), vec![0; size as usize]].concat();
        let answer = peer.ask(24, &request);
        assert_eq!(&answer[..12], head);
        answer[12..].to_vec()
    };
    let whole: Vec<u8> = (1..=CONFIG_BYTES).collect();
    assert_eq!(ask(0, 60), whole);
    assert_eq!(ask(0, 256), [whole, vec![0; 196]].concat());
    assert_eq!(ask(58, 4), [59, 60, 0, 0]);
    assert_eq!(ask(u32::MAX, 8), [0; 8]);
    assert_eq!(ask(0, 4096).len(), 4096);
    // The reply to a request for more than a message holds is empty, as the specification says.
    assert_eq!(peer.ask(24, &config(0, 4097)), [0u8; 0]);
    assert_eq!(peer.ask(24, &[0; 5]), [0u8; 0]);
}

#[test]
fn configuration_is_written_where_the_device_allows_it() {
    let peer = Peer::negotiated(FEATURES);
    let config = |offset: u32| [[offset, 1, 0].map(u32::to_ne_bytes).concat(), vec![1]].concat();
    peer.done(25, &config(32), &[]);
    peer.refused(25, &config(0), &[]);
    assert_eq!(peer.take(), [Event::Config(32, vec![1])]);
}

#[test]
fn a_ring_runs_when_everything_is_known_and_it_is_enabled() {
    let peer = Peer::negotiated(FEATURES | PROTOCOL_FEATURES);
    let (memory, kick) = (memfd(0x1_0000), event());
    peer.configure(0, &memory, &kick);
    assert_eq!(peer.take(), []);
    peer.done(18, &state(0, 1), &[]);
    assert_eq!(peer.take(), [started(0, 5)]);
    // While a ring runs, the same features change nothing.
    peer.done(2, &words(&[FEATURES | PROTOCOL_FEATURES]), &[]);
    assert_eq!(peer.take(), []);
    // A disabled ring is drained before the reply. After enabling, it continues where it stopped.
    peer.done(18, &state(0, 0), &[]);
    assert_eq!(peer.take(), [Event::Stop(0)]);
    peer.done(18, &state(0, 1), &[]);
    assert_eq!(peer.take(), [started(0, 5 + SERVED)]);
    // GET_VRING_BASE stops the ring until the next kick descriptor.
    assert_eq!(peer.ask(11, &state(0, 0)), state(0, u32::from(5 + 2 * SERVED)));
    assert_eq!(peer.take(), [Event::Stop(0)]);
    peer.done(18, &state(0, 1), &[]);
    assert_eq!(peer.take(), []);
    peer.done(12, &words(&[0]), &[kick.as_fd()]);
    assert_eq!(peer.take(), [started(0, 5 + 2 * SERVED)]);
    let (end, events) = peer.ended();
    assert!(matches!(end, Ok(SessionEnd::HungUp)));
    assert_eq!(events, [Event::Stop(0), Event::Disconnected]);
}

/// QEMU 7.2 does so if it has lost the connection while no driver ran.
#[test]
fn a_session_that_begins_with_the_start_of_a_driver_is_served() {
    let peer = Peer::new();
    peer.send(2, 1, &words(&[FEATURES | PROTOCOL_FEATURES]), &[]);
    // The front-end waits for acknowledgements, as it negotiated with a predecessor.
    let (memory, kick) = (memfd(0x1_0000), event());
    peer.configure(0, &memory, &kick);
    peer.done(18, &state(0, 1), &[]);
    assert!(peer.take().contains(&started(0, 5)));
}

#[test]
fn a_ring_starts_enabled_without_protocol_features() {
    let peer = Peer::negotiated(FEATURES);
    let (memory, kick) = (memfd(0x1_0000), event());
    peer.configure(1, &memory, &kick);
    assert_eq!(peer.take(), [started(1, 5)]);
}

#[test]
fn the_order_of_the_parts_does_not_matter() {
    let (memory, kick) = (memfd(0x1_0000), event());
    let send = |peer: &Peer, part: usize| match part {
        0 => peer.done(5, &table(&[MEMORY]), &[memory.as_fd()]),
        1 => peer.done(8, &state(0, 256), &[]),
        2 => peer.done(10, &state(0, 5), &[]),
        3 => peer.done(12, &words(&[0]), &[kick.as_fd()]),
        _ => peer.done(2, &words(&[FEATURES]), &[]),
    };
    for first in 0..5 {
        let peer = Peer::new();
        peer.done(16, &words(&[OFFERED & !CONFIGURE_MEM_SLOTS]), &[]);
        // Addresses before memory are accepted unchecked, and resolved when the memory arrives.
        peer.done(9, &ring_addr(0, 0x7000_1000), &[]);
        (0..5).for_each(|step| send(&peer, (first + step) % 5));
        let starts = peer.take().into_iter().filter(|event| *event == started(0, 5)).count();
        assert_eq!(starts, 1, "beginning with {first}");
    }
}

#[test]
fn a_ring_without_kick_is_started_for_polling() {
    let peer = Peer::negotiated(FEATURES);
    let (memory, kick) = (memfd(0x1_0000), event());
    peer.configure(0, &memory, &kick);
    peer.take();
    peer.done(12, &words(&[0x100]), &[]);
    let events = peer.take();
    assert_eq!(events.first(), Some(&Event::Stop(0)));
    let Some(Event::Start { ring: again, kick: false, .. }) = events.get(1) else {
        panic!("{events:?}");
    };
    assert_eq!(*again, ring(5 + SERVED));
}

#[test]
fn calls_are_replaced_while_a_ring_runs() {
    let peer = Peer::negotiated(FEATURES);
    let (memory, kick, call) = (memfd(0x1_0000), event(), event());
    let (_read, write) = pipe();
    // Before the ring runs, the session stores the call descriptor for it.
    peer.done(13, &words(&[0]), &[call.as_fd()]);
    peer.done(14, &words(&[0]), &[call.as_fd()]);
    peer.configure(0, &memory, &kick);
    let events = peer.take();
    assert!(matches!(events[..], [Event::Start { call: true, err: true, .. }]), "{events:?}");
    peer.done(13, &words(&[0]), &[write.as_fd()]);
    // User-Mode Linux passes a socket as call descriptor.
    let (_ours, socket) = UnixStream::pair().unwrap();
    peer.done(13, &words(&[0]), &[socket.as_fd()]);
    peer.done(13, &words(&[0x100]), &[]);
    assert_eq!(peer.take(), [Event::Call(0, true), Event::Call(0, true), Event::Call(0, false)]);
    // A full descriptor of the front-end must not block the device.
    for fd in [write.as_fd(), socket.as_fd()] {
        let flags = rustix::fs::fcntl_getfl(fd).unwrap();
        assert!(flags.contains(rustix::fs::OFlags::NONBLOCK));
    }
}

#[test]
fn an_error_descriptor_waits_for_the_next_start() {
    let peer = Peer::negotiated(FEATURES);
    let (memory, kick, error) = (memfd(0x1_0000), event(), event());
    peer.configure(0, &memory, &kick);
    peer.take();
    peer.done(14, &words(&[0]), &[error.as_fd()]);
    assert_eq!(peer.take(), [], "the ring goes on");
    peer.done(12, &words(&[0]), &[kick.as_fd()]);
    let events = peer.take();
    assert!(matches!(events[..], [Event::Stop(0), Event::Start { err: true, .. }]), "{events:?}");
}

#[test]
fn a_running_ring_keeps_its_size_and_base() {
    let peer = Peer::negotiated(FEATURES);
    let (memory, kick) = (memfd(0x1_0000), event());
    peer.configure(0, &memory, &kick);
    peer.take();
    peer.refused(8, &state(0, 128), &[]);
    peer.refused(10, &state(0, 0), &[]);
    // The same addresses change nothing. Other addresses take effect between two runs.
    peer.done(9, &ring_addr(0, 0x7000_1000), &[]);
    assert_eq!(peer.take(), []);
    peer.done(9, &ring_addr(0, 0x7000_2000), &[]);
    let events = peer.take();
    assert_eq!(events.len(), 2, "{events:?}");
    assert_eq!(events[0], Event::Stop(0));
    assert!(matches!(events[1], Event::Start { ring: moved, .. } if moved.desc == 0x10_2000));
}

#[test]
fn features_that_change_stop_the_rings_first() {
    let peer = Peer::negotiated(FEATURES);
    let (memory, kick) = (memfd(0x1_0000), event());
    peer.configure(0, &memory, &kick);
    peer.take();
    let fewer = FEATURES & !(1 << 29);
    peer.done(2, &words(&[fewer]), &[]);
    let events = peer.take();
    assert_eq!(events[..2], [Event::Stop(0), Event::Features(fewer)]);
    let Event::Start { ring, features, .. } = events[2] else { panic!("{events:?}") };
    assert!(!ring.event_idx && features == fewer);
    // Features that the device refuses leave everything stopped.
    peer.refused(2, &words(&[POISON]), &[]);
    assert_eq!(peer.take(), [Event::Stop(0)]);
    peer.done(12, &words(&[0]), &[kick.as_fd()]);
    assert_eq!(peer.take(), []);
}

#[test]
fn resets_stop_everything() {
    let peer = Peer::negotiated(FEATURES);
    let (memory, kick) = (memfd(0x1_0000), event());
    peer.configure(0, &memory, &kick);
    peer.configure_ring(2, &kick);
    peer.take();
    peer.done(4, &[], &[]);
    assert_eq!(peer.take(), [Event::Stop(0), Event::Stop(2)]);
    peer.done(34, &[], &[]);
    assert_eq!(peer.take(), [Event::Reset]);
    // The reset clears rings and features, but not the memory.
    peer.configure_ring(0, &kick);
    assert_eq!(peer.take(), []);
    peer.done(2, &words(&[FEATURES]), &[]);
    assert_eq!(peer.take(), [Event::Features(FEATURES), started(0, 5)]);
}

#[test]
fn memory_slots_come_and_go_under_running_rings() {
    let peer = Peer::negotiated(FEATURES);
    let (memory, kick) = (memfd(0x1_0000), event());
    let more: RegionWords = [0x100_0000, 0x1000, 0x8000_0000, 0x1000];
    peer.done(37, &single(MEMORY), &[memory.as_fd()]);
    peer.configure_ring(0, &kick);
    peer.take();
    peer.done(37, &single(more), &[memory.as_fd()]);
    assert_eq!(peer.take(), [Event::Memory(2)]);
    // The offset does not identify a region, and some front-ends send a descriptor.
    peer.done(38, &single([more[0], more[1], more[2], 0]), &[memory.as_fd()]);
    assert_eq!(peer.take(), [Event::Memory(1)]);
    peer.refused(38, &single(more), &[]);
    // Without its memory a ring stops. With the memory it continues.
    peer.done(38, &single(MEMORY), &[]);
    assert_eq!(peer.take(), [Event::Stop(0)]);
    peer.done(37, &single(MEMORY), &[memory.as_fd()]);
    assert_eq!(peer.take(), [started(0, 5 + SERVED)]);
    // If the ring's guest addresses change, the ring restarts.
    let moved = [MEMORY[0] + 0x100_0000, MEMORY[1], MEMORY[2], 0];
    peer.done(5, &table(&[moved]), &[memory.as_fd()]);
    let events = peer.take();
    assert_eq!(events[0], Event::Stop(0));
    let Event::Start { ring: there, .. } = events[1] else { panic!("{events:?}") };
    assert_eq!((there.desc, there.next_avail), (0x110_1000, 5 + 2 * SERVED));
}

#[test]
fn a_device_that_cannot_take_new_memory_is_stopped() {
    let peer = Peer::negotiated(FEATURES);
    let (memory, kick) = (memfd(0x1_0000), event());
    peer.configure(0, &memory, &kick);
    peer.take();
    peer.refused(37, &single([1 << 41, 0x1000, 0x8000_0000, 0]), &[memory.as_fd()]);
    assert_eq!(peer.take(), [Event::Memory(2), Event::Stop(0)]);
}

#[test]
fn the_way_back_tells_of_changed_configuration_and_never_waits() {
    let peer = Peer::negotiated(FEATURES);
    let expected = [2u32, 1, 0].map(u32::to_ne_bytes).concat();
    let mut message = [0; 12];

    let (mut ours, theirs) = UnixStream::pair().unwrap();
    peer.done(21, &[], &[theirs.as_fd()]);
    drop(theirs);
    let channel = peer.channel();
    channel.config_changed().unwrap();
    ours.read_exact(&mut message).unwrap();
    assert_eq!(message[..], expected);
    // The call returns although the front-end does not read.
    for _ in 0..100_000 {
        channel.config_changed().unwrap();
    }
    drop(ours);
    assert_eq!(channel.config_changed(), Err(rustix::io::Errno::PIPE));

    // Some front-ends pass a pipe.
    let (read, write) = pipe();
    peer.done(21, &[], &[write.as_fd()]);
    drop(write);
    for _ in 0..100_000 {
        peer.channel().config_changed().unwrap();
    }
    rustix::io::read(&read, &mut message).unwrap();
    assert_eq!(message[..], expected);
    let file: OwnedFd = memfd(1);
    peer.refused(21, &[], &[file.as_fd()]);
}

#[test]
fn a_session_is_ended_from_another_thread() {
    let peer = Peer::negotiated(FEATURES);
    let (memory, kick) = (memfd(0x1_0000), event());
    peer.configure(0, &memory, &kick);
    peer.take();
    let handle = peer.handle.clone();
    handle.close();
    peer.hung_up();
    let (end, events) = peer.ended();
    assert!(matches!(end, Ok(SessionEnd::Closed)));
    assert_eq!(events, [Event::Stop(0), Event::Disconnected]);
    handle.close();
}

#[test]
fn a_session_ends_even_while_its_answers_are_not_read() {
    let peer = Peer::new();
    // Fill both directions. The session then waits in its reply.
    peer.socket.set_nonblocking(true).unwrap();
    let request = [1u32, 1, 0].map(u32::to_ne_bytes).concat();
    let mut blocked = 0;
    while blocked < 100 {
        match std::io::Write::write(&mut &peer.socket, &request) {
            Ok(12) => blocked = 0,
            Ok(_) => break,
            Err(_) => {
                blocked += 1;
                std::thread::yield_now();
            }
        }
    }
    peer.handle.close();
    let (end, _) = peer.ended();
    assert!(matches!(end, Ok(SessionEnd::Closed)));
}

#[test]
fn an_answer_that_cannot_be_given_ends_the_session() {
    let peer = Peer::negotiated(FEATURES);
    peer.send(11, PLAIN, &state(u32::from(QUEUES), 0), &[]);
    peer.hung_up();
    let (end, _) = peer.ended();
    assert!(matches!(end, Err(SessionError::Unanswerable { code: 11, .. })), "{end:?}");
}
