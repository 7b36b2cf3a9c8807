//! NICs of virtio-user.

use std::path::PathBuf;

use super::Testpmd;
use crate::error::Result;

/// What its memory is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Huge pages; see [`super::allow_huge_pages`].
    Huge,
    /// Ordinary pages.
    Small,
}

/// NICs of one testpmd, each on the vhost-user socket of a backend. The first speaks to the second,
/// the third to the fourth, and so on: what one receives the other sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nics {
    /// The sockets.
    pub sockets: Vec<PathBuf>,
    /// testpmd listens at them, and the backend connects.
    pub listen: bool,
    /// Pairs of queues of each.
    pub pairs: u16,
    /// Descriptors of each queue.
    pub queue_size: u16,
    /// Mergeable receive buffers.
    pub mergeable: bool,
    /// Its memory.
    pub memory: Memory,
    /// Its memory in MiB.
    pub memory_mib: u32,
    /// Buffers of its frames, of which all receive queues hold theirs.
    pub buffers: u32,
    /// Bytes of a frame.
    pub frame_bytes: u16,
    /// Frames may be in several buffers, sent and received.
    pub scattered: bool,
    /// The CPU that it spins on.
    pub cpu: Option<usize>,
}

impl Default for Nics {
    /// One pair of 256 descriptors, frames of 64 bytes, in ordinary memory.
    fn default() -> Self {
        Self {
            sockets: Vec::new(),
            listen: false,
            pairs: 1,
            queue_size: 256,
            mergeable: true,
            memory: Memory::Small,
            memory_mib: 256,
            buffers: 8192,
            frame_bytes: 64,
            scattered: false,
            cpu: None,
        }
    }
}

impl Nics {
    /// Starts a testpmd with them, which sends nothing yet: `start tx_first N` lets it send N times
    /// 32 frames on each queue, and then whatever comes back.
    ///
    /// # Errors
    /// As [`Testpmd::start`].
    pub fn start(&self) -> Result<Testpmd> {
        Testpmd::start(self.cpu, &self.environment(), &self.own())
    }

    fn environment(&self) -> Vec<String> {
        let mut words = match self.memory {
            // One file of each size: front-ends describe eight regions at most.
            Memory::Huge => vec!["--in-memory".to_owned(), "--single-file-segments".to_owned()],
            // Nothing is shared with other processes of DPDK.
            Memory::Small => vec!["--no-huge".to_owned(), "--no-shconf".to_owned()],
        };
        words.extend(["-m".to_owned(), self.memory_mib.to_string()]);
        let Self { pairs, queue_size, .. } = self;
        let (mergeable, listen) = (u8::from(self.mergeable), u8::from(self.listen));
        for (number, socket) in self.sockets.iter().enumerate() {
            let (path, mac) = (socket.display(), mac(number));
            words.push(format!(
                "--vdev=net_virtio_user{number},path={path},server={listen},queues={pairs},\
                 queue_size={queue_size},mrg_rxbuf={mergeable},packed_vq=0,mac={mac}"
            ));
        }
        words
    }

    fn own(&self) -> Vec<String> {
        let Self { pairs, queue_size, buffers, frame_bytes, .. } = self;
        let mut words = vec![
            "--forward-mode=io".to_owned(),
            format!("--rxq={pairs}"),
            format!("--txq={pairs}"),
            format!("--rxd={queue_size}"),
            format!("--txd={queue_size}"),
            format!("--total-num-mbufs={buffers}"),
            format!("--txpkts={frame_bytes}"),
            // Each frame is of another flow: addresses of UDP, and queues, differ.
            "--txonly-multi-flow".to_owned(),
        ];
        if self.scattered {
            // RTE_ETH_TX_OFFLOAD_MULTI_SEGS, RTE_ETH_RX_OFFLOAD_SCATTER.
            words.extend(["--tx-offloads=0x8000", "--rx-offloads=0x2000"].map(str::to_owned));
        }
        let peer = |number: usize| format!("--eth-peer={number},{}", mac(number ^ 1));
        words.extend((0..self.sockets.len()).map(peer));
        words
    }
}

fn mac(number: usize) -> String {
    format!("02:00:00:00:00:{:02x}", number + 1)
}
