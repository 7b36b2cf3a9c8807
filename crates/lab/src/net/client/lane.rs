//! Frames in flight from one NIC to another.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::nic::{Nic, QUEUE_SIZE, Spec};
use crate::blk::client::Window;
use crate::cpu;
use crate::host::HostTime;

/// Turns between two readings of the clock.
const TURNS: u32 = 64;
/// Time without a frame after which the frames in flight count as lost.
const STALL: Duration = Duration::from_secs(5);

/// Path of frames from one end to another.
pub(in crate::net) trait FramePath {
    /// Takes the frames that arrived. If `send` is set, sends as many new ones.
    fn turn(&mut self, send: bool) -> Result<()>;

    /// Returns the number of sent frames.
    fn sent(&self) -> u64;

    /// Returns the number of frames that have arrived, by queue.
    fn arrived(&self) -> &[u64];

    /// Returns the number of frames in flight.
    fn away(&self) -> u64 {
        self.sent() - self.arrived().iter().sum::<u64>()
    }
}

/// Queues and buffers of a lane's ends.
#[derive(Debug, Clone, Copy)]
pub(in crate::net) struct Shape {
    /// Most frames in flight.
    depth: u16,
    /// Buffers of each queue, used in turn.
    buffers: u16,
    /// Queue pairs of the sender and of the receiver.
    pairs: [u16; 2],
    /// Queue sizes of the sender and of the receiver.
    sizes: [u16; 2],
}

impl Shape {
    /// Returns a shape with as many buffers as frames in flight.
    pub(in crate::net) fn new(depth: u16, pairs: [u16; 2]) -> Self {
        Self { depth, buffers: depth, pairs, sizes: [QUEUE_SIZE; 2] }
    }

    /// Shrinks the receiver's queues so that its buffers fill them, as drivers do. Each buffer that
    /// the receiver posts then shows that it has taken a frame.
    pub(in crate::net) fn full(self) -> Self {
        Self { sizes: [self.sizes[0], self.buffers.next_power_of_two()], ..self }
    }

    /// Uses `buffers` buffers of each queue in turn, with the same number of frames in flight. The
    /// buffers then occupy caches as those of several lanes would.
    pub(in crate::net) fn over(self, buffers: u16) -> Self {
        // The sender's announcement needs one more descriptor.
        Self { buffers, sizes: [(buffers + 1).next_power_of_two(); 2], ..self }
    }
}

/// Path from one NIC to another.
pub(in crate::net) struct Lane {
    from: Nic,
    to: Nic,
    depth: u64,
    /// Bytes that the device writes for each frame. Frames of other lengths do not belong to the
    /// lane.
    bytes: u32,
    sent: u64,
    /// Received frames by queue.
    received: Vec<u64>,
}

impl Lane {
    /// Connects both ends. Frames of equal length go from the first queue of one NIC to a station
    /// at the other.
    pub(in crate::net) fn connect(
        sockets: [&Path; 2],
        stations: [u8; 2],
        frames: Vec<Vec<u8>>,
        shape: Shape,
    ) -> Result<Self> {
        let Shape { depth, buffers, pairs: [from_pairs, to_pairs], sizes } = shape;
        let bytes = u32::try_from(frames.iter().map(Vec::len).max().unwrap_or(0))?;
        let spec = Spec {
            station: stations[1],
            pairs: to_pairs,
            depth: buffers,
            queue_size: sizes[1],
            receive_bytes: bytes,
            frames: vec![],
        };
        let to = Nic::connect(sockets[1], &spec)?;
        let (station, queue_size) = (stations[0], sizes[0]);
        let spec = Spec { station, pairs: from_pairs, queue_size, frames, ..spec };
        let from = Nic::connect(sockets[0], &spec)?;
        let received = vec![0; to_pairs.into()];
        Ok(Self { from, to, depth: depth.into(), bytes, sent: 0, received })
    }
}

impl FramePath for Lane {
    #[inline]
    fn turn(&mut self, send: bool) -> Result<()> {
        self.to.count_all(self.bytes, &mut self.received)?;
        let room = self.depth.saturating_sub(self.away());
        self.sent += self.from.send_many(if send { room } else { 0 })?;
        Ok(())
    }

