//! Opening a device that its last user is just letting go.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use crate::{Tap, TapError, TapOrigin};

/// Changes of network devices (rtnetlink(7), `RTMGRP_LINK`).
const LINKS: u32 = 1;

/// A device that stays and is down changes hands without news: it is looked at as often.
const UNTOLD: Duration = Duration::from_millis(50);

/// News of this host's network devices; nothing where the kernel does not tell.
struct LinkEvents(Option<OwnedFd>);

impl LinkEvents {
    /// What happens from now on.
    fn listen() -> Self {
        Self(Self::socket())
    }

    fn socket() -> Option<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Of its protocols the first, NETLINK_ROUTE.
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None).ok()?;
        bind(&fd, &SocketAddrNetlink::new(0, LINKS)).ok()?;
        Some(fd)
    }

    /// Something has happened, or may have, or it is `until`.
    fn wait(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now()).min(UNTOLD);
        let left = Timespec::try_from(left).ok();
        // An interruption is looked at as if something had happened, and so is what went by unread.
        let mut fds: Vec<_> = self.0.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let _ = poll(&mut fds, left.as_ref());
        let Some(fd) = &self.0 else { return };
        while recv(fd, &mut [0; 4096][..], RecvFlags::empty()).is_ok() {}
    }
}

impl Tap {
    /// As [`Tap::open`], but a device that is in use, or goes just when it is opened, is waited for,
    /// `patience` at most. A process that has ended lets go of its devices a moment after others see
    /// its end, when the kernel was still at work for it.
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
        // From before the first look on, so that nothing is missed.
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
