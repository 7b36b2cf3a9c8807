//! The kernel as the peer: a frame enters one TAP device, passes a bridge, and leaves another TAP
//! device.
//!
//! A switch in user space replaces two system calls of the processes behind both devices. Their
//! time is measured.

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

/// Bridge between two devices of this host, up and without other ports. Dropping it removes all
/// three.
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

/// Sets a device up, without automatic addresses.
pub(super) fn up(device: &str) -> Result<()> {
    ip(&format!("link set dev {device} addrgenmode none"))?;
    ip(&format!("link set dev {device} up"))
}

/// Returns a device name that no other run on this host uses, of at most 15 bytes.
pub(super) fn name(kind: &str, number: usize) -> String {
    format!("rwl{kind}{number}-{}", std::process::id() % 1_000_000)
}

impl Bridge {
    /// Creates the bridge. The caller creates the devices and calls [`Bridge::join`].
    pub(super) fn create() -> Result<Self> {
        let bridge = Self { name: name("b", 0), taps: [0, 1].map(|number| name("t", number)) };
        // Without a forward delay, frames pass from the start. Without multicast snooping, the
        // bridge carries only the frames of the experiment.
        ip(&format!("link add {} type bridge forward_delay 0 mcast_snooping 0", bridge.name))?;
        up(&bridge.name)?;
        Ok(bridge)
    }

    /// Adds both existing devices to the bridge.
    pub(super) fn join(&self) -> Result<()> {
        for tap in &self.taps {
            ip(&format!("link set dev {tap} master {}", self.name))?;
            up(tap)?;
        }
        Ok(())
    }

    /// Creates both devices with this number of queues, for other processes to open, and adds them
    /// to the bridge.
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
        // Ignores devices that do not exist. A device without an open descriptor may already be
        // gone.
        for device in self.taps.iter().chain([&self.name]) {
            let _ = ip(&format!("link del {device}"));
        }
    }
}

/// TAP device that is up and has an address of the host. Dropping it removes it.
#[derive(Debug)]
pub(super) struct Device(pub(super) String);

impl Device {
    /// Creates the device, for another process to open.
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
        // Ignores a device that does not exist.
        let _ = ip(&format!("link del {}", self.0));
    }
}

/// Result of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Ran {
    pub(super) frames: u64,
    pub(super) seconds: f64,
    /// CPU time of both system calls and of the loop around them, in seconds.
    pub(super) cpu_s: f64,
    /// CPU time of other processes, in seconds.
    pub(super) other_s: f64,
}

/// Writes `at_once` frames of `bytes` bytes into one device and reads them from the other,
/// repeatedly, on one CPU. Each frame has its own buffer on either side.
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

/// Longest time for a frame. After it, the frame counts as lost.
const PATIENCE: Duration = Duration::from_secs(5);

impl Loop {
    /// Sends a frame each way, so that the bridge learns both addresses. Also reads other frames.
    fn settle(&mut self, back: Vec<u8>) -> Result<()> {
        write(&self.to, &back)?;
        self.read_one(0)?;
        write(&self.from, &self.frames[0])?;
        self.read_one(0)
    }

    /// Reads a frame into a buffer, and waits for the frame if necessary.
    fn read_one(&mut self, at: usize) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        // The first frame goes the other way, so both devices are read.
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

    /// Runs the loop for this time. Returns the number of frames that arrived.
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
