//! SR on a file system that is really full.

use std::path::Path;

use testkit::in_namespace::in_little_room;
use toolstack::sr::dir::DirDriver;
use toolstack::sr::{SrDriver, SrError, SrScan};

use super::dir::{at, host, sr, vdi};

const NAME: &str =
    concat!(module_path!(), "::a_full_file_system_is_told_and_is_usable_when_there_is_room");

#[test]
fn a_full_file_system_is_told_and_is_usable_when_there_is_room() {
    let inside = |dir: &Path| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(inside(dir));
    };
    in_little_room(NAME, 4, inside).unwrap();
}

async fn inside(dir: &Path) {
    let filler = dir.join("filler");
    let fill = || {
        let more = std::fs::write(&filler, vec![1; 8 << 20]).unwrap_err();
        assert_eq!(more.kind(), std::io::ErrorKind::StorageFull);
    };
    let (place, driver) = (dir.join("sr"), DirDriver::new("dir", host(), "/nonexistent".into()));
    let full = |outcome: Result<(), SrError>, bytes: u64| match outcome {
        Err(SrError::Full { needed, free }) => assert!(needed >= bytes && free < 1 << 20),
        outcome => panic!("{outcome:?}"),
    };
    fill();
    // There is no space even for the marker.
    full(driver.create(sr(), &at(&place)).await, 1);
    std::fs::remove_file(&filler).unwrap();
    driver.create(sr(), &at(&place)).await.unwrap();
    driver.attach(sr(), &at(&place)).await.unwrap();
    // The volume is larger than the file system, but uses no space until it is written.
    driver.create_volume(sr(), vdi(1), 1 << 30).await.unwrap();
    fill();
    full(driver.create_volume(sr(), vdi(2), 1 << 20).await.map(drop), 1 << 20);
    full(driver.resize_volume(sr(), vdi(1), 3 << 30).await.map(drop), 2 << 30);
    let SrScan { space, volumes, .. } = driver.scan(sr()).await.unwrap();
    assert!(space.used == space.total && volumes.len() == 1, "{space:?} {volumes:?}");
    assert_eq!(volumes.first().unwrap().virtual_bytes, 1 << 30);
    // Operations that free space succeed.
    driver.create_volume(sr(), vdi(1), 1 << 30).await.unwrap();
    std::fs::remove_file(&filler).unwrap();
    driver.create_volume(sr(), vdi(2), 1 << 20).await.unwrap();
    driver.resize_volume(sr(), vdi(1), 3 << 30).await.unwrap();
    fill();
    driver.destroy_volume(sr(), vdi(2)).await.unwrap();
    driver.destroy_volume(sr(), vdi(1)).await.unwrap();
    assert_eq!(driver.scan(sr()).await.unwrap().volumes, []);
}
