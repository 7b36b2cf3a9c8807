//! Conformance tests of every SR type.

use std::sync::Arc;

use model::id::{SrId, Uuid, VdiId};
use model::sr::SrFeature;
use model::vdi::automaton::Access;
use toolstack::sr::{Config, SnapshotOf, SrDriver, SrError, SrScan, Volume};

use super::dir::{Place, host};

const MIB: u64 = 1 << 20;

fn sr(n: u8) -> SrId {
    SrId(Uuid::from_random([n; 16]))
}

fn vdi(n: u8) -> VdiId {
    VdiId(Uuid::from_random([n; 16]))
}

/// Whether a driver detects missing volumes. The simulator forgets volumes with its process, so it
/// accepts every named volume.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Knows {
    All,
    NotWhatIsMissing,
}

#[tokio::test]
async fn dir() {
    let (place, other) = (Place::new(), Place::new());
    let driver = toolstack::sr::dir::DirDriver::new("dir", host(), "/nonexistent".into());
    conforms(Arc::new(driver), [place.config(), other.config()], Knows::All).await;
}

#[tokio::test]
async fn simulator() {
    let driver = toolstack::sr::sim::SimSr::new(&toolstack::sim::Sim::new(), "sim");
    conforms(Arc::new(driver), [Config::new(), Config::new()], Knows::NotWhatIsMissing).await;
}

/// Creates, uses and removes two SRs of a driver.
async fn conforms(driver: Arc<dyn SrDriver>, configs: [Config; 2], knows: Knows) {
    let [ours, other] = [sr(1), sr(2)];
    if knows == Knows::All {
        nothing_without_attach(&*driver, ours).await;
    }
    for (sr, config) in [ours, other].into_iter().zip(&configs) {
        driver.create(sr, config).await.unwrap();
        driver.create(sr, config).await.unwrap();
        let space = driver.attach(sr, config).await.unwrap();
        assert!(space.used <= space.total && space.total > 0, "{space:?}");
        driver.attach(sr, config).await.unwrap();
        assert_eq!(driver.scan(sr).await.unwrap().volumes, []);
    }
    volumes(&*driver, ours).await;
    if knows == Knows::All {
        refusals(&*driver, ours).await;
    }
    users(&*driver, ours).await;
    layers(&*driver, ours).await;
    assert_eq!(driver.scan(other).await.unwrap().volumes, [], "each has its own");

    let before = driver.scan(ours).await.unwrap().volumes;
    assert_eq!(before.len(), 1);
    driver.detach(ours).await.unwrap();
    driver.detach(ours).await.unwrap();
    if knows == Knows::All {
        nothing_without_attach(&*driver, ours).await;
    }
    driver.attach(ours, &configs[0]).await.unwrap();
    assert_eq!(driver.scan(ours).await.unwrap().volumes, before, "a detach keeps what is there");
    beside_each_other(&driver, ours).await;
    ends(&*driver, (ours, other), &configs, knows).await;
}

/// Checks that an empty SR can be removed, and another not.
async fn ends(
    driver: &dyn SrDriver,
    (full, empty): (SrId, SrId),
    configs: &[Config; 2],
    knows: Knows,
) {
    let [of_full, of_empty] = configs;
    for sr in [full, empty] {
        driver.detach(sr).await.unwrap();
    }
    let refused = driver.destroy(full, of_full).await;
    assert!(matches!(refused, Err(SrError::NotEmpty { volumes: 17 })), "{refused:?}");
    if knows == Knows::All {
        assert_eq!(driver.probe(of_full).await.unwrap(), [full]);
        let foreign = driver.destroy(empty, of_full).await;
        assert!(matches!(foreign, Err(SrError::Config { .. })), "{foreign:?}");
    }
    driver.destroy(empty, of_empty).await.unwrap();
    assert_eq!(driver.probe(of_empty).await.unwrap(), []);
    if knows == Knows::All {
        let gone = driver.attach(empty, of_empty).await;
        assert!(matches!(gone, Err(SrError::Vanished { .. })), "{gone:?}");
        let gone = driver.destroy(empty, of_empty).await;
        assert!(matches!(gone, Err(SrError::Vanished { .. })), "{gone:?}");
    }
    driver.create(empty, of_empty).await.unwrap();
    driver.attach(full, of_full).await.unwrap();
    assert_eq!(driver.scan(full).await.unwrap().volumes.len(), 17);
}

