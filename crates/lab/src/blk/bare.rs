//! Bounds that are no disks: a wake-up by an eventfd, and a copy of memory.

use std::hint::{black_box, spin_loop};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::client::{Load, Window, tally};
use crate::cpu::{self, Placement};
use crate::experiment::Sample;

/// How long a wake-up may take.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// How long after it was asked the spinning thread lets the other fall asleep.
const ASLEEP_AFTER: Duration = Duration::from_micros(5);

/// What two threads share.
struct Pair {
    begin: Instant,
    asked: AtomicU64,
    /// When the last answer was given, in nanoseconds since `begin`.
    answered_ns: AtomicU64,
    stop: AtomicBool,
    call: OwnedFd,
}

/// A thread that sleeps on an eventfd, and one that spins on a word and writes the eventfd when it
/// changes: what any backend that spins does for a client, and nothing else. It answers within a
/// tenth of a microsecond, before the client can fall asleep; with `asleep` it gives it the time to,
/// and what counts is the way from the answer to the client.
///
/// # Errors
/// If the system has no eventfd or thread.
pub(super) fn pair(placement: Placement, window: Window, asleep: bool) -> Result<Sample> {
    let call = eventfd(0, EventfdFlags::CLOEXEC).context("cannot make an eventfd")?;
    let pair = Arc::new(Pair {
        begin: Instant::now(),
        asked: AtomicU64::new(0),
        answered_ns: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        call,
    });
    let shared = Arc::clone(&pair);
    let server = thread::spawn(move || {
        let served = serve(&shared, placement.backend, asleep);
        // A client that sleeps finds out by being woken.
        shared.stop.store(true, Ordering::Release);
        let woken = rustix::io::write(&shared.call, &1u64.to_ne_bytes());
        served.and(woken.map(drop).context("cannot write an eventfd"))
    });
    let (send, asked) = channel();
    let shared = Arc::clone(&pair);
    thread::spawn(move || {
        let _ = send.send(ask(&shared, placement.client, window, asleep));
    });
    let sample = asked.recv().context("the client is gone")?;
    pair.stop.store(true, Ordering::Relaxed);
    server.join().map_err(|_| anyhow!("the server panicked"))??;
    sample
}

