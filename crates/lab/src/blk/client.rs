//! The neutral client: as little as possible between the `virtio-driver` crate and the figures.
//!
//! One thread on one CPU keeps `depth` requests in flight. Its loop allocates nothing, submits all
//! freed slots before it kicks once, and reads the clock for one request in [`Load::sample_every`]
//! only. The window is opened and closed by another thread through an atomic, which the loop loads
//! once per turn.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use hdrhistogram::Histogram;
use testkit::driver::{Driver, Options, Queue, Waker};

use crate::cpu;
use crate::experiment::Sample;
use crate::host::HostTime;

/// Where requests go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Anywhere on the disk, in multiples of the request's size.
    Random,
    /// One after the other, over and over.
    Sequential,
}

/// How the client waits for completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Asleep on the call eventfd.
    Sleep,
    /// Looking at the used ring all the time; it asks for no calls.
    Poll,
}

/// What the client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Where requests go.
    pub pattern: Pattern,
    /// Bytes of one read.
    pub bytes: usize,
    /// Requests in flight.
    pub depth: u16,
    /// How it waits.
    pub wait: Wait,
    /// One latency is taken every so many turns of the loop.
    pub sample_every: u32,
}

/// How long a sample takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Load before the figures count.
    pub warm: Duration,
    /// Figures count.
    pub measure: Duration,
}

/// How long a backend may take to finish what is in flight, and a client to connect.
const PATIENCE: Duration = Duration::from_secs(10);

/// Latencies above this are counted as this, in nanoseconds.
const LATENCY_NS_MAX: u64 = 10_000_000_000;

/// Phases of a client, in order.
mod phase {
    pub(super) const WARM: u8 = 0;
    pub(super) const MEASURE: u8 = 1;
    pub(super) const STOP: u8 = 2;
    pub(super) const ABANDON: u8 = 3;
}

/// What the client counted inside the window.
struct Tally {
    requests: u64,
    errors: u64,
    turns: u64,
    kicks: u64,
    calls: u64,
    wall_s: f64,
    cpu_s: f64,
    latency_ns: Histogram<u64>,
}

/// Measures one backend once. `backend_time` gives the CPU seconds it used so far.
///
/// # Errors
/// If the backend refuses the client, fails a request, or stops answering.
pub fn measure(
    socket: &Path,
    load: Load,
    window: Window,
    client_cpu: usize,
    backend_time: impl Fn() -> Result<f64>,
) -> Result<Sample> {
    let state = Arc::new(AtomicU8::new(phase::WARM));
    let (ready, wakers) = channel();
    let (send, tallies) = channel();
    let (path, client_state) = (socket.to_owned(), Arc::clone(&state));
    let client = move || {
        let _ = send.send(run(&path, load, client_cpu, &client_state, &ready));
    };
    thread::Builder::new().name("client".into()).spawn(client).context("cannot start a client")?;
    let Ok(waker) = wakers.recv_timeout(PATIENCE) else {
        let reason = tallies.try_recv().ok().and_then(Result::err);
        return Err(reason.unwrap_or_else(|| anyhow!("the backend did not answer the client")));
    };
    wait_phase(&tallies, window.warm)?;
    let (cpu, host) = (backend_time()?, HostTime::now()?);
    let start = Instant::now();
    state.store(phase::MEASURE, Ordering::Relaxed);
    wait_phase(&tallies, window.measure)?;
    state.store(phase::STOP, Ordering::Relaxed);
    let (cpu, wall_s) = (backend_time()? - cpu, start.elapsed().as_secs_f64());
    let busy_s = HostTime::now()?.busy_s - host.busy_s;
    let tally = finish(&tallies, &state, &waker)?;
    let other_s = (busy_s - cpu - tally.cpu_s).max(0.0);
    let mut sample = to_sample(&tally, load, cpu / wall_s)?;
    sample.insert("other_cpus".into(), other_s / wall_s);
    Ok(sample)
}

/// Writes a whole disk once, so that its memory is there before anything is measured.
///
/// # Errors
/// If the backend fails a write or does not answer.
pub fn fill(socket: &Path) -> Result<()> {
    let options = Options { slots: 8, slot_bytes: 128 << 10, ..Options::default() };
    let driver = Driver::connect(socket, &options)?;
    let pieces = driver.disk.bytes / options.slot_bytes as u64;
    let mut queue = driver.into_queue()?;
    let mut free: Vec<u16> = (0..options.slots).collect();
    for piece in 0..pieces {
        let slot = match free.pop() {
            Some(slot) => slot,
            None => written(queue.finish_one()?)?,
        };
        queue.write(piece * options.slot_bytes as u64, slot, options.slot_bytes)?;
    }
    for _ in free.len()..usize::from(options.slots) {
        written(queue.finish_one()?)?;
    }
    Ok(())
}

