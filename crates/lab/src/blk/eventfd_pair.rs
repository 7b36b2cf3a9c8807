//! Bound of a client that sleeps until its reply: two threads, two words and an eventfd.
//!
//! The steps are those of a spinning backend and of the client in [`super::client`], with words in
//! place of the rings:
//!
//! | client | server |
//! |---|---|
//! | reads the clock | spins on the request's word |
//! | writes the request's word; needs no kick | |
//! | checks for the reply once, in vain | *delays the reply until the client sleeps* |
//! | sleeps: `poll` without a deadline, then `read` of the eventfd | writes the reply's word |
//! | checks again, finds it, reads the clock | writes the eventfd |
//!
//! A backend processes a ring between request and reply, and the client falls asleep meanwhile.
//! This server does no work, so an immediate reply would find the client awake. The server
//! therefore delays the reply for [`HOLD`], by its own clock, and the delay is subtracted from the
//! round trip. The rest is the same path, from the request to the collected reply, without any
//! work.

use std::hint::spin_loop;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use hdrhistogram::Histogram;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::client::{PATIENCE, Window, tally};
use crate::cpu::{self, Placement};
use crate::experiment::Sample;

/// Delay of the reply if the client must be asleep.
const HOLD: Duration = Duration::from_micros(1);

/// Note for the reader of the figures.
pub(super) const NOTE: &str = "The bare eventfd pair is a client that writes a word and sleeps on \
    an eventfd, and a thread that spins on that word: the steps of client and backend without a \
    ring. The thread answers at once, while the client may still be awake, or 1 us later, when the \
    client sleeps; then that 1 us is subtracted. Latency counts as for a backend: from before the \
    request is offered until its answer is collected.";

/// Value alone in its cache lines. CPUs fetch pairs of cache lines.
#[repr(align(128))]
struct Line<T>(T);

/// State shared by the two threads.
struct Pair {
    asked: Line<AtomicU64>,
    answered: Line<AtomicU64>,
    /// Delay of the last reply in nanoseconds, ordered by `answered`.
    held_ns: AtomicU64,
    stop: Line<AtomicBool>,
    call: OwnedFd,
}

impl Pair {
    /// Stops both threads. The eventfd wakes a sleeping client.
    fn end(&self) -> Result<()> {
        self.stop.0.store(true, Ordering::Release);
        self.signal()
    }

    fn signal(&self) -> Result<()> {
        let written = rustix::io::write(&self.call, &1u64.to_ne_bytes());
        written.map(drop).context("cannot write an eventfd")
    }
}

/// Measures a pair. With `asleep`, the server replies only when the client sleeps. Otherwise it
/// replies at once.
///
/// # Errors
/// An eventfd or a thread cannot be created.
pub(super) fn measure(placement: Placement, window: Window, asleep: bool) -> Result<Sample> {
    let call = eventfd(0, EventfdFlags::CLOEXEC).context("cannot make an eventfd")?;
    let pair = Arc::new(Pair {
        asked: Line(AtomicU64::new(0)),
        answered: Line(AtomicU64::new(0)),
        held_ns: AtomicU64::new(0),
        stop: Line(AtomicBool::new(false)),
        call,
    });
    let shared = Arc::clone(&pair);
    let hold = if asleep { HOLD } else { Duration::ZERO };
    let server = thread::spawn(move || {
        let served = serve(&shared, placement.backend, hold);
        served.and(shared.end())
    });
    let (send, asked) = channel();
    let shared = Arc::clone(&pair);
    thread::spawn(move || {
        let _ = send.send(ask(&shared, placement.client, window));
    });
    let sample = asked.recv_timeout(window.warm + window.measure + PATIENCE);
    pair.end()?;
    server.join().map_err(|_| anyhow!("the spinning thread panicked"))??;
    sample.context("the spinning thread does not answer")?
}

