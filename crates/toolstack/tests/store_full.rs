//! The store on a file system that is really full: a small tmpfs, in a mount namespace of its own.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::path::Path;
use std::process::Command;

use toolstack::store::{Batch, Key, Memory, Redb, Store, StoreError};

/// Where the tmpfs is, told to this program when it is started again inside of the namespace.
const INSIDE: &str = "RINGWAY_STORE_FULL_DIR";
const NAME: &str = "a_full_file_system_costs_a_batch_and_no_restart";
/// Mounts `$1`, then becomes the rest.
const MOUNT: &str = r#"mount -t tmpfs -o size=6m none "$1" && shift && exec "$@""#;
const NEEDS: &str = "needs root and `unshare` and `mount` of Debian's util-linux";
/// What is there at first, and is removed to make room.
const FILLER_BYTES: usize = 3 << 20;
/// More batches than fit.
const BATCHES_MAX: u64 = 200;

fn batch(number: u64) -> Batch {
    let mut batch = Batch { generation: number, ceiling: number, ..Batch::default() };
    for part in 0..3 {
        batch.put(Key::new("obj/VM", format!("{number} {part}")), vec![number as u8; 20_000]);
    }
    batch
}

#[test]
fn a_full_file_system_costs_a_batch_and_no_restart() {
    if let Some(dir) = std::env::var_os(INSIDE) {
        return inside(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", MOUNT, "sh"]).arg(dir.path());
    command.arg(std::env::current_exe().unwrap()).args(["--exact", NAME, "--nocapture"]);
    let output = command.env(INSIDE, dir.path()).output().expect(NEEDS);
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("1 passed"), "{NEEDS}: {said}");
    print!("{said}");
}

fn inside(dir: &Path) {
    let (filler, state) = (dir.join("filler"), dir.join("state.redb"));
    std::fs::write(&filler, vec![1; FILLER_BYTES]).unwrap();
    let (mut store, mut expected) = (Redb::open(&state).unwrap(), Memory::default());
    let mut fill = |store: &mut Redb| {
        let first = store.load().unwrap().generation + 1;
        let full = (first..=BATCHES_MAX).find_map(|number| match store.commit(&batch(number)) {
            Ok(()) => {
                expected.commit(&batch(number)).unwrap();
                None
            }
            Err(error) => Some((number, error)),
        });
        let (number, error) = full.expect("the file system is small");
        assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
        assert!(error.to_string().contains(state.to_str().unwrap()), "{error}");
        assert!(store.load().unwrap() == expected.load().unwrap(), "batch {number} is there");
        number
    };
    let first = fill(&mut store);
    assert!(first > 1, "nothing fits");
    std::fs::remove_file(&filler).unwrap();
    let second = fill(&mut store);
    println!("full at batch {first}, and with more room at batch {second}");
    assert!(second > first, "what was freed is of use without a restart");
    drop(store);
    assert!(Redb::open(&state).unwrap().load().unwrap() == expected.load().unwrap());
}
