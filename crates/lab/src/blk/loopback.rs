//! Limit of the client itself: a device in this process that completes every request without work.
//!
//! A thread implements the part of the vhost-user protocol that the `virtio-driver` crate needs.
//! Then it copies heads from the available to the used ring until the client disconnects. The
//! measured rate is the limit of the client, its driver and the caches of two CPUs. A backend near
//! this rate cannot be distinguished from a faster one. The device suppresses kicks and sends no
//! calls, so it only serves polling clients.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};

use anyhow::{Context, Result};
use tempfile::TempDir;
use testkit::raw::Connection;
use testkit::raw::connection::BackendReply;
use testkit::raw::wire::{Message, Request, feature, flags, protocol};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

use crate::in_process::InProcessServer;

/// Running loopback device for one client.
#[derive(Debug)]
pub struct Loopback {
    in_process_server: InProcessServer,
    _dir: TempDir,
}

impl Loopback {
    /// Creates the listener. The thread runs on `cpu`.
    ///
    /// # Errors
    /// The socket or the thread cannot be created.
    pub fn start(cpu: usize, bytes: u64) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("ringway-lab-").tempdir()?;
        let socket = dir.path().join("loopback.sock");
        let in_process_server =
            InProcessServer::start("loopback", socket, cpu, move |listener, stop| {
                let (stream, _) = listener.accept().context("nobody came")?;
                let connection = Connection::from_stream(stream)?;
                Session { connection, bytes, ring: Ring::default() }.serve(stop)
            })?;
        Ok(Self { in_process_server, _dir: dir })
    }

    /// Returns the CPU time of the device's thread, in seconds.
    ///
    /// # Errors
    /// The device has ended.
    pub fn time_s(&self) -> Result<f64> {
        self.in_process_server.time_s()
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        self.in_process_server.socket()
    }

    /// Stops the device.
    ///
    /// # Errors
    /// The device failed.
    pub fn finish(self) -> Result<()> {
        self.in_process_server.finish()
    }
}

/// Location of the ring, from the vhost-user messages.
#[derive(Default)]
struct Ring {
    /// File, user address and size of each memory region.
    regions: Vec<(u64, u64, File)>,
    size: u32,
    desc: u64,
    used: u64,
    avail: u64,
}

struct Session {
    connection: Connection,
    bytes: u64,
    ring: Ring,
}

impl Session {
    fn serve(mut self, stop: &AtomicBool) -> Result<()> {
        loop {
            let message = self.connection.recv("a message of the client")?;
            let enable = message.request == Request::SET_VRING_ENABLE;
            self.handle(message)?;
            if enable {
                return self.ring.complete_all(stop);
            }
        }
    }

    fn handle(&mut self, message: BackendReply) -> Result<()> {
        let features = feature::VERSION_1 | feature::PROTOCOL_FEATURES;
        let wants_ack = message.flags & flags::NEED_REPLY != 0;
        let reply = match message.request {
            Request::GET_FEATURES => Some(features.to_ne_bytes().to_vec()),
            Request::GET_PROTOCOL_FEATURES => Some(
                (protocol::REPLY_ACK | protocol::CONFIG | protocol::CONFIGURE_MEM_SLOTS)
                    .to_ne_bytes()
                    .to_vec(),
            ),
            Request::GET_MAX_MEM_SLOTS => Some(32u64.to_ne_bytes().to_vec()),
            Request::GET_CONFIG => {
                // The reply repeats the header, followed by the capacity in sectors and zeroes.
                let mut payload = message.payload.clone();
                payload
                    .get_mut(12..20)
                    .context("a short GET_CONFIG")?
                    .copy_from_slice(&(self.bytes / 512).to_le_bytes());
                Some(payload)
            }
            _ => {
                self.ring.learn(&message)?;
                wants_ack.then(|| 0u64.to_ne_bytes().to_vec())
            }
        };
        if let Some(payload) = reply {
            let answer = Message::new(message.request).flags(flags::VERSION | flags::REPLY);
            self.connection.send(&answer.bytes(&payload))?;
        }
        Ok(())
    }
}

