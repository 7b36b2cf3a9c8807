//! A socket can fail like a TAP device that has a frame which it cannot deliver.

mod alloc;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use net::header::Offloads;
use net::port::{PortId, PortPolicy};
use net::switch::{NetworkId, NetworkPolicy};
use nic::{Fabric, HostQueue};
use reactor::Reactor;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

const PORT: PortId = PortId(1);

/// Returns a socket with a pending error, and a socket that can send to it.
fn refused() -> (UdpSocket, UdpSocket) {
    let [near, far] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let (here, there) = (near.local_addr().unwrap(), far.local_addr().unwrap());
    near.connect(there).unwrap();
    drop(far);
    near.send(b"nobody is there").unwrap();
    let mut fds = [PollFd::new(&near, PollFlags::empty())];
    let deadline = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut fds, Some(&deadline)), Ok(1), "an error is always told");
    let far = UdpSocket::bind(there).unwrap();
    far.connect(here).unwrap();
    near.set_nonblocking(true).unwrap();
    (near, far)
}

#[test]
fn what_the_kernel_cannot_hand_over_is_counted() {
    let reactor = Reactor::spawn("uplink").unwrap();
    let fabric = Fabric::new([reactor.handle()]).unwrap();
    fabric.set_network(NetworkId(0), NetworkPolicy::default()).unwrap();
    fabric.set_port(PORT, &PortPolicy::open(NetworkId(0))).unwrap();
    let (near, far) = refused();
    let fd = Arc::new(OwnedFd::from(near));
    let (port_incarnation, uplink_exit, kick) = (
        PortIncarnation::host(PORT, Offloads::KERNEL),
        UplinkExit::new().unwrap(),
        Arc::clone(&fd),
    );
    let make =
        move |context: &mut Context<'_>, hub| make(context, hub, port_incarnation, fd, uplink_exit);
    let queue =
        HostQueue::new(&fabric, reactor.handle(), port_incarnation, 0, Some(kick), make).unwrap();
    queue.with(|tap_reader: &mut TapReader, _| tap_reader.unquiesce()).unwrap();
    // The frame after the error arrives, and is dropped because it has no room for a header.
    far.send(&[0; 4]).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let counted = |reason| fabric.counts(PORT).refused(reason);
    while (counted(Reason::HostLost), counted(Reason::ShortHeader)) != (1, 1) {
        assert!(Instant::now() < until, "{} lost", counted(Reason::HostLost));
        std::thread::yield_now();
    }
}