async fn nothing_without_attach(driver: &dyn SrDriver, sr: SrId) {
    let refused = [
        driver.scan(sr).await.map(drop),
        driver.create_volume(sr, vdi(1), MIB).await.map(drop),
        driver.resize_volume(sr, vdi(1), MIB).await.map(drop),
        driver.destroy_volume(sr, vdi(1)).await,
        driver.attach_volume(sr, vdi(1), Access::Rw).await.map(drop),
    ];
    for outcome in refused {
        assert!(matches!(outcome, Err(SrError::NotAttached)), "{outcome:?}");
    }
    // A missing SR does not prevent the detach.
    driver.deactivate_volume(sr, vdi(1)).await.unwrap();
    driver.detach_volume(sr, vdi(1)).await.unwrap();
}

async fn listed(driver: &dyn SrDriver, sr: SrId, expected: &[Volume]) {
    let SrScan { space, volumes, .. } = driver.scan(sr).await.unwrap();
    assert_eq!(volumes, expected);
    assert!(space.used <= space.total);
}

async fn volumes(driver: &dyn SrDriver, sr: SrId) {
    let made = driver.create_volume(sr, vdi(1), 3 * MIB + 1).await.unwrap();
    assert_eq!((made.vdi, made.read_only), (vdi(1), false));
    assert!((3 * MIB + 1..4 * MIB + 1).contains(&made.virtual_bytes), "{made:?}");
    assert!(made.physical_bytes <= made.virtual_bytes, "{made:?}");
    let again = driver.create_volume(sr, vdi(1), 3 * MIB + 1).await.unwrap();
    assert_eq!(again.virtual_bytes, made.virtual_bytes);
    listed(driver, sr, &[made]).await;

    let grown = driver.resize_volume(sr, vdi(1), 8 * MIB).await.unwrap();
    assert_eq!(grown.virtual_bytes, 8 * MIB);
    assert_eq!(driver.resize_volume(sr, vdi(1), 8 * MIB).await.unwrap().virtual_bytes, 8 * MIB);
    driver.create_volume(sr, vdi(2), MIB).await.unwrap();
    driver.destroy_volume(sr, vdi(2)).await.unwrap();
    driver.destroy_volume(sr, vdi(2)).await.unwrap();
    listed(driver, sr, &[grown]).await;
}

async fn refusals(driver: &dyn SrDriver, sr: SrId) {
    let before = driver.scan(sr).await.unwrap();
    driver.create_volume(sr, vdi(1), 9 * MIB).await.unwrap_err();
    let shrunk = driver.resize_volume(sr, vdi(1), MIB).await;
    assert!(matches!(shrunk, Err(SrError::Config { .. })), "{shrunk:?}");
    for bytes in [0, u64::MAX] {
        let refused = driver.create_volume(sr, vdi(2), bytes).await;
        assert!(matches!(refused, Err(SrError::Config { .. })), "{refused:?}");
    }
    for outcome in [
        driver.resize_volume(sr, vdi(9), MIB).await.map(drop),
        driver.attach_volume(sr, vdi(9), Access::Rw).await.map(drop),
    ] {
        assert!(matches!(outcome, Err(SrError::NoVolume(id)) if id == vdi(9)), "{outcome:?}");
    }
    assert_eq!(driver.scan(sr).await.unwrap().volumes, before.volumes, "nothing has changed");
}

