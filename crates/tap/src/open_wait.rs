//! Opening a device that its former user is about to release.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use crate::{Tap, TapError, TapOrigin};

/// Multicast group for changes of network devices (rtnetlink(7), `RTMGRP_LINK`).
const LINKS: u32 = 1;

/// Interval between attempts. No event reports that a device which stays and is down is released.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Events of this host's network devices. `None` if the kernel does not report them.
struct LinkEvents(Option<OwnedFd>);

impl LinkEvents {
    /// Subscribes to events from now on.
    fn listen() -> Self {
        Self(Self::socket())
    }

    fn socket() -> Option<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol `None` is the first, NETLINK_ROUTE.
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None).ok()?;
        bind(&fd, &SocketAddrNetlink::new(0, LINKS)).ok()?;
        Some(fd)
    }

    /// Waits for an event or until `until`, at most [`RETRY_INTERVAL`]. May return early.
    fn wait(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now()).min(RETRY_INTERVAL);
        let left = Timespec::try_from(left).ok();
        // After an interruption or a lost event the caller tries again, as after an event.
        let mut fds: Vec<_> = self.0.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let _ = poll(&mut fds, left.as_ref());
        let Some(fd) = &self.0 else { return };
        while recv(fd, &mut [0; 4096][..], RecvFlags::empty()).is_ok() {}
    }
}

impl Tap {
    /// Opens a device like [`Tap::open`]. If the device is in use, or is removed just now, waits up
    /// to `patience` and retries. The kernel releases a process's devices a moment after other
    /// processes see its end.
    ///
    /// # Errors
    /// As [`Tap::open`].
    pub fn open_within(
        name: &str,
        queues: usize,
        origin: TapOrigin,
        patience: Duration,
    ) -> Result<Self, TapError> {
        let until = Instant::now() + patience;
        // Subscribe before the first attempt, so that no event is missed.
        let link_events = LinkEvents::listen();
        loop {
            let opened = Self::open(name, queues, origin);
            let passes = match &opened {
                Err(TapError::InUse(_)) => true,
                Err(TapError::NotThere(_)) => origin == TapOrigin::Either,
                _ => false,
            };
            if !passes || Instant::now() >= until {
                return opened;
            }
            link_events.wait(until);
        }
    }
}
