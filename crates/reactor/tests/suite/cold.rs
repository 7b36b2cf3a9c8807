//! Tests that cold pollers cost a busy reactor nothing.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use reactor::{Context, PollOutcome, Poller, Reactor};
use rustix::event::{EventfdFlags, eventfd};

const IDLE: usize = 3200;
const TURNS: u64 = 10_000;
const SOON: Duration = Duration::from_secs(60);

/// Poller that counts its calls and never finds work.
struct Idle(Arc<AtomicU64>);

impl Poller for Idle {
    fn poll(&mut self, _: &mut Context<'_>) -> PollOutcome {
        self.0.fetch_add(1, Ordering::Relaxed);
        PollOutcome::Idle
    }

    fn on_runnable(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn arm(&mut self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        false
    }

    fn on_kick(&mut self, _error: bool) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn always_polls(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        false
    }
}

/// Poller that has work for a number of turns.
struct Busy {
    left: u64,
    over: SyncSender<()>,
}

impl Poller for Busy {
    fn poll(&mut self, _: &mut Context<'_>) -> PollOutcome {
        if self.left == 0 {
            self.over.send(()).unwrap();
            return PollOutcome::Gone;
        }
        self.left -= 1;
        PollOutcome::Busy
    }

    fn on_runnable(&mut self) {}

    fn arm(&mut self) -> bool {
        false
    }
}

fn event() -> Arc<OwnedFd> {
    Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap())
}

#[test]
fn a_busy_poller_takes_its_turns_without_a_look_at_three_thousand_idle_ones() {
    let reactor = Reactor::spawn("cold").unwrap();
    let asked = Arc::new(AtomicU64::new(0));
    // One eventfd for each would need a higher limit of open files. A cold poller without an
    // eventfd is no cheaper, since the reactor touches nothing of it.
    let kicks: Vec<_> = (0..IDLE).map(|at| (at % 16 == 0).then(event)).collect();
    let rings: Vec<_> = kicks.iter().flatten().cloned().collect();
    let counter = Arc::clone(&asked);
    let added = reactor.handle().call(move |context| {
        for kick in kicks {
            let idle = Idle(Arc::clone(&counter));
            context.add_poller(kick, |_| Ok::<_, ()>(idle)).unwrap();
        }
    });
    added.unwrap();
    // After two turns all of them are cold.
    for _ in 0..2 {
        reactor.handle().call(|_| ()).unwrap();
    }
    let before = asked.load(Ordering::Relaxed);
    assert!(before >= IDLE as u64, "{before}");
    let (turns, (over, wait)) = (reactor.handle().counters().turns(), sync_channel(1));
    let busy = Busy { left: TURNS, over };
    reactor
        .handle()
        .call(|context| context.add_poller(None, |_| Ok::<_, ()>(busy)).unwrap())
        .unwrap();
    wait.recv_timeout(SOON).unwrap();
    assert!(reactor.handle().counters().turns() - turns >= TURNS);
    assert_eq!(asked.load(Ordering::Relaxed), before, "idle pollers were asked");
    // The pollers still work: a kick makes one hot.
    for ring in &rings {
        rustix::io::write(ring, &1u64.to_ne_bytes()).unwrap();
    }
    let until = std::time::Instant::now() + SOON;
    while asked.load(Ordering::Relaxed) < before + 4 * rings.len() as u64 {
        assert!(std::time::Instant::now() < until, "kicks were not heard");
        reactor.handle().call(|_| ()).unwrap();
    }
}
