//! Clients that stall, send invalid data or disconnect. Other clients are not affected, and memory
//! stays bounded.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::client::*;
use nbd::{AcceptError, HANDSHAKE_DEADLINE, MEMORY_MAX};

/// Checks that the server still serves another client.
fn check(fixture: &Fixture, seed: u64) {
    let mut client = fixture.client(true);
    let data = pattern(seed, 8192);
    client.write(8192, &data);
    assert_eq!(client.read(8192, 8192), data);
    client.send(0, DISC, 0, 0, b"");
    assert!(client.is_closed());
}

/// Waits until the server has closed all but `count` connections. Clients see the close before the
/// server counts it.
fn left(fixture: &Fixture, count: usize) {
    let until = Instant::now() + SOON;
    while fixture.server.connections() > count {
        assert!(Instant::now() < until, "{} are left", fixture.server.connections());
        // Any call to the reactor makes it take another turn.
        fixture.reactor.handle().call(|_| ()).unwrap();
    }
    assert_eq!(fixture.server.connections(), count);
}

#[test]
fn no_handshake_at_all() {
    let fixture = Fixture::memory();
    for junk in [&b""[..], b"\0\0\0\xff", b"GET / HTTP/1.1\r\n\r\n", &[0xff; 100_000]] {
        let mut socket = fixture.socket();
        // The server may close the socket meanwhile.
        let _ = socket.write_all(junk);
        check(&fixture, junk.len() as u64);
        if !junk.is_empty() {
            assert!(is_closed(&mut socket));
        }
    }
    // An option above the length limit, and an incomplete option.
    for (len, closes) in [(u32::MAX, true), (8193, true), (8192, false)] {
        let mut socket = fixture.socket();
        let mut message = 3u32.to_be_bytes().to_vec();
        message.extend(option(7, b""));
        let at = message.len() - 4;
        message[at..].copy_from_slice(&len.to_be_bytes());
        socket.write_all(&message).unwrap();
        check(&fixture, len.into());
        if closes {
            assert!(is_closed(&mut socket));
        }
    }
}

#[test]
fn requests_cut_short_and_garbage() {
    let fixture = Fixture::memory();
    let whole = [request(0, WRITE, 1, 0, 4096), vec![1; 4096]].concat();
    for cut in [0, 1, 27, 28, 29, 4000, whole.len() - 1] {
        let mut client = fixture.client(true);
        client.stream.write_all(&whole[..cut]).unwrap();
        // The client stalls, then disconnects.
        check(&fixture, cut as u64);
        drop(client);
    }
    let mut client = fixture.client(false);
    client.stream.write_all(&[0x55; 4096]).unwrap();
    assert!(client.is_closed());
    // The truncated write wrote nothing.
    assert_eq!(fixture.client(true).read(0, 4096), [0; 4096]);
    fixture.server.hang_up();
    assert!(fixture.server.wait_ended(SOON));
}

#[test]
fn a_length_that_lies_is_skipped() {
    let fixture = Fixture::memory();
    let mut client = fixture.client(true);
    // This write is longer than any request. The server discards the following bytes as its data.
    let len = (32 << 20) + 512;
    client.stream.write_all(&request(0, WRITE, 9, 0, len)).unwrap();
    let data = vec![7; 1 << 20];
    for _ in 0..32 {
        client.stream.write_all(&data).unwrap();
    }
    client.stream.write_all(&data[..512]).unwrap();
    let reply = client.receive(0);
    assert_eq!((reply.cookie, reply.error), (9, 22));
    assert_eq!(client.read(0, 4096), [0; 4096]);
}