impl Ring {
    fn learn(&mut self, message: &BackendReply) -> Result<()> {
        let u64_at = |at: usize| {
            let bytes = message.payload.get(at..at + 8).and_then(|b| b.try_into().ok());
            bytes.map(u64::from_ne_bytes).context("a short message")
        };
        match message.request {
            Request::ADD_MEM_REG => {
                let fd = message.fds.first().context("memory without a descriptor")?;
                let file = File::from(fd.try_clone()?);
                self.regions.push((u64_at(24)?, u64_at(16)?, file));
            }
            Request::SET_VRING_NUM => self.size = (u64_at(0)? >> 32) as u32,
            Request::SET_VRING_ADDR => {
                (self.desc, self.used, self.avail) = (u64_at(8)?, u64_at(16)?, u64_at(24)?);
            }
            _ => {}
        }
        Ok(())
    }

    /// Maps the region that holds all three parts. Returns it with their offsets.
    fn map(&self) -> Result<(MmapRegion, [usize; 3])> {
        let holds = |at: u64, (user, size, _): &(u64, u64, File)| at >= *user && at < user + size;
        let parts = [self.desc, self.avail, self.used];
        let region = self.regions.iter().find(|r| parts.iter().all(|at| holds(*at, r)));
        let (user, size, file) = region.context("the ring is not in one region")?;
        let mapped =
            MmapRegion::from_file(FileOffset::new(file.try_clone()?, 0), usize::try_from(*size)?)?;
        Ok((mapped, parts.map(|at| (at - user) as usize)))
    }

    /// Completes all available requests until `stop` is set.
    fn complete_all(&self, stop: &AtomicBool) -> Result<()> {
        let (mapped, [_, avail, used]) = self.map()?;
        let slots = usize::try_from(self.size)?;
        let avail_idx: &AtomicU16 = mapped.get_atomic_ref(avail + 2)?;
        let used_idx: &AtomicU16 = mapped.get_atomic_ref(used + 2)?;
        let heads: Vec<&AtomicU16> = (0..slots)
            .map(|i| mapped.get_atomic_ref(avail + 4 + 2 * i))
            .collect::<Result<_, _>>()?;
        let ids: Vec<&AtomicU32> = (0..slots)
            .map(|i| mapped.get_atomic_ref(used + 4 + 8 * i))
            .collect::<Result<_, _>>()?;
        // NO_NOTIFY: the device polls, so it needs no kicks.
        mapped.get_atomic_ref::<AtomicU16>(used)?.store(1, Ordering::Relaxed);
        let mut next = 0u16;
        while !stop.load(Ordering::Relaxed) {
            let available = avail_idx.load(Ordering::Acquire);
            if available == next {
                continue;
            }
            while next != available {
                let slot = usize::from(next) % slots;
                let head = heads[slot].load(Ordering::Relaxed);
                ids[slot].store(u32::from(head), Ordering::Relaxed);
                next = next.wrapping_add(1);
            }
            used_idx.store(next, Ordering::Release);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::blk::client::{Load, Window, measure};
    use crate::{alone, cpu};

    #[test]
    fn a_polling_client_gets_everything_back_without_kick_or_call() {
        let _alone = alone();
        let placement = cpu::Placement::choose().unwrap();
        for depth in [1, 32] {
            let device = Loopback::start(placement.backend, 1 << 20).unwrap();
            let load = Load { depth, sample_every: 8, ..Load::default() };
            let window =
                Window { warm: Duration::from_millis(5), measure: Duration::from_millis(20) };
            let time = || device.time_s();
            let sample = measure(device.socket(), load, window, placement.client, time).unwrap();
            assert!(sample["requests"] >= 1.0 && sample["errors"] == 0.0, "{sample:?}");
            assert_eq!(sample["calls_per_request"], 0.0);
            device.finish().unwrap();
        }
    }

    #[test]
    fn an_unused_device_ends_when_dropped() {
        let device = Loopback::start(cpu::allowed().unwrap()[0], 1 << 20).unwrap();
        let socket = device.socket().to_owned();
        drop(device);
        assert!(!socket.exists());
    }
}
