//! Watched descriptors that are closed while they report events.
#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use reactor::{Context, PollOutcome, Poller, Reactor};
use rustix::event::{EventfdFlags, eventfd};

struct Nothing;

impl Poller for Nothing {
    fn poll(&mut self, _: &mut Context<'_>) -> PollOutcome {
        PollOutcome::Idle
    }

    fn on_runnable(&mut self) {}

    fn arm(&mut self) -> bool {
        false
    }
}

/// Writes and reads the eventfd until `over` is set, so that a wake-up may find no data any more.
fn hammer(fd: &OwnedFd, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
        let _somebody_was_quicker = rustix::io::read(fd, &mut [0; 8]);
    }
}

#[test]
fn a_descriptor_is_closed_although_it_tells_something_just_then() {
    let reactor = Reactor::spawn("test").unwrap();
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let event = eventfd(0, flags).unwrap();
    let over = AtomicBool::new(false);
    let mut watched: Vec<Weak<OwnedFd>> = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| hammer(&event, &over));
        for _ in 0..2000 {
            // Another descriptor of the same eventfd.
            let fd = Arc::new(event.try_clone().unwrap());
            watched.push(Arc::downgrade(&fd));
            let add = |context: &mut Context<'_>| {
                context.add_poller(Some(fd), |_| Ok::<_, Infallible>(Nothing)).unwrap()
            };
            let id = reactor.handle().call(add).unwrap();
            reactor.handle().call(move |context| context.remove_poller(id)).unwrap();
        }
        over.store(true, Ordering::Relaxed);
    });
    let until = Instant::now() + Duration::from_secs(20);
    let open = || watched.iter().filter(|fd| fd.strong_count() > 0).count();
    while open() > 0 {
        assert!(Instant::now() < until, "{} of {} are open", open(), watched.len());
        reactor.handle().call(|_| ()).unwrap();
    }
}
