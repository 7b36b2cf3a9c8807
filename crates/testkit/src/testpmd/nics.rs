//! Virtio-user NICs of testpmd.

use std::path::PathBuf;

use super::Testpmd;
use crate::error::Result;

/// Kind of testpmd's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Huge pages; see [`super::allow_huge_pages`].
    Huge,
    /// Ordinary pages.
    Small,
}

/// NICs of one testpmd, each on the vhost-user socket of a backend. The first and the second
/// forward to each other, then the third and the fourth, and so on: each NIC sends what the other
/// receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nics {
    /// Paths of the sockets.
    pub sockets: Vec<PathBuf>,
    /// True if testpmd listens and the backend connects.
    pub listen: bool,
    /// Number of queue pairs of each NIC.
    pub pairs: u16,
    /// Descriptors of each queue.
    pub queue_size: u16,
    /// True to use mergeable receive buffers.
    pub mergeable: bool,
    /// Kind of memory.
    pub memory: Memory,
    /// Size of the memory in MiB.
    pub memory_mib: u32,
    /// Number of frame buffers, which all receive queues share.
    pub buffers: u32,
    /// Bytes of a frame.
    pub frame_bytes: u16,
    /// True if frames may span several buffers, sent and received.
    pub scattered: bool,
    /// CPU on which it polls.
    pub cpu: Option<usize>,
}

impl Default for Nics {
    /// Returns one pair of 256 descriptors, frames of 64 bytes, in ordinary memory.
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
    /// Starts a testpmd with these NICs, which sends nothing yet. With `start tx_first N` it sends
    /// N times 32 frames on each queue, and then forwards the frames that return.
    ///
    /// # Errors
    /// As [`Testpmd::start`].
    pub fn start(&self) -> Result<Testpmd> {
        Testpmd::start(self.cpu, &self.environment(), &self.own())
    }

    fn environment(&self) -> Vec<String> {
        let mut words = match self.memory {
            // One file of each page size: front-ends describe at most eight regions.
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
            // Each frame belongs to another flow: UDP addresses differ, and so do queues.
            "--txonly-multi-flow".to_owned(),
        ];
        if self.scattered {
            // The flags are RTE_ETH_TX_OFFLOAD_MULTI_SEGS and RTE_ETH_RX_OFFLOAD_SCATTER.
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