/// Writes until the server accepts no more. Returns the number of bytes written.
fn stuff(stream: &mut UnixStream, message: &[u8], at_most: usize) -> usize {
    stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut taken = 0;
    while taken < at_most {
        match stream.write(message) {
            Ok(count) => taken += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return taken,
            // This process was stopped, and goes on.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("{taken} bytes were taken, and no reply");
}

#[test]
fn a_client_that_never_reads_is_taken_no_more_from() {
    let fixture = Fixture::memory();
    let mut deaf = Vec::new();
    for (code, len) in [(READ, 1 << 20), (READ, 512), (STATUS, 1 << 20), (CACHE, 512), (99, 512)] {
        let mut client = fixture.client(true);
        let many = request(0, code, 1, 0, len).repeat(1000);
        let taken = stuff(&mut client.stream, &many, MEMORY_MAX);
        assert!(taken < 2 << 20, "{code}: {taken}");
        check(&fixture, taken as u64);
        deaf.push(client);
    }
    // The same limit applies in the handshake.
    let mut socket = fixture.socket();
    socket.write_all(&3u32.to_be_bytes()).unwrap();
    stuff(&mut socket, &option(3, b"").repeat(1000), MEMORY_MAX);
    check(&fixture, 1);
    left(&fixture, 6);
    // `hang_up` closes stalled clients too.
    fixture.server.hang_up();
    assert!(fixture.server.wait_ended(SOON));
}

#[test]
fn vanishing_with_everything_in_flight() {
    let fixture = Fixture::memory();
    for _ in 0..20 {
        let mut client = fixture.client(true);
        for at in 0..100 {
            client.send(0, READ, at * 4096, 65536, b"");
            client.send(FUA, ZEROES, at * 4096, 4096, b"");
        }
        // Writes as much as the socket accepts. The client reads no replies.
        client.stream.set_nonblocking(true).unwrap();
        let _ = client.stream.write_all(&request(0, WRITE, 1, 0, 32 << 20));
        let _ = client.stream.write_all(&[1; 100_000]);
    }
    check(&fixture, 5);
    // All connections end without a call to `hang_up`.
    left(&fixture, 0);
    drop(fixture);
}

#[test]
fn there_is_a_limit_and_an_end() {
    let disk = std::sync::Arc::new(disk::NullDisk::new(SIZE, 512, false));
    let fixture = Fixture::new(disk, false, 2);
    let (first, mut second) = (fixture.client(true), fixture.client(true));
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let accept_error =
        fixture.server.accept(theirs.into(), fixture.reactor.handle(), ()).unwrap_err();
    assert!(matches!(accept_error, AcceptError::TooMany { limit: 2 }), "{accept_error}");
    drop(first);
    left(&fixture, 1);
    fixture.client(false);
    fixture.server.hang_up();
    assert!(second.is_closed() && fixture.server.wait_ended(SOON));
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let refused = fixture.server.accept(theirs.into(), fixture.reactor.handle(), ());
    assert!(matches!(refused.unwrap_err(), AcceptError::Ending));
}

#[test]
fn clients_that_never_speak_lock_no_other_out() {
    let disk = std::sync::Arc::new(disk::NullDisk::new(SIZE, 512, false));
    let fixture = Fixture::new(disk, false, 2);
    let mut silent = [(); 2].map(|()| fixture.socket());
    let mut first = fixture.client(false);
    assert!(is_closed(&mut silent[0]), "the oldest one ends");
    let mut second = fixture.client(false);
    assert!(is_closed(&mut silent[1]));
    // Clients that have finished their handshake stay, also if they do nothing.
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let refused = fixture.server.accept(theirs.into(), fixture.reactor.handle(), ());
    assert!(matches!(refused.unwrap_err(), AcceptError::TooMany { limit: 2 }));
    assert_eq!((first.read(0, 512), second.read(0, 512)), (vec![0; 512], vec![0; 512]));
    assert_eq!(fixture.server.connections(), 2);
}

#[test]
fn a_reactor_ends_with_clients_on_it() {
    let fixture = Fixture::memory();
    let mut client = fixture.client(true);
    let mut silent = fixture.socket();
    let Fixture { server, reactor } = fixture;
    drop(reactor);
    assert!(client.is_closed() && is_closed(&mut silent));
    assert_eq!(server.connections(), 0);
}

#[test]
fn a_handshake_that_takes_too_long_is_cut_off_and_nothing_later_is() {
    let fixture = Fixture::memory();
    let mut served = fixture.client(true);
    // The client stalls in the middle of a write, which has no deadline.
    let data = pattern(3, 4096);
    let write = [request(0, WRITE, 7, 0, 4096), data.clone()].concat();
    served.stream.write_all(&write[..2000]).unwrap();
    let begin = std::time::Instant::now();
    let mut silent = fixture.socket();
    let mut slow = fixture.socket();
    slow.write_all(&3u32.to_be_bytes()).unwrap();
    assert!(is_closed(&mut silent) && is_closed(&mut slow));
    assert!(begin.elapsed() > HANDSHAKE_DEADLINE / 2, "{:?}", begin.elapsed());
    served.stream.write_all(&write[2000..]).unwrap();
    let reply = served.receive(0);
    assert_eq!((reply.cookie, reply.error), (7, 0));
    assert_eq!(served.read(0, 4096), data);
}
