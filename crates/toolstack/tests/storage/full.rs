//! An SR on a file system that is really full: a small tmpfs, in a mount namespace of its own.

use std::path::Path;
use std::process::Command;

use toolstack::sr::dir::Dir;
use toolstack::sr::{SrDriver, SrError};

use super::dir::{at, host, sr, vdi};

/// Where the tmpfs is, told to this program when it is started again inside of the namespace.
const INSIDE: &str = "RINGWAY_SR_FULL_DIR";
const NAME: &str = "full::a_full_file_system_is_told_and_is_usable_when_there_is_room";
/// Mounts `$1`, then becomes the rest.
const MOUNT: &str = r#"mount -t tmpfs -o size=4m none "$1" && shift && exec "$@""#;
const NEEDS: &str = "needs root and `unshare` and `mount` of Debian's util-linux";

#[test]
fn a_full_file_system_is_told_and_is_usable_when_there_is_room() {
    if let Some(dir) = std::env::var_os(INSIDE) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        return runtime.block_on(inside(Path::new(&dir)));
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", MOUNT, "sh"]).arg(dir.path());
    command.arg(std::env::current_exe().unwrap()).args(["--exact", NAME, "--nocapture"]);
    let output = command.env(INSIDE, dir.path()).output().expect(NEEDS);
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("1 passed"), "{NEEDS}: {said}");
}

async fn inside(dir: &Path) {
    let filler = dir.join("filler");
    let fill = || {
        let more = std::fs::write(&filler, vec![1; 8 << 20]).unwrap_err();
        assert_eq!(more.kind(), std::io::ErrorKind::StorageFull);
    };
    let (place, driver) = (dir.join("sr"), Dir::new(host(), "/nonexistent".into()));
    let full = |outcome: Result<(), SrError>, bytes: u64| match outcome {
        Err(SrError::Full { needed, free }) => assert!(needed >= bytes && free < 1 << 20),
        outcome => panic!("{outcome:?}"),
    };
    fill();
    // Not even the few bytes that say whose directory it is.
    full(driver.create(sr(), &at(&place)).await, 1);
    std::fs::remove_file(&filler).unwrap();
    driver.create(sr(), &at(&place)).await.unwrap();
    driver.attach(sr(), &at(&place)).await.unwrap();
    // Larger than the file system: it takes no room until it is written.
    driver.create_volume(sr(), vdi(1), 1 << 30).await.unwrap();
    fill();
    full(driver.create_volume(sr(), vdi(2), 1 << 20).await.map(drop), 1 << 20);
    full(driver.resize_volume(sr(), vdi(1), 3 << 30).await.map(drop), 2 << 30);
    let (space, volumes) = driver.scan(sr()).await.unwrap();
    assert!(space.used == space.total && volumes.len() == 1, "{space:?} {volumes:?}");
    assert_eq!(volumes.first().unwrap().virtual_bytes, 1 << 30);
    // What frees room works.
    driver.create_volume(sr(), vdi(1), 1 << 30).await.unwrap();
    std::fs::remove_file(&filler).unwrap();
    driver.create_volume(sr(), vdi(2), 1 << 20).await.unwrap();
    driver.resize_volume(sr(), vdi(1), 3 << 30).await.unwrap();
    fill();
    driver.destroy_volume(sr(), vdi(2)).await.unwrap();
    driver.destroy_volume(sr(), vdi(1)).await.unwrap();
    assert_eq!(driver.scan(sr()).await.unwrap().1, []);
}
