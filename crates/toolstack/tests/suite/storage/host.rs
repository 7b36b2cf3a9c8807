//! Host on which real `ringway-io` processes serve disks.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use model::id::{SrId, Uuid};
use model::report::{DiskState, DiskStats, Stats};
use model::spec::{Backend, DiskSpec};
use tempfile::TempDir;
use testkit::process::find_binary;
use toolstack::cgroup::SliceTree;
use toolstack::machines::{DatapathProvider, sockets};
use toolstack::ringway_io::{Datapath, IoDatapaths, IoLaunch};

use super::{again, kill, processes};

/// Host with images, on which daemons start and end.
pub(super) struct Host {
    pub(super) dir: TempDir,
    pub(super) tree: Option<SliceTree>,
    /// Program that is started as `ringway-io`.
    pub(super) program: PathBuf,
}

impl Host {
    pub(super) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("rw-").tempdir().unwrap();
        Self { dir, tree: None, program: find_binary("ringway-io").unwrap() }
    }

    fn launch(&self) -> IoLaunch {
        let (program, helper) = (self.program.clone(), again("spawned", &[]));
        // No restart pauses, although workers die often.
        let options = ["--restart-pause-max", "0"].map(Into::into).into();
        IoLaunch { program, options, helper, tree: self.tree.clone() }
    }

    /// Returns the datapaths of a daemon that has just started.
    pub(super) fn daemon(&self) -> IoDatapaths {
        IoDatapaths::new(self.dir.path(), self.launch())
    }

    pub(super) fn folder(&self) -> PathBuf {
        sockets(self.dir.path(), sr())
    }

    /// Returns a disk that is not active.
    pub(super) fn disk(&self, id: &str) -> DiskSpec {
        let image = self.dir.path().join(format!("{id}.raw"));
        if !image.exists() {
            std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
        }
        let socket = self.folder().join(format!("{id}.sock"));
        let mut spec = DiskSpec::new(id, socket, Backend::File(image.into()));
        (spec.activate, spec.stop_deadline_ms) = (false, 10_000);
        spec
    }

    /// Lets the disks of this host share their storage.
    pub(super) fn calibrated(&self) {
        let device = std::fs::metadata(self.dir.path()).unwrap().dev();
        testkit::storage::store_profile(self.dir.path(), calibrate::identity(device)).unwrap();
    }

    /// Returns all processes of its datapaths.
    pub(super) fn processes(&self) -> Vec<i32> {
        processes(self.dir.path().to_str().unwrap())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.processes().into_iter().for_each(kill);
        if let Some(tree) = &self.tree {
            // Wait until the kernel has removed the last process from its group.
            let cleared = (0..1000).any(|_| {
                std::thread::sleep(Duration::from_millis(9));
                tree.clear().is_ok()
            });
            assert!(cleared || std::thread::panicking());
        }
    }
}

pub(super) fn sr() -> SrId {
    SrId(Uuid::from_random([5; 16]))
}

pub(super) async fn of(daemon: &IoDatapaths) -> Arc<dyn Datapath> {
    daemon.of(sr()).await.unwrap()
}

pub(super) async fn stats_of(io: &Arc<dyn Datapath>) -> Stats {
    io.stats().await.unwrap().unwrap()
}

pub(super) async fn disk(io: &Arc<dyn Datapath>, id: &str) -> Option<DiskStats> {
    stats_of(io).await.disks.into_iter().find(|disk| disk.id == id)
}

pub(super) async fn state(io: &Arc<dyn Datapath>, id: &str) -> Option<DiskState> {
    disk(io, id).await.map(|disk| disk.state)
}
