//! Server of the image of `golden-boot`.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::process::{RingwayIo, Target};

/// Bytes a second and latency of the server.
pub(super) const RATE: u64 = 20_000_000;
pub(super) const LATENCY: Duration = Duration::from_millis(5);
/// Size of the image.
pub(super) const IMAGE_BYTES: u64 = 1 << 30;

/// Server of the image.
pub(super) struct Store {
    io: RingwayIo,
    pub(super) address: String,
    _dir: TempDir,
}

impl Store {
    pub(super) fn start() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("ringway-lab-").tempdir()?;
        let io = RingwayIo::start(dir.path(), &[])?;
        let pipe = json!({"bytes_per_second": RATE, "latency_ns": LATENCY.as_nanos() as u64});
        let model = json!({"name": "store", "size": IMAGE_BYTES, "device": {"pipe": pipe}});
        io.attach_target("gold", &Target::Tree(json!({ "model": model })), &[])?;
        let socket = dir.path().join("gold.nbd");
        let export = json!({"id": "gold", "socket": socket, "read_only": true});
        io.ringway(&["io", "disk.export", &export.to_string()])?;
        let address = format!("nbd+unix:///gold?socket={}", socket.display());
        Ok(Self { io, address, _dir: dir })
    }

    /// Returns the bytes that it has served.
    pub(super) fn bytes(&self) -> Result<u64> {
        let stats: Value = serde_json::from_str(&self.io.ringway(&["io", "stats"])?)?;
        stats["disks"][0]["exports"][0]["read_bytes"]
            .as_u64()
            .context("no statistics of the export")
    }
}
