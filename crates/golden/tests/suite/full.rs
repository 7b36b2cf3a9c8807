//! A file system without room: blocks stay in memory, a reserve stays free.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use disk::Disk;
use disk::conformance::Client;
use model::spec::GoldenImage;
use serde_json::json;

use crate::servers::{Server, image};

/// Directory of the small file system, in the program that the test starts in its own mount namespace.
const DIRECTORY: &str = "RINGWAY_TEST_SMALL";
/// Shell script: `$1` is the directory, the other arguments are the program.
const SCRIPT: &str = r#"mount -t tmpfs -o size=8m none "$1"; shift; exec "$@""#;

#[test]
fn a_full_disk_costs_the_cache_file_only() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        return fill(&PathBuf::from(directory));
    }
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-ec", SCRIPT, "sh"])
        .arg(folder.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "full::a_full_disk_costs_the_cache_file_only"])
        .env(DIRECTORY, folder.path())
        .output()
        .expect("needs root and `unshare` of Debian's util-linux");
    assert!(output.status.success(), "{output:?}");
}

/// Reads an image of twice the size of the file system.
fn fill(directory: &Path) {
    let bytes = image(256);
    let server = Server::nbd(bytes.clone());
    let spec = json!({"source": server.source, "cache": directory.join("cache"), "ram": 4 << 20});
    let spec: GoldenImage = serde_json::from_value(spec).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(golden::open(&spec, 512).unwrap());
    let client = Client::new(&disk);
    for _ in 0..2 {
        assert!(client.read(0, bytes.len() as u64) == bytes);
    }
    let free = || {
        let found = rustix::fs::statvfs(directory).unwrap();
        found.f_bavail * found.f_frsize
    };
    let state = disk.cache_state().unwrap();
    assert!(state.file_problem.unwrap().contains("are for others"));
    assert!(state.stored > 90 && state.stored < 128, "{}", state.stored);
    assert!(free() >= (8 << 20) / 20, "{} bytes are free", free());
    // Another program takes the rest, and gives it back.
    let other = directory.join("other");
    let taken = vec![1; free() as usize];
    std::fs::write(&other, taken).unwrap();
    assert!(client.read(0, bytes.len() as u64) == bytes);
    std::fs::remove_file(&other).unwrap();
    assert!(client.read(0, bytes.len() as u64) == bytes);
    assert!(free() >= (8 << 20) / 20, "{} bytes are free", free());
}
