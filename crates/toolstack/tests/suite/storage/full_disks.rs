//! Reports of disks whose storage is full, from a real `ringway-io` on a file system that is full.

use std::path::Path;
use std::time::Duration;

use model::id::{Uuid, VbdId};
use model::spec::{Backend, CacheMode, DiskSpec};
use testkit::in_namespace::in_little_room;
use testkit::raw::request::Request;
use testkit::raw::{Guest, Setup};
use tokio::sync::mpsc::Receiver;
use toolstack::machines::DatapathProvider;
use toolstack::ringway_io::FullDisks;

use super::host::{Host, of, sr};

const NAME: &str = concat!(module_path!(), "::each_daemon_is_told_which_disks_wait_for_room");
/// Longest wait for a report.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn each_daemon_is_told_which_disks_wait_for_room() {
    let inside = |dir: &Path| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(inside(dir));
    };
    in_little_room(NAME, 8, inside).unwrap();
}

async fn told(changes: &mut Receiver<FullDisks>, disks: &[VbdId]) {
    let change = tokio::time::timeout(SOON, changes.recv()).await.unwrap().unwrap();
    assert_eq!(change, FullDisks { sr: sr(), disks: disks.iter().copied().collect() });
}

async fn inside(dir: &Path) {
    let (image, filler) = (dir.join("image"), dir.join("filler"));
    std::fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
    std::fs::write(&filler, vec![1; 16 << 20]).unwrap_err();
    let host = Host::new();
    let daemon = host.daemon();
    let mut changes = daemon.full_disks().unwrap();
    assert!(daemon.full_disks().is_none());
    let io = of(&daemon).await;
    let vbd = VbdId(Uuid::default());
    let cache = CacheMode::Writeback;
    let backend = Backend::File(image.into());
    let spec = DiskSpec { id: vbd.to_string(), backend, cache, ..host.disk("d") };
    io.attach(&spec).await.unwrap();
    io.activate(&spec.id).await.unwrap();
    told(&mut changes, &[]).await;
    let mut guest = Guest::start(spec.socket.as_deref().unwrap(), &Setup::default()).unwrap();
    let pending = guest.submit(0, &Request::write(0, &[7; 4096])).unwrap();
    guest.kick(0).unwrap();
    told(&mut changes, &[vbd]).await;

    // Another daemon finds the process.
    drop((io, changes, daemon));
    let daemon = host.daemon();
    let mut changes = daemon.full_disks().unwrap();
    let io = of(&daemon).await;
    io.stats().await.unwrap();
    told(&mut changes, &[vbd]).await;
    std::fs::remove_file(&filler).unwrap();
    told(&mut changes, &[]).await;
    guest.finish(0, &pending).unwrap();
    drop(guest);
    io.detach(&spec.id).await.unwrap();
    daemon.end(sr()).await.unwrap();
    told(&mut changes, &[]).await;
}
