//! Frames in flight between a NIC and the host. The far end is another device on the same bridge.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;

use super::frame::{announcement, tcp};
use super::lane::FramePath;
use super::nic::{Nic, QUEUE_SIZE, Spec, with_header};

/// Stations of the NIC and of the host.
const STATIONS: [u8; 2] = [1, 2];

/// Path between a NIC and the host, in one direction.
pub(in crate::net) struct HostLane {
    nic: Nic,
    far: Arc<OwnedFd>,
    back: bool,
    /// Frames that the host sends, and its read buffers: as many as frames in flight.
    buffers: Vec<Vec<u8>>,
    next: usize,
    bytes: u32,
    sent: u64,
    arrived: [u64; 1],
}

impl HostLane {
    /// Connects the NIC. The host is behind the device `far`, which is up. Frames of `bytes` bytes
    /// go to it, or come `back` from it.
    pub(in crate::net) fn connect(
        socket: &Path,
        far: Arc<OwnedFd>,
        bytes: usize,
        depth: u16,
        back: bool,
    ) -> Result<Self> {
        let [here, there] = STATIONS;
        let receive_bytes = with_header(bytes);
        let frames = vec![tcp(here, there, 40_000, bytes)];
        let nic = Nic::connect(
            socket,
            &Spec { station: here, pairs: 1, depth, queue_size: QUEUE_SIZE, receive_bytes, frames },
        )?;
        write(&far, &announcement(there))?;
        let buffers = vec![tcp(there, here, 40_000, bytes); depth.into()];
        let bytes = receive_bytes;
        Ok(Self { nic, far, back, buffers, next: 0, bytes, sent: 0, arrived: [0] })
    }

    /// Returns the next of the host's buffers.
    fn buffer(&mut self) -> &mut Vec<u8> {
        self.next = (self.next + 1) % self.buffers.len();
        &mut self.buffers[self.next]
    }

    /// Reads all frames that have arrived at the host.
    fn read(&mut self) -> Result<()> {
        let far = Arc::clone(&self.far);
        loop {
            match rustix::io::read(&far, &mut self.buffer()[..]) {
                Ok(bytes) => self.arrived[0] += u64::from(bytes == self.bytes as usize),
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error).context("cannot read from a TAP device"),
            }
        }
    }
}

impl FramePath for HostLane {
    fn turn(&mut self, send: bool) -> Result<()> {
        let received = if self.back { self.nic.count(self.bytes)? } else { 0 };
        self.arrived[0] += received;
        if !self.back {
            self.read()?;
        }
        let away = self.sent - self.arrived[0];
        let room = (self.buffers.len() as u64).saturating_sub(away);
        let room = if send { room } else { 0 };
        if !self.back {
            self.sent += self.nic.send_many(room)?;
            return Ok(());
        }
        let far = Arc::clone(&self.far);
        for _ in 0..room {
            write(&far, self.buffer())?;
            self.sent += 1;
        }
        Ok(())
    }

    fn sent(&self) -> u64 {
        self.sent
    }

    fn arrived(&self) -> &[u64] {
        &self.arrived
    }
}

/// Writes a frame to a device.
pub(in crate::net) fn write(end: &OwnedFd, frame: &[u8]) -> Result<()> {
    let wrote = rustix::io::write(end, frame).context("cannot write to a TAP device")?;
    ensure!(wrote == frame.len(), "a TAP device took {wrote} bytes of {}", frame.len());
    Ok(())
}
