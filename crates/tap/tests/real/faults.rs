//! Reads that fail. Sockets fail like a TAP device with a frame that it cannot deliver: one read
//! returns the error, and the next reads return the frames behind it.

use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nix::sys::socket::{setsockopt, sockopt::Ipv4RecvErr};
use reactor::Reactor;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;

use tap::{QueueError, SendError, Tap, TapOrigin};
use testkit::in_namespace::in_own_network;

use crate::ends::{LONG, Watched, at_rest};
use crate::ip;

/// Number of frames behind the error: more than the first batch reads.
const FRAMES: u8 = 10;

/// Creates a socket with an error before the frames that wait.
fn refused() -> UdpSocket {
    let [near, far] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    near.connect(far.local_addr().unwrap()).unwrap();
    for number in 0..FRAMES {
        far.send_to(&[number; 60], near.local_addr().unwrap()).unwrap();
    }
    drop(far);
    near.set_nonblocking(true).unwrap();
    near.send(b"nobody is there").unwrap();
    let mut fds = [PollFd::new(&near, PollFlags::empty())];
    let deadline = Timespec { tv_sec: LONG.as_secs() as i64, tv_nsec: 0 };
    assert_eq!(poll(&mut fds, Some(&deadline)), Ok(1), "an error is always told");
    near
}

#[test]
fn a_frame_that_cannot_be_had_is_skipped_and_those_behind_it_come() {
    let reactor = Reactor::spawn("test").unwrap();
    // No event wakes the queue for them. It must detect that the error was not the end.
    let queue = Watched::deaf(&reactor, Arc::new(OwnedFd::from(refused())));
    queue.until(|seen| {
        let received: Vec<_> = seen.frames.iter().map(|(bytes, len)| (bytes[0], *len)).collect();
        (received == (0..FRAMES).map(|number| (number, 60)).collect::<Vec<_>>()).then_some(())
    });
    at_rest(&reactor);
    queue.until(|seen| {
        assert_eq!((seen.skipped, &seen.errors[..]), (1, &[][..]));
        Some(())
    });
}

#[test]
fn a_descriptor_that_only_fails_is_given_up() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    // Like a driver that cannot report that a read would wait, so it is read one by one.
    let directory = std::fs::File::open("/proc/self").unwrap();
    let both: [(OwnedFd, Errno); 2] =
        [(socket.into(), Errno::NOTCONN), (directory.into(), Errno::ISDIR)];
    for (fd, errno) in both {
        let reactor = Reactor::spawn("test").unwrap();
        let queue = Watched::deaf(&reactor, Arc::new(fd));
        queue.until(|seen| (!seen.errors.is_empty()).then_some(()));
        at_rest(&reactor);
        queue.send(&reactor, &[0; 60], 7);
        queue.until(|seen| (!seen.sent.is_empty()).then_some(()));
        queue.until(|seen| {
            assert_eq!(seen.errors, [QueueError::Failed(errno)]);
            assert_eq!(seen.sent, [(7, Err(SendError::Gone))]);
            assert!(seen.skipped > 1000, "{}", seen.skipped);
            Some(())
        });
    }
}

#[test]
fn a_device_that_is_going_is_told_although_a_read_just_finds_nothing() {
    // A socket with an error queue behaves like a device that is being deleted: poll(2) reports the
    // error, and a read after the first error finds nothing.
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    setsockopt(&socket, Ipv4RecvErr, &true).unwrap();
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    socket.connect(nobody).unwrap();
    socket.set_nonblocking(true).unwrap();
    let reactor = Reactor::spawn("test").unwrap();
    let socket = Arc::new(OwnedFd::from(socket));
    let queue = Watched::of(&reactor, socket.clone());
    at_rest(&reactor);
    assert_eq!(queue.until(|seen| Some(seen.errors.len())), 0);
    rustix::net::send(&socket, b"nobody is there", SendFlags::empty()).unwrap();
    queue.until(|seen| (!seen.errors.is_empty()).then_some(()));
    at_rest(&reactor);
    assert_eq!(queue.until(|seen| Some(seen.errors.clone())), [QueueError::Gone]);
}

#[test]
fn a_device_whose_end_no_read_has_seen_is_told_by_a_write() {
    in_own_network(
        concat!(module_path!(), "::a_device_whose_end_no_read_has_seen_is_told_by_a_write"),
        || {
            let reactor = Reactor::spawn("test").unwrap();
            let tap = Tap::open("rwa", 1, TapOrigin::New).unwrap();
            // Like a queue that was woken too early and found nothing.
            let queue = Watched::deaf(&reactor, tap.queue(0).unwrap());
            at_rest(&reactor);
            ip("link del dev rwa");
            at_rest(&reactor);
            assert_eq!(queue.until(|seen| Some(seen.errors.len())), 0);
            for tag in 1..4 {
                queue.send(&reactor, &[0; 60], tag);
                queue.until(|seen| {
                    let last = seen.sent.last().copied();
                    last.filter(|sent| sent.0 == tag)
                        .map(|sent| assert_eq!(sent.1, Err(SendError::Gone)))
                });
            }
            assert_eq!(queue.until(|seen| Some(seen.errors.clone())), [QueueError::Gone]);
        },
    )
    .unwrap();
}
