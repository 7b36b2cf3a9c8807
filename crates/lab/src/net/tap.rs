//! The kernel as the peer: a frame goes into one TAP device, through a bridge, and comes out of another.
//!
//! What a switch in user space does for two guests takes two system calls of whoever stands behind both
//! devices: their time is what counts.

use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;
use tap::{Tap, TapOrigin};
use testkit::process::find_tool;

use super::client::{tcp, write};
use crate::blk::client::Window;
use crate::cpu;
use crate::host::HostTime;

/// A bridge between two devices of this host, up and with nobody else. Dropping it removes all.
#[derive(Debug)]
pub(super) struct Bridge {
    name: String,
    pub(super) taps: [String; 2],
}

/// Runs `ip`.
pub(super) fn ip(words: &str) -> Result<()> {
    let mut command = Command::new(find_tool("ip", "iproute2")?);
    let output = command.args(words.split(' ')).output().context("cannot run ip")?;
    if output.status.success() {
        return Ok(());
    }
    bail!("ip {words}: {}", String::from_utf8_lossy(&output.stderr).trim_end());
}

/// Lets a device speak, but not of its own accord.
pub(super) fn up(device: &str) -> Result<()> {
    ip(&format!("link set dev {device} addrgenmode none"))?;
    ip(&format!("link set dev {device} up"))
}

/// A name that no other run on this host has: of 15 bytes at most.
pub(super) fn name(kind: &str, number: usize) -> String {
    format!("rwl{kind}{number}-{}", std::process::id() % 1_000_000)
}

impl Bridge {
    /// Makes the bridge; the devices are for the caller to make and to [`Bridge::join`].
    pub(super) fn create() -> Result<Self> {
        let bridge = Self { name: name("b", 0), taps: [0, 1].map(|number| name("t", number)) };
        // Addresses are never forgotten: there is no traffic but ours, and nothing waits at the start.
        ip(&format!("link add {} type bridge forward_delay 0 mcast_snooping 0", bridge.name))?;
        up(&bridge.name)?;
        Ok(bridge)
    }

    /// Puts both devices, which are there, into the bridge.
    pub(super) fn join(&self) -> Result<()> {
        for tap in &self.taps {
            ip(&format!("link set dev {tap} master {}", self.name))?;
            up(tap)?;
        }
        Ok(())
    }

    /// Makes both devices, for others to open with so many queues, and puts them into the bridge.
    pub(super) fn with_devices(queues: u16) -> Result<Self> {
        let bridge = Self::create()?;
        let several = if queues > 1 { " multi_queue" } else { "" };
        for tap in &bridge.taps {
            ip(&format!("tuntap add dev {tap} mode tap vnet_hdr{several}"))?;
        }
        bridge.join()?;
        Ok(bridge)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        // What was never made cannot be removed; devices without a descriptor are gone already.
        for device in self.taps.iter().chain([&self.name]) {
            let _ = ip(&format!("link del {device}"));
        }
    }
}

/// A device that is up and has an address of the host's. Dropping it removes it.
#[derive(Debug)]
pub(super) struct Device(pub(super) String);

impl Device {
    /// Makes it, for others to open.
    pub(super) fn with_address(address: &str) -> Result<Self> {
        let device = Self(name("h", 0));
        ip(&format!("tuntap add dev {} mode tap vnet_hdr", device.0))?;
        up(&device.0)?;
        ip(&format!("addr replace {address}/24 dev {}", device.0))?;
        Ok(device)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // What was never made cannot be removed.
        let _ = ip(&format!("link del {}", self.0));
    }
}

/// What a run was.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Ran {
    pub(super) frames: u64,
    pub(super) seconds: f64,
    /// CPU time of both system calls and of the loop around them, in seconds.
    pub(super) cpu_s: f64,
    /// CPU time of all others, in seconds.
    pub(super) other_s: f64,
}

/// Writes so many frames of `bytes` bytes into one device and reads them from the other, over and over,
/// on one CPU. Each has a buffer of its own, on either side.
pub(super) fn run(bytes: usize, at_once: usize, cpu: usize, window: Window) -> Result<Ran> {
    let bridge = Bridge::create()?;
    let open = |name: &String| Tap::open(name, 1, TapOrigin::New);
    let taps = [open(&bridge.taps[0])?, open(&bridge.taps[1])?];
    bridge.join()?;
    let queue = |tap: &Tap| tap.queue(0).context("a device without a queue");
    let frame = tcp(1, 2, 40_000, bytes);
    let mut loop_ = Loop {
        from: queue(&taps[0])?,
        to: queue(&taps[1])?,
        frames: vec![frame.clone(); at_once],
        got: vec![vec![0; frame.len()]; at_once],
    };
    loop_.settle(tcp(2, 1, 40_000, 64))?;
    cpu::started_on(cpu, || {
        loop_.go(window.warm)?;
        let (mine, host, start) = (cpu::thread_time_s(), HostTime::now()?, Instant::now());
        let frames = loop_.go(window.measure)?;
        let (cpu_s, seconds) = (cpu::thread_time_s() - mine, start.elapsed().as_secs_f64());
        let other_s = (HostTime::now()?.busy_s - host.busy_s - cpu_s).max(0.0);
        Ok(Ran { frames, seconds, cpu_s, other_s })
    })
}

struct Loop {
    from: Arc<OwnedFd>,
    to: Arc<OwnedFd>,
    frames: Vec<Vec<u8>>,
    got: Vec<Vec<u8>>,
}

/// How long a frame may take: past it, it is lost.
const PATIENCE: Duration = Duration::from_secs(5);

impl Loop {
    /// Tells the bridge where both ends are, and reads what else is there.
    fn settle(&mut self, back: Vec<u8>) -> Result<()> {
        write(&self.to, &back)?;
        self.read_one(0)?;
        write(&self.from, &self.frames[0])?;
        self.read_one(0)
    }

    /// Reads into a buffer; waits for the frame if it is not there yet.
    fn read_one(&mut self, at: usize) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        // The way back goes to the other end.
        loop {
            for end in [&self.to, &self.from] {
                match rustix::io::read(end, &mut self.got[at][..]) {
                    Ok(_) => return Ok(()),
                    Err(Errno::AGAIN) => {}
                    Err(error) => return Err(error).context("cannot read from a TAP device"),
                }
            }
            ensure!(Instant::now() < until, "the bridge has lost a frame");
        }
    }

    /// Goes around for so long; how many frames arrived.
    fn go(&mut self, how_long: Duration) -> Result<u64> {
        let until = Instant::now() + how_long;
        let mut frames = 0;
        while Instant::now() < until {
            for frame in &self.frames {
                write(&self.from, frame)?;
            }
            for at in 0..self.got.len() {
                self.read_one(at)?;
                frames += 1;
            }
        }
        Ok(frames)
    }
}
