//! How much of a CPU is free for those who want to spin.
//!
//! A reactor that spins takes a CPU whole. That harms nobody while the CPU would be idle, and slows
//! guests down when it is not. So while a reactor spins or wants to, a thread measures what the
//! CPUs that it may use have left: their idle time, and what the reactors that want to spin use
//! themselves, whether they spin or work: a reactor that spins needs one CPU for both. What is left
//! is handed out in the order in which they began to want it, so that of two reactors and one free
//! CPU one spins, and not none.
//!
//! Other processes' spins count as use: who came first keeps its CPU. Before the first measure a
//! spin is allowed, for [`EVERY`] at most.
//!
//! A control group's quota is counted with that: what it leaves is the most that is free, see
//! [`quota`].
//!
//! The thread sleeps when nobody has wanted to spin for [`FORGET_NS`]: an idle process has no
//! timer.
//!
//! Source: design 4.3; the documents' tapdisk3 polls only while the host has idle CPU (seed-facts
//! 1.1).

mod groups;
mod idle_share;
mod quota;
mod spin_request;
mod stat;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

use groups::Groups;
use idle_share::{IdleMeter, SpinDemand};
use quota::Throttled;
pub(crate) use spin_request::SpinRequest;
use spin_request::UNKNOWN;

use crate::clock_ns;

/// Between two measures.
const EVERY: Duration = Duration::from_millis(100);
/// Who has not wanted to spin for so long does not.
const FORGET_NS: u64 = 1_000_000_000;

/// The thread that measures, and for whom.
#[derive(Debug, Default)]
struct Governor {
    seats: Mutex<Vec<Weak<SpinRequest>>>,
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

static GOVERNOR: OnceLock<Governor> = OnceLock::new();

/// Reserves a seat for the calling thread.
pub(crate) fn register(seat: &Arc<SpinRequest>) {
    let governor = GOVERNOR.get_or_init(Governor::default);
    seat.sit();
    governor.lock().push(Arc::downgrade(seat));
    governor.thread.get_or_init(|| {
        let made = std::thread::Builder::new().name("free-cpus".into()).spawn(run);
        match made {
            Ok(thread) => thread.thread().clone(),
            Err(error) => {
                tracing::warn!("cannot measure free CPUs: {error}; spins are not held back by it");
                std::thread::current()
            }
        }
    });
}

/// Somebody wants to spin. Costs a look when the thread is awake.
fn wanted() {
    if let Some(governor) = GOVERNOR.get()
        && governor.asleep.load(Ordering::Relaxed)
    {
        governor.asleep.store(false, Ordering::Relaxed);
        if let Some(thread) = governor.thread.get() {
            thread.unpark();
        }
    }
}

impl Governor {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Weak<SpinRequest>>> {
        // Every change is one addition or removal.
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that are there.
    fn seats(&self) -> Vec<Arc<SpinRequest>> {
        let mut seats = self.lock();
        seats.retain(|seat| seat.strong_count() > 0);
        seats.iter().filter_map(Weak::upgrade).collect()
    }
}

fn run() {
    let governor = GOVERNOR.get_or_init(Governor::default);
    let mut throttled = Throttled::default();
    loop {
        sleep(governor);
        measure(governor, &mut throttled);
    }
}

/// Until nobody wants to spin any more.
fn measure(governor: &Governor, throttled: &mut Throttled) {
    let mut measure = IdleMeter::default();
    let mut groups = Groups::default();
    throttled.begin();
    loop {
        let seats = governor.seats();
        let now = clock_ns();
        let wants: Vec<_> = seats.iter().filter(|seat| seat.wanted_since(now, FORGET_NS)).collect();
        if wants.is_empty() {
            seats.iter().for_each(|seat| seat.show(UNKNOWN, false));
            return;
        }
        let ours = wants.iter().map(|seat| SpinDemand { tid: seat.tid(), used_ns: seat.cpu_ns() });
        let cpus = wants.iter().flat_map(|seat| seat.cpus());
        // Anew each time: a process can be put into another group.
        let limits = quota::read(groups.now());
        throttled.add(now, &limits);
        match stat::read(cpus) {
            Ok(idle) => measure.add(Instant::now(), idle, ours.collect(), limits),
            Err(error) => {
                static ONCE: std::sync::Once = std::sync::Once::new();
                ONCE.call_once(|| {
                    tracing::warn!(
                        "cannot measure free CPUs: {error}; polling is not held back by it"
                    );
                });
                measure = IdleMeter::default();
            }
        }
        for seat in &seats {
            let tid = seat.tid();
            if measure.has_quota(tid) && !throttled.forbids(now) {
                seat.show(measure.share(tid).unwrap_or(UNKNOWN), false);
            } else {
                seat.show(0, true);
            }
        }
        std::thread::park_timeout(EVERY);
    }
}

/// Until somebody wants to spin.
fn sleep(governor: &Governor) {
    governor.asleep.store(true, Ordering::Relaxed);
    while governor.asleep.load(Ordering::Relaxed) {
        std::thread::park();
    }
}
