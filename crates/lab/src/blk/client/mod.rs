//! Neutral client, with little code between the `virtio-driver` crate and the figures.
//!
//! Each queue has a thread. In a closed loop ([`Arrivals::Next`], [`Arrivals::Think`]) it keeps
//! `depth` requests in flight. This loop allocates nothing, submits all freed slots before it kicks
//! once, and reads the clock for one request in [`Load::sample_every`]. In an open loop
//! ([`Arrivals::Poisson`]), requests are due at fixed times, independent of the backend. Latencies
//! count from then. Another thread opens and closes the window through an atomic, which the loop
//! loads once per turn.

pub(super) mod burst;
mod closed;
mod load;
pub(crate) mod offsets;
mod open;
pub(crate) mod tally;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use testkit::driver::{Driver, Options, Queue, Waker};

use crate::cpu;
use crate::experiment::Sample;
use crate::host::HostTime;
pub use load::{Access, Arrivals, Load, Pattern, Wait, Window};
use tally::{Tally, to_sample};

/// Queue for a client, reusable after a sample.
pub struct ClientQueue {
    /// Driver's queue.
    pub queue: Queue,
    /// Size of the disk in bytes.
    pub disk_bytes: u64,
    /// CPU of the client. `None` means any CPU of this process.
    pub cpu: Option<usize>,
}

/// Longest time for a backend to finish its requests, and for a client to connect. After it they
/// count as hung. No figure depends on it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Phases of a client, in order.
mod phase {
    pub(super) const WARM: u8 = 0;
    pub(super) const MEASURE: u8 = 1;
    pub(super) const STOP: u8 = 2;
    pub(super) const ABANDON: u8 = 3;
}

/// Connects to a backend. Fails if the backend does not respond for 60 s.
///
/// # Errors
/// The backend refuses the client or does not respond.
pub fn connect(socket: &Path, options: Options) -> Result<Driver> {
    let (send, connected) = channel();
    let path = socket.to_owned();
    let connect = move || {
        let _ = send.send(Driver::connect(&path, &options));
    };
    thread::Builder::new()
        .name("connect".into())
        .spawn(connect)
        .context("cannot start a thread")?;
    match connected.recv_timeout(PATIENCE) {
        Ok(driver) => Ok(driver?),
        Err(_) => Err(anyhow!("{}: the backend did not answer the client", socket.display())),
    }
}

/// Connects to every queue of a disk for one load.
///
/// # Errors
/// Those of [`connect`], or the disk is too small for the load.
pub fn seats(
    socket: &Path,
    load: Load,
    queues: u16,
    cpu: Option<usize>,
) -> Result<Vec<ClientQueue>> {
    let driver = connect(socket, Options { queues, ..load.driver() })?;
    let disk_bytes = driver.disk.bytes;
    let small = disk_bytes / (load.bytes as u64) < u64::from(load.depth);
    ensure!(!small, "a disk of {disk_bytes} bytes is too small for this load");
    Ok(driver.queues.into_iter().map(|queue| ClientQueue { queue, disk_bytes, cpu }).collect())
}

/// Measures one backend once with one client. `backend_time` returns the CPU seconds that the
/// backend has used.
///
/// # Errors
/// The backend refuses the client, fails a request, or stops responding.
pub fn measure(
    socket: &Path,
    load: Load,
    window: Window,
    client_cpu: usize,
    backend_time: impl Fn() -> Result<f64>,
) -> Result<Sample> {
    let client_queues = seats(socket, load, 1, Some(client_cpu))?;
    measure_all(client_queues, load, window, backend_time).map(|(sample, _)| sample)
}

/// Measures once with several concurrent clients. Returns the sum of their figures, and their
/// queues.
///
/// # Errors
/// The backend fails a request or stops responding.
pub fn measure_all(
    client_queues: Vec<ClientQueue>,
    load: Load,
    window: Window,
    backend_time: impl Fn() -> Result<f64>,
) -> Result<(Sample, Vec<ClientQueue>)> {
    let clients = Clients::start(client_queues, load)?;
    clients.wait_phase(window.warm)?;
    let (cpu, host) = (backend_time()?, HostTime::now()?);
    let start = Instant::now();
    clients.state.store(phase::MEASURE, Ordering::Relaxed);
    clients.wait_phase(window.measure)?;
    clients.state.store(phase::STOP, Ordering::Relaxed);
    let (cpu, wall_s) = (backend_time()? - cpu, start.elapsed().as_secs_f64());
    let busy_s = HostTime::now()?.busy_s - host.busy_s;
    let (tallies, client_queues): (Vec<Tally>, Vec<ClientQueue>) =
        clients.finish()?.into_iter().unzip();
    let mut sample = to_sample(&tallies, load, cpu / wall_s)?;
    let clients_s: f64 = tallies.iter().map(|tally| tally.cpu_s).sum();
    let other_s = (busy_s - cpu - clients_s).max(0.0);
    sample.insert("other_cpus".into(), other_s / wall_s);
    Ok((sample, client_queues))
}

/// Running clients.
struct Clients {
    state: Arc<AtomicU8>,
    wakers: Vec<Waker>,
    done: Receiver<Result<(Tally, ClientQueue)>>,
}

