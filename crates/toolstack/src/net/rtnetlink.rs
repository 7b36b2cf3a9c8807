//! Notifications about network devices and their addresses (rtnetlink(7)).

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

/// `RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR` and `RTMGRP_IPV6_IFADDR`.
const GROUPS: u32 = 0x1 | 0x10 | 0x100;

/// Returns a receiver of changes from now on. It closes at once if the socket cannot be created.
pub(super) fn subscribe() -> watch::Receiver<()> {
    let (sender, receiver) = watch::channel(());
    match socket() {
        Ok(socket) => drop(tokio::spawn(pass_on(socket, sender))),
        Err(error) => tracing::warn!(%error, "cannot watch network devices"),
    }
    receiver
}

fn socket() -> io::Result<AsyncFd<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Without a protocol the socket uses NETLINK_ROUTE, the first.
    let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    bind(&fd, &SocketAddrNetlink::new(0, GROUPS))?;
    #[expect(
        deprecated,
        reason = "an owned descriptor stays the same and open; what replaces this is not safe"
    )]
    AsyncFd::with_interest(fd, Interest::READABLE)
}

/// Notifies the receivers until all are gone. The content of a message does not matter: receivers
/// query the state.
async fn pass_on(socket: AsyncFd<OwnedFd>, sender: watch::Sender<()>) {
    loop {
        let mut ready = tokio::select! {
            ready = socket.readable() => match ready {
                Ok(ready) => ready,
                Err(error) => return tracing::warn!(%error, "stopped watching network devices"),
            },
            () = sender.closed() => return,
        };
        match recv(socket.get_ref(), &mut [0; 4096][..], RecvFlags::empty()) {
            Err(Errno::AGAIN) => ready.clear_ready(),
            // `NOBUFS`: the socket buffer overflowed.
            Ok(_) | Err(Errno::NOBUFS) => _ = sender.send(()),
            Err(error) => return tracing::warn!(%error, "stopped watching network devices"),
        }
    }
}