fn written((slot, ret): (u16, i32)) -> Result<u16> {
    if ret == 0 { Ok(slot) } else { bail!("a write failed with {ret}") }
}

/// Lets the client run; it reports early only if it failed.
fn wait_phase(tallies: &Receiver<Result<Tally>>, how_long: Duration) -> Result<()> {
    match tallies.recv_timeout(how_long) {
        Err(RecvTimeoutError::Timeout) => Ok(()),
        Ok(Err(error)) => Err(error),
        Ok(Ok(_)) | Err(RecvTimeoutError::Disconnected) => bail!("the client ended too early"),
    }
}

/// Collects the tally; a client that still waits for its backend is woken and told to give up.
fn finish(tallies: &Receiver<Result<Tally>>, state: &AtomicU8, waker: &Waker) -> Result<Tally> {
    if let Ok(tally) = tallies.recv_timeout(PATIENCE) {
        return tally;
    }
    state.store(phase::ABANDON, Ordering::Relaxed);
    waker.wake()?;
    let last = tallies.recv_timeout(PATIENCE).context("the client cannot be stopped")?;
    last.and_then(|_| bail!("the backend stopped answering"))
}

fn to_sample(tally: &Tally, load: Load, backend_cpus: f64) -> Result<Sample> {
    if tally.errors > 0 {
        bail!("{} of {} requests failed", tally.errors, tally.requests);
    }
    if tally.requests == 0 {
        bail!("the backend stopped answering");
    }
    let requests = tally.requests as f64;
    let iops = requests / tally.wall_s;
    let micros = |q: f64| tally.latency_ns.value_at_quantile(q) as f64 / 1e3;
    let metrics = [
        ("requests", requests),
        ("errors", tally.errors as f64),
        ("iops", iops),
        ("mib_per_s", iops * load.bytes as f64 / f64::from(1 << 20)),
        ("p50_us", micros(0.50)),
        ("p99_us", micros(0.99)),
        ("latency_samples", tally.latency_ns.len() as f64),
        ("backend_cpus", backend_cpus),
        ("backend_cpu_us_per_request", backend_cpus * 1e6 / iops),
        ("client_cpus", tally.cpu_s / tally.wall_s),
        ("kicks_per_request", tally.kicks as f64 / requests),
        ("calls_per_request", tally.calls as f64 / requests),
        ("turns_per_request", tally.turns as f64 / requests),
    ];
    Ok(metrics.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// The client's thread.
fn run(
    socket: &Path,
    load: Load,
    client_cpu: usize,
    state: &AtomicU8,
    ready: &Sender<Waker>,
) -> Result<Tally> {
    cpu::pin(client_cpu)?;
    let options = Options { slots: load.depth, slot_bytes: load.bytes, ..Options::default() };
    let driver = Driver::connect(socket, &options)?;
    let blocks = driver.disk.bytes / load.bytes as u64;
    if blocks < u64::from(load.depth) {
        bail!("a disk of {} bytes is too small for this load", driver.disk.bytes);
    }
    let mut queue = driver.into_queue()?;
    queue.want_calls(load.wait == Wait::Sleep);
    let _ = ready.send(queue.waker());
    Client::new(queue, load, blocks)?.run(state)
}

struct Client {
    queue: Queue,
    load: Load,
    offsets: Offsets,
    freed: Vec<u16>,
    errors: u64,
    /// The slot whose latency is being taken, and since when.
    sampled: Option<(u16, Instant)>,
    latency_ns: Histogram<u64>,
}

impl Client {
    fn new(queue: Queue, load: Load, blocks: u64) -> Result<Self> {
        Ok(Self {
            queue,
            load,
            offsets: Offsets::new(load, blocks),
            freed: (0..load.depth).collect(),
            errors: 0,
            sampled: None,
            latency_ns: Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)
                .context("cannot create a histogram")?,
        })
    }

    /// Runs until told to stop, then waits for what is in flight.
    fn run(mut self, state: &AtomicU8) -> Result<Tally> {
        let mut counting = false;
        let (mut requests, mut turns) = (0u64, 0u64);
        let mut since = Mark::now(&self.queue);
        let mut until_sample = self.load.sample_every;
        self.submit_freed(false)?;
        loop {
            let done = self.reap();
            turns += 1;
            if done == 0 && self.load.wait == Wait::Sleep {
                self.queue.sleep()?;
            }
            requests += u64::from(done);
            let phase = state.load(Ordering::Relaxed);
            if phase != phase::WARM && !counting {
                // On a busy host the window may be over before we see that it began.
                counting = true;
                (requests, turns) = (0, 0);
                self.latency_ns.reset();
                since = Mark::now(&self.queue);
            } else if phase == phase::ABANDON || phase == phase::STOP && requests > 0 {
                break;
            }
            if done > 0 {
                until_sample -= 1;
                let sample = until_sample == 0;
                if sample {
                    until_sample = self.load.sample_every;
                }
                self.submit_freed(sample)?;
            }
        }
        let end = Mark::now(&self.queue);
        let latency_ns = self.latency_ns.clone();
        self.drain(state)?;
        Ok(Tally {
            requests,
            errors: self.errors,
            turns,
            kicks: end.kicks - since.kicks,
            calls: end.calls - since.calls,
            wall_s: (end.at - since.at).as_secs_f64(),
            cpu_s: end.cpu_s - since.cpu_s,
            latency_ns,
        })
    }

    /// Takes completions; gives how many.
    #[inline]
    fn reap(&mut self) -> u32 {
        let Self { queue, freed, errors, sampled, latency_ns, .. } = self;
        queue.completions(|slot, ret| {
            freed.push(slot);
            *errors += u64::from(ret != 0);
            if let Some((_, start)) = sampled.take_if(|(wanted, _)| *wanted == slot) {
                let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
                latency_ns.saturating_record(ns.max(1));
            }
        })
    }

    /// Uses every freed slot again, then kicks once.
    #[inline]
    fn submit_freed(&mut self, sample: bool) -> Result<()> {
        if sample && self.sampled.is_none() {
            self.sampled = self.freed.first().map(|slot| (*slot, Instant::now()));
        }
        for slot in self.freed.drain(..) {
            self.queue.read(self.offsets.next(), slot, self.load.bytes)?;
        }
        self.queue.kick()?;
        Ok(())
    }

    fn drain(&mut self, state: &AtomicU8) -> Result<()> {
        while self.freed.len() < usize::from(self.load.depth) {
            if self.reap() == 0 && self.load.wait == Wait::Sleep {
                self.queue.sleep()?;
            }
            if state.load(Ordering::Relaxed) == phase::ABANDON {
                bail!("the backend stopped answering");
            }
        }
        Ok(())
    }
}

/// Counters at a moment.
struct Mark {
    at: Instant,
    cpu_s: f64,
    kicks: u64,
    calls: u64,
}

impl Mark {
    fn now(queue: &Queue) -> Self {
        let (kicks, calls) = (queue.kicks, queue.calls);
        Self { at: Instant::now(), cpu_s: cpu::thread_time_s(), kicks, calls }
    }
}

/// Byte offsets of requests, the same sequence in every sample.
struct Offsets {
    load: Load,
    blocks: u64,
    state: u64,
}

impl Offsets {
    fn new(load: Load, blocks: u64) -> Self {
        let state = if load.pattern == Pattern::Random { 0x9e37_79b9_7f4a_7c15 } else { 0 };
        Self { load, blocks, state }
    }

    #[inline]
    fn next(&mut self) -> u64 {
        let block = match self.load.pattern {
            Pattern::Sequential => {
                let block = self.state;
                self.state = if block + 1 == self.blocks { 0 } else { block + 1 };
                block
            }
            Pattern::Random => {
                // Xorshift; the high half of the product maps it onto the blocks without a division.
                self.state ^= self.state << 13;
                self.state ^= self.state >> 7;
                self.state ^= self.state << 17;
                ((u128::from(self.state) * u128::from(self.blocks)) >> 64) as u64
            }
        };
        block * self.load.bytes as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(pattern: Pattern) -> Load {
        Load { pattern, bytes: 4096, depth: 1, wait: Wait::Poll, sample_every: 1 }
    }

    #[test]
    fn offsets_stay_on_the_disk_and_spread() {
        let mut random = Offsets::new(load(Pattern::Random), 10);
        let mut hits = [0; 10];
        for _ in 0..1000 {
            let offset = random.next();
            assert_eq!(offset % 4096, 0);
            hits[(offset / 4096) as usize] += 1;
        }
        assert!(hits.iter().all(|h| *h > 50), "{hits:?}");
        let mut sequential = Offsets::new(load(Pattern::Sequential), 2);
        let three: Vec<u64> = (0..3).map(|_| sequential.next()).collect();
        assert_eq!(three, [0, 4096, 0]);
    }
}
