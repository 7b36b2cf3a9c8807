//! Measures how much CPU time is free for reactors that want to spin.
//!
//! A spinning reactor takes a whole CPU. That is harmless while the CPU would be idle, and slows
//! guests down otherwise. So while a reactor spins or wants to, a thread measures the free time of
//! the CPUs that the reactor may use. Free is the CPUs' idle time plus the time that the reactors
//! that want to spin use themselves. Their work counts like their spins, because a spinning reactor
//! needs one CPU for both. Reactors are served in the order in which they began to want a CPU. So
//! of two reactors and one free CPU, one reactor spins instead of none.
//!
//! The spins of other processes count as use: the first process keeps its CPU. Before the first
//! measurement a spin is allowed, for [`MEASURE_INTERVAL`] at most.
//!
//! The quota of a control group limits the free time, see [`quota`].
//!
//! The thread sleeps when no reactor has wanted to spin for [`FORGET_NS`]: an idle process has no
//! timer.

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

/// Time between two measurements.
const MEASURE_INTERVAL: Duration = Duration::from_millis(100);
/// Time after which a reactor that did not ask to spin no longer counts.
const FORGET_NS: u64 = 1_000_000_000;

/// Thread that measures, and the reactors that it measures for.
#[derive(Debug, Default)]
struct FreeCpuMonitor {
    spin_requests: Mutex<Vec<Weak<SpinRequest>>>,
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

static MONITOR: OnceLock<FreeCpuMonitor> = OnceLock::new();

/// Registers the calling thread as a reactor that may want to spin.
pub(crate) fn register(spin_request: &Arc<SpinRequest>) {
    let monitor = MONITOR.get_or_init(FreeCpuMonitor::default);
    spin_request.bind_thread();
    monitor.lock().push(Arc::downgrade(spin_request));
    monitor.thread.get_or_init(|| {
        let made = std::thread::Builder::new().name("free-cpus".into()).spawn(run);
        match made {
            Ok(thread) => thread.thread().clone(),
            Err(error) => {
                tracing::warn!("cannot measure free CPUs: {error}; they do not limit polling");
                std::thread::current()
            }
        }
    });
}

/// Wakes the measuring thread if it sleeps. Costs one load while the thread is awake.
fn wake_monitor() {
    if let Some(monitor) = MONITOR.get()
        && monitor.asleep.load(Ordering::Relaxed)
    {
        monitor.asleep.store(false, Ordering::Relaxed);
        if let Some(thread) = monitor.thread.get() {
            thread.unpark();
        }
    }
}

impl FreeCpuMonitor {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Weak<SpinRequest>>> {
        // A poisoned lock is usable: every change is a single addition or removal.
        self.spin_requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all registered reactors that still exist.
    fn live_requests(&self) -> Vec<Arc<SpinRequest>> {
        let mut spin_requests = self.lock();
        spin_requests.retain(|spin_request| spin_request.strong_count() > 0);
        spin_requests.iter().filter_map(Weak::upgrade).collect()
    }
}

fn run() {
    let monitor = MONITOR.get_or_init(FreeCpuMonitor::default);
    let mut throttled = Throttled::default();
    loop {
        sleep(monitor);
        measure(monitor, &mut throttled);
    }
}

/// Measures until no reactor wants to spin any more.
fn measure(monitor: &FreeCpuMonitor, throttled: &mut Throttled) {
    let mut idle_meter = IdleMeter::default();
    let mut groups = Groups::default();
    throttled.begin();
    loop {
        let spin_requests = monitor.live_requests();
        let now = clock_ns();
        let wants: Vec<_> = spin_requests
            .iter()
            .filter(|spin_request| spin_request.wanted_since(now, FORGET_NS))
            .collect();
        if wants.is_empty() {
            spin_requests.iter().for_each(|spin_request| spin_request.publish(UNKNOWN, false));
            return;
        }
        let ours = wants.iter().map(|spin_request| SpinDemand {
            tid: spin_request.tid(),
            used_ns: spin_request.cpu_ns(),
        });
        let cpus = wants.iter().flat_map(|spin_request| spin_request.cpus());
        // Read anew each time: a process can be moved to another group.
        let limits = quota::read(groups.now());
        throttled.add(now, &limits);
        match stat::read(cpus) {
            Ok(idle) => idle_meter.add(Instant::now(), idle, ours.collect(), limits),
            Err(error) => {
                static ONCE: std::sync::Once = std::sync::Once::new();
                ONCE.call_once(|| {
                    tracing::warn!("cannot measure free CPUs: {error}; they do not limit polling");
                });
                idle_meter = IdleMeter::default();
            }
        }
        for spin_request in &spin_requests {
            let tid = spin_request.tid();
            if idle_meter.has_quota(tid) && !throttled.forbids(now) {
                spin_request.publish(idle_meter.share(tid).unwrap_or(UNKNOWN), false);
            } else {
                spin_request.publish(0, true);
            }
        }
        std::thread::park_timeout(MEASURE_INTERVAL);
    }
}

/// Sleeps until a reactor wants to spin.
fn sleep(monitor: &FreeCpuMonitor) {
    monitor.asleep.store(true, Ordering::Relaxed);
    while monitor.asleep.load(Ordering::Relaxed) {
        std::thread::park();
    }
}