async fn users(driver: &dyn SrDriver, sr: SrId) {
    for access in [Access::Ro, Access::Rw, Access::Rw] {
        let backend = driver.attach_volume(sr, vdi(1), access).await.unwrap();
        assert_eq!(driver.attach_volume(sr, vdi(1), access).await.unwrap(), backend);
        for _ in 0..2 {
            driver.activate_volume(sr, vdi(1)).await.unwrap();
        }
        for _ in 0..2 {
            driver.deactivate_volume(sr, vdi(1)).await.unwrap();
        }
        for _ in 0..2 {
            driver.detach_volume(sr, vdi(1)).await.unwrap();
        }
    }
}

/// Puts a new image over those of a volume, and creates it as a datapath would.
async fn push(driver: &dyn SrDriver, sr: SrId, (volume, layer): (VdiId, u8)) -> Volume {
    let prepared = driver.prepare_layer(sr, volume, vdi(layer).0, None).await.unwrap();
    // The simulator has no files.
    let _simulated = std::fs::write(prepared.file, "an image");
    let settled = driver.settle_layer(sr, volume, None).await.unwrap();
    let images = driver.images(sr, volume).await.unwrap();
    assert_eq!(driver.attach_volume(sr, volume, Access::Ro).await.unwrap().0, images);
    driver.detach_volume(sr, volume).await.unwrap();
    settled
}

async fn layers(driver: &dyn SrDriver, sr: SrId) {
    assert!(driver.features().contains(&SrFeature::VdiSnapshot));
    let bytes = driver.scan(sr).await.unwrap().volumes.remove(0).virtual_bytes;
    let present = push(driver, sr, (vdi(1), 40)).await;
    assert_eq!((present.virtual_bytes, present.read_only), (bytes, false));
    let snapshot_of = SnapshotOf { vdi: vdi(1), unix_seconds: 5 };
    let snapshot = driver.add_snapshot(sr, vdi(3), snapshot_of).await.unwrap();
    assert_eq!((snapshot.virtual_bytes, snapshot.read_only), (bytes, true));
    assert_eq!(snapshot.snapshot_of, Some(snapshot_of));
    for (of, clone, layer) in [(vdi(3), vdi(4), 41), (vdi(1), vdi(5), 42)] {
        assert!(driver.can_share(sr, of).await.unwrap());
        driver.add_clone(sr, clone, of).await.unwrap();
        let made = push(driver, sr, (clone, layer)).await;
        assert_eq!((made.vdi, made.virtual_bytes, made.read_only), (clone, bytes, false));
        assert_eq!(made.snapshot_of, None);
    }
    let block_size = driver.block_size(sr, vdi(1)).await.unwrap();
    driver.prepare_copy(sr, vdi(6), bytes, block_size).await.unwrap();
    let ids: Vec<_> =
        driver.scan(sr).await.unwrap().volumes.iter().map(|volume| volume.vdi).collect();
    assert_eq!(ids[..4], [1, 3, 4, 5].map(vdi));
    for volume in [3, 4, 5, 6].map(vdi) {
        driver.destroy_volume(sr, volume).await.unwrap();
    }
}

async fn beside_each_other(driver: &Arc<dyn SrDriver>, sr: SrId) {
    let mut calls = tokio::task::JoinSet::new();
    for n in 10..26 {
        let driver = Arc::clone(driver);
        calls.spawn(async move { driver.create_volume(sr, vdi(n), MIB).await.unwrap() });
    }
    let mut made = calls.join_all().await;
    assert_eq!(made.len(), 16);
    made.push(driver.scan(sr).await.unwrap().volumes.remove(0));
    made.sort_by_key(|volume| volume.vdi);
    let mut volumes = driver.scan(sr).await.unwrap().volumes;
    volumes.sort_by_key(|volume| volume.vdi);
    assert_eq!(volumes.len(), 17);
    assert!(volumes.iter().zip(&made).all(|(one, other)| one.vdi == other.vdi), "{volumes:?}");
}
