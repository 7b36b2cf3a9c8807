//! Frames on their way from one NIC to another.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::nic::{Nic, QUEUE_SIZE, Spec};
use crate::blk::client::Window;
use crate::cpu;
use crate::host::HostTime;

/// Turns between two looks at the clock.
const TURNS: u32 = 64;
/// Without a frame for so long, those that were on their way are lost.
const STALL: Duration = Duration::from_secs(5);

/// A way of frames, from one end to another.
pub(in crate::net) trait FramePath {
    /// Takes what came, and sends as much again if that is wanted.
    fn turn(&mut self, send: bool) -> Result<()>;

    /// Frames that were sent.
    fn sent(&self) -> u64;

    /// Frames that have arrived, by queue.
    fn arrived(&self) -> &[u64];

    /// Frames that were sent and have not arrived.
    fn away(&self) -> u64 {
        self.sent() - self.arrived().iter().sum::<u64>()
    }
}

/// Queues and buffers of a lane's ends.
#[derive(Debug, Clone, Copy)]
pub(in crate::net) struct Shape {
    /// Frames on their way at most.
    depth: u16,
    /// Buffers of each queue, which are used in turn.
    buffers: u16,
    /// Pairs of queues of the sender, and of the receiver.
    pairs: [u16; 2],
    /// Descriptors of each queue of the sender, and of the receiver.
    sizes: [u16; 2],
}

impl Shape {
    /// With as many buffers as frames on their way.
    pub(in crate::net) fn new(depth: u16, pairs: [u16; 2]) -> Self {
        Self { depth, buffers: depth, pairs, sizes: [QUEUE_SIZE; 2] }
    }

    /// The receiver's queues are full of buffers, as drivers keep them: each buffer that it posts tells of
    /// one that it has taken.
    pub(in crate::net) fn full(self) -> Self {
        Self { sizes: [self.sizes[0], self.buffers.next_power_of_two()], ..self }
    }

    /// As many frames on their way, in turn from and to so many buffers of each queue, which lie in caches
    /// as those of more lanes would.
    pub(in crate::net) fn over(self, buffers: u16) -> Self {
        // The sender announces itself by one more.
        Self { buffers, sizes: [(buffers + 1).next_power_of_two(); 2], ..self }
    }
}

/// A way from one NIC to another.
pub(in crate::net) struct Lane {
    from: Nic,
    to: Nic,
    depth: u64,
    /// Bytes that the device writes for each frame: others are somebody else's.
    bytes: u32,
    sent: u64,
    /// By queue.
    received: Vec<u64>,
}

impl Lane {
    /// Connects both ends, each with so many pairs of queues: frames, all of the same length, go from
    /// the first queue of one to a station at the other.
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

/// What a run was.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::net) struct Ran {
    /// Frames that arrived while it counted, by lane and queue.
    pub(in crate::net) frames: Vec<Vec<u64>>,
    /// How long it counted, in seconds.
    pub(in crate::net) seconds: f64,
    /// CPU time of the backend meanwhile, in seconds.
    pub(in crate::net) backend_s: f64,
    /// CPU time of the client, in seconds.
    pub(in crate::net) client_s: f64,
    /// CPU time of all others, in seconds.
    pub(in crate::net) other_s: f64,
    /// Frames that never arrived.
    pub(in crate::net) lost: u64,
}

impl Ran {
    /// Frames of all lanes.
    pub(in crate::net) fn all(&self) -> u64 {
        self.frames.iter().flatten().sum()
    }
}

/// Runs lanes on one CPU for a window. `backend_s` gives the CPU seconds that the backend used so far.
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

/// Lets all lanes run for a while: on a busy host until one frame has arrived.
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
        ensure!(now.duration_since(since) < STALL, "no frame arrives: those on their way are lost");
    }
}

/// Frames that have arrived on all.
fn all(lanes: &[impl FramePath]) -> u64 {
    lanes.iter().flat_map(FramePath::arrived).sum()
}

/// Waits for what is on its way; gives how many frames never came.
fn drain<W: FramePath>(lanes: &mut [W]) -> Result<u64> {
    let missing = |lanes: &[W]| lanes.iter().map(FramePath::away).sum::<u64>();
    let until = Instant::now() + STALL;
    while missing(lanes) > 0 && Instant::now() < until {
        lanes.iter_mut().try_for_each(|lane| lane.turn(false))?;
    }
    Ok(missing(lanes))
}
