//! First profile of a storage, measured in the background.

use std::path::Path;

use model::calibration::PROFILE_FILE;
use model::spec::{Backend, DiskSpec};
use toolstack::machines::DatapathProvider;
use toolstack::ringway_io::{CalibrationExtent, IoDatapaths, RpcConnection};

use super::eventually;
use super::host::{Host, disk, of, sr};

fn calibrating(host: &Host, seconds: u16) -> IoDatapaths {
    host.daemon().calibrating(CalibrationExtent { seconds, size_bytes: 64 << 20 })
}

/// Returns a folder on a storage with direct I/O.
fn storage() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn disk_in(host: &Host, folder: &Path) -> DiskSpec {
    let image = folder.join("a.raw");
    std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    DiskSpec { backend: Backend::File(image.into()), ..host.disk("a") }
}

#[tokio::test]
async fn storage_without_a_profile_is_measured_once() {
    let (host, storage) = (Host::new(), storage());
    let daemon = calibrating(&host, 2);
    let first = daemon.calibrate(sr(), storage.path());
    let second = daemon.calibrate(sr(), storage.path());
    assert!(second.await.is_err(), "one is running");
    // It was attached while its storage had no profile.
    let io = of(&daemon).await;
    io.attach(&disk_in(&host, storage.path())).await.unwrap();
    assert_eq!(disk(&io, "a").await.unwrap().share, None);
    let profile = first.await.unwrap();
    assert!(disk(&io, "a").await.unwrap().share.is_some());
    let stored = storage.path().join(PROFILE_FILE).metadata().unwrap().modified().unwrap();
    // The next plug, also by another daemon, finds it.
    for daemon in [daemon, calibrating(&host, 600)] {
        let found = daemon.calibrate(sr(), storage.path()).await.unwrap();
        assert_eq!(found, profile);
    }
    let after = storage.path().join(PROFILE_FILE).metadata().unwrap().modified().unwrap();
    assert_eq!(after, stored);
    drop(io);
    host.daemon().end(sr()).await.unwrap();
}

#[tokio::test]
async fn a_measurement_ends_with_its_sr_and_leaves_nothing() {
    let (host, storage) = (Host::new(), storage());
    let daemon = calibrating(&host, 600);
    let profile = daemon.calibrate(sr(), storage.path());
    let control = host.folder().join("control.sock");
    eventually("it runs", async || {
        let Ok(mut connection) = RpcConnection::connect(&control).await else { return false };
        connection.storage_progress().await.is_ok_and(|reply| !reply.calibrating.is_empty())
    })
    .await;
    daemon.end(sr()).await.unwrap();
    assert!(profile.await.is_err());
    eventually("nothing runs", async || host.processes().is_empty()).await;
    assert_eq!(storage.path().read_dir().unwrap().count(), 0);
}

#[tokio::test]
async fn storage_that_cannot_be_measured_is_left_alone() {
    let host = Host::new();
    let daemon = calibrating(&host, 2);
    for folder in ["/proc", "/nonexistent"] {
        assert!(daemon.calibrate(sr(), Path::new(folder)).await.is_err());
    }
    // The datapath serves as if nothing had been.
    let io = of(&daemon).await;
    io.attach(&host.disk("a")).await.unwrap();
    daemon.end(sr()).await.unwrap();
}