impl Clients {
    fn start(client_queues: Vec<ClientQueue>, load: Load) -> Result<Self> {
        let state = Arc::new(AtomicU8::new(phase::WARM));
        let (send, done) = channel();
        let mut wakers = Vec::new();
        for (number, client_queue) in client_queues.into_iter().enumerate() {
            wakers.push(client_queue.queue.waker());
            let (state, send) = (Arc::clone(&state), send.clone());
            let client = move || {
                let _ = send.send(run(client_queue, number, load, &state));
            };
            let thread = thread::Builder::new().name(format!("client {number}"));
            thread.spawn(client).context("cannot start a client")?;
        }
        Ok(Self { state, wakers, done })
    }

    /// Waits while the clients run. A client that reports during this time has failed.
    fn wait_phase(&self, how_long: Duration) -> Result<()> {
        match self.done.recv_timeout(how_long) {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Ok(Err(error)) => Err(error),
            Ok(Ok(_)) | Err(RecvTimeoutError::Disconnected) => bail!("the client ended too early"),
        }
    }

    /// Collects the tallies. Wakes clients that still wait for their backend, and makes them fail.
    fn finish(&self) -> Result<Vec<(Tally, ClientQueue)>> {
        let mut all = Vec::new();
        let until = Instant::now() + PATIENCE;
        while all.len() < self.wakers.len() {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(done) = self.done.recv_timeout(left) else {
                self.state.store(phase::ABANDON, Ordering::Relaxed);
                self.wakers.iter().try_for_each(Waker::wake)?;
                let last = self.done.recv_timeout(PATIENCE);
                let last = last.context("the client cannot be stopped")?;
                return last.and_then(|_| bail!("the backend stopped answering"));
            };
            all.push(done?);
        }
        Ok(all)
    }
}

/// Runs a client on its own thread.
fn run(
    client_queue: ClientQueue,
    number: usize,
    load: Load,
    state: &AtomicU8,
) -> Result<(Tally, ClientQueue)> {
    if let Some(cpu) = client_queue.cpu {
        cpu::pin(cpu)?;
    }
    let ClientQueue { mut queue, disk_bytes, cpu } = client_queue;
    queue.want_calls(load.wait == Wait::Sleep);
    fill_buffers(&mut queue, load)?;
    let offsets = offsets::Offsets::new(load, disk_bytes / load.bytes as u64, number);
    let (tally, queue) = match load.arrivals {
        Arrivals::Next => closed::run(queue, load, offsets, Duration::ZERO, state)?,
        Arrivals::Think(time) => closed::run(queue, load, offsets, time, state)?,
        Arrivals::Poisson(per_second) => open::run(queue, load, offsets, per_second, state)?,
    };
    Ok((tally, ClientQueue { queue, disk_bytes, cpu }))
}

/// Fills the buffers of a load that writes. Zeroes might be stored as a hole.
pub(crate) fn fill_buffers(queue: &mut Queue, load: Load) -> Result<()> {
    let filled = if load.access == Access::Write { load.depth } else { 0 };
    Ok((0..filled).try_for_each(|slot| queue.fill(slot, &vec![0xa5; load.bytes]))?)
}

/// Submits a request of the load at byte `offset`.
#[inline]
pub(crate) fn submit(queue: &mut Queue, load: Load, offset: u64, slot: u16) -> Result<()> {
    match load.access {
        Access::Read => queue.read(offset, slot, load.bytes)?,
        Access::Write => queue.write(offset, slot, load.bytes)?,
    }
    Ok(())
}

/// Returns a function that yields the load's addresses in bytes.
pub(super) fn addresses(load: Load, disk_bytes: u64) -> impl FnMut() -> Result<u64> {
    let mut offsets = offsets::Offsets::new(load, disk_bytes / load.bytes as u64, 0);
    move || offsets.next()
}

/// Writes a whole disk once, so that its memory is allocated before a measurement.
///
/// # Errors
/// The backend fails a write or does not respond.
pub fn fill(socket: &Path) -> Result<()> {
    fill_every(socket, 1, 0)
}

/// Writes every `step`-th piece of 128 KiB of a disk once, from piece number `first` on, then
/// flushes.
///
/// # Errors
/// Those of [`fill`].
pub(super) fn fill_every(socket: &Path, step: usize, first: u64) -> Result<()> {
    let options = Options { slots: 8, slot_bytes: 128 << 10, ..Options::default() };
    let driver = connect(socket, options.clone())?;
    let pieces = driver.disk.bytes / options.slot_bytes as u64;
    let mut queue = driver.into_queue()?;
    let mut free: Vec<u16> = (0..options.slots).collect();
    for slot in &free {
        queue.fill(*slot, &vec![0x5a; options.slot_bytes])?;
    }
    for piece in (first..pieces).step_by(step) {
        let slot = match free.pop() {
            Some(slot) => slot,
            None => written(queue.finish_one()?)?,
        };
        queue.write(piece * options.slot_bytes as u64, slot, options.slot_bytes)?;
    }
    for _ in free.len()..usize::from(options.slots) {
        written(queue.finish_one()?)?;
    }
    queue.flush(0)?;
    written(queue.finish_one()?).map(drop)
}

fn written((slot, ret): (u16, i32)) -> Result<u16> {
    if ret == 0 { Ok(slot) } else { bail!("a write failed with {ret}") }
}