fn serve(pair: &Pair, cpu: usize, hold: Duration) -> Result<()> {
    cpu::pin(cpu)?;
    let mut seen = 0;
    while !pair.stop.0.load(Ordering::Relaxed) {
        let asked = pair.asked.0.load(Ordering::Acquire);
        if asked == seen {
            spin_loop();
            continue;
        }
        seen = asked;
        if !hold.is_zero() {
            let (since, mut held) = (Instant::now(), Duration::ZERO);
            while held < hold {
                spin_loop();
                held = since.elapsed();
            }
            let ns = u64::try_from(held.as_nanos()).unwrap_or(u64::MAX);
            pair.held_ns.store(ns, Ordering::Relaxed);
        }
        pair.answered.0.store(seen, Ordering::Release);
        pair.signal()?;
    }
    Ok(())
}

fn ask(pair: &Pair, cpu: usize, window: Window) -> Result<Sample> {
    cpu::pin(cpu)?;
    let mut latency_ns = tally::histogram()?;
    let begin = Instant::now();
    let (mut counting, mut number, mut first) = (begin, 0u64, 0u64);
    let mut sleeps = cpu::thread_switches()?;
    let mut warm = true;
    loop {
        let start = Instant::now();
        number += 1;
        pair.asked.0.store(number, Ordering::Release);
        collect(pair, number)?;
        let took = start.elapsed();
        let held = Duration::from_nanos(pair.held_ns.load(Ordering::Relaxed));
        let ns = u64::try_from(took.saturating_sub(held).as_nanos()).unwrap_or(u64::MAX);
        latency_ns.saturating_record(ns.max(1));
        if warm && start - begin >= window.warm {
            (warm, counting, first) = (false, Instant::now(), number);
            latency_ns.reset();
            sleeps = cpu::thread_switches()?;
        } else if !warm && start - counting >= window.measure && number > first {
            break;
        }
    }
    let seconds = counting.elapsed().as_secs_f64();
    let sleeps = cpu::thread_switches()? - sleeps;
    Ok(sample((number - first) as f64, seconds, sleeps as f64, &latency_ns))
}

/// Sleeps until the reply is there.
#[inline]
fn collect(pair: &Pair, number: u64) -> Result<()> {
    while pair.answered.0.load(Ordering::Acquire) != number {
        let mut fds = [PollFd::from_borrowed_fd(pair.call.as_fd(), PollFlags::IN)];
        poll(&mut fds, None).context("cannot wait for an eventfd")?;
        rustix::io::read(&pair.call, &mut [0; 8]).context("cannot read an eventfd")?;
        ensure!(!pair.stop.0.load(Ordering::Acquire), "the spinning thread has ended");
    }
    Ok(())
}

fn sample(requests: f64, seconds: f64, sleeps: f64, latency_ns: &Histogram<u64>) -> Sample {
    let micros = |q: f64| latency_ns.value_at_quantile(q) as f64 / 1e3;
    let metrics = [
        ("requests", requests),
        ("errors", 0.0),
        ("iops", requests / seconds),
        ("p50_us", micros(0.5)),
        ("p99_us", micros(0.99)),
        ("calls_per_request", 1.0),
        ("sleeps_per_request", sleeps / requests),
    ];
    metrics.map(|(name, value)| (name.to_owned(), value)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alone;

    #[test]
    fn a_sleeping_thread_is_woken_and_both_end() {
        let _alone = alone();
        let placement = Placement::choose().unwrap();
        for asleep in [false, true] {
            let window = Window::of(Duration::from_millis(10));
            let sample = measure(placement, window, asleep).unwrap();
            assert!(sample["requests"] >= 1.0 && sample["p50_us"] > 0.0, "{sample:?}");
            let none = Window::of(Duration::ZERO);
            assert!(measure(Placement { backend: 9999, ..placement }, none, asleep).is_err());
            assert!(measure(Placement { client: 9999, ..placement }, none, asleep).is_err());
        }
    }
}