fn serve(pair: &Pair, cpu: usize, asleep: bool) -> Result<()> {
    cpu::pin(cpu)?;
    let mut seen = 0;
    while !pair.stop.load(Ordering::Relaxed) {
        let asked = pair.asked.load(Ordering::Acquire);
        if asked == seen {
            spin_loop();
            continue;
        }
        seen = asked;
        if asleep {
            let until = Instant::now() + ASLEEP_AFTER;
            while Instant::now() < until {
                spin_loop();
            }
            let ns = u64::try_from(pair.begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            pair.answered_ns.store(ns, Ordering::Relaxed);
        }
        rustix::io::write(&pair.call, &1u64.to_ne_bytes()).context("cannot write an eventfd")?;
    }
    Ok(())
}

/// Waits and reads in two steps, as the driver's client does.
fn ask(pair: &Pair, cpu: usize, window: Window, asleep: bool) -> Result<Sample> {
    cpu::pin(cpu)?;
    let mut latency_ns = tally::histogram()?;
    let begin = Instant::now();
    let (mut counting, mut requests) = (begin, 0u64);
    let mut warm = true;
    loop {
        let now = Instant::now();
        if warm && now - begin >= window.warm {
            (warm, counting, requests) = (false, now, 0);
            latency_ns.reset();
        } else if !warm && now - counting >= window.measure && requests > 0 {
            break;
        }
        pair.asked.fetch_add(1, Ordering::Release);
        let mut fds = [PollFd::from_borrowed_fd(pair.call.as_fd(), PollFlags::IN)];
        let woken = poll(&mut fds, Some(&PATIENCE)).context("cannot wait for an eventfd")?;
        ensure!(woken > 0, "the spinning thread does not answer");
        rustix::io::read(&pair.call, &mut [0; 8]).context("cannot read an eventfd")?;
        ensure!(!pair.stop.load(Ordering::Acquire), "the spinning thread has ended");
        // Written before the eventfd, which orders them.
        let answered = Duration::from_nanos(pair.answered_ns.load(Ordering::Relaxed));
        tally::record(&mut latency_ns, if asleep { pair.begin + answered } else { now });
        requests += 1;
    }
    let micros = |q: f64| latency_ns.value_at_quantile(q) as f64 / 1e3;
    let iops = requests as f64 / counting.elapsed().as_secs_f64();
    let metrics = [
        ("requests", requests as f64),
        ("errors", 0.0),
        ("iops", iops),
        ("p50_us", micros(0.5)),
        ("p99_us", micros(0.99)),
        ("calls_per_request", 1.0),
    ];
    Ok(metrics.map(|(name, value)| (name.to_owned(), value)).into())
}

/// Pages begin at multiples of this.
const PAGE_BYTES: usize = 4096;

/// Copies what the load's requests would read, from a disk's worth of memory into as many buffers as
/// it has requests in flight, by glibc's memcpy on the backend's CPU.
///
/// # Errors
/// If there is no thread, or too little memory.
pub(super) fn memcpy(
    placement: Placement,
    load: Load,
    window: Window,
    disk_bytes: u64,
) -> Result<Sample> {
    let copy = move || -> Result<Sample> {
        cpu::pin(placement.backend)?;
        copies(load, window, usize::try_from(disk_bytes)?)
    };
    thread::spawn(copy).join().map_err(|_| anyhow!("the copying thread panicked"))?
}

fn copies(load: Load, window: Window, disk_bytes: usize) -> Result<Sample> {
    let (bytes, depth) = (load.bytes, usize::from(load.depth));
    let mut source = vec![1u8; disk_bytes + PAGE_BYTES];
    let mut target = vec![2u8; bytes * depth + PAGE_BYTES];
    let (from, to) = (aligned(&source), aligned(&target));
    // Written page by page: what the allocator gives is one page of zeroes otherwise.
    source.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 3);
    let mut addresses = super::client::addresses(load, disk_bytes as u64);
    let clock_ns = clock_ns();
    let mut latency_ns = tally::histogram()?;
    let begin = Instant::now();
    let (mut counting, mut count) = (begin, 0usize);
    let mut warm = true;
    loop {
        let start = Instant::now();
        if warm && start - begin >= window.warm {
            (warm, counting, count) = (false, start, 0);
            latency_ns.reset();
        } else if !warm && start - counting >= window.measure && count > 0 {
            break;
        }
        // As many as the client has in flight, so that the clock does not weigh on small ones.
        for slot in 0..depth {
            let offset = from + usize::try_from(addresses())?;
            let source = source.get(offset..offset + bytes).context("past the end")?;
            let at = to + slot * bytes;
            target.get_mut(at..at + bytes).context("past the end")?.copy_from_slice(source);
            black_box(&mut target);
            count += 1;
        }
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        latency_ns.saturating_record((ns.saturating_sub(clock_ns) / depth as u64).max(1));
    }
    let iops = count as f64 / counting.elapsed().as_secs_f64();
    let micros = |q: f64| latency_ns.value_at_quantile(q) as f64 / 1e3;
    let metrics = [
        ("requests", count as f64),
        ("errors", 0.0),
        ("iops", iops),
        ("mib_per_s", iops * bytes as f64 / f64::from(1 << 20)),
        ("p50_us", micros(0.5)),
        ("p99_us", micros(0.99)),
    ];
    Ok(metrics.map(|(name, value)| (name.to_owned(), value)).into())
}

/// The first page's place in an allocation.
fn aligned(memory: &[u8]) -> usize {
    memory.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES)
}

/// What reading the clock adds to a time.
fn clock_ns() -> u64 {
    let each = (0..1000).map(|_| Instant::now().elapsed().as_nanos());
    u64::try_from(each.min().unwrap_or(0)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeping_thread_is_woken_and_both_end() {
        let placement = Placement::choose().unwrap();
        for asleep in [false, true] {
            let sample = pair(placement, Window::of(Duration::from_millis(10)), asleep).unwrap();
            assert!(sample["requests"] >= 1.0 && sample["p50_us"] > 0.0, "{sample:?}");
            let none = Window::of(Duration::ZERO);
            assert!(pair(Placement { backend: 9999, ..placement }, none, asleep).is_err());
            assert!(pair(Placement { client: 9999, ..placement }, none, asleep).is_err());
        }
    }

    #[test]
    fn copies_are_counted() {
        let placement = Placement::choose().unwrap();
        let load = Load { bytes: 128 << 10, depth: 8, ..Load::default() };
        let window = Window::of(Duration::from_millis(10));
        let sample = memcpy(placement, load, window, 4 << 20).unwrap();
        assert!(sample["requests"] >= 8.0 && sample["requests"] % 8.0 == 0.0, "{sample:?}");
    }
}