    fn sent(&self) -> u64 {
        self.sent
    }

    fn arrived(&self) -> &[u64] {
        &self.received
    }
}

/// Result of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::net) struct Ran {
    /// Frames that arrived during the measurement, by lane and queue.
    pub(in crate::net) frames: Vec<Vec<u64>>,
    /// Duration of the measurement, in seconds.
    pub(in crate::net) seconds: f64,
    /// CPU time of the backend during the measurement, in seconds.
    pub(in crate::net) backend_s: f64,
    /// CPU time of the client, in seconds.
    pub(in crate::net) client_s: f64,
    /// CPU time of other processes, in seconds.
    pub(in crate::net) other_s: f64,
    /// Frames that never arrived.
    pub(in crate::net) lost: u64,
}

impl Ran {
    /// Returns the frames of all lanes.
    pub(in crate::net) fn all(&self) -> u64 {
        self.frames.iter().flatten().sum()
    }
}

/// Runs lanes on one CPU for a window. `backend_s` returns the CPU seconds that the backend has
/// used.
pub(in crate::net) fn run<W: FramePath>(
    lanes: &mut [W],
    client_cpu: usize,
    window: Window,
    backend_s: &dyn Fn() -> Result<f64>,
) -> Result<Ran> {
    cpu::started_on(client_cpu, || run_here(lanes, window, backend_s))
}

fn run_here<W: FramePath>(
    lanes: &mut [W],
    window: Window,
    backend_s: &dyn Fn() -> Result<f64>,
) -> Result<Ran> {
    spin(lanes, window.warm)?;
    let counts = |lanes: &[W]| lanes.iter().map(|lane| lane.arrived().to_vec()).collect::<Vec<_>>();
    let before = counts(lanes);
    let (cpu, mine, host) = (backend_s()?, cpu::thread_time_s(), HostTime::now()?);
    let start = Instant::now();
    spin(lanes, window.measure)?;
    let seconds = start.elapsed().as_secs_f64();
    let (cpu, mine) = (backend_s()? - cpu, cpu::thread_time_s() - mine);
    let busy = HostTime::now()?.busy_s - host.busy_s;
    let more = |after: &Vec<u64>, before: &Vec<u64>| {
        after.iter().zip(before).map(|(after, before)| after - before).collect::<Vec<_>>()
    };
    let frames = counts(lanes).iter().zip(&before).map(|(a, b)| more(a, b)).collect();
    let lost = drain(lanes)?;
    let other_s = (busy - cpu - mine).max(0.0);
    Ok(Ran { frames, seconds, backend_s: cpu, client_s: mine, other_s, lost })
}

/// Runs all lanes for this time, and on a busy host until at least one frame has arrived.
fn spin(lanes: &mut [impl FramePath], how_long: Duration) -> Result<()> {
    let until = Instant::now() + how_long;
    let first = all(lanes);
    let (mut last, mut since) = (first, Instant::now());
    loop {
        for _ in 0..TURNS {
            lanes.iter_mut().try_for_each(|lane| lane.turn(true))?;
        }
        let (now, frames) = (Instant::now(), all(lanes));
        if now >= until && frames > first {
            return Ok(());
        }
        if frames != last {
            (last, since) = (frames, now);
        }
        ensure!(now.duration_since(since) < STALL, "no frame arrives: frames in flight are lost");
    }
}

/// Returns the frames that have arrived on all lanes.
fn all(lanes: &[impl FramePath]) -> u64 {
    lanes.iter().flat_map(FramePath::arrived).sum()
}

/// Waits for the frames in flight. Returns the number of frames that never arrived.
fn drain<W: FramePath>(lanes: &mut [W]) -> Result<u64> {
    let missing = |lanes: &[W]| lanes.iter().map(FramePath::away).sum::<u64>();
    let until = Instant::now() + STALL;
    while missing(lanes) > 0 && Instant::now() < until {
        lanes.iter_mut().try_for_each(|lane| lane.turn(false))?;
    }
    Ok(missing(lanes))
}
