//! Reports of a running `ringway-io`: the result of `stats`.
//!
//! Each file has one kind of object. Fields that a former version did not have have defaults, so
//! that either side may be newer.

mod broken_ring;
mod counts;
mod disk;
mod golden;
mod layers;
mod nic;
mod overlay;
mod polling;
mod port;
mod process;
mod requests;
mod share;
mod stages;

pub use broken_ring::{BrokenRing, RingKind};
pub use counts::{Latency, OpCounts};
pub use disk::{
    DiskState, DiskStats, DriverStarts, ExportStats, Fence, Geometry, StorageErrors, Stuck,
};
pub use golden::{GoldenFile, GoldenStats, WarmPhase, WarmStats};
pub use layers::LayerStats;
pub use nic::{FrameCounts, NetworkStats, NicStats, UplinkStats};
pub use overlay::OverlayStats;
pub use polling::{PollReason, PollRefusals, PollStats, QueuePolling};
pub use port::{DirectionStats, FlowStats, PairStats, PortStats, SizeCount};
pub use process::{KeeperStats, ReactorStats, StartReason, Stats, WorkerStart};
pub use requests::{BusyNeighbour, OldestRequest, QueueStats, RequestKind, SlowRequest};
pub use share::ShareReport;
pub use stages::{Op, Stage, StageTimes};
